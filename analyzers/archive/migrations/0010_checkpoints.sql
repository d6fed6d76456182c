-- Version 10.

CREATE TABLE checkpoints (
    "name" VARCHAR,
    "number" BIGINT,
    "start" BIGINT,
    "wall_ns" BIGINT,
    "code" VARCHAR,
    "runs" VARCHAR[],
    "sessions" VARCHAR[],
    "log_ids" VARCHAR[],
    "offsets" BIGINT[],
    "state" BLOB,
    "live" BLOB
);
