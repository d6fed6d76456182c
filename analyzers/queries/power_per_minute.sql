-- What did each GPU draw on average, minute by minute?
WITH reads AS (
    SELECT gpu, date_trunc('minute', read_at) AS minute, power_w,
        energy_j - lag(energy_j) OVER one_gpu AS used_j,
        (t_hi_ns - lag(t_hi_ns) OVER one_gpu) / 1e9 AS duration_s
    FROM samples WINDOW one_gpu AS (PARTITION BY gpu ORDER BY read_at)
)
SELECT gpu, minute,  -- by the counter, but where it began anew; by the sensor on GPUs without a counter
    coalesce(sum(used_j) FILTER (used_j >= 0) / sum(duration_s) FILTER (used_j >= 0), avg(power_w)) AS power_w
FROM reads GROUP BY gpu, minute ORDER BY gpu, minute;
