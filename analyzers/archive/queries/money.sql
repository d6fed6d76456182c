-- What did each run cost in money, at a price for the kilowatt-hour?
WITH price AS (SELECT 0.30 AS per_kwh)
SELECT run, job, CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END / 3.6e6 AS energy_kwh,
    energy_kwh * any_value(per_kwh) AS cost, max(duration_s) / 3600 AS duration_h
FROM windows, price WHERE kind = 'run' AND NOT of_host(gpu) GROUP BY run, job ORDER BY cost DESC;
