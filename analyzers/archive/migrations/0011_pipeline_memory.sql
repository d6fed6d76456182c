-- Version 11.

ALTER TABLE pipelines ADD COLUMN "profile_run" VARCHAR;

ALTER TABLE instructions ADD COLUMN "job" VARCHAR;

ALTER TABLE instructions ADD COLUMN "gpu_model" VARCHAR;

ALTER TABLE instructions ADD COLUMN "waiting_w" DOUBLE;

ALTER TABLE instructions ADD COLUMN "measured_wall_ns" BIGINT;
