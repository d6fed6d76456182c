-- What the archive has beside the tables of row classes, which are generated (`analyzers/results/table.py`): macros,
-- tables that the store itself fills, and views. docs/reference/sql.md describes each column.
-- No keys and no constraints: they would halve the speed of appending. Writers keep the keys.

-- UTC of an instant on a host's monotonic clock, by an anchor on both clocks.
CREATE MACRO utc(wall_ns, monotonic_ns, t_ns) AS make_timestamp((wall_ns + (t_ns - monotonic_ns)) // 1000);

-- ---- what was received --------------------------------------------------------------------------

CREATE TABLE logs (
    log_id VARCHAR, host VARCHAR, next_offset BIGINT, logged_ns BIGINT, interpreted_offset BIGINT
);

-- From this frame on, frames of this log were received, until the next row.
CREATE TABLE turns (log_id VARCHAR, "offset" BIGINT);

CREATE TABLE settings (start BIGINT, name VARCHAR, value VARCHAR);

CREATE TABLE readings (
    log_id VARCHAR, "offset" BIGINT, logged_ns BIGINT, gpu VARCHAR,
    t_lo_ns BIGINT, t_hi_ns BIGINT, energy_mj BIGINT, power_mw INTEGER, limit_mw INTEGER,
    requested_mw INTEGER, clock_mhz INTEGER, temperature_c SMALLINT, utilization_pct SMALLINT, seen VARCHAR,
    host VARCHAR, read_at TIMESTAMP
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

-- Roll-ups of readings (`analyzers/archive/rollups/rollup.py`).
CREATE TABLE seconds (
    gpu VARCHAR, host VARCHAR, began_at TIMESTAMP, energy_j DOUBLE, covered_s DOUBLE, peak_w DOUBLE, limit_w DOUBLE,
    clock_mhz DOUBLE, temperature_c DOUBLE, utilization_pct DOUBLE, readings BIGINT
);

CREATE TABLE minutes AS FROM seconds LIMIT 0;
CREATE TABLE hours AS FROM seconds LIMIT 0;

CREATE TABLE instruction_minutes (
    session VARCHAR, kind VARCHAR, chunk BIGINT, began_at TIMESTAMP, instructions BIGINT, busy_s DOUBLE,
    shortest_s DOUBLE, longest_s DOUBLE
);

-- What retention has removed, by table.
CREATE TABLE removed ("table" VARCHAR, before TIMESTAMP, rows BIGINT, removed_at TIMESTAMP);

-- The rows that a bill is made of, in the order in which they were stored (`analyzers/archive/seals`).
CREATE TABLE chain (number BIGINT, "table" VARCHAR, key VARCHAR, row VARCHAR, hash VARCHAR);

-- Signatures over an entry of ``chain``, and so over all entries before it.
CREATE TABLE seals (number BIGINT, hash VARCHAR, sealed_ns BIGINT, public_key VARCHAR, signature VARCHAR);

-- ---- energy -------------------------------------------------------------------------------------

-- Whether it is no GPU but a CPU, its memory or a meter: everybody's on the host, and in no sum over GPUs.
CREATE MACRO of_host(gpu) AS coalesce(starts_with(gpu, 'CPU-') OR starts_with(gpu, 'DRAM-')
    OR starts_with(gpu, 'WALL-') OR starts_with(gpu, 'SITE-'), false);

-- A sum, its greatest part, and their one value: NULL where a part is missing.
CREATE MACRO sum_of_all(x) AS CASE WHEN count(x) = count(*) THEN sum(x) END;
CREATE MACRO max_of_all(x) AS CASE WHEN count(x) = count(*) THEN max(x) END;
CREATE MACRO one_of_all(x) AS CASE WHEN count(x) = count(*) AND min(x) = max(x) THEN min(x) END;

-- The 95 % interval of a sum. Errors of parts are independent: their widths add up in squares.
CREATE MACRO low_of_sum(x, low) AS greatest(sum(x) - sqrt(sum((x - low) ** 2)), 0);
CREATE MACRO high_of_sum(x, high) AS sum(x) + sqrt(sum((high - x) ** 2));

-- The numbers between which each later session of its rank began the windows of a session again. A run is never redone:
-- all its sessions have the number 0.
CREATE MACRO begun_again(wanted) AS TABLE
SELECT earlier.session, min(windows.index) AS first_again, max(windows.index) AS last_again
FROM sessions AS earlier JOIN sessions AS later ON later.run = earlier.run AND later.rank = earlier.rank
    AND later.session <> earlier.session AND later.began_wall_ns > earlier.began_wall_ns
JOIN windows ON windows.session = later.session AND windows.kind = wanted AND wanted <> 'run'
GROUP BY earlier.session, later.session;

-- The GPUs of a session that a lower rank of its run has at the same time: in such windows they count with that one.
CREATE MACRO of_lower_ranks(wanted) AS TABLE
WITH users AS (
    SELECT run, rank, session, unnest(gpus) AS gpu, began_wall_ns AS from_ns,
        coalesce(began_wall_ns + ended_ns - began_ns, 9223372036854775807) AS until_ns
    FROM sessions WHERE world_size > 1
)
SELECT DISTINCT mine.session, mine.gpu FROM users AS mine JOIN users AS other ON other.run = mine.run
    AND other.gpu = mine.gpu AND other.rank < mine.rank
    AND other.from_ns < mine.until_ns AND mine.from_ns < other.until_ns
JOIN windows ON windows.session = other.session AND windows.kind = wanted;

-- The windows of one kind, added up over the GPUs and ranks of a run. Of those with one number the last counts.
CREATE MACRO whole(wanted) AS TABLE
SELECT gpu_windows.*, cpu_energy_j
FROM (
    SELECT run, any_value(job) AS job, index, any_value(name) AS name, min(began_at) AS began_at,
        max(duration_s) AS duration_s,
        sum_of_all(energy_j) AS energy_j,
        sum_of_all(energy_low_j) AS energy_low_j,
        sum_of_all(energy_high_j) AS energy_high_j,
        CASE WHEN count(energy_p2_5_j) = count(*) THEN low_of_sum(energy_j, energy_p2_5_j) END AS energy_p2_5_j,
        CASE WHEN count(energy_p97_5_j) = count(*) THEN high_of_sum(energy_j, energy_p97_5_j) END AS energy_p97_5_j,
        min(phase_coverage) AS phase_coverage,
        one_of_all(power_limit_w) AS power_limit_w,
        max_of_all(power_limit_w) AS highest_limit_w,
        count(gpu) AS gpus, bool_or(shared) AS shared,
        coalesce(min(quality) FILTER (quality <> 'ok'), 'ok') AS quality
    FROM windows ANTI JOIN of_lower_ranks(wanted) USING (session, gpu) ANTI JOIN begun_again(wanted) AS again
        ON windows.session = again.session AND windows.index BETWEEN first_again AND last_again
    WHERE kind = wanted AND NOT of_host(gpu)
    GROUP BY run, index
) AS gpu_windows LEFT JOIN (
    -- Ranks of one host all have a row of the same CPU: it counts once, as the slowest of them saw it.
    SELECT run, index, sum_of_all(energy_j) AS cpu_energy_j
    FROM (
        SELECT run, index, max_of_all(energy_j) AS energy_j
        FROM windows ANTI JOIN begun_again(wanted) AS again
            ON windows.session = again.session AND windows.index BETWEEN first_again AND last_again
        WHERE kind = wanted AND of_host(gpu)
        GROUP BY run, index, gpu
    ) GROUP BY run, index
) AS cpu_windows USING (run, index);

CREATE VIEW steps AS SELECT run, job, index AS step, * EXCLUDE (run, job, index, name) FROM whole('step');

CREATE VIEW epochs AS SELECT run, job, index AS epoch, * EXCLUDE (run, job, index, name) FROM whole('epoch');

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
    sum_of_all(share * energy_j) AS energy_j,
    sum_of_all(share * energy_low_j) AS energy_low_j,
    sum_of_all(share * energy_high_j) AS energy_high_j,
    one_of_all(power_limit_w) AS power_limit_w,
    count(DISTINCT rank) AS ranks, count(DISTINCT gpu) AS gpus, bool_or(shared) AS shared,
    CASE WHEN count(share) < count(*) THEN 'windows of two ranks overlap in part on one GPU'
        ELSE coalesce(min(quality) FILTER (quality <> 'ok'), 'ok') END AS quality
FROM parts GROUP BY run, name, occurrence;

-- Each process of a run with the energy of its GPUs, once it has ended; with `run_energy` that of the whole run.
CREATE VIEW runs AS
SELECT sessions.*, energy_j, energy_p2_5_j, energy_p97_5_j
FROM sessions LEFT JOIN (
    SELECT session, sum_of_all(energy_j) AS energy_j,
        CASE WHEN count(energy_p2_5_j) = count(*) THEN low_of_sum(energy_j, energy_p2_5_j) END AS energy_p2_5_j,
        CASE WHEN count(energy_p97_5_j) = count(*) THEN high_of_sum(energy_j, energy_p97_5_j) END AS energy_p97_5_j
    FROM windows WHERE kind = 'run' AND gpu IS NOT NULL AND NOT of_host(gpu) GROUP BY session
) AS of_session USING (session);

-- Sessions, and whether each is the last one of its rank: a run ended as those did.
CREATE MACRO sessions_of_ranks() AS TABLE
SELECT *, row_number() OVER (PARTITION BY run, rank ORDER BY began_wall_ns DESC, session) = 1 AS is_last FROM sessions;

-- The windows of closed runs that add up to their energy: of ranks that have a GPU in common the lowest counts. A
-- window without GPU is of a rank whose GPUs were never named, or that was set aside: the sum is not known then.
CREATE MACRO counted_wholes() AS TABLE
WITH wholes AS (
    SELECT *, epoch_us(began_at) AS began_us, epoch_us(began_at) + (end_ns - begin_ns) // 1000 AS ended_us
    FROM windows WHERE kind = 'run' AND NOT of_host(gpu) AND quality <> 'the session has no GPU'
)
FROM wholes AS mine WHERE NOT EXISTS (
    FROM wholes AS other WHERE other.run = mine.run AND other.gpu = mine.gpu AND other.session <> mine.session
        AND other.began_us < mine.ended_us AND other.ended_us > mine.began_us
        AND (other.rank < mine.rank OR (other.rank = mine.rank
            AND (other.duration_s, other.session) > (mine.duration_s, mine.session))));

-- The energy of each run, once it is closed.
CREATE VIEW run_energy AS
SELECT run, any_value(job) AS job, make_timestamp(min(began_us)) AS began_at, make_timestamp(max(ended_us)) AS ended_at,
    sum_of_all(energy_j) AS energy_j
FROM counted_wholes() GROUP BY run;

-- The energy of a job over all its runs, restarts and resumes.
CREATE VIEW job_energy AS
WITH attempts AS (
    SELECT job, count(DISTINCT run) AS runs, sum(attempts)::BIGINT AS attempts,
        sum(open)::BIGINT AS open, min(began_at) AS began_at, max(ended_at) AS ended_at, max(world_size) AS ranks,
        list_sort(list_distinct(flatten(list(gpus)))) AS gpus
    FROM (
        SELECT job, run, count(DISTINCT began_ns) FILTER (rank = least_rank) AS attempts,
            count(*) FILTER (ended_ns IS NULL) AS open, min(began_at) AS began_at, max(ended_at) AS ended_at,
            max(world_size) AS world_size, flatten(list(gpus)) AS gpus
        FROM (SELECT *, min(rank) OVER (PARTITION BY run) AS least_rank FROM sessions WHERE world_size > 0)
        GROUP BY job, run
    ) GROUP BY job
), spent AS (
    SELECT job, count(*) AS windows, count(energy_j) AS measured, sum(duration_s) AS gpu_s,
        sum(duration_s) FILTER (energy_j IS NULL) AS missing_gpu_s, sum(energy_j) AS energy_j,
        CASE WHEN bool_and(energy_low_j IS NOT NULL) FILTER (energy_j IS NOT NULL)
            THEN sum(energy_low_j) FILTER (energy_j IS NOT NULL) END AS energy_low_j,
        CASE WHEN bool_and(energy_high_j IS NOT NULL) FILTER (energy_j IS NOT NULL)
            THEN sum(energy_high_j) FILTER (energy_j IS NOT NULL) END AS energy_high_j,
        CASE WHEN count(energy_j) > 0 THEN low_of_sum(energy_j, energy_p2_5_j) END AS energy_p2_5_j,
        high_of_sum(energy_j, energy_p97_5_j) AS energy_p97_5_j,
        bool_or(shared) AS shared, string_agg(DISTINCT quality, '; ') FILTER (quality <> 'ok') AS quality
    FROM counted_wholes() GROUP BY job
)
SELECT attempts.job, runs, attempts, attempts.open, began_at, ended_at, ranks, len(gpus) AS gpus,
    gpu_s, energy_j, energy_low_j, energy_high_j, energy_p2_5_j, energy_p97_5_j,
    coalesce(windows - measured, 0) AS missing, coalesce(missing_gpu_s, 0) AS missing_gpu_s,
    coalesce(shared, false) AS shared, coalesce(quality, 'ok') AS quality
FROM attempts LEFT JOIN spent USING (job);

-- The energy of a run with what is not known of the gain of its sensors. A calibrated gain is taken out of
-- windows, which then name it; another is divided out here. Cards are taken to be off in one direction.
CREATE VIEW true_energy AS
WITH parts AS (
    SELECT run, energy_j, energy_p2_5_j, energy_p97_5_j, sensor_calibrated, sensor_gain_error / sensor_gain AS doubt,
        CASE WHEN regexp_matches(quality, '(^|; )gain [0-9]') THEN 1 ELSE sensor_gain END AS gain
    FROM counted_wholes() LEFT JOIN gpus USING (gpu)
), sums AS (
    SELECT run, sum(energy_j) AS sensor_j, sqrt(sum((energy_j - energy_p2_5_j) ** 2)) AS below_j,
        sqrt(sum((energy_p97_5_j - energy_j) ** 2)) AS above_j, sum(energy_j / gain) AS true_j,
        sqrt(sum(((energy_j - energy_p2_5_j) / gain) ** 2) + sum(doubt * energy_j / gain) ** 2) AS true_below_j,
        sqrt(sum(((energy_p97_5_j - energy_j) / gain) ** 2) + sum(doubt * energy_j / gain) ** 2) AS true_above_j,
        100 * sum(doubt * energy_j / gain) / nullif(sum(energy_j / gain), 0) AS doubt_percent,
        bool_and(sensor_calibrated) AS calibrated, count(energy_j) = count(*) AS whole,
        count(energy_j / gain) = count(*) AS known
    FROM parts GROUP BY run
)
SELECT run, CASE WHEN whole THEN sensor_j END AS sensor_j,
    CASE WHEN whole THEN greatest(sensor_j - below_j, 0) END AS sensor_p2_5_j,
    CASE WHEN whole THEN sensor_j + above_j END AS sensor_p97_5_j,
    CASE WHEN known THEN true_j END AS true_j,
    CASE WHEN known THEN greatest(true_j - true_below_j, 0) END AS true_p2_5_j,
    CASE WHEN known THEN true_j + true_above_j END AS true_p97_5_j,
    CASE WHEN known THEN doubt_percent END AS doubt_percent, coalesce(calibrated, false) AS calibrated
FROM sums;

CREATE VIEW samples AS
SELECT gpu, host, read_at, t_hi_ns, energy_mj / 1000 AS energy_j, power_mw / 1000 AS power_w,
    limit_mw / 1000 AS limit_w, clock_mhz, temperature_c, utilization_pct
FROM readings;

-- Energy of each GPU by second, minute or hour: the finest that is kept of a time. A host with a wrong clock may have
-- added to a time of which the finer ones were removed.
CREATE VIEW power AS
WITH kept AS (
    SELECT coalesce(max(before) FILTER ("table" = 'seconds'), '-infinity') AS seconds_since,
        coalesce(max(before) FILTER ("table" = 'minutes'), '-infinity') AS minutes_since
    FROM removed
), parts AS (
    SELECT 1 AS length_s, seconds.* FROM seconds, kept WHERE began_at >= seconds_since
    UNION ALL
    SELECT 60, minutes.* FROM minutes, kept WHERE began_at < seconds_since AND began_at >= minutes_since
    UNION ALL
    SELECT 3600, hours.* FROM hours, kept WHERE began_at < seconds_since AND began_at < minutes_since
)
SELECT gpu, host, began_at, length_s, energy_j, covered_s, energy_j / covered_s AS power_w,
    * EXCLUDE (gpu, host, began_at, length_s, energy_j, covered_s)
FROM parts;

-- The energy of whole hosts by hour, where a meter is read: GPUs + CPUs + memory + rest = wall. Of the minutes
-- that are kept and that every device of the host covers. The interval of the rest has the scatter of its minutes,
-- and what is known of the gains of meters and GPUs: each kind is taken to be off in one direction.
CREATE VIEW balance AS
WITH devices AS (
    SELECT minutes.host, gpu, began_at, energy_j / coalesce(sensor_gain, 1) / covered_s AS power_w, covered_s,
        CASE split_part(gpu, '-', 1) WHEN 'WALL' THEN 'wall' WHEN 'CPU' THEN 'cpu' WHEN 'DRAM' THEN 'memory'
            ELSE 'gpu' END AS part,
        -- Of a CPU nothing is known, of a GPU what is published, of a meter what its setting says, or nothing.
        CASE WHEN part = 'wall' THEN sensor_gain_error ELSE coalesce(sensor_gain_error / sensor_gain, 0) END * power_w
            AS doubt_w
    FROM (
        SELECT host, gpu, began_at, sum(energy_j) AS energy_j, sum(covered_s) AS covered_s FROM minutes
        WHERE covered_s > 0 AND NOT starts_with(gpu, 'SITE-')
            AND host IN (SELECT host FROM gpus WHERE starts_with(gpu, 'WALL-'))
        GROUP BY host, gpu, began_at
    ) AS minutes LEFT JOIN gpus USING (gpu)
), known AS (
    SELECT host, began_at, max(covered_s) AS covered_s, count(*) AS devices,
        min(covered_s) >= 0.9 * max(covered_s) AS even, sum(power_w) FILTER (part = 'wall') AS wall_w,
        sum(power_w) FILTER (part = 'gpu') AS gpu_w, sum(power_w) FILTER (part = 'cpu') AS cpu_w,
        sum(power_w) FILTER (part = 'memory') AS memory_w,
        CASE WHEN bool_and(doubt_w IS NOT NULL) FILTER (part = 'wall')
            THEN sum(doubt_w) FILTER (part = 'wall') END AS wall_doubt_w,
        coalesce(sum(doubt_w) FILTER (part = 'gpu'), 0) AS gpu_doubt_w
    FROM devices GROUP BY host, began_at
), whole AS (
    SELECT *, wall_w - coalesce(gpu_w, 0) - coalesce(cpu_w, 0) - coalesce(memory_w, 0) AS rest_w,
        max(devices) OVER (PARTITION BY host, date_trunc('hour', began_at)) AS most
    FROM known WHERE even AND wall_w IS NOT NULL
)
SELECT host, date_trunc('hour', began_at) AS began_at, sum(covered_s) AS covered_s, sum(gpu_w * covered_s) AS gpu_j,
    sum(cpu_w * covered_s) AS cpu_j, sum(memory_w * covered_s) AS memory_j, sum(rest_w * covered_s) AS rest_j,
    CASE WHEN count(wall_doubt_w) = count(*) AND count(*) >= 4 THEN sqrt(
        sum(wall_doubt_w * covered_s) ** 2 + sum(gpu_doubt_w * covered_s) ** 2
        + (2 * stddev_samp(rest_w) / sqrt(count(*)) * sum(covered_s)) ** 2) END AS rest_within_j,
    sum(wall_w * covered_s) AS wall_j, wall_j / nullif(gpu_j, 0) AS wall_per_gpu
FROM whole WHERE devices = most GROUP BY host, date_trunc('hour', began_at);

-- The power usage effectiveness of a site by hour, where one of its hosts reads the site's meter: site over hosts.
-- ``of_gpus`` is over GPUs, what costs are multiplied by. Hosts without a meter are missing in ``hosts_j``.
CREATE VIEW site_pue AS
WITH meters AS (
    SELECT date_trunc('hour', began_at) AS began_at, sum(energy_j) AS site_j, sum(covered_s) / count(DISTINCT gpu) AS site_s
    FROM minutes WHERE starts_with(gpu, 'SITE-') GROUP BY ALL
), hosts AS (
    SELECT began_at, sum(wall_j / covered_s) AS hosts_w, sum(gpu_j / covered_s) AS gpus_w, count(*)::BIGINT AS hosts
    FROM balance GROUP BY began_at
)
SELECT began_at, hosts, site_s AS covered_s, site_j, hosts_w * site_s AS hosts_j,
    site_j / nullif(hosts_w * site_s, 0) AS pue, site_j / nullif(gpus_w * site_s, 0) AS of_gpus
FROM meters JOIN hosts USING (began_at) WHERE site_s > 0;

-- Wall power over that of GPUs while each run lasted: of the site where it has a meter, else of the run's hosts.
CREATE VIEW measured_pue AS
SELECT run, coalesce(max(of_gpus), sum(wall_j) / nullif(sum(gpu_j), 0)) AS measured_pue
FROM (
    SELECT DISTINCT run_energy.run, host, run_energy.began_at, run_energy.ended_at FROM run_energy
    JOIN sessions USING (run)
) AS ran JOIN balance ON balance.host = ran.host AND balance.began_at < ended_at
    AND balance.began_at + INTERVAL 1 HOUR > ran.began_at
LEFT JOIN (
    SELECT began_at AS hour_at, of_gpus FROM site_pue
) AS site ON hour_at = balance.began_at
GROUP BY run;

-- How the power of a run's GPUs together swings, of all GPUs where the run is NULL: amplitudes by frequency, from the
-- last two minutes that have readings. Stretches of 20 s with a Hann window each, whose powers are averaged (Welch, "The
-- use of fast Fourier transform for the estimation of power spectra", IEEE Trans. Audio 15, 1967). A reading is the mean
-- between two changes of the counter, which lessens an amplitude by sinc(frequency * period), and bins of 10 ms do so
-- too: that is undone. No frequency is above half that of the readings, nor above 20 Hz.
CREATE MACRO power_swings_of(wanted) AS TABLE
WITH devices AS (
    SELECT DISTINCT gpu FROM (SELECT unnest(gpus) AS gpu FROM sessions WHERE run = wanted
        UNION ALL SELECT gpu FROM gpus WHERE wanted IS NULL) WHERE NOT of_host(gpu)
), until AS (
    SELECT coalesce((SELECT max(ended_at) FROM sessions WHERE run = wanted HAVING count(ended_ns) = count(*)),
        (SELECT max(began_at) + INTERVAL 1 MINUTE FROM minutes WHERE gpu IN (FROM devices))) AS until_at,
        (SELECT min(began_at) FROM sessions WHERE run = wanted) AS since_at
), taken AS (
    SELECT gpu, epoch_us(read_at) AS at_us, energy_mj, power_mw, seen FROM readings, until
    WHERE gpu IN (FROM devices) AND read_at > greatest(until_at - INTERVAL 2 MINUTE, since_at)
        AND read_at <= until_at AND seen <> 'unchanged'
), spans AS (
    SELECT gpu, lag(at_us) OVER one_gpu AS from_us, at_us, seen,
        CASE WHEN energy_mj IS NULL THEN lag(power_mw) OVER one_gpu / 1000
            ELSE (energy_mj - lag(energy_mj) OVER one_gpu) * 1000 / (at_us - lag(at_us) OVER one_gpu) END AS power_w
    FROM taken WINDOW one_gpu AS (PARTITION BY gpu ORDER BY at_us)
), placed AS (
    SELECT gpu, power_w, (at_us - from_us) / 1e6 AS span_s, (at_us + from_us) // 2 - min(from_us) OVER () AS middle_us
    FROM spans WHERE from_us < at_us AND seen NOT IN ('first', 'reset') AND power_w IS NOT NULL
), stretches AS (
    SELECT *, middle_us // 20_000_000 AS stretch, sum(power_w * span_s) OVER parts / sum(span_s) OVER parts AS mean_w
    FROM placed WINDOW parts AS (PARTITION BY gpu, middle_us // 20_000_000)
), complete AS (  -- the readings of each GPU reach over the stretch; one at rest is read every 5 s
    SELECT stretch FROM (
        SELECT stretch, gpu, sum(span_s) AS covered_s, max(span_s) AS longest_s FROM stretches GROUP BY ALL
    ) GROUP BY stretch HAVING min(covered_s) > 14 AND max(longest_s) < 6
), bins AS (
    SELECT stretch, (middle_us % 20_000_000) // 10_000 AS bin, sum((power_w - mean_w) * span_s) AS swing_j
    FROM stretches WHERE stretch IN (FROM complete) GROUP BY ALL
), tones AS (
    SELECT stretch, tone, sum(swing_j * (1 - cos(pi() * bin / 1000)) * cos(pi() * bin * tone / 1000)) AS re_j,
        sum(swing_j * (1 - cos(pi() * bin / 1000)) * sin(pi() * bin * tone / 1000)) AS im_j
    FROM bins, (SELECT unnest(range(2, 401)) AS tone) GROUP BY ALL
), period AS (
    SELECT median(span_s) AS period_s FROM placed
), mean AS (
    SELECT sum(mean_w) AS mean_w FROM (
        SELECT gpu, avg(mean_w) AS mean_w FROM stretches WHERE stretch IN (FROM complete) GROUP BY gpu
    )
)
SELECT tone / 20 AS frequency_hz,
    sqrt(avg(re_j ** 2 + im_j ** 2)) / 10 * (pi() * tone / 20 * any_value(period_s))
        / sin(pi() * tone / 20 * any_value(period_s)) * (pi() * tone / 2000) / sin(pi() * tone / 2000) AS amplitude_w,
    any_value(mean_w) AS mean_w, any_value(period_s) AS period_s
FROM tones, period, mean WHERE tone / 20 * period_s <= 0.5 GROUP BY tone ORDER BY tone;

-- What GPUs used while no run had them, from roll-ups. NULL where two runs had one at the same time in part.
CREATE VIEW idle_gpus AS
WITH used AS (
    SELECT gpu, sum(energy_j) AS energy_j, sum(covered_s) AS duration_s FROM power WHERE NOT of_host(gpu) GROUP BY gpu
), placed AS (
    SELECT gpu, energy_j, duration_s, began_at, end_ns, begin_ns,
        max(began_at + to_microseconds((end_ns - begin_ns) // 1000)) OVER (
            PARTITION BY gpu ORDER BY began_at, end_ns - begin_ns DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_at
    FROM windows WHERE kind = 'run' AND gpu IS NOT NULL
), ran AS (
    SELECT gpu, sum_of_all(share * energy_j) AS energy_j,
        sum(share * duration_s) AS duration_s
    FROM (
        SELECT *, CASE WHEN covered_at IS NULL OR began_at >= covered_at THEN 1
            WHEN began_at + to_microseconds((end_ns - begin_ns) // 1000) <= covered_at THEN 0 END AS share
        FROM placed
        UNION ALL  -- what an open run has used so far, in whole roll-ups
        SELECT gpu, power.energy_j, covered_s, power.began_at, NULL, NULL, NULL, 1
        FROM power JOIN (
            SELECT gpu, make_timestamp(min(began_wall_ns) // 1000) AS began_at
            FROM (SELECT unnest(gpus) AS gpu, began_wall_ns FROM sessions WHERE ended_ns IS NULL) GROUP BY gpu
        ) AS open USING (gpu) WHERE power.began_at >= open.began_at
    ) GROUP BY gpu
)
SELECT gpu, host, idle.energy_j, idle.duration_s, idle.energy_j / nullif(all_j, 0) AS share
FROM (
    -- Of a run that ended just now, the last seconds are not rolled up yet: then nothing is known to be idle.
    SELECT gpu, used.energy_j AS all_j, CASE WHEN ran.energy_j > used.energy_j THEN 0
            ELSE greatest(used.duration_s - coalesce(ran.duration_s, 0), 0) END AS duration_s,
        CASE WHEN ran.gpu IS NULL THEN used.energy_j WHEN ran.energy_j IS NOT NULL
            THEN greatest(used.energy_j - ran.energy_j, 0) END AS energy_j
    FROM used LEFT JOIN ran USING (gpu)
) AS idle LEFT JOIN gpus USING (gpu);

-- GPUs under a power budget, with what they drew when their host was last seen.
CREATE VIEW budgeted_gpus AS
WITH drawn AS (
    SELECT gpu, arg_max(power_mw, t_hi_ns) / 1000 AS drawn_w FROM readings JOIN logs USING (log_id)
    WHERE readings.logged_ns >= logs.logged_ns - 5_000_000_000 GROUP BY gpu
)
SELECT budget, gpus.host, index, gpu, run, most_w, limit_w, drawn_w, reason
FROM budget_shares LEFT JOIN gpus USING (gpu) LEFT JOIN drawn USING (gpu) WHERE budget IS NOT NULL;

-- How well a power budget follows its load signal, by whole minute: what its GPUs drew by their counters against the
-- target. A minute is outside if they differ by more than 2 % of the target.
CREATE VIEW budget_tracking AS
WITH targets AS (
    SELECT budget, date_trunc('minute', target_at) AS began_at, avg(target_w) AS target_w, avg(most_w) AS most_w
    FROM budget_targets GROUP BY ALL
), members AS (
    SELECT budget, unnest(gpus) AS gpu FROM (
        FROM budgets QUALIFY row_number() OVER (PARTITION BY budget ORDER BY set_ns DESC) = 1)
), drawn AS (
    SELECT gpu, date_trunc('minute', began_at) AS began_at, sum(energy_j) / sum(covered_s) AS drawn_w
    FROM power WHERE length_s <= 60 AND began_at >= (SELECT min(began_at) FROM targets) GROUP BY ALL
)
SELECT budget, began_at, any_value(target_w) AS target_w, any_value(most_w) AS most_w, sum(drawn_w) AS drawn_w,
    sum(drawn_w) - any_value(target_w) AS error_w,
    abs(sum(drawn_w) / nullif(any_value(target_w), 0) - 1) > 0.02 AS outside
FROM targets JOIN members USING (budget) JOIN drawn USING (gpu, began_at)
GROUP BY budget, began_at;

-- ---- jobs that recur ----------------------------------------------------------------------------

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

-- ---- the search ---------------------------------------------------------------------------------

-- How well a round of profiling knows what a step costs at each limit: the mean of its steps, and half the width of
-- its 95 % interval, from the scatter of the means of up to 8 stretches of steps in a row, by Student's t. Which steps
-- a trial measured is known by the clock of its lowest rank.
CREATE MACRO scatter_of(wanted) AS TABLE
WITH tried AS (
    SELECT trials.* FROM trials WHERE run IN (SELECT unnest(wanted))
), spans AS (
    SELECT run, min(began_ns) AS began_ns, max(ended_ns) AS ended_ns FROM tried GROUP BY run
), leads AS (
    SELECT run, min(rank) AS rank FROM sessions WHERE run IN (SELECT run FROM spans) GROUP BY run
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
        sum_of_all(energy_j) AS energy_j
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
)
SELECT run, round, power_limit_w, sum(steps)::BIGINT AS steps,
    sum(steps * energy_j) / sum(steps) AS energy_per_step_j, sum(steps * duration_s) / sum(steps) AS step_s,
    [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(energy_j) / sqrt(count(*)) AS energy_within_j,
    [3.182, 2.776, 2.571, 2.447, 2.365][count(*) - 3] * stddev_samp(duration_s) / sqrt(count(*)) AS step_within_s
FROM stretches GROUP BY run, round, power_limit_w;

CREATE VIEW scatter AS
FROM scatter_of((SELECT coalesce(list(DISTINCT run), []) FROM trials));

-- The steps of some runs that have a choice, from an instant on; what each has saved, if it `saves`. Each stretch of
-- steps is against the baseline that its own decision measured; the first also counts for those before. Since the
-- workload changed until the next decision, steps at the limit of the decision before count as they are.
CREATE MACRO decided_steps_of(wanted, since) AS TABLE
WITH chosen_limits AS (
    SELECT decisions.*, CASE WHEN row_number() OVER (PARTITION BY run ORDER BY number) = 1 THEN 0
            ELSE coalesce(changed_step, steps) END AS first,
        lag(power_limit_w) OVER (PARTITION BY run ORDER BY number) AS held_w,
        CASE WHEN clock_mhz IS NULL THEN abs(power_limit_w - default_limit_w) < 0.5
            ELSE clock_mhz IS NOT DISTINCT FROM default_clock_mhz END AS keeps
    FROM decisions WHERE run IN (SELECT unnest(wanted)) AND power_limit_w IS NOT NULL
), spans AS (
    -- A later decision counts from its first step on, whatever came before.
    SELECT * FROM (
        SELECT *, coalesce(min(first) OVER (PARTITION BY run ORDER BY number
            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), 9223372036854775807) AS next
        FROM chosen_limits
    ) WHERE next > first
), stepped AS (
    SELECT run, index AS step, min(began_at) AS began_at, max(duration_s) AS duration_s,
        max_of_all(power_limit_w) AS highest_limit_w,
        min(power_limit_w) AS lowest_limit_w,
        sum_of_all(energy_j) AS energy_j
    FROM windows WHERE run IN (SELECT run FROM chosen_limits) AND kind = 'step' AND NOT of_host(gpu) AND began_at >= since
    GROUP BY run, index
)
-- What single GPUs below the limit save as well is in no decision: such steps are compared as they are.
SELECT stepped.run, step, began_at, duration_s, energy_j, highest_limit_w, spans.number, step >= spans.steps AS decided,
    step < spans.steps AND abs(held_w - default_limit_w) >= 0.5 AND abs(highest_limit_w - held_w) < 0.5
        AND abs(held_w - power_limit_w) >= 0.5 AS held,
    coalesce(applied AND CASE WHEN clock_mhz IS NULL THEN abs(highest_limit_w - power_limit_w) < 0.5 OR held
        ELSE step >= spans.steps END, false) AS saves, CASE
        WHEN (lowest_limit_w < power_limit_w - 0.5 OR held) AND clock_mhz IS NULL
            THEN default_energy_per_step_j - stepped.energy_j
        WHEN keeps THEN 0
        ELSE stepped.energy_j * (default_energy_per_step_j / energy_per_step_j - 1) END AS saved_j
FROM stepped JOIN spans ON stepped.run = spans.run AND stepped.step >= spans.first AND stepped.step < spans.next;

CREATE MACRO saved_steps_of(wanted, since) AS TABLE
SELECT run, step, began_at, duration_s, saved_j FROM decided_steps_of(wanted, since) WHERE saves;

-- The savings of some runs, from their steps. The runs are known before steps are read: milliseconds.
CREATE MACRO savings_of(wanted) AS TABLE
WITH chosen AS (
    SELECT *, row_number() OVER (PARTITION BY run ORDER BY power_limit_w IS NULL, number DESC) = 1 AS is_last
    FROM decisions WHERE run IN (SELECT unnest(wanted))
), tried AS (
    SELECT trials.* FROM trials WHERE run IN (SELECT trials_run FROM chosen)
), scattered AS (
    FROM scatter_of((SELECT coalesce(list(DISTINCT trials_run), []) FROM chosen))
), tops AS (
    SELECT run, round, max(power_limit_w) AS top_w FROM tried GROUP BY run, round
), scaled AS (
    -- Relative half-widths of a ratio of two means: squares add up. The top limit against itself is exact.
    -- From one visit to another a step drifts by 0.83 % (95 %).
    SELECT chosen.*, at_top.energy_per_step_j AS top_step_j,
        CASE WHEN chosen.power_limit_w = top_w THEN 0 ELSE
            sqrt((at_chosen.energy_within_j / at_chosen.energy_per_step_j) ** 2
                + (at_top.energy_within_j / at_top.energy_per_step_j) ** 2 + 0.0083 ** 2) END AS energy_within,
        CASE WHEN chosen.power_limit_w = top_w THEN 0 ELSE
            sqrt((at_chosen.step_within_s / at_chosen.step_s) ** 2 + (at_top.step_within_s / at_top.step_s) ** 2
                + 0.0083 ** 2) END AS step_within,
        100 * (1 - chosen.energy_per_step_j / default_energy_per_step_j) AS saved_percent,
        100 * (chosen.step_s / default_step_s - 1) AS added_percent
    FROM chosen
    LEFT JOIN tops ON tops.run = trials_run AND tops.round = trials_round
    LEFT JOIN scattered AS at_chosen ON at_chosen.run = trials_run AND at_chosen.round = trials_round
        AND at_chosen.power_limit_w = chosen.power_limit_w
    LEFT JOIN scattered AS at_top ON at_top.run = trials_run AND at_top.round = trials_round
        AND at_top.power_limit_w = top_w
), bounded AS (
    SELECT * REPLACE (
        coalesce(energy_saved_low_percent, saved_percent - (100 - saved_percent) * energy_within)
            AS energy_saved_low_percent,
        coalesce(energy_saved_high_percent, saved_percent + (100 - saved_percent) * energy_within)
            AS energy_saved_high_percent,
        coalesce(time_added_low_percent, added_percent - (100 + added_percent) * step_within)
            AS time_added_low_percent,
        coalesce(time_added_high_percent, added_percent + (100 + added_percent) * step_within)
            AS time_added_high_percent)
    FROM scaled
), decided AS (
    FROM bounded WHERE is_last
), summed AS MATERIALIZED (
    SELECT run, number, decided, highest_limit_w, saves, count(*) AS steps, count(energy_j) AS measured,
        sum(energy_j) AS energy_j, sum(saved_j) AS saved_j
    FROM decided_steps_of(wanted, '-infinity'::TIMESTAMP) GROUP BY ALL
), ran AS (
    -- A job is at its limit though single GPUs of it are lower: one of them always has it.
    -- Of a clock: from the step of the decision on.
    SELECT decided.run, CASE WHEN clock_mhz IS NULL THEN abs(highest_limit_w - decided.power_limit_w) < 0.5
            ELSE applied AND summed.decided AND summed.number = decided.number END AS at_limit,
        sum(summed.steps)::BIGINT AS steps, sum(measured)::BIGINT AS measured, sum(summed.energy_j) AS energy_j
    FROM decided JOIN summed ON summed.run = decided.run
        AND (clock_mhz IS NOT NULL OR abs(highest_limit_w - decided.power_limit_w) < 0.5
            OR abs(highest_limit_w - default_limit_w) < 0.5)
    GROUP BY ALL
), stretched AS (
    SELECT run, number, sum(measured)::BIGINT AS steps, sum(saved_j) AS saved_j
    FROM summed WHERE saves GROUP BY ALL
), gained AS (
    SELECT run, sum(stretched.saved_j) AS saved_j, list({
            'first_step': coalesce(bounded.changed_step, bounded.steps), 'changed': reason LIKE '%searched again as the workload changed%',
            'power_limit_w': power_limit_w, 'clock_mhz': clock_mhz, 'steps': stretched.steps,
            'saved_j': stretched.saved_j, 'energy_saved_percent': saved_percent,
            'energy_saved_low_percent': energy_saved_low_percent,
            'energy_saved_high_percent': energy_saved_high_percent,
            'measured_by': trials_run || ' ' || trials_round
        } ORDER BY number) FILTER (stretched.steps > 0) AS stretches
    FROM stretched JOIN bounded USING (run, number) GROUP BY run
)
SELECT decided.run, (SELECT any_value(job) FROM sessions AS runs WHERE runs.run = decided.run) AS job, selector,
    default_limit_w, power_limit_w, default_energy_per_step_j, energy_per_step_j,
    saved_percent AS energy_saved_percent, energy_saved_low_percent, energy_saved_high_percent,
    default_step_s, step_s, added_percent AS time_added_percent, time_added_low_percent, time_added_high_percent,
    coalesce(ran.steps, 0) AS steps_at_limit,
    CASE WHEN ran.steps IS NULL AND gained.run IS NULL THEN 0 ELSE gained.saved_j END AS saved_j,
    CASE WHEN NOT applied THEN found.energy_j * saved_percent / 100 END AS would_save_j,
    CASE WHEN NOT applied AND trials_run <> decided.run AND found.measured > 0
        THEN 100 * (found.energy_j / found.measured / top_step_j - 1) END AS changed_percent,
    applied, reason, trials_run, default_clock_mhz, clock_mhz, stretches
FROM decided LEFT JOIN ran ON ran.run = decided.run AND ran.at_limit
    LEFT JOIN gained ON gained.run = decided.run
    LEFT JOIN ran AS found ON found.run = decided.run AND (NOT found.at_limit OR power_limit_w = default_limit_w);

-- Savings as they were when a run ended, with the sessions it had then; NULL: its steps are removed since.
CREATE TABLE ended_savings AS
SELECT *, NULL::BIGINT AS sessions FROM savings_of([]::VARCHAR[]) LIMIT 0;

-- Rows of runs to which no session has been added since.
CREATE VIEW lasting_savings AS
SELECT ended_savings.* EXCLUDE (sessions) FROM ended_savings
WHERE sessions IS NULL OR sessions = (
    SELECT count(*) FROM sessions AS runs WHERE runs.run = ended_savings.run AND runs.world_size > 0
);

CREATE VIEW savings AS
FROM lasting_savings UNION ALL
FROM savings_of((
    SELECT coalesce(list(DISTINCT run), []) FROM decisions WHERE run NOT IN (SELECT run FROM lasting_savings)
));

-- The row of the view ``savings`` for one run.
CREATE MACRO saving_of(wanted) AS TABLE
FROM lasting_savings WHERE run = wanted UNION ALL
FROM savings_of((SELECT list(run) FROM (SELECT wanted AS run) WHERE run NOT IN (SELECT run FROM lasting_savings)));

-- What a run of each identity would start from: clocks and power limits apart.
CREATE VIEW profiles AS
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

-- ---- waste --------------------------------------------------------------------------------------

-- The parts of some runs, from their windows.
CREATE MACRO waste_of_runs(wanted) AS TABLE
WITH ranks AS MATERIALIZED (
    SELECT session, run, job, host, rank, ended_how, wall_error_ns / 1000 AS error_us
    FROM sessions WHERE world_size > 0 AND run IN (SELECT unnest(wanted))
), seen AS NOT MATERIALIZED (
    SELECT windows.session, windows.run, windows.rank, kind, name, index, gpu, begin_ns, end_ns, duration_s, energy_j,
        epoch_us(began_at) AS began_us, epoch_us(began_at) + (end_ns - begin_ns) // 1000 AS ended_us
    FROM windows SEMI JOIN ranks USING (session)
    WHERE gpu IS NOT NULL AND NOT of_host(gpu) AND run IN (SELECT unnest(wanted))
), wholes AS MATERIALIZED (
    SELECT * FROM seen WHERE kind = 'run'
), doubled AS MATERIALIZED (
    -- Of ranks that have a GPU in common the lowest counts. A session that goes on in another is inside it.
    SELECT mine.session, mine.gpu, other.session AS other, other.rank < mine.rank AS by_rank
    FROM wholes AS mine JOIN wholes AS other ON other.run = mine.run AND other.gpu = mine.gpu
        AND other.session <> mine.session AND other.began_us < mine.ended_us AND other.ended_us > mine.began_us
        AND (other.rank < mine.rank OR (other.rank = mine.rank
            AND (other.duration_s, other.session) > (mine.duration_s, mine.session)))
), held AS MATERIALIZED (
    SELECT * FROM seen ANTI JOIN (SELECT session, gpu FROM doubled WHERE by_rank) AS twice USING (session, gpu)
    WHERE kind <> 'step'
), totals AS MATERIALIZED (
    -- A sum with a part missing, and of a run that is not closed, is NULL.
    SELECT ranks.run, any_value(ranks.job) AS job, count(DISTINCT counted.gpu) AS gpus,
        CASE WHEN count(wholes.session) = count(*) AND count(counted.energy_j) = count(counted.session)
            THEN sum(counted.energy_j) END AS energy_j,
        CASE WHEN count(wholes.session) = count(*) THEN sum(counted.duration_s) END AS gpu_s
    FROM ranks LEFT JOIN wholes USING (session)
    LEFT JOIN (FROM wholes ANTI JOIN doubled USING (session, gpu)) AS counted
        ON counted.session = wholes.session AND counted.gpu = wholes.gpu
    GROUP BY ranks.run
), all_steps AS NOT MATERIALIZED (
    -- A million of them: they are read where they are added up, and nowhere else are they kept.
    SELECT * FROM seen ANTI JOIN (SELECT session, gpu FROM doubled WHERE by_rank) AS twice USING (session, gpu)
    WHERE kind = 'step'
), spans AS MATERIALIZED (
    -- The steps of each session; `held` has no run window of a session that is still open.
    SELECT session, any_value(run) AS run, min(index) AS first_step, max(index) AS last_step,
        min(began_us) AS began_us, max(ended_us) AS ended_us
    FROM all_steps GROUP BY session
), resumed AS (
    -- A later run of the job that begins at a step above 0 goes on with the last one before it that was killed.
    SELECT arg_max(earlier.run, earlier.began_wall_ns) AS run, later.first_step
    FROM (
        SELECT job, windows.run, min(index) AS first_step, min(began_wall_ns) AS began_wall_ns
        FROM windows JOIN (SELECT run, job, min(began_wall_ns) AS began_wall_ns FROM sessions GROUP BY ALL) AS runs
            USING (run, job)
        WHERE kind = 'step' AND job IN (SELECT job FROM ranks)
        GROUP BY job, windows.run HAVING first_step > 0
    ) AS later JOIN (
        SELECT job, run, min(began_wall_ns) AS began_wall_ns, max(began_wall_ns + ended_ns - began_ns) AS ended_wall_ns,
            bool_or(ended_how = 'ended') AS whole
        FROM sessions WHERE ended_ns IS NOT NULL AND world_size > 0 GROUP BY job, run
    ) AS earlier ON earlier.job = later.job AND earlier.run <> later.run
        AND earlier.ended_wall_ns <= later.began_wall_ns AND NOT earlier.whole
    GROUP BY later.run, later.first_step
), redone_from AS MATERIALIZED (
    -- Steps from this number on were done again later. A session that numbers its steps from 0 again may have begun
    -- at a checkpoint all the same: then it is not known what was done twice. After one that ended in order it is
    -- another training of the same command.
    SELECT session, min(first_step) AS first_step, min(first_step) > 0 AS known
    FROM (
        SELECT mine.session, later.first_step FROM spans AS mine JOIN spans AS later
            ON later.run = mine.run AND later.began_us >= mine.ended_us AND later.session <> mine.session
            AND NOT EXISTS (
                FROM wholes WHERE wholes.session = mine.session AND wholes.ended_us > later.began_us
            )
        JOIN ranks ON ranks.session = mine.session AND (later.first_step > 0 OR ranks.ended_how IS DISTINCT FROM 'ended')
        UNION ALL
        SELECT spans.session, resumed.first_step FROM spans JOIN resumed USING (run)
    ) GROUP BY session
), epochs AS (
    SELECT session, gpu, index, begin_ns, least(end_ns, lead(begin_ns) OVER following) AS end_ns,
        greatest((max(end_ns) OVER whole - min(begin_ns) OVER whole) // count(*) OVER whole, 1) AS width_ns
    FROM held WHERE kind = 'epoch'
    WINDOW whole AS (PARTITION BY session, gpu), following AS (whole ORDER BY begin_ns)
), slots AS MATERIALIZED (
    -- Epochs by slots of their mean length: a step looks among the few of its slot.
    SELECT *, unnest(range(begin_ns // width_ns, end_ns // width_ns + 1)) AS slot FROM epochs
), steps AS NOT MATERIALIZED (
    SELECT all_steps.*, slots.index AS epoch, redone_from.known AS redone
    FROM all_steps LEFT JOIN (SELECT DISTINCT session, gpu, width_ns FROM epochs) AS widths USING (session, gpu)
    LEFT JOIN slots ON slots.session = all_steps.session AND slots.gpu = all_steps.gpu
        AND slots.slot = all_steps.begin_ns // widths.width_ns
        AND all_steps.begin_ns >= slots.begin_ns AND all_steps.begin_ns < slots.end_ns
    LEFT JOIN redone_from ON redone_from.session = all_steps.session AND all_steps.index >= redone_from.first_step
), stretches AS MATERIALIZED (
    SELECT session, gpu, run, epoch, redone, sum(energy_j) AS energy_j, sum(duration_s) AS duration_s,
        count(energy_j) AS measured, sum(duration_s) FILTER (energy_j IS NOT NULL) AS measured_s,
        count(*) AS steps, max(end_ns) AS end_ns
    FROM steps GROUP BY ALL
), outside AS (
    -- Windows outside steps. A step that the device ends a moment after the window began is not in it.
    SELECT windows.* FROM (FROM held WHERE kind = 'window') AS windows ASOF LEFT JOIN (
        FROM all_steps SEMI JOIN (FROM held WHERE kind = 'window') AS windowed USING (session, gpu)
    ) AS all_steps
        ON windows.session = all_steps.session AND windows.gpu = all_steps.gpu
        AND windows.end_ns > all_steps.begin_ns
    WHERE all_steps.begin_ns IS NULL OR (all_steps.begin_ns < windows.begin_ns
        AND all_steps.end_ns - windows.begin_ns <= 0.1 * (windows.end_ns - windows.begin_ns))
), nested AS (
    SELECT *, max(end_ns) OVER (PARTITION BY session, gpu ORDER BY begin_ns, end_ns DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_ns
    FROM outside
), named AS MATERIALIZED (
    SELECT nested.*, CASE WHEN nested.begin_ns < epochs.end_ns THEN epochs.index END AS epoch
    FROM nested ASOF LEFT JOIN (FROM held WHERE kind = 'epoch') AS epochs
        ON nested.session = epochs.session AND nested.gpu = epochs.gpu AND nested.begin_ns >= epochs.begin_ns
    WHERE covered_ns IS NULL OR nested.begin_ns >= covered_ns
), parallel AS MATERIALIZED (
    -- Hosts have clocks of their own: a wait that is shorter than their error is none.
    SELECT run, CASE WHEN count(DISTINCT host) > 1 THEN 2 * max(error_us) ELSE 0 END AS doubt_us
    FROM ranks GROUP BY run HAVING count(DISTINCT rank) > 1
), ends AS (
    SELECT run, index, max(ended_us) AS all_ended_us, any_value(doubt_us) AS doubt_us
    FROM steps JOIN parallel USING (run) WHERE redone IS NULL
    GROUP BY run, index HAVING count(DISTINCT rank) > 1
), paced AS (
    SELECT session, gpu, run, epoch, index, ended_us,
        CASE WHEN lead(epoch) OVER following = epoch THEN lead(began_us) OVER following END AS next_us
    FROM steps SEMI JOIN parallel USING (run) WHERE redone IS NULL WINDOW following AS (PARTITION BY session, gpu ORDER BY index)
), waits AS (
    SELECT session, gpu, epoch, sum(least(all_ended_us, next_us) - ended_us) / 1e6 AS waited_s
    FROM paced JOIN ends USING (run, index)
    WHERE epoch IS NOT NULL AND next_us IS NOT NULL AND least(all_ended_us, next_us) > ended_us + doubt_us
    GROUP BY session, gpu, epoch
), in_steps AS (
    SELECT session, gpu, epoch, sum(energy_j) AS energy_j, sum(duration_s) AS duration_s,
        sum(measured) < sum(steps) AS missing, max(end_ns) AS end_ns
    FROM stretches GROUP BY session, gpu, epoch
), in_windows AS (
    SELECT named.session, named.gpu, named.epoch, sum(named.energy_j) AS energy_j,
        sum(named.duration_s) AS duration_s, count(named.energy_j) < count(*) AS missing,
        coalesce(sum(named.duration_s) FILTER (named.begin_ns >= last.end_ns - 0.1 * 1e9 * named.duration_s), 0) AS tail_s
    FROM named LEFT JOIN in_steps AS last ON last.session = named.session AND last.gpu = named.gpu
        AND last.epoch = named.epoch
    GROUP BY named.session, named.gpu, named.epoch
), gaps_of_epochs AS MATERIALIZED (
    -- What an epoch used outside of steps and named windows. It is data wait when next to nothing of it is after
    -- the last step, where a validation may be that has no name.
    SELECT held.session, held.gpu, held.run, held.energy_j AS epoch_j, held.duration_s AS epoch_s,
        held.energy_j - in_steps.energy_j - coalesce(in_windows.energy_j, 0) AS gap_j,
        round(greatest(held.duration_s - coalesce(in_steps.duration_s, 0) - coalesce(in_windows.duration_s, 0), 0), 6)
            AS gap_s,
        coalesce(NOT in_steps.missing AND NOT coalesce(in_windows.missing, false)
            AND (held.end_ns - in_steps.end_ns) / 1e9 - coalesce(in_windows.tail_s, 0) <= 0.1 * gap_s
            AND gap_j IS NOT NULL, false) AS known,
        CASE WHEN known AND gap_s > 0 THEN least(coalesce(waited_s, 0), gap_s) ELSE 0 END AS waited_s
    FROM held
    LEFT JOIN in_steps ON in_steps.session = held.session AND in_steps.gpu = held.gpu AND in_steps.epoch = held.index
    LEFT JOIN in_windows ON in_windows.session = held.session AND in_windows.gpu = held.gpu
        AND in_windows.epoch = held.index
    LEFT JOIN waits ON waits.session = held.session AND waits.gpu = held.gpu AND waits.epoch = held.index
    WHERE held.kind = 'epoch'
), around AS (
    -- What sessions with epochs used outside of them. Whatever is missing makes it unknown.
    SELECT run, session, gpu,
        sum(energy_j) FILTER (kind = 'run') - coalesce(sum(energy_j) FILTER (kind <> 'run'), 0) AS energy_j,
        greatest(sum(duration_s) FILTER (kind = 'run') - coalesce(sum(duration_s) FILTER (kind <> 'run'), 0), 0)
            AS duration_s
    FROM (
        SELECT run, session, gpu, kind, energy_j, duration_s FROM held
        WHERE kind = 'epoch' OR (kind = 'run' AND (session, gpu) NOT IN (
            SELECT (session, gpu) FROM doubled UNION ALL SELECT (other, gpu) FROM doubled WHERE NOT by_rank))
        UNION ALL SELECT run, session, gpu, 'step', CASE WHEN measured = steps THEN energy_j END, duration_s
        FROM stretches WHERE epoch IS NULL
        UNION ALL SELECT run, session, gpu, kind, energy_j, duration_s FROM named WHERE epoch IS NULL
    )
    GROUP BY run, session, gpu
    HAVING bool_or(kind = 'epoch') AND bool_or(kind = 'run') AND count(energy_j) = count(*)
), chosen AS (
    SELECT run, round, arg_max(power_limit_w, number) AS power_limit_w,
        arg_max(energy_per_step_j, number) AS step_j, arg_max(step_s, number) AS step_s
    FROM decisions WHERE power_limit_w IS NOT NULL GROUP BY run, round
), profiling AS (
    -- Trials that used more energy than the choice would have. Their seconds are below 0 where they were faster.
    SELECT run, sum(trials.energy_j - steps * step_j) AS energy_j,
        sum(duration_s - steps * step_s) AS duration_s
    FROM trials JOIN chosen USING (run, round) SEMI JOIN ranks USING (run)
    WHERE NOT confirms AND abs(trials.power_limit_w - chosen.power_limit_w) >= 0.5 AND trials.energy_j > steps * step_j
        AND NOT EXISTS (
            FROM steps WHERE redone AND steps.run = trials.run AND begin_ns >= began_ns AND begin_ns < ended_ns
        )
    GROUP BY run
), known AS (
    SELECT run, CASE redone WHEN true THEN 'redone steps' ELSE 'steps' END AS cause,
        sum(energy_j) AS energy_j, sum(measured_s) AS gpu_s
    FROM stretches WHERE redone IS DISTINCT FROM false AND measured > 0 GROUP BY ALL
    UNION ALL
    SELECT run, CASE WHEN name IN ('steps', 'redone steps', 'profiling', 'data wait', 'stragglers', 'outside epochs',
        'idle GPU', 'not attributed') THEN 'window ' || name ELSE name END, sum(energy_j), sum(duration_s)
    FROM named WHERE energy_j IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT run, 'data wait', sum(greatest(gap_j, 0) * (gap_s - waited_s) / gap_s), sum(gap_s - waited_s)
    FROM gaps_of_epochs WHERE known AND gap_s > 0 GROUP BY run
    UNION ALL
    SELECT run, 'stragglers', sum(greatest(gap_j, 0) * waited_s / gap_s), sum(waited_s)
    FROM gaps_of_epochs WHERE known AND waited_s > 0 GROUP BY run
    UNION ALL
    SELECT run, 'outside epochs', greatest(sum(energy_j), 0), sum(duration_s) FROM around GROUP BY run
), split AS (
    -- Profiling is a part of the steps; its time is of the whole run, that of steps is of each GPU.
    SELECT known.run, cause,
        CASE cause WHEN 'steps' THEN known.energy_j - least(known.energy_j, coalesce(profiling.energy_j, 0))
            ELSE known.energy_j END AS energy_j,
        CASE cause WHEN 'steps' THEN greatest(known.gpu_s - gpus * coalesce(profiling.duration_s, 0), 0)
            ELSE known.gpu_s END AS gpu_s
    FROM known JOIN totals USING (run) LEFT JOIN profiling USING (run)
    UNION ALL
    SELECT known.run, 'profiling', least(known.energy_j, profiling.energy_j),
        least(known.gpu_s, gpus * profiling.duration_s)
    FROM known JOIN totals USING (run) JOIN profiling USING (run) WHERE cause = 'steps'
), rest AS (
    SELECT run, totals.energy_j - coalesce(sum(split.energy_j), 0) AS energy_j,
        totals.gpu_s - coalesce(sum(split.gpu_s), 0) AS gpu_s
    FROM totals LEFT JOIN split USING (run) GROUP BY run, totals.energy_j, totals.gpu_s
), parts AS (
    -- Estimates of parts may exceed the whole by a little: then the steps take it.
    SELECT run, cause, split.energy_j + CASE cause WHEN 'steps' THEN least(coalesce(rest.energy_j, 0), 0) ELSE 0 END
        AS energy_j, split.gpu_s + CASE cause WHEN 'steps' THEN least(coalesce(rest.gpu_s, 0), 0) ELSE 0 END AS gpu_s
    FROM split JOIN rest USING (run)
    UNION ALL
    SELECT run, 'not attributed', CASE WHEN energy_j < 0 AND run IN (SELECT run FROM split WHERE cause = 'steps')
        THEN 0 ELSE energy_j END, CASE WHEN gpu_s < 0 THEN 0 ELSE gpu_s END FROM rest
)
SELECT parts.run, totals.job, cause, sum(parts.energy_j) AS energy_j, sum(parts.gpu_s) / nullif(any_value(gpus), 0) AS duration_s,
    sum(parts.energy_j) / any_value(totals.energy_j) AS share
FROM parts JOIN totals USING (run) GROUP BY parts.run, totals.job, cause
HAVING sum(parts.energy_j) IS DISTINCT FROM 0 OR sum(parts.gpu_s) IS DISTINCT FROM 0;

-- The parts of a run as they were when it ended, with the sessions it had then; NULL: its steps are removed since.
CREATE TABLE ended_waste AS
SELECT *, NULL::BIGINT AS sessions FROM waste_of_runs([]::VARCHAR[]) LIMIT 0;

-- Rows of runs to which no session has been added since.
CREATE VIEW lasting_waste AS
SELECT ended_waste.* EXCLUDE (sessions) FROM ended_waste
WHERE sessions IS NULL OR sessions = (
    SELECT count(*) FROM sessions AS runs WHERE runs.run = ended_waste.run AND runs.world_size > 0
);

-- The rows of the view ``waste`` for one run.
CREATE MACRO waste_of(wanted) AS TABLE
FROM lasting_waste WHERE run = wanted UNION ALL
FROM waste_of_runs((SELECT list(run) FROM (SELECT wanted AS run) WHERE run NOT IN (SELECT run FROM lasting_waste)));

CREATE VIEW waste AS
FROM lasting_waste
UNION ALL BY NAME
FROM waste_of_runs((
    SELECT coalesce(list(DISTINCT run), []) FROM sessions
    WHERE world_size > 0 AND run NOT IN (SELECT run FROM lasting_waste)
))
UNION ALL BY NAME
SELECT NULL AS run, NULL AS job, 'idle GPU' AS cause, sum_of_all(energy_j) AS energy_j, sum(duration_s) AS duration_s,
    NULL AS share
FROM idle_gpus HAVING count(*) > 0;

-- ---- costs --------------------------------------------------------------------------------------

-- What each closed run costs by each signal. Steps have the value of the time at which they began; what a run used
-- outside of steps has the mean value of its time.
CREATE VIEW costs AS
WITH present AS (
    SELECT * FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
        AND value IS NOT NULL AND name <> 'load'
), overlapping AS (
    SELECT run, name, begins_at, value, epoch_us(least(ended_at, coalesce(ends_at, ended_at)))
        - epoch_us(greatest(began_at, begins_at)) AS overlap_us
    FROM run_energy JOIN present ON begins_at < ended_at AND coalesce(ends_at, 'infinity') > began_at
), means AS (
    SELECT run, name, count(*) AS values, sum(overlap_us) AS covered_us,
        sum(overlap_us * value) / nullif(sum(overlap_us), 0) AS mean_value
    FROM overlapping GROUP BY run, name
), by_steps AS (
    SELECT steps.run, steps.name, sum(energy_j) AS energy_j, sum(energy_j * value) AS weighted
    FROM (
        SELECT windows.run, means.name, began_at, energy_j FROM windows JOIN means USING (run)
        WHERE kind = 'step' AND NOT of_host(gpu) AND means.values > 1 AND energy_j IS NOT NULL
    ) AS steps ASOF JOIN present ON steps.name = present.name AND steps.began_at >= present.begins_at
    GROUP BY steps.run, steps.name
), about AS (
    SELECT name, any_value(unit) AS unit, any_value(place) AS place, any_value(year) AS year,
        any_value(source) AS source, any_value(licence) AS licence
    FROM present GROUP BY name
), pue AS (
    SELECT (SELECT nullif(value::DOUBLE, 0) FROM settings
        WHERE settings.name = 'pue' AND start = (SELECT max(start) FROM settings)) AS pue
), weighted AS (
    SELECT run_energy.run, job, about.name, split_part(unit, '/', 1) AS unit, run_energy.energy_j / 3.6e6 AS energy_kwh,
        coalesce(pue, measured_pue) AS pue, pue IS NULL AS measured,
        CASE WHEN covered_us >= epoch_us(ended_at) - epoch_us(began_at) - 1_000_000 THEN
            coalesce(weighted * least(run_energy.energy_j / nullif(by_steps.energy_j, 0), 1)
                + greatest(run_energy.energy_j - by_steps.energy_j, 0) * mean_value,
                run_energy.energy_j * mean_value) / nullif(run_energy.energy_j, 0) END AS factor,
        unit AS factor_unit, place, year, source, licence, run_energy.energy_j IS NULL AS missing
    FROM run_energy CROSS JOIN about CROSS JOIN pue LEFT JOIN measured_pue ON measured_pue.run = run_energy.run
    LEFT JOIN means ON means.run = run_energy.run
        AND means.name = about.name
    LEFT JOIN by_steps ON by_steps.run = run_energy.run AND by_steps.name = about.name
)
SELECT run, job, name, unit, energy_kwh * factor * coalesce(pue, 1) AS amount, energy_kwh, factor, factor_unit, pue,
    place, year, source, licence,
    CASE WHEN missing THEN 'energy of a GPU is missing' WHEN factor IS NULL THEN 'the signal does not cover the run'
        WHEN pue IS NULL THEN 'GPUs only' WHEN measured THEN 'GPUs x PUE, by meters' ELSE 'GPUs x PUE' END AS basis
FROM weighted;

-- The latest forecast of each run.
CREATE VIEW run_forecasts AS
SELECT *, make_timestamp(made_wall_ns // 1000) AS made_at, energy_j - spent_j AS left_j, duration_s - spent_s AS left_s
FROM forecasts QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) = 1;

-- What it comes to by each signal, at the value that was in force when it was made.
CREATE VIEW forecast_costs AS
WITH present AS (
    SELECT * FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
        AND value IS NOT NULL AND name <> 'load'
), pue AS (
    SELECT (SELECT nullif(value::DOUBLE, 0) FROM settings
        WHERE settings.name = 'pue' AND start = (SELECT max(start) FROM settings)) AS pue
), named AS (
    SELECT run_forecasts.*, names.name FROM run_forecasts CROSS JOIN (SELECT DISTINCT name FROM present) AS names
)
SELECT run, named.name, split_part(unit, '/', 1) AS unit, energy_j / 3.6e6 * value * coalesce(pue, 1) AS amount,
    least(energy_p2_5_j * value, energy_p97_5_j * value) / 3.6e6 * coalesce(pue, 1) AS amount_p2_5,
    greatest(energy_p2_5_j * value, energy_p97_5_j * value) / 3.6e6 * coalesce(pue, 1) AS amount_p97_5,
    value AS factor, unit AS factor_unit, pue, place, year, source, licence
FROM named ASOF JOIN present ON named.name = present.name AND named.made_at >= present.begins_at CROSS JOIN pue
WHERE coalesce(ends_at, 'infinity') > made_at;

-- What zeus-stream itself used while a run lasted, beside what it measured of all runs in that time. NULL where
-- the records of a service cover less than half of it.
CREATE VIEW own_use_of_runs AS
WITH lasted AS (
    SELECT run, min(began_at) AS began_at, max(ended_at) AS ended_at, list(DISTINCT host) AS hosts,
        epoch(max(ended_at) - min(began_at)) AS duration_s
    FROM sessions WHERE world_size > 0 GROUP BY run HAVING count(ended_at) = count(*)
), used AS (
    SELECT run, service, own_use.host, any_value(lasted.duration_s) AS lasted_s,
        sum(epoch(least(lasted.ended_at, own_use.ended_at) - greatest(lasted.began_at, own_use.began_at))) AS covered_s,
        sum(cpu_s * part) AS cpu_s, sum(energy_low_j * part) AS low_j, sum(energy_high_j * part) AS high_j,
        count(*) = count(energy_low_j) AS whole, max(reason) AS reason
    FROM lasted JOIN own_use ON own_use.began_at < lasted.ended_at AND own_use.ended_at > lasted.began_at
        AND (service = 'analyzer' OR list_contains(hosts, own_use.host)),
        LATERAL (SELECT epoch(least(lasted.ended_at, own_use.ended_at) - greatest(lasted.began_at, own_use.began_at))
            / own_use.duration_s AS part)
    WHERE own_use.duration_s > 0 GROUP BY ALL
), measured AS (
    SELECT lasted.run, CASE WHEN count(energy_j) = count(*) THEN sum(energy_j * greatest(epoch(
        least(lasted.ended_at, windows.began_at + to_microseconds((windows.duration_s * 1e6)::BIGINT))
            - greatest(lasted.began_at, windows.began_at)), 0) / windows.duration_s) END AS energy_j
    FROM lasted JOIN counted_wholes() AS windows ON windows.duration_s > 0 AND windows.began_at < lasted.ended_at
        AND windows.began_at + to_microseconds((windows.duration_s * 1e6)::BIGINT) > lasted.began_at
    GROUP BY lasted.run
)
SELECT run, service, host, cpu_s * lasted_s / covered_s AS cpu_s, 100 * cpu_s / covered_s AS core_percent,
    CASE WHEN whole THEN low_j * lasted_s / covered_s END AS energy_low_j,
    CASE WHEN whole THEN high_j * lasted_s / covered_s END AS energy_high_j,
    measured.energy_j AS measured_j,
    CASE WHEN whole THEN 100 * low_j * lasted_s / covered_s / nullif(measured.energy_j, 0) END AS share_low_percent,
    CASE WHEN whole THEN 100 * high_j * lasted_s / covered_s / nullif(measured.energy_j, 0) END AS share_high_percent,
    reason
FROM used LEFT JOIN measured USING (run) WHERE covered_s >= lasted_s / 2;

-- ---- pipelines ----------------------------------------------------------------------------------

-- The profiles that later runs start from: of the newest run of each job, GPU model and number of stages.
CREATE VIEW known_instructions AS
WITH shapes AS (
    SELECT run, any_value(job) AS job, any_value(gpu_model) AS gpu_model, max(stage) AS last_stage,
        max(measured_wall_ns) AS wall_ns
    FROM instructions WHERE job <> '' GROUP BY run
), newest AS (
    SELECT run FROM shapes
    QUALIFY row_number() OVER (PARTITION BY job, gpu_model, last_stage ORDER BY wall_ns DESC) = 1
)
SELECT instructions.* FROM instructions JOIN newest USING (run);

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
