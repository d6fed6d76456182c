-- Version 6: `rations` has the standard name of what it holds, and a command says which control it sets.

DROP VIEW rationed;

ALTER TABLE rations RENAME TO budget_shares;

-- GPUs under a power budget, with what they drew when their host was last seen.
CREATE VIEW budgeted_gpus AS
WITH drawn AS (
    SELECT gpu, arg_max(power_mw, t_hi_ns) / 1000 AS drawn_w FROM readings JOIN logs USING (log_id)
    WHERE readings.logged_ns >= logs.logged_ns - 5_000_000_000 GROUP BY gpu
)
SELECT budget, gpus.host, index, gpu, run, most_w, limit_w, drawn_w, reason
FROM budget_shares LEFT JOIN gpus USING (gpu) LEFT JOIN drawn USING (gpu) WHERE budget IS NOT NULL;

ALTER TABLE commands ADD COLUMN control VARCHAR;

ALTER TABLE commands ADD COLUMN clock_mhz BIGINT;

UPDATE commands SET control = 'power_limit';
