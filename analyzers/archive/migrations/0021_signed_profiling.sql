-- Version 21: the seconds of `profiling` have a sign. Trials that are faster than the choice took 0 s before.

-- The parts of one run; of all runs when `wanted` is NULL. A run that is named is read alone, which is fast.
CREATE OR REPLACE MACRO waste_of(wanted) AS TABLE
WITH ranks AS MATERIALIZED (
    SELECT session, run, job, host, rank, ended_how, wall_error_ns / 1000 AS error_us
    FROM runs WHERE world_size > 0 AND (wanted IS NULL OR run = wanted)
), seen AS (
    SELECT windows.session, windows.run, windows.rank, kind, name, index, gpu, begin_ns, end_ns, duration_s, energy_j,
        epoch_us(began_at) AS began_us, epoch_us(began_at) + (end_ns - begin_ns) // 1000 AS ended_us
    FROM windows SEMI JOIN ranks USING (session)
    WHERE gpu IS NOT NULL AND NOT of_host(gpu) AND (wanted IS NULL OR run = wanted)
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
), all_steps AS MATERIALIZED (
    SELECT * FROM held WHERE kind = 'step'
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
        FROM windows JOIN (SELECT run, job, min(began_wall_ns) AS began_wall_ns FROM runs GROUP BY ALL) AS runs
            USING (run, job)
        WHERE kind = 'step' AND job IN (SELECT job FROM ranks)
        GROUP BY job, windows.run HAVING first_step > 0
    ) AS later JOIN (
        SELECT job, run, min(began_wall_ns) AS began_wall_ns, max(began_wall_ns + ended_ns - began_ns) AS ended_wall_ns,
            bool_or(ended_how = 'ended') AS whole
        FROM runs WHERE ended_ns IS NOT NULL AND world_size > 0 GROUP BY job, run
    ) AS earlier ON earlier.job = later.job AND earlier.run <> later.run
        AND earlier.ended_wall_ns <= later.began_wall_ns AND NOT earlier.whole
    GROUP BY later.run, later.first_step
), redone_from AS MATERIALIZED (
    -- Steps from this number on were done again later. A session that numbers its steps from 0 again may have begun
    -- at a checkpoint all the same: then it is not known what was done twice.
    SELECT session, min(first_step) AS first_step, min(first_step) > 0 AS known
    FROM (
        SELECT mine.session, later.first_step FROM spans AS mine JOIN spans AS later
            ON later.run = mine.run AND later.began_us >= mine.ended_us AND later.session <> mine.session
            AND NOT EXISTS (
                FROM wholes WHERE wholes.session = mine.session AND wholes.ended_us > later.began_us
            )
        UNION ALL
        SELECT spans.session, resumed.first_step FROM spans JOIN resumed USING (run)
    ) GROUP BY session
), placed AS MATERIALIZED (
    SELECT all_steps.*, epochs.index AS epoch, epochs.end_ns AS epoch_end_ns, redone_from.known AS redone
    FROM all_steps ASOF LEFT JOIN (FROM held WHERE kind = 'epoch') AS epochs
        ON all_steps.session = epochs.session AND all_steps.gpu = epochs.gpu AND all_steps.begin_ns >= epochs.begin_ns
    LEFT JOIN redone_from ON redone_from.session = all_steps.session AND all_steps.index >= redone_from.first_step
), steps AS MATERIALIZED (
    SELECT * REPLACE (CASE WHEN begin_ns < epoch_end_ns THEN epoch END AS epoch) FROM placed
), outside AS (
    -- Windows outside steps. A step that the device ends a moment after the window began is not in it.
    SELECT windows.* FROM (FROM held WHERE kind = 'window') AS windows ASOF LEFT JOIN all_steps
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
        count(energy_j) < count(*) AS missing, max(end_ns) AS end_ns
    FROM steps GROUP BY session, gpu, epoch
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
        greatest(held.duration_s - coalesce(in_steps.duration_s, 0) - coalesce(in_windows.duration_s, 0), 0) AS gap_s,
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
        UNION ALL SELECT run, session, gpu, kind, energy_j, duration_s FROM steps WHERE epoch IS NULL
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
        sum(energy_j) AS energy_j, sum(duration_s) AS gpu_s
    FROM steps WHERE redone IS DISTINCT FROM false AND energy_j IS NOT NULL GROUP BY ALL
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
SELECT parts.run, totals.job, cause, sum(parts.energy_j) AS energy_j, sum(parts.gpu_s) / any_value(gpus) AS duration_s,
    sum(parts.energy_j) / any_value(totals.energy_j) AS share
FROM parts JOIN totals USING (run) GROUP BY parts.run, totals.job, cause
HAVING sum(parts.energy_j) IS DISTINCT FROM 0 OR sum(parts.gpu_s) IS DISTINCT FROM 0;
