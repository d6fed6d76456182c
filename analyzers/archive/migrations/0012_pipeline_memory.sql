-- Version 12.

ALTER TABLE pipelines ADD COLUMN "profile_run" VARCHAR;

ALTER TABLE instructions ADD COLUMN "job" VARCHAR;

ALTER TABLE instructions ADD COLUMN "gpu_model" VARCHAR;

ALTER TABLE instructions ADD COLUMN "waiting_w" DOUBLE;

ALTER TABLE instructions ADD COLUMN "measured_wall_ns" BIGINT;

-- The profiles that later runs start from: of the newest run of each job, GPU model and number of stages.
CREATE VIEW known_instructions AS
WITH shapes AS (
    SELECT run, any_value(job) AS job, any_value(gpu_model) AS gpu_model, max(stage) AS last_stage,
        max(measured_wall_ns) AS wall_ns
    FROM instructions WHERE job <> '' GROUP BY run
), newest AS (
    SELECT run FROM shapes
    QUALIFY row_number() OVER (PARTITION BY job, gpu_model, last_stage ORDER BY wall_ns DESC) = 1
)
SELECT instructions.* FROM instructions JOIN newest USING (run);
