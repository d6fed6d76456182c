-- Version 11.

CREATE TABLE instruction_spans (
    "run" VARCHAR,
    "plan" BIGINT,
    "iteration" BIGINT,
    "stage" BIGINT,
    "position" BIGINT,
    "kind" VARCHAR,
    "micro_batch" BIGINT,
    "chunk" BIGINT,
    "clock_mhz" BIGINT,
    "begin_s" DOUBLE,
    "duration_s" DOUBLE
);
