-- How long do steps take at each power limit?
SELECT job, power_limit_w, count(*) AS steps, 1000 * median(duration_s) AS median_ms,
    1000 * quantile_cont(duration_s, 0.9) AS p90_ms, 1000 * quantile_cont(duration_s, 0.99) AS p99_ms
FROM steps WHERE power_limit_w IS NOT NULL GROUP BY job, power_limit_w ORDER BY job, power_limit_w DESC;
