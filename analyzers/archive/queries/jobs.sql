-- How do jobs compare? A pause between two attempts of a run is not in its time.
WITH seen AS (
    SELECT *, max(ended_us) OVER (PARTITION BY run ORDER BY began_us ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        AS earlier_us
    FROM counted_wholes()
), ran AS (
    SELECT job, run, sum_of_all(energy_j) AS energy_j,
        sum(greatest(ended_us - greatest(began_us, coalesce(earlier_us, began_us)), 0)) / 1e6 AS duration_s
    FROM seen GROUP BY job, run
)
SELECT job, count(*) AS runs, avg(duration_s) AS duration_s, avg(energy_j) AS energy_j,
    sum(energy_j) / sum(duration_s) FILTER (energy_j IS NOT NULL) AS average_power_w
FROM ran GROUP BY job ORDER BY energy_j DESC;
