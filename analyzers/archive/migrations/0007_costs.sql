-- Money and carbon: signals, and what runs cost by them. Factors are joined when they are asked for.

CREATE TABLE signals (
    name VARCHAR, unit VARCHAR, begin_ns BIGINT, end_ns BIGINT, begins_at TIMESTAMP, ends_at TIMESTAMP, value DOUBLE,
    place VARCHAR, year BIGINT, source VARCHAR, licence VARCHAR, imported_ns BIGINT
);

-- The energy of each run, once it is closed. Of ranks that have a GPU in common the lowest counts.
CREATE VIEW run_energy AS
WITH wholes AS (
    SELECT *, epoch_us(began_at) AS began_us, epoch_us(began_at) + (end_ns - begin_ns) // 1000 AS ended_us
    FROM windows WHERE kind = 'run' AND gpu IS NOT NULL AND NOT of_host(gpu)
)
SELECT run, any_value(job) AS job, make_timestamp(min(began_us)) AS began_at, make_timestamp(max(ended_us)) AS ended_at,
    CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
FROM wholes AS mine WHERE NOT EXISTS (
    FROM wholes AS other WHERE other.run = mine.run AND other.gpu = mine.gpu AND other.session <> mine.session
        AND other.began_us < mine.ended_us AND other.ended_us > mine.began_us
        AND (other.rank < mine.rank OR (other.rank = mine.rank
            AND (other.duration_s, other.session) > (mine.duration_s, mine.session))))
GROUP BY run;

-- What each closed run costs by each signal. Steps have the value of the time at which they began; what a run used
-- outside of steps has the mean value of its time.
CREATE VIEW costs AS
WITH present AS (
    SELECT * FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
        AND value IS NOT NULL
), overlapping AS (
    SELECT run, name, begins_at, value, epoch_us(least(ended_at, coalesce(ends_at, ended_at)))
        - epoch_us(greatest(began_at, begins_at)) AS overlap_us
    FROM run_energy JOIN present ON begins_at < ended_at AND coalesce(ends_at, 'infinity') > began_at
), means AS (
    SELECT run, name, count(*) AS values, sum(overlap_us) AS covered_us,
        sum(overlap_us * value) / nullif(sum(overlap_us), 0) AS mean_value
    FROM overlapping GROUP BY run, name
), by_steps AS (
    SELECT steps.run, steps.name, sum(energy_j) AS energy_j, sum(energy_j * value) AS weighted
    FROM (
        SELECT windows.run, means.name, began_at, energy_j FROM windows JOIN means USING (run)
        WHERE kind = 'step' AND NOT of_host(gpu) AND means.values > 1 AND energy_j IS NOT NULL
    ) AS steps ASOF JOIN present ON steps.name = present.name AND steps.began_at >= present.begins_at
    GROUP BY steps.run, steps.name
), about AS (
    SELECT name, any_value(unit) AS unit, any_value(place) AS place, any_value(year) AS year,
        any_value(source) AS source, any_value(licence) AS licence
    FROM present GROUP BY name
), pue AS (
    SELECT (SELECT nullif(value::DOUBLE, 0) FROM settings
        WHERE settings.name = 'pue' AND start = (SELECT max(start) FROM settings)) AS pue
), weighted AS (
    SELECT run_energy.run, job, about.name, split_part(unit, '/', 1) AS unit, run_energy.energy_j / 3.6e6 AS energy_kwh,
        pue, CASE WHEN covered_us >= epoch_us(ended_at) - epoch_us(began_at) - 1_000_000 THEN
            coalesce(weighted + greatest(run_energy.energy_j - by_steps.energy_j, 0) * mean_value,
                run_energy.energy_j * mean_value) / nullif(run_energy.energy_j, 0) END AS factor,
        unit AS factor_unit, place, year, source, licence, run_energy.energy_j IS NULL AS missing
    FROM run_energy CROSS JOIN about CROSS JOIN pue LEFT JOIN means ON means.run = run_energy.run
        AND means.name = about.name
    LEFT JOIN by_steps ON by_steps.run = run_energy.run AND by_steps.name = about.name
)
SELECT run, job, name, unit, energy_kwh * factor * coalesce(pue, 1) AS amount, energy_kwh, factor, factor_unit, pue,
    place, year, source, licence,
    CASE WHEN missing THEN 'energy of a GPU is missing' WHEN factor IS NULL THEN 'the signal does not cover the run'
        WHEN pue IS NULL THEN 'GPUs only' ELSE 'GPUs x PUE' END AS basis
FROM weighted;
