-- Version 19: savings of runs that have ended are stored; the view computed those of all runs from all steps.

-- The savings of some runs, from their steps. The runs are known before steps are read: milliseconds.
CREATE MACRO savings_of(wanted) AS TABLE
WITH last AS (
    SELECT * FROM decisions WHERE run IN (SELECT unnest(wanted))
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY power_limit_w IS NULL, number DESC) = 1
), tried AS (
    SELECT trials.* FROM trials WHERE run IN (SELECT trials_run FROM last)
), spans AS (
    SELECT run, min(began_ns) AS began_ns, max(ended_ns) AS ended_ns FROM tried GROUP BY run
), leads AS (
    SELECT run, min(rank) AS rank FROM runs WHERE run IN (SELECT run FROM spans) GROUP BY run
), paced AS (
    SELECT DISTINCT windows.run, index AS step, begin_ns, end_ns
    FROM windows JOIN leads USING (run, rank) JOIN spans USING (run)
    WHERE kind = 'step' AND begin_ns >= spans.began_ns AND end_ns <= spans.ended_ns
), measured AS (
    SELECT paced.run, step, round, power_limit_w
    FROM paced ASOF JOIN tried ON paced.run = tried.run AND paced.begin_ns >= tried.began_ns
    WHERE paced.end_ns <= tried.ended_ns AND NOT confirms
), reach AS (
    SELECT run, min(step) AS first, max(step) AS last FROM measured GROUP BY run
), summed AS (
    SELECT windows.run, index AS step, max(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows JOIN reach USING (run)
    WHERE kind = 'step' AND NOT of_host(gpu) AND index BETWEEN first AND last
    GROUP BY windows.run, index
), numbered AS (
    SELECT measured.*, energy_j, duration_s,
        (row_number() OVER (PARTITION BY run, round, power_limit_w ORDER BY step) - 1) * 8
            // count(*) OVER (PARTITION BY run, round, power_limit_w) AS stretch
    FROM measured JOIN summed USING (run, step) WHERE energy_j IS NOT NULL
), stretches AS (
    SELECT run, round, power_limit_w, stretch, count(*) AS steps, avg(energy_j) AS energy_j,
        avg(duration_s) AS duration_s
    FROM numbered GROUP BY ALL
), scattered AS (
    SELECT run, round, power_limit_w, sum(steps * energy_j) / sum(steps) AS energy_per_step_j,
        sum(steps * duration_s) / sum(steps) AS step_s,
        [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(energy_j) / sqrt(count(*)) AS energy_within_j,
        [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(duration_s) / sqrt(count(*)) AS step_within_s
    FROM stretches GROUP BY run, round, power_limit_w
), tops AS (
    SELECT run, round, max(power_limit_w) AS top_w FROM tried GROUP BY run, round
), decided AS (
    -- Relative half-widths of a ratio of two means: squares add up. The top limit against itself is exact.
    SELECT last.*, at_top.energy_per_step_j AS top_step_j,
        CASE WHEN last.power_limit_w = top_w THEN 0 ELSE
            sqrt((chosen.energy_within_j / chosen.energy_per_step_j) ** 2
                + (at_top.energy_within_j / at_top.energy_per_step_j) ** 2) END AS energy_within,
        CASE WHEN last.power_limit_w = top_w THEN 0 ELSE
            sqrt((chosen.step_within_s / chosen.step_s) ** 2 + (at_top.step_within_s / at_top.step_s) ** 2)
            END AS step_within,
        100 * (1 - last.energy_per_step_j / default_energy_per_step_j) AS saved_percent,
        100 * (last.step_s / default_step_s - 1) AS added_percent
    FROM last
    LEFT JOIN tops ON tops.run = trials_run AND tops.round = trials_round
    LEFT JOIN scattered AS chosen ON chosen.run = trials_run AND chosen.round = trials_round
        AND chosen.power_limit_w = last.power_limit_w
    LEFT JOIN scattered AS at_top ON at_top.run = trials_run AND at_top.round = trials_round
        AND at_top.power_limit_w = top_w
), stepped AS (
    SELECT run, index AS step,
        CASE WHEN count(power_limit_w) = count(*) THEN max(power_limit_w) END AS highest_limit_w,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows WHERE run IN (SELECT run FROM last) AND kind = 'step' AND NOT of_host(gpu) GROUP BY run, index
), ran AS (
    -- A job is at its limit though single GPUs of it are lower: one of them always has it.
    -- Of a clock: from the step of the decision on.
    SELECT decided.run, CASE WHEN clock_mhz IS NULL THEN abs(highest_limit_w - decided.power_limit_w) < 0.5
            ELSE applied AND step >= decided.steps END AS at_limit,
        count(*) AS steps, count(stepped.energy_j) AS measured, sum(stepped.energy_j) AS energy_j
    FROM decided JOIN stepped ON stepped.run = decided.run
        AND (clock_mhz IS NOT NULL OR abs(highest_limit_w - decided.power_limit_w) < 0.5
            OR abs(highest_limit_w - default_limit_w) < 0.5)
    GROUP BY ALL
)
SELECT decided.run, (SELECT any_value(job) FROM runs WHERE runs.run = decided.run) AS job, selector,
    default_limit_w, power_limit_w, default_energy_per_step_j, energy_per_step_j,
    saved_percent AS energy_saved_percent,
    saved_percent - (100 - saved_percent) * energy_within AS energy_saved_low_percent,
    saved_percent + (100 - saved_percent) * energy_within AS energy_saved_high_percent,
    default_step_s, step_s, added_percent AS time_added_percent,
    added_percent - (100 + added_percent) * step_within AS time_added_low_percent,
    added_percent + (100 + added_percent) * step_within AS time_added_high_percent,
    coalesce(ran.steps, 0) AS steps_at_limit,
    CASE WHEN ran.steps IS NULL THEN 0 WHEN ran.measured > 0
        THEN ran.measured * default_energy_per_step_j - ran.energy_j END AS saved_j,
    CASE WHEN NOT applied THEN found.energy_j * saved_percent / 100 END AS would_save_j,
    CASE WHEN NOT applied AND trials_run <> decided.run AND found.measured > 0
        THEN 100 * (found.energy_j / found.measured / top_step_j - 1) END AS changed_percent,
    applied, reason, trials_run, default_clock_mhz, clock_mhz
FROM decided LEFT JOIN ran ON ran.run = decided.run AND ran.at_limit
    LEFT JOIN ran AS found ON found.run = decided.run AND (NOT found.at_limit OR power_limit_w = default_limit_w);

-- Decided runs of which each session is measured to its end, with the number of their sessions.
CREATE TEMP TABLE ended_runs AS
SELECT run, count(*) AS sessions FROM runs
WHERE run IN (SELECT run FROM decisions) AND world_size > 0 GROUP BY run
HAVING count(*) = (
    SELECT count(DISTINCT windows.session) FROM windows WHERE windows.run = runs.run AND windows.kind = 'run'
);

-- Savings as they were when a run ended, with the sessions it had then; NULL: its steps are removed since.
CREATE TABLE ended_savings AS SELECT *, NULL::BIGINT AS sessions FROM kept_savings;

INSERT INTO ended_savings
SELECT savings.*, sessions FROM savings_of((
    SELECT coalesce(list(run), []) FROM ended_runs WHERE run NOT IN (SELECT run FROM kept_savings)
)) AS savings JOIN ended_runs USING (run);

DROP TABLE ended_runs;

DROP VIEW savings;

DROP TABLE kept_savings;

DROP VIEW savings_by_steps;

-- Rows of runs to which no session has been added since.
CREATE VIEW lasting_savings AS
SELECT ended_savings.* EXCLUDE (sessions) FROM ended_savings
WHERE sessions IS NULL OR sessions = (
    SELECT count(*) FROM runs WHERE runs.run = ended_savings.run AND runs.world_size > 0
);

CREATE VIEW savings AS
FROM lasting_savings UNION ALL
FROM savings_of((
    SELECT coalesce(list(DISTINCT run), []) FROM decisions WHERE run NOT IN (SELECT run FROM lasting_savings)
));

-- The row of the view ``savings`` for one run.
CREATE OR REPLACE MACRO saving_of(wanted) AS TABLE
FROM lasting_savings WHERE run = wanted UNION ALL
FROM savings_of((SELECT list(run) FROM (SELECT wanted AS run) WHERE run NOT IN (SELECT run FROM lasting_savings)));
