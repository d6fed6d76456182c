-- How much energy did each GPU use between two instants, here in ten seconds up to its last reading?
WITH asked AS (
    SELECT gpu, log_id, max(t_lo_ns) - 10_000_000_000 AS begin_ns, max(t_lo_ns) AS end_ns
    FROM readings WHERE energy_mj IS NOT NULL AND seen <> 'unchanged' GROUP BY gpu, log_id
), changes AS (  -- the counter became energy_j between two reads: in their middle
    SELECT gpu, log_id, (t_lo_ns + t_hi_ns) / 2 AS t_ns, energy_mj / 1000 AS energy_j,
        count(*) FILTER (seen IN ('first', 'reset')) OVER (
            PARTITION BY gpu, log_id ORDER BY t_hi_ns ROWS UNBOUNDED PRECEDING) AS counter
    FROM readings JOIN asked USING (gpu, log_id)
    WHERE t_hi_ns BETWEEN begin_ns - 1_000_000_000 AND end_ns + 1_000_000_000 AND seen <> 'unchanged'
), pieces AS (
    SELECT *, lead(t_ns) OVER one_counter AS next_ns, lead(energy_j) OVER one_counter AS next_j
    FROM changes WINDOW one_counter AS (PARTITION BY gpu, log_id, counter ORDER BY t_ns)
), edges AS (
    SELECT gpu, log_id, unnest([begin_ns, end_ns]) AS t_ns FROM asked
), at_edges AS (
    SELECT edges.gpu, edges.log_id, edges.t_ns, counter,
        energy_j + (next_j - energy_j) * (edges.t_ns - pieces.t_ns) / (next_ns - pieces.t_ns) AS energy_j
    FROM edges ASOF JOIN pieces ON edges.gpu = pieces.gpu AND edges.log_id = pieces.log_id
        AND edges.t_ns >= pieces.t_ns
)
SELECT gpu, (max(t_ns) - min(t_ns)) / 1e9 AS duration_s, max(energy_j) - min(energy_j) AS energy_j
FROM at_edges GROUP BY gpu, log_id, counter HAVING count(energy_j) = 2 ORDER BY gpu;
