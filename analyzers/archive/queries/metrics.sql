-- How much energy had the steps taken when a metric got to where it was?
WITH spent AS (
    SELECT run, step, sum(energy_j) OVER (PARTITION BY run ORDER BY step) AS energy_j FROM steps
)
SELECT run, name, step, value, energy_j
FROM metrics JOIN spent USING (run, step) ORDER BY run, name, step;
