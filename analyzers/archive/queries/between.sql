-- How much energy did each GPU use between two instants, here in ten seconds that end six seconds before the last reading?
WITH asked AS (  -- in UTC; files and blocks of readings of other times are left out
    SELECT max(read_at) - INTERVAL 16 SECOND AS begin_at, max(read_at) - INTERVAL 6 SECOND AS end_at
    FROM readings WHERE read_at >= (SELECT coalesce(max(began_at), '-infinity') FROM minutes)
), changes AS (  -- the counter became energy_j between two reads: in their middle; after a rest, at the last
    SELECT gpu, log_id, energy_mj / 1000 AS energy_j,
        epoch_us(read_at) / 1e6 - CASE WHEN seen = 'rested' THEN 0 ELSE (t_hi_ns - t_lo_ns) / 2e9 END AS t_s,
        count(*) FILTER (seen IN ('first', 'reset')) OVER (
            PARTITION BY gpu, log_id ORDER BY t_hi_ns ROWS UNBOUNDED PRECEDING) AS counter
    FROM readings
    WHERE read_at >= (SELECT begin_at - INTERVAL 10 SECOND FROM asked)  -- at rest it is read every 5 s
        AND read_at <= (SELECT end_at + INTERVAL 10 SECOND FROM asked) AND seen <> 'unchanged'
), pieces AS (
    SELECT *, lead(t_s) OVER one_counter AS next_s, lead(energy_j) OVER one_counter AS next_j
    FROM changes WINDOW one_counter AS (PARTITION BY gpu, log_id, counter ORDER BY t_s)
), edges AS (
    SELECT gpu, log_id, unnest([epoch_us(begin_at), epoch_us(end_at)]) / 1e6 AS t_s
    FROM (SELECT DISTINCT gpu, log_id FROM changes), asked
), at_edges AS (
    SELECT edges.gpu, edges.log_id, edges.t_s, counter,
        energy_j + (next_j - energy_j) * (edges.t_s - pieces.t_s) / (next_s - pieces.t_s) AS energy_j
    FROM edges ASOF JOIN pieces ON edges.gpu = pieces.gpu AND edges.log_id = pieces.log_id
        AND edges.t_s >= pieces.t_s
)
SELECT gpu, round(max(t_s) - min(t_s), 6) AS duration_s, max(energy_j) - min(energy_j) AS energy_j
FROM at_edges GROUP BY gpu, log_id, counter HAVING count(energy_j) = 2 ORDER BY gpu;
