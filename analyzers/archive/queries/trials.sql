-- What was measured at each power limit in the last run?
WITH last AS (
    SELECT run FROM runs WHERE run IN (SELECT run FROM trials) ORDER BY began_at DESC LIMIT 1
)
SELECT number, power_limit_w, steps, 1000 * duration_s / steps AS step_ms, energy_j / steps AS step_j,
    average_power_w, cost, temperature_c, confirms
FROM trials JOIN last USING (run) ORDER BY number;
