-- Version 4: UTC and host of each reading, roll-ups by second, minute and hour, and what retention keeps.

DROP VIEW samples;

ALTER TABLE readings RENAME TO old_readings;

CREATE TABLE readings AS
SELECT old.*, coalesce(hosts.host, logs.host) AS host,
    utc(hosts.wall_ns, hosts.monotonic_ns, old.t_hi_ns) AS read_at
FROM (SELECT *, rowid AS place FROM old_readings) AS old
ASOF LEFT JOIN hosts ON old.log_id = hosts.log_id AND old."offset" >= hosts."offset"
LEFT JOIN logs ON old.log_id = logs.log_id
ORDER BY place;

ALTER TABLE readings DROP COLUMN place;

DROP TABLE old_readings;

CREATE VIEW samples AS
SELECT gpu, host, read_at, t_hi_ns, energy_mj / 1000 AS energy_j, power_mw / 1000 AS power_w,
    limit_mw / 1000 AS limit_w, clock_mhz, temperature_c, utilization_pct
FROM readings;

-- What `analyzers/archive/rollups/rollup.py` writes. Of readings from before this version the energy between two readings
-- counts in the second of the later one; bins that are still open are left out, since they are written later.
CREATE TABLE seconds AS
WITH closed AS (
    SELECT logs.log_id, utc(last(wall_ns ORDER BY hosts."offset"), last(monotonic_ns ORDER BY hosts."offset"),
        last(logs.logged_ns) - 2_000_000_000) AS closed_at
    FROM logs JOIN hosts USING (log_id) GROUP BY logs.log_id
), reads AS (
    SELECT *, lag(t_hi_ns) OVER one_gpu AS before_ns, lag(energy_mj) OVER one_gpu AS before_mj,
        lag(power_mw) OVER one_gpu AS before_mw, lag(seen) OVER one_gpu AS before_seen
    FROM readings WINDOW one_gpu AS (PARTITION BY log_id, gpu ORDER BY "offset", t_hi_ns)
), spans AS (
    SELECT *, CASE
        WHEN t_hi_ns - before_ns NOT BETWEEN 1 AND 65_000_000_000 THEN NULL
        WHEN seen = 'power' AND before_seen = 'power' THEN before_mw * ((t_hi_ns - before_ns) / 1e12)
        WHEN seen IN ('changed', 'unchanged') AND before_seen <> 'power' AND energy_mj >= before_mj
            THEN (energy_mj - before_mj) / 1000
        END AS used_j
    FROM reads
)
SELECT gpu, host, date_trunc('second', read_at) AS began_at, sum(used_j) AS energy_j,
    coalesce(sum(t_hi_ns - before_ns) FILTER (used_j IS NOT NULL), 0) / 1e9 AS covered_s,
    max(power_mw) / 1000 AS peak_w, round(avg(limit_mw) / 1000, 1) AS limit_w, round(avg(clock_mhz), 1) AS clock_mhz,
    max(temperature_c)::DOUBLE AS temperature_c, round(avg(utilization_pct), 1) AS utilization_pct,
    count(*) AS readings
FROM spans JOIN closed USING (log_id) WHERE read_at < date_trunc('second', closed_at)
GROUP BY gpu, host, date_trunc('second', read_at), log_id ORDER BY began_at, gpu;

CREATE MACRO rolled_up(span) AS TABLE
SELECT gpu, host, date_trunc(span, seconds.began_at) AS began_at, sum(energy_j) AS energy_j,
    sum(covered_s) AS covered_s, max(peak_w) AS peak_w,
    sum(limit_w * readings) / sum(readings) FILTER (limit_w IS NOT NULL) AS limit_w,
    sum(clock_mhz * readings) / sum(readings) FILTER (clock_mhz IS NOT NULL) AS clock_mhz,
    max(temperature_c) AS temperature_c,
    sum(utilization_pct * readings) / sum(readings) FILTER (utilization_pct IS NOT NULL) AS utilization_pct,
    sum(readings)::BIGINT AS readings
FROM seconds JOIN (
    SELECT host, date_trunc('minute', max(began_at) + INTERVAL 1 SECOND) AS closed_at FROM seconds GROUP BY host
) USING (host) WHERE seconds.began_at < closed_at
GROUP BY gpu, host, date_trunc(span, seconds.began_at) ORDER BY ALL;

CREATE TABLE minutes AS FROM rolled_up('minute');

CREATE TABLE hours AS FROM rolled_up('hour');

DROP MACRO TABLE rolled_up;

-- Energy of each GPU by second, minute or hour: the finest that is kept of a time.
CREATE VIEW power AS
WITH kept AS (
    SELECT coalesce((SELECT date_trunc('hour', min(began_at)) FROM seconds), 'infinity') AS seconds_since,
        coalesce((SELECT date_trunc('hour', min(began_at)) FROM minutes), 'infinity') AS minutes_since
), parts AS (
    SELECT 1 AS length_s, * FROM seconds
    UNION ALL
    SELECT 60, minutes.* FROM minutes, kept WHERE began_at < seconds_since
    UNION ALL
    SELECT 3600, hours.* FROM hours, kept WHERE began_at < seconds_since AND began_at < minutes_since
)
SELECT gpu, host, began_at, length_s, energy_j, covered_s, energy_j / covered_s AS power_w,
    * EXCLUDE (gpu, host, began_at, length_s, energy_j, covered_s)
FROM parts;

-- What retention has removed, by table.
CREATE TABLE removed ("table" VARCHAR, before TIMESTAMP, rows BIGINT, removed_at TIMESTAMP);

-- Savings of runs whose steps are removed, as they were then.
ALTER VIEW savings RENAME TO savings_by_steps;

CREATE TABLE kept_savings AS FROM savings_by_steps LIMIT 0;

CREATE VIEW savings AS
FROM savings_by_steps WHERE run NOT IN (SELECT run FROM kept_savings) UNION ALL FROM kept_savings;
