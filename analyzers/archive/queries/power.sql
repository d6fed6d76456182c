-- What did each GPU draw on average, minute by minute?
SELECT gpu, date_trunc('minute', began_at) AS minute, sum(energy_j) / sum(covered_s) AS power_w
FROM power WHERE length_s <= 60 GROUP BY ALL ORDER BY ALL;
