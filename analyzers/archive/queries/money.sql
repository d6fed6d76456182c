-- What did each run cost in money, at a price for the kilowatt-hour?
WITH price AS (SELECT 0.30 AS per_kwh)
SELECT run, job, began_at, energy_j / 3.6e6 AS energy_kwh, energy_kwh * per_kwh AS cost
FROM run_energy, price ORDER BY cost DESC;
