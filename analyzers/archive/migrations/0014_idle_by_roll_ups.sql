-- Version 14: what GPUs used while no run had them, from roll-ups; all readings were read for it.

CREATE OR REPLACE VIEW idle_gpus AS
WITH used AS (
    SELECT gpu, sum(energy_j) AS energy_j, sum(covered_s) AS duration_s FROM power WHERE NOT of_host(gpu) GROUP BY gpu
), placed AS (
    SELECT gpu, energy_j, duration_s, began_at, end_ns, begin_ns,
        max(began_at + to_microseconds((end_ns - begin_ns) // 1000)) OVER (
            PARTITION BY gpu ORDER BY began_at, end_ns - begin_ns DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_at
    FROM windows WHERE kind = 'run' AND gpu IS NOT NULL
), ran AS (
    SELECT gpu, CASE WHEN count(share * energy_j) = count(*) THEN sum(share * energy_j) END AS energy_j,
        sum(share * duration_s) AS duration_s
    FROM (
        SELECT *, CASE WHEN covered_at IS NULL OR began_at >= covered_at THEN 1
            WHEN began_at + to_microseconds((end_ns - begin_ns) // 1000) <= covered_at THEN 0 END AS share
        FROM placed
    ) GROUP BY gpu
)
SELECT gpu, host, idle.energy_j, idle.duration_s, idle.energy_j / nullif(all_j, 0) AS share
FROM (
    SELECT gpu, used.energy_j AS all_j, greatest(used.duration_s - coalesce(ran.duration_s, 0), 0) AS duration_s,
        CASE WHEN ran.gpu IS NULL THEN used.energy_j WHEN ran.energy_j IS NOT NULL
            THEN greatest(used.energy_j - ran.energy_j, 0) END AS energy_j
    FROM used LEFT JOIN ran USING (gpu)
) AS idle LEFT JOIN gpus USING (gpu);
