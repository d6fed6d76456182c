-- Version 20.

ALTER TABLE commands ADD COLUMN "plan" BIGINT;

ALTER TABLE commands ADD COLUMN "plan_changes" BIGINT;
