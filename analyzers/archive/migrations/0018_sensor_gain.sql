-- Version 18.

ALTER TABLE gpus ADD COLUMN "sensor_gain" DOUBLE;

ALTER TABLE gpus ADD COLUMN "sensor_gain_error" DOUBLE;

ALTER TABLE gpus ADD COLUMN "sensor_calibrated" BOOLEAN;

ALTER TABLE gpus ADD COLUMN "sensor_gain_source" VARCHAR;

-- The energy of a run with what is not known of the gain of its sensors. A calibrated gain is taken out of
-- windows, which then name it; another is divided out here. Cards are taken to be off in one direction.
CREATE VIEW true_energy AS
WITH parts AS (
    SELECT run, energy_j, energy_p2_5_j, energy_p97_5_j, sensor_calibrated, sensor_gain_error / sensor_gain AS doubt,
        CASE WHEN regexp_matches(quality, '(^|; )gain [0-9]') THEN 1 ELSE sensor_gain END AS gain
    FROM windows LEFT JOIN gpus USING (gpu) WHERE kind = 'run' AND gpu IS NOT NULL AND NOT of_host(gpu)
), sums AS (
    SELECT run, sum(energy_j) AS sensor_j, sqrt(sum((energy_j - energy_p2_5_j) ** 2)) AS below_j,
        sqrt(sum((energy_p97_5_j - energy_j) ** 2)) AS above_j, sum(energy_j / gain) AS true_j,
        sqrt(sum(((energy_j - energy_p2_5_j) / gain) ** 2) + sum(doubt * energy_j / gain) ** 2) AS true_below_j,
        sqrt(sum(((energy_p97_5_j - energy_j) / gain) ** 2) + sum(doubt * energy_j / gain) ** 2) AS true_above_j,
        100 * sum(doubt * energy_j / gain) / nullif(sum(energy_j / gain), 0) AS doubt_percent,
        bool_and(sensor_calibrated) AS calibrated, count(energy_j) = count(*) AS whole,
        count(energy_j / gain) = count(*) AS known
    FROM parts GROUP BY run
)
SELECT run, CASE WHEN whole THEN sensor_j END AS sensor_j,
    CASE WHEN whole THEN greatest(sensor_j - below_j, 0) END AS sensor_p2_5_j,
    CASE WHEN whole THEN sensor_j + above_j END AS sensor_p97_5_j,
    CASE WHEN known THEN true_j END AS true_j,
    CASE WHEN known THEN greatest(true_j - true_below_j, 0) END AS true_p2_5_j,
    CASE WHEN known THEN true_j + true_above_j END AS true_p97_5_j,
    CASE WHEN known THEN doubt_percent END AS doubt_percent, coalesce(calibrated, false) AS calibrated
FROM sums;
