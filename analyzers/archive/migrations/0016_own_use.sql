-- Version 16.

CREATE TABLE own_use (
    "host" VARCHAR,
    "service" VARCHAR,
    "began_wall_ns" BIGINT,
    "ended_wall_ns" BIGINT,
    "began_at" TIMESTAMP,
    "ended_at" TIMESTAMP,
    "duration_s" DOUBLE,
    "cpu_s" DOUBLE,
    "host_cpu_s" DOUBLE,
    "processors" BIGINT,
    "host_energy_j" DOUBLE,
    "energy_low_j" DOUBLE,
    "energy_high_j" DOUBLE,
    "reason" VARCHAR
);

-- What zeus-stream itself used while a run lasted, beside what it measured of all runs in that time. NULL where
-- the records of a service cover less than half of it.
CREATE VIEW own_use_of_runs AS
WITH lasted AS (
    SELECT run, min(began_at) AS began_at, max(ended_at) AS ended_at, list(DISTINCT host) AS hosts,
        epoch(max(ended_at) - min(began_at)) AS duration_s
    FROM runs WHERE world_size > 0 GROUP BY run HAVING count(ended_at) = count(*)
), used AS (
    SELECT run, service, own_use.host, any_value(lasted.duration_s) AS lasted_s,
        sum(epoch(least(lasted.ended_at, own_use.ended_at) - greatest(lasted.began_at, own_use.began_at))) AS covered_s,
        sum(cpu_s * part) AS cpu_s, sum(energy_low_j * part) AS low_j, sum(energy_high_j * part) AS high_j,
        count(*) = count(energy_low_j) AS whole, max(reason) AS reason
    FROM lasted JOIN own_use ON own_use.began_at < lasted.ended_at AND own_use.ended_at > lasted.began_at
        AND (service = 'analyzer' OR list_contains(hosts, own_use.host)),
        LATERAL (SELECT epoch(least(lasted.ended_at, own_use.ended_at) - greatest(lasted.began_at, own_use.began_at))
            / own_use.duration_s AS part)
    WHERE own_use.duration_s > 0 GROUP BY ALL
), measured AS (
    SELECT lasted.run, CASE WHEN count(energy_j) = count(*) THEN sum(energy_j * greatest(epoch(
        least(lasted.ended_at, windows.began_at + to_microseconds((windows.duration_s * 1e6)::BIGINT))
            - greatest(lasted.began_at, windows.began_at)), 0) / windows.duration_s) END AS energy_j
    FROM lasted JOIN windows ON windows.kind = 'run' AND NOT of_host(gpu) AND windows.duration_s > 0
        AND windows.began_at < lasted.ended_at
        AND windows.began_at + to_microseconds((windows.duration_s * 1e6)::BIGINT) > lasted.began_at
    GROUP BY lasted.run
)
SELECT run, service, host, cpu_s * lasted_s / covered_s AS cpu_s, 100 * cpu_s / covered_s AS core_percent,
    CASE WHEN whole THEN low_j * lasted_s / covered_s END AS energy_low_j,
    CASE WHEN whole THEN high_j * lasted_s / covered_s END AS energy_high_j,
    measured.energy_j AS measured_j,
    CASE WHEN whole THEN 100 * low_j * lasted_s / covered_s / nullif(measured.energy_j, 0) END AS share_low_percent,
    CASE WHEN whole THEN 100 * high_j * lasted_s / covered_s / nullif(measured.energy_j, 0) END AS share_high_percent,
    reason
FROM used LEFT JOIN measured USING (run) WHERE covered_s >= lasted_s / 2;
