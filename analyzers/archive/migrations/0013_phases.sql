-- Version 13.

CREATE TABLE phases (
    "session" VARCHAR,
    "run" VARCHAR,
    "job" VARCHAR,
    "rank" BIGINT,
    "host" VARCHAR,
    "gpu" VARCHAR,
    "epoch" BIGINT,
    "phase" VARCHAR,
    "times" BIGINT,
    "duration_s" DOUBLE,
    "energy_j" DOUBLE,
    "energy_p2_5_j" DOUBLE,
    "energy_p97_5_j" DOUBLE,
    "share" DOUBLE,
    "quality" VARCHAR
);
