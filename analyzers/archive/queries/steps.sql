-- Which ten steps took the most energy?
SELECT run, step, began_at, duration_s, energy_j, power_limit_w, quality
FROM steps WHERE energy_j IS NOT NULL ORDER BY energy_j DESC, run, step LIMIT 10;
