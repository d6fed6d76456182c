-- How much energy did each GPU use while no run was on it?
WITH used AS (
    SELECT gpu, sum(energy_j) AS energy_j FROM power WHERE NOT of_host(gpu) GROUP BY gpu
), ran AS (
    SELECT gpu, sum(energy_j) AS energy_j FROM windows WHERE kind = 'run' AND NOT shared GROUP BY gpu
)
SELECT gpu, used.energy_j, coalesce(ran.energy_j, 0) AS in_runs_j,
    used.energy_j - in_runs_j AS idle_j, 100 * idle_j / used.energy_j AS idle_percent
FROM used LEFT JOIN ran USING (gpu) ORDER BY idle_j DESC;
