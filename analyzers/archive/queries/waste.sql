-- Where did the energy of each job go?
-- Seconds of profiling are below 0 where its trials were faster than the choice.
SELECT job, cause, sum(energy_j) AS energy_j, sum(duration_s) AS duration_s,
    100 * sum(energy_j) / sum(sum(energy_j)) OVER (PARTITION BY job) AS percent
FROM waste GROUP BY job, cause ORDER BY job NULLS LAST, energy_j DESC;
