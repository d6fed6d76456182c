-- Version 17.

CREATE TABLE instruction_minutes (
    "session" VARCHAR,
    "kind" VARCHAR,
    "chunk" BIGINT,
    "began_at" TIMESTAMP,
    "instructions" BIGINT,
    "busy_s" DOUBLE,
    "shortest_s" DOUBLE,
    "longest_s" DOUBLE
);

-- Instructions of pipelines by stage and kind; those of all replicas of a stage together.
CREATE VIEW instructions_by_minute AS
WITH stages AS (
    SELECT session, last(name ORDER BY sequence) FILTER (kind = 'run_started') AS run,
        last(index ORDER BY sequence) FILTER (kind = 'pipeline_began') AS stage
    FROM events WHERE kind IN ('run_started', 'pipeline_began') GROUP BY session
    HAVING bool_or(kind = 'pipeline_began')
)
SELECT run, stage, minutes.kind, chunk, began_at, sum(instructions)::BIGINT AS instructions,
    sum(busy_s) AS busy_s, sum(busy_s) / sum(instructions) AS mean_s, min(shortest_s) AS shortest_s,
    max(longest_s) AS longest_s, count(DISTINCT session) AS ranks
FROM instruction_minutes AS minutes JOIN stages USING (session)
GROUP BY ALL;
