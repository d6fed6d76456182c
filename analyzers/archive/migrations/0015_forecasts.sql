-- Version 15.

CREATE TABLE forecasts (
    "run" VARCHAR,
    "step" BIGINT,
    "made_wall_ns" BIGINT,
    "epochs_done" BIGINT,
    "epochs" BIGINT,
    "steps" BIGINT,
    "power_limit_w" DOUBLE,
    "spent_j" DOUBLE,
    "spent_s" DOUBLE,
    "energy_j" DOUBLE,
    "energy_p2_5_j" DOUBLE,
    "energy_p97_5_j" DOUBLE,
    "duration_s" DOUBLE,
    "duration_p2_5_s" DOUBLE,
    "duration_p97_5_s" DOUBLE
);

-- The latest forecast of each run.
CREATE VIEW run_forecasts AS
SELECT *, make_timestamp(made_wall_ns // 1000) AS made_at, energy_j - spent_j AS left_j, duration_s - spent_s AS left_s
FROM forecasts QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) = 1;

-- What it comes to by each signal, at the value that was in force when it was made.
CREATE VIEW forecast_costs AS
WITH present AS (
    SELECT * FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
        AND value IS NOT NULL
), pue AS (
    SELECT (SELECT nullif(value::DOUBLE, 0) FROM settings
        WHERE settings.name = 'pue' AND start = (SELECT max(start) FROM settings)) AS pue
), named AS (
    SELECT run_forecasts.*, names.name FROM run_forecasts CROSS JOIN (SELECT DISTINCT name FROM present) AS names
)
SELECT run, named.name, split_part(unit, '/', 1) AS unit, energy_j / 3.6e6 * value * coalesce(pue, 1) AS amount,
    energy_p2_5_j / 3.6e6 * value * coalesce(pue, 1) AS amount_p2_5,
    energy_p97_5_j / 3.6e6 * value * coalesce(pue, 1) AS amount_p97_5,
    value AS factor, unit AS factor_unit, pue, place, year, source, licence
FROM named ASOF JOIN present ON named.name = present.name AND named.made_at >= present.begins_at CROSS JOIN pue
WHERE coalesce(ends_at, 'infinity') > made_at;
