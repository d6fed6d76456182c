-- Which runs of the last week cost most?
SELECT run, job, began_at, ended_at, energy_j,
    (SELECT sum(saved_j) FROM savings WHERE savings.run = run_energy.run AND applied) AS saved_j
FROM run_energy WHERE began_at > (now() AT TIME ZONE 'UTC') - INTERVAL 7 DAY
ORDER BY energy_j DESC;
