-- What did each GPU draw on average, minute by minute?
WITH reads AS (
    SELECT gpu, date_trunc('minute', read_at) AS minute, power_w,
        energy_j - lag(energy_j) OVER one_gpu AS used_j,
        (t_hi_ns - lag(t_hi_ns) OVER one_gpu) / 1e9 AS duration_s
    FROM samples WINDOW one_gpu AS (PARTITION BY gpu ORDER BY read_at)
), minutes AS (
    SELECT gpu, minute, sum(used_j) FILTER (used_j >= 0) / sum(duration_s) FILTER (used_j >= 0) AS counted_w,
        avg(power_w) AS sensed_w
    FROM reads GROUP BY gpu, minute
)
SELECT gpu, minute, coalesce(counted_w, sensed_w) AS power_w  -- sensed where there is no counter
FROM minutes ORDER BY gpu, minute;
