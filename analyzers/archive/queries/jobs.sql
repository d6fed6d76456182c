-- How do jobs compare?
WITH ran AS (
    SELECT job, run, max(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows WHERE kind = 'run' AND NOT of_host(gpu) GROUP BY job, run
)
SELECT job, count(*) AS runs, avg(duration_s) AS duration_s, avg(energy_j) AS energy_j,
    sum(energy_j) / sum(duration_s) FILTER (energy_j IS NOT NULL) AS average_power_w
FROM ran GROUP BY job ORDER BY energy_j DESC;
