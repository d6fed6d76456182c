-- Version 9.

ALTER TABLE trials ADD COLUMN "clock_mhz" BIGINT;

ALTER TABLE decisions ADD COLUMN "clock_mhz" BIGINT;

ALTER TABLE decisions ADD COLUMN "default_clock_mhz" BIGINT;

ALTER TABLE profiled ADD COLUMN "control" VARCHAR DEFAULT 'power_limit';

-- Savings name the clock, and count the steps since it was chosen.
CREATE OR REPLACE VIEW savings_by_steps AS
WITH last AS (
    SELECT * FROM decisions
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY power_limit_w IS NULL, number DESC) = 1
), tops AS (
    SELECT run, round, max(power_limit_w) AS top_w FROM trials GROUP BY run, round
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
    LEFT JOIN scatter AS chosen ON chosen.run = trials_run AND chosen.round = trials_round
        AND chosen.power_limit_w = last.power_limit_w
    LEFT JOIN scatter AS at_top ON at_top.run = trials_run AND at_top.round = trials_round
        AND at_top.power_limit_w = top_w
), ran AS (
    -- A job is at its limit though single GPUs of it are lower: one of them always has it.
    -- Of a clock: from the step of the decision on.
    SELECT decided.run, CASE WHEN clock_mhz IS NULL THEN abs(steps.highest_limit_w - decided.power_limit_w) < 0.5
            ELSE applied AND step >= decided.steps END AS at_limit,
        count(*) AS steps, count(steps.energy_j) AS measured, sum(steps.energy_j) AS energy_j
    FROM decided JOIN steps ON steps.run = decided.run
        AND (clock_mhz IS NOT NULL OR abs(steps.highest_limit_w - decided.power_limit_w) < 0.5
            OR abs(steps.highest_limit_w - decided.default_limit_w) < 0.5)
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

ALTER TABLE kept_savings ADD COLUMN "default_clock_mhz" BIGINT;

ALTER TABLE kept_savings ADD COLUMN "clock_mhz" BIGINT;

CREATE OR REPLACE VIEW savings AS
FROM savings_by_steps WHERE run NOT IN (SELECT run FROM kept_savings) UNION ALL FROM kept_savings;

CREATE OR REPLACE MACRO saving_of(wanted) AS TABLE
WITH last AS (
    SELECT * FROM decisions WHERE run = wanted
    QUALIFY row_number() OVER (ORDER BY power_limit_w IS NULL, number DESC) = 1
), tried AS (
    SELECT trials.* FROM trials JOIN last ON trials.run = trials_run
), leads AS (
    SELECT min(rank) AS rank FROM runs WHERE run = (SELECT trials_run FROM last)
), paced AS (
    SELECT DISTINCT run, index AS step, begin_ns, end_ns FROM windows
    WHERE run = (SELECT trials_run FROM last) AND kind = 'step' AND rank = (SELECT rank FROM leads)
        AND begin_ns >= (SELECT min(began_ns) FROM tried) AND end_ns <= (SELECT max(ended_ns) FROM tried)
), measured AS (
    SELECT step, round, power_limit_w
    FROM paced ASOF JOIN tried ON paced.run = tried.run AND paced.begin_ns >= tried.began_ns
    WHERE paced.end_ns <= tried.ended_ns AND NOT confirms
), summed AS (
    SELECT index AS step, max(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows
    WHERE run = (SELECT trials_run FROM last) AND kind = 'step' AND NOT of_host(gpu)
        AND index >= (SELECT min(step) FROM measured) AND index <= (SELECT max(step) FROM measured)
    GROUP BY index
), numbered AS (
    SELECT measured.*, energy_j, duration_s,
        (row_number() OVER (PARTITION BY round, power_limit_w ORDER BY measured.step) - 1) * 8
            // count(*) OVER (PARTITION BY round, power_limit_w) AS stretch
    FROM measured JOIN summed USING (step) WHERE energy_j IS NOT NULL
), stretches AS (
    SELECT round, power_limit_w, stretch, count(*) AS steps, avg(energy_j) AS energy_j, avg(duration_s) AS duration_s
    FROM numbered GROUP BY ALL
), scattered AS (
    SELECT round, power_limit_w, sum(steps * energy_j) / sum(steps) AS energy_per_step_j,
        sum(steps * duration_s) / sum(steps) AS step_s,
        [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(energy_j) / sqrt(count(*)) AS energy_within_j,
        [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(duration_s) / sqrt(count(*)) AS step_within_s
    FROM stretches GROUP BY round, power_limit_w
), decided AS (
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
    LEFT JOIN (SELECT round, max(power_limit_w) AS top_w FROM tried GROUP BY round) AS tops ON tops.round = trials_round
    LEFT JOIN scattered AS chosen ON chosen.round = trials_round AND chosen.power_limit_w = last.power_limit_w
    LEFT JOIN scattered AS at_top ON at_top.round = trials_round AND at_top.power_limit_w = top_w
), stepped AS (
    SELECT index AS step, CASE WHEN count(power_limit_w) = count(*) THEN max(power_limit_w) END AS highest_limit_w,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows WHERE run = wanted AND kind = 'step' AND NOT of_host(gpu) GROUP BY index
), ran AS (
    -- Of a clock: from the step of the decision on.
    SELECT CASE WHEN clock_mhz IS NULL THEN abs(highest_limit_w - decided.power_limit_w) < 0.5
            ELSE applied AND step >= decided.steps END AS at_limit,
        count(*) AS steps, count(stepped.energy_j) AS measured, sum(stepped.energy_j) AS energy_j
    FROM stepped, decided
    WHERE clock_mhz IS NOT NULL OR abs(highest_limit_w - decided.power_limit_w) < 0.5
        OR abs(highest_limit_w - default_limit_w) < 0.5
    GROUP BY ALL
)
SELECT decided.run, (SELECT any_value(job) FROM runs WHERE runs.run = wanted) AS job, selector,
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
FROM decided LEFT JOIN ran ON ran.at_limit
    LEFT JOIN ran AS found ON NOT found.at_limit OR power_limit_w = default_limit_w;

-- What a run of each identity would start from: clocks and power limits apart.
CREATE OR REPLACE VIEW profiles AS
WITH rounds AS (
    SELECT session, round, max(measured_wall_ns) AS measured_wall_ns, max(chosen_limit_w) AS chosen_limit_w
    FROM profiled
    GROUP BY session, round, job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w, control
    QUALIFY row_number() OVER (
        PARTITION BY job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w, control
        ORDER BY max(chosen_limit_w) IS NULL, max(measured_wall_ns) DESC, session
    ) = 1
)
SELECT job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w, power_limit_w,
    energy_j / steps AS energy_per_step_j, duration_s / steps AS step_s, steps, energy_j, duration_s,
    power_limit_w = rounds.chosen_limit_w AS chosen, rounds.chosen_limit_w, run, round,
    make_timestamp(rounds.measured_wall_ns // 1000) AS measured_at, measured_run, measured_round, session,
    rounds.measured_wall_ns, control
FROM profiled JOIN rounds USING (session, round);
