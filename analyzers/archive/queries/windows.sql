-- What did the parts of a training cost that the script named?
SELECT job, name, count(DISTINCT (session, index)) AS windows, sum(duration_s) AS gpu_s,
    CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
    count(*) - count(energy_j) AS unmeasured
FROM windows WHERE kind = 'window' AND NOT of_host(gpu) GROUP BY job, name ORDER BY energy_j DESC;
