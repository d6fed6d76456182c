-- Version 1 of the archive: what each column holds is written in docs/reference/sql.md.
-- No keys and no constraints: they would halve the speed of appending. Writers keep the keys.

-- UTC of an instant on a host's monotonic clock, by an anchor on both clocks.
CREATE MACRO utc(wall_ns, monotonic_ns, t_ns) AS make_timestamp((wall_ns + (t_ns - monotonic_ns)) // 1000);

-- ---- what was received --------------------------------------------------------------------------

CREATE TABLE logs (
    log_id VARCHAR, host VARCHAR, next_offset BIGINT, logged_ns BIGINT, interpreted_offset BIGINT
);

-- From this frame on, frames of this log were heard, until the next row.
CREATE TABLE turns (log_id VARCHAR, "offset" BIGINT);

CREATE TABLE settings (start BIGINT, name VARCHAR, value VARCHAR);

CREATE TABLE readings (
    log_id VARCHAR, "offset" BIGINT, logged_ns BIGINT, gpu VARCHAR,
    t_lo_ns BIGINT, t_hi_ns BIGINT, energy_mj BIGINT, power_mw INTEGER, limit_mw INTEGER,
    requested_mw INTEGER, clock_mhz INTEGER, temperature_c SMALLINT, utilization_pct SMALLINT, seen VARCHAR
);

CREATE TABLE frames (
    log_id VARCHAR, "offset" BIGINT, host VARCHAR, t_ns BIGINT, topic VARCHAR, body BLOB
);

CREATE TABLE events (
    log_id VARCHAR, "offset" BIGINT, host VARCHAR, session VARCHAR, sequence BIGINT, kind VARCHAR,
    t_ns BIGINT, ended_ns BIGINT, index BIGINT, name VARCHAR, value DOUBLE,
    placed VARCHAR, uncertainty_ns BIGINT
);

CREATE TABLE hosts (
    log_id VARCHAR, "offset" BIGINT, host VARCHAR, boot_id VARCHAR,
    monotonic_ns BIGINT, wall_ns BIGINT, error_ns BIGINT
);

CREATE TABLE gaps (
    host VARCHAR, what VARCHAR, t_ns BIGINT, count BIGINT, reason VARCHAR,
    log_id VARCHAR, first_offset BIGINT
);

-- ---- what was derived from it: the rows of analyzers/rows.py -------------------------------------

CREATE TABLE windows (
    session VARCHAR, run VARCHAR, job VARCHAR, rank BIGINT, host VARCHAR, kind VARCHAR, name VARCHAR,
    index BIGINT, gpu VARCHAR, begin_ns BIGINT, end_ns BIGINT, began_at TIMESTAMP, duration_s DOUBLE,
    energy_j DOUBLE, energy_low_j DOUBLE, energy_high_j DOUBLE, energy_p2_5_j DOUBLE, energy_p97_5_j DOUBLE,
    phase_coverage DOUBLE, power_limit_w DOUBLE,
    estimator VARCHAR, quality VARCHAR, shared BOOLEAN
);

CREATE TABLE runs (
    session VARCHAR, run VARCHAR, job VARCHAR, rank BIGINT, world_size BIGINT, host VARCHAR, pid BIGINT,
    uid BIGINT, gpus VARCHAR[], boundary VARCHAR, began_ns BIGINT, ended_ns BIGINT, began_wall_ns BIGINT,
    wall_error_ns BIGINT, began_at TIMESTAMP, ended_at TIMESTAMP, ended_how VARCHAR,
    may_command BOOLEAN, command_reason VARCHAR, batch_size BIGINT, start BIGINT
);

CREATE TABLE gpus (
    gpu VARCHAR, host VARCHAR, index BIGINT, name VARCHAR, driver VARCHAR, counts_energy BOOLEAN,
    min_limit_w DOUBLE, max_limit_w DOUBLE, default_limit_w DOUBLE, found_limit_w DOUBLE, mig BOOLEAN,
    period_ms DOUBLE, counter_kind VARCHAR, sensor_window_ms DOUBLE, gone VARCHAR, scope VARCHAR, tenants VARCHAR[]
);

CREATE TABLE trials (
    run VARCHAR, number BIGINT, round BIGINT, power_limit_w DOUBLE, steps BIGINT, duration_s DOUBLE,
    energy_j DOUBLE, average_power_w DOUBLE, cost DOUBLE, temperature_c DOUBLE, began_ns BIGINT,
    ended_ns BIGINT, confirms BOOLEAN
);

CREATE TABLE decisions (
    run VARCHAR, number BIGINT, round BIGINT, t_ns BIGINT, selector VARCHAR, power_limit_w DOUBLE,
    steps BIGINT, default_limit_w DOUBLE, energy_per_step_j DOUBLE, step_s DOUBLE,
    default_energy_per_step_j DOUBLE, default_step_s DOUBLE, applied BOOLEAN, reason VARCHAR,
    trials_run VARCHAR, trials_round BIGINT, excess_percent DOUBLE, excess_p95_percent DOUBLE
);

CREATE TABLE profiled (
    session VARCHAR, run VARCHAR, round BIGINT, job VARCHAR, gpu_model VARCHAR, driver VARCHAR, gpus BIGINT,
    world_size BIGINT, batch_size BIGINT, least_limit_w DOUBLE, highest_limit_w DOUBLE, power_limit_w DOUBLE,
    steps BIGINT, duration_s DOUBLE, energy_j DOUBLE, measured_run VARCHAR, measured_round BIGINT,
    measured_wall_ns BIGINT, chosen_limit_w DOUBLE
);

CREATE TABLE recalls (
    session VARCHAR, run VARCHAR, round BIGINT, profile_run VARCHAR, profile_round BIGINT, measured_wall_ns BIGINT,
    limits STRUCT(power_limit_w DOUBLE, steps BIGINT, duration_s DOUBLE, energy_j DOUBLE, run VARCHAR, round BIGINT)[]
);

CREATE TABLE gpu_limits (
    run VARCHAR, round BIGINT, gpu VARCHAR, t_ns BIGINT, power_limit_w DOUBLE, job_limit_w DOUBLE,
    steps BIGINT, energy_percent DOUBLE, time_percent DOUBLE, reason VARCHAR
);

CREATE TABLE commands (
    command VARCHAR, run VARCHAR, gpu VARCHAR, asked_ns BIGINT, limit_w DOUBLE, outcome VARCHAR,
    outcome_ns BIGINT, outcome_limit_w DOUBLE, reason VARCHAR
);

CREATE TABLE metrics (
    session VARCHAR, run VARCHAR, name VARCHAR, t_ns BIGINT, step BIGINT, value DOUBLE
);

CREATE TABLE jobs (
    job VARCHAR, version BIGINT, batch_sizes BIGINT[], default_batch_size BIGINT, metric VARCHAR, target DOUBLE,
    lower_is_better BOOLEAN, max_epochs BIGINT, eta DOUBLE, beta DOUBLE, cost_window BIGINT
);

CREATE TABLE tries (
    job VARCHAR, number BIGINT, version BIGINT, recurrence BIGINT, run VARCHAR, session VARCHAR, attempt BIGINT,
    setup VARCHAR, batch_size BIGINT, policy VARCHAR, reason VARCHAR, stop_cost_j DOUBLE,
    began_wall_ns BIGINT, ended_wall_ns BIGINT, began_at TIMESTAMP, ended_at TIMESTAMP,
    epochs BIGINT, energy_j DOUBLE, duration_s DOUBLE, cost_j DOUBLE, epoch_cost_j DOUBLE, metrics DOUBLE[],
    ended VARCHAR, ended_why VARCHAR
);

CREATE TABLE simulations (
    game VARCHAR, world VARCHAR, gpu VARCHAR, workload VARCHAR, player VARCHAR, seed BIGINT, eta DOUBLE,
    beta DOUBLE, cost_window BIGINT, drift VARCHAR, overlap DOUBLE, recurrences BIGINT,
    default_energy_j DOUBLE, default_time_s DOUBLE, default_cost_j DOUBLE
);

CREATE TABLE simulated_tries (
    game VARCHAR, number BIGINT, recurrence BIGINT, batch_size BIGINT, epochs BIGINT, energy_j DOUBLE,
    time_s DOUBLE, cost_j DOUBLE, ended VARCHAR, optimum_j DOUBLE
);

CREATE TABLE budgets (
    budget VARCHAR, set_ns BIGINT, set_at TIMESTAMP, limit_w DOUBLE, begin_ns BIGINT, began_at TIMESTAMP,
    end_ns BIGINT, ended_at TIMESTAMP, gpus VARCHAR[], binding BOOLEAN, reason VARCHAR
);

CREATE TABLE rations (
    gpu VARCHAR, budget VARCHAR, run VARCHAR, most_w DOUBLE, limit_w DOUBLE, reason VARCHAR
);

-- ---- what people ask for -------------------------------------------------------------------------

CREATE VIEW samples AS
SELECT readings.gpu, hosts.host, utc(hosts.wall_ns, hosts.monotonic_ns, t_hi_ns) AS read_at, t_hi_ns,
    energy_mj / 1000 AS energy_j, power_mw / 1000 AS power_w, limit_mw / 1000 AS limit_w,
    clock_mhz, temperature_c, utilization_pct
FROM readings ASOF LEFT JOIN hosts
    ON readings.log_id = hosts.log_id AND readings."offset" >= hosts."offset";

-- GPUs under a power budget, with what they drew when their host was heard last.
CREATE VIEW rationed AS
WITH drawn AS (
    SELECT gpu, arg_max(power_mw, t_hi_ns) / 1000 AS drawn_w FROM readings JOIN logs USING (log_id)
    WHERE readings.logged_ns >= logs.logged_ns - 5_000_000_000 GROUP BY gpu
)
SELECT budget, host, index, gpu, run, most_w, limit_w, drawn_w, reason
FROM rations LEFT JOIN gpus USING (gpu) LEFT JOIN drawn USING (gpu) WHERE budget IS NOT NULL;

-- Whether it is no GPU but a CPU or its memory: everybody's on the host, and in no sum over GPUs.
CREATE MACRO of_host(gpu) AS coalesce(starts_with(gpu, 'CPU-') OR starts_with(gpu, 'DRAM-'), false);

-- The windows of one kind, added up over the GPUs and ranks of a run. A sum with a part missing is NULL.
-- Errors of parts are independent: the widths of their 95 % intervals add up in squares.
CREATE MACRO whole(wanted) AS TABLE
SELECT gpu_windows.*, cpu_energy_j
FROM (
    SELECT run, any_value(job) AS job, index, any_value(name) AS name, min(began_at) AS began_at,
        max(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
        CASE WHEN count(energy_low_j) = count(*) THEN sum(energy_low_j) END AS energy_low_j,
        CASE WHEN count(energy_high_j) = count(*) THEN sum(energy_high_j) END AS energy_high_j,
        CASE WHEN count(energy_p2_5_j) = count(*)
            THEN greatest(sum(energy_j) - sqrt(sum((energy_j - energy_p2_5_j) ** 2)), 0) END AS energy_p2_5_j,
        CASE WHEN count(energy_p97_5_j) = count(*)
            THEN sum(energy_j) + sqrt(sum((energy_p97_5_j - energy_j) ** 2)) END AS energy_p97_5_j,
        min(phase_coverage) AS phase_coverage,
        CASE WHEN count(power_limit_w) = count(*) AND min(power_limit_w) = max(power_limit_w)
            THEN min(power_limit_w) END AS power_limit_w,
        CASE WHEN count(power_limit_w) = count(*) THEN max(power_limit_w) END AS highest_limit_w,
        count(gpu) AS gpus, bool_or(shared) AS shared,
        coalesce(min(quality) FILTER (quality <> 'ok'), 'ok') AS quality
    FROM windows WHERE kind = wanted AND NOT of_host(gpu) GROUP BY run, index
) AS gpu_windows LEFT JOIN (
    -- Ranks of one host all have a row of the same CPU: it counts once, as the slowest of them saw it.
    SELECT run, index, CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS cpu_energy_j
    FROM (
        SELECT run, index, CASE WHEN count(energy_j) = count(*) THEN max(energy_j) END AS energy_j
        FROM windows WHERE kind = wanted AND of_host(gpu) GROUP BY run, index, gpu
    ) GROUP BY run, index
) AS cpu_windows USING (run, index);

-- What is known of each batch size of a job, on each kind of GPUs: tries that count, by how they ended.
CREATE VIEW job_sizes AS
SELECT job, setup, batch_size, count(*) AS tries, count(*) FILTER (ended = 'converged') AS converged,
    count(*) FILTER (ended IN ('stopped', 'exhausted')) AS failed, count(*) FILTER (ended = 'lost') AS lost,
    avg(epochs) FILTER (ended = 'converged') AS epochs, avg(cost_j) FILTER (ended = 'converged') AS cost_j,
    avg(energy_j) FILTER (ended = 'converged') AS energy_j,
    avg(duration_s) FILTER (ended = 'converged') AS duration_s
FROM tries WHERE (job, version) IN (SELECT (job, max(version)) FROM jobs GROUP BY job)
GROUP BY job, setup, batch_size;

-- What jobs that recur have cost, failed tries included and lost ones not, and what that saves: against as many
-- trainings with the default size as have converged, each of which costs what those with it did on average.
CREATE VIEW job_savings AS
WITH paid AS (
    SELECT tries.job, setup, any_value(default_batch_size) AS default_batch_size,
        count(DISTINCT recurrence) FILTER (ended = 'converged') AS recurrences,
        count(*) FILTER (ended <> 'running') AS tries, count(*) FILTER (ended = 'lost') AS lost,
        count(*) FILTER (ended = 'running') AS running,
        count(energy_j) FILTER (ended = 'converged') AS measured,
        sum(energy_j) FILTER (ended NOT IN ('lost', 'running')) AS energy_j,
        sum(duration_s) FILTER (ended NOT IN ('lost', 'running')) AS duration_s
    FROM tries JOIN jobs USING (job, version)
    WHERE (job, version) IN (SELECT (job, max(version)) FROM jobs GROUP BY job)
    GROUP BY tries.job, setup
), best AS (
    SELECT job, setup, arg_min(batch_size, cost_j) AS best_batch_size FROM job_sizes GROUP BY job, setup
)
SELECT paid.job, paid.setup, recurrences, paid.tries, paid.lost, running, paid.default_batch_size, best_batch_size,
    paid.energy_j, usual.energy_j AS default_energy_j,
    measured * usual.energy_j - paid.energy_j AS saved_j,
    100 * (1 - paid.energy_j / (measured * usual.energy_j)) AS saved_percent,
    100 * (paid.duration_s / (measured * usual.duration_s) - 1) AS time_added_percent
FROM paid JOIN best USING (job, setup)
LEFT JOIN job_sizes AS usual ON usual.job = paid.job AND usual.setup = paid.setup
    AND usual.batch_size = paid.default_batch_size;

CREATE VIEW steps AS SELECT run, job, index AS step, * EXCLUDE (run, job, index, name) FROM whole('step');

CREATE VIEW epochs AS SELECT run, job, index AS epoch, * EXCLUDE (run, job, index, name) FROM whole('epoch');

-- How well a round of profiling knows what a step costs at each limit: the mean of its steps, and half the width of
-- its 95 % interval, from the scatter of the means of up to 8 stretches of steps in a row, by Student's t. Which steps
-- a trial measured is told by the clock of its lowest rank.
CREATE VIEW scatter AS
WITH leads AS (
    SELECT run, min(rank) AS rank FROM runs GROUP BY run
), paced AS (
    SELECT DISTINCT run, index AS step, begin_ns, end_ns FROM windows JOIN leads USING (run, rank) WHERE kind = 'step'
), measured AS (
    SELECT paced.run, step, round, power_limit_w
    FROM paced ASOF JOIN trials ON paced.run = trials.run AND paced.begin_ns >= trials.began_ns
    WHERE paced.end_ns <= trials.ended_ns AND NOT confirms
), numbered AS (
    SELECT measured.*, energy_j, duration_s,
        (row_number() OVER (PARTITION BY measured.run, round, measured.power_limit_w ORDER BY measured.step) - 1) * 8
            // count(*) OVER (PARTITION BY measured.run, round, measured.power_limit_w) AS stretch
    FROM measured JOIN steps ON steps.run = measured.run AND steps.step = measured.step
    WHERE energy_j IS NOT NULL
), stretches AS (
    SELECT run, round, power_limit_w, stretch, count(*) AS steps, avg(energy_j) AS energy_j,
        avg(duration_s) AS duration_s
    FROM numbered GROUP BY ALL
)
SELECT run, round, power_limit_w, sum(steps)::BIGINT AS steps, sum(steps * energy_j) / sum(steps) AS energy_per_step_j,
    sum(steps * duration_s) / sum(steps) AS step_s,
    [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(energy_j) / sqrt(count(*)) AS energy_within_j,
    [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(duration_s) / sqrt(count(*)) AS step_within_s
FROM stretches GROUP BY run, round, power_limit_w;

CREATE VIEW savings AS
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
    SELECT decided.run, abs(steps.highest_limit_w - decided.power_limit_w) < 0.5 AS at_limit,
        count(*) AS steps, count(steps.energy_j) AS measured, sum(steps.energy_j) AS energy_j
    FROM decided JOIN steps ON steps.run = decided.run
        AND (abs(steps.highest_limit_w - decided.power_limit_w) < 0.5
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
    applied, reason, trials_run
FROM decided LEFT JOIN ran ON ran.run = decided.run AND ran.at_limit
    LEFT JOIN ran AS found ON found.run = decided.run AND (NOT found.at_limit OR power_limit_w = default_limit_w);

-- What a run of each identity would start from: its newest whole round, or the newest if none is whole.
CREATE VIEW profiles AS
WITH rounds AS (
    SELECT session, round, max(measured_wall_ns) AS measured_wall_ns, max(chosen_limit_w) AS chosen_limit_w
    FROM profiled
    GROUP BY session, round, job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w
    QUALIFY row_number() OVER (
        PARTITION BY job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w
        ORDER BY max(chosen_limit_w) IS NULL, max(measured_wall_ns) DESC, session
    ) = 1
)
SELECT job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w, power_limit_w,
    energy_j / steps AS energy_per_step_j, duration_s / steps AS step_s, steps, energy_j, duration_s,
    power_limit_w = rounds.chosen_limit_w AS chosen, rounds.chosen_limit_w, run, round,
    make_timestamp(rounds.measured_wall_ns // 1000) AS measured_at, measured_run, measured_round, session,
    rounds.measured_wall_ns
FROM profiled JOIN rounds USING (session, round);

-- The n-th window of a name in each rank of a run, added up over GPUs and ranks, wherever they are. Where ranks
-- have a GPU in common its energy counts once: a window within another's is in there already, and of two that
-- overlap in part nobody can tell the sum.
CREATE VIEW named AS
WITH numbered AS (
    SELECT *, dense_rank() OVER (PARTITION BY run, name, rank ORDER BY began_at, begin_ns, session, index)
        AS occurrence
    FROM windows WHERE kind = 'window' AND NOT of_host(gpu)
), placed AS (
    SELECT *, max(end_ns) OVER (PARTITION BY run, name, occurrence, gpu ORDER BY begin_ns, end_ns DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_ns
    FROM numbered
), parts AS (
    SELECT *, CASE WHEN gpu IS NULL OR covered_ns IS NULL OR begin_ns >= covered_ns THEN 1
        WHEN end_ns <= covered_ns THEN 0 END AS share
    FROM placed
)
SELECT run, any_value(job) AS job, name, occurrence, min(began_at) AS began_at, max(duration_s) AS duration_s,
    CASE WHEN count(share * energy_j) = count(*) THEN sum(share * energy_j) END AS energy_j,
    CASE WHEN count(share * energy_low_j) = count(*) THEN sum(share * energy_low_j) END AS energy_low_j,
    CASE WHEN count(share * energy_high_j) = count(*) THEN sum(share * energy_high_j) END AS energy_high_j,
    CASE WHEN count(power_limit_w) = count(*) AND min(power_limit_w) = max(power_limit_w)
        THEN min(power_limit_w) END AS power_limit_w,
    count(DISTINCT rank) AS ranks, count(DISTINCT gpu) AS gpus, bool_or(shared) AS shared,
    CASE WHEN count(share) < count(*) THEN 'windows of two ranks overlap in part on one GPU'
        ELSE coalesce(min(quality) FILTER (quality <> 'ok'), 'ok') END AS quality
FROM parts GROUP BY run, name, occurrence;

-- The recurrences of simulated games, each with all its tries. Regret is in units of the least mean cost.
CREATE VIEW simulated AS
WITH whole AS (
    SELECT game, recurrence, count(*) AS tries, last(batch_size ORDER BY number) AS batch_size,
        sum(energy_j) AS energy_j, sum(time_s) AS time_s, sum(cost_j) AS cost_j,
        bool_or(ended = 'converged') AS converged, sum(cost_j) / any_value(optimum_j) - 1 AS regret
    FROM simulated_tries GROUP BY game, recurrence
)
SELECT simulations.*, whole.* EXCLUDE (game),
    sum(regret) OVER (PARTITION BY game ORDER BY recurrence) AS cumulative_regret
FROM whole JOIN simulations USING (game);
