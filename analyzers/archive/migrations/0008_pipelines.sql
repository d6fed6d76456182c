-- Version 8.

CREATE TABLE pipelines (
    "run" VARCHAR,
    "t_ns" BIGINT,
    "schedule" VARCHAR,
    "stages" BIGINT,
    "micro_batches" BIGINT,
    "replicas" BIGINT,
    "state" VARCHAR,
    "iterations_profiled" BIGINT,
    "iteration_s" DOUBLE,
    "reason" VARCHAR
);

CREATE TABLE instructions (
    "run" VARCHAR,
    "stage" BIGINT,
    "kind" VARCHAR,
    "chunk" BIGINT,
    "clock_mhz" BIGINT,
    "samples" BIGINT,
    "time_s" DOUBLE,
    "time_low_s" DOUBLE,
    "time_high_s" DOUBLE,
    "energy_j" DOUBLE,
    "energy_low_j" DOUBLE,
    "energy_high_j" DOUBLE
);

CREATE TABLE plan_points (
    "run" VARCHAR,
    "slowdown" DOUBLE,
    "time_s" DOUBLE,
    "energy_j" DOUBLE,
    "bound_j" DOUBLE,
    "unplanned_s" DOUBLE,
    "unplanned_j" DOUBLE
);

CREATE TABLE plans (
    "run" VARCHAR,
    "number" BIGINT,
    "t_ns" BIGINT,
    "slowdown" DOUBLE,
    "promised_s" DOUBLE,
    "promised_j" DOUBLE,
    "unplanned_s" DOUBLE,
    "unplanned_j" DOUBLE,
    "first_iteration" BIGINT,
    "measured_s" DOUBLE,
    "state" VARCHAR,
    "reason" VARCHAR
);
