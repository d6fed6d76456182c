-- The tables of version 0.1.0. This file does not change: a later version migrates them.

CREATE TABLE budget_shares (
    "gpu" VARCHAR,
    "budget" VARCHAR,
    "run" VARCHAR,
    "most_w" DOUBLE,
    "limit_w" DOUBLE,
    "reason" VARCHAR
);
CREATE TABLE budgets (
    "budget" VARCHAR,
    "set_ns" BIGINT,
    "set_at" TIMESTAMP,
    "limit_w" DOUBLE,
    "begin_ns" BIGINT,
    "began_at" TIMESTAMP,
    "end_ns" BIGINT,
    "ended_at" TIMESTAMP,
    "gpus" VARCHAR[],
    "binding" BOOLEAN,
    "reason" VARCHAR
);
CREATE TABLE chain (
    "number" BIGINT,
    "table" VARCHAR,
    "key" VARCHAR,
    "row" VARCHAR,
    "hash" VARCHAR
);
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
    "live" BLOB,
    "signature" BLOB
);
CREATE TABLE commands (
    "command" VARCHAR,
    "run" VARCHAR,
    "gpu" VARCHAR,
    "control" VARCHAR,
    "asked_ns" BIGINT,
    "limit_w" DOUBLE,
    "clock_mhz" BIGINT,
    "outcome" VARCHAR,
    "outcome_ns" BIGINT,
    "outcome_limit_w" DOUBLE,
    "reason" VARCHAR,
    "plan" BIGINT,
    "plan_changes" BIGINT
);
CREATE TABLE decisions (
    "run" VARCHAR,
    "number" BIGINT,
    "round" BIGINT,
    "t_ns" BIGINT,
    "selector" VARCHAR,
    "power_limit_w" DOUBLE,
    "clock_mhz" BIGINT,
    "steps" BIGINT,
    "default_limit_w" DOUBLE,
    "default_clock_mhz" BIGINT,
    "energy_per_step_j" DOUBLE,
    "step_s" DOUBLE,
    "default_energy_per_step_j" DOUBLE,
    "default_step_s" DOUBLE,
    "applied" BOOLEAN,
    "reason" VARCHAR,
    "trials_run" VARCHAR,
    "trials_round" BIGINT,
    "excess_percent" DOUBLE,
    "excess_p95_percent" DOUBLE,
    "energy_saved_low_percent" DOUBLE,
    "energy_saved_high_percent" DOUBLE,
    "time_added_low_percent" DOUBLE,
    "time_added_high_percent" DOUBLE
);
CREATE TABLE ended_savings (
    "run" VARCHAR,
    "job" VARCHAR,
    "selector" VARCHAR,
    "default_limit_w" DOUBLE,
    "power_limit_w" DOUBLE,
    "default_energy_per_step_j" DOUBLE,
    "energy_per_step_j" DOUBLE,
    "energy_saved_percent" DOUBLE,
    "energy_saved_low_percent" DOUBLE,
    "energy_saved_high_percent" DOUBLE,
    "default_step_s" DOUBLE,
    "step_s" DOUBLE,
    "time_added_percent" DOUBLE,
    "time_added_low_percent" DOUBLE,
    "time_added_high_percent" DOUBLE,
    "steps_at_limit" BIGINT,
    "saved_j" DOUBLE,
    "would_save_j" DOUBLE,
    "changed_percent" DOUBLE,
    "applied" BOOLEAN,
    "reason" VARCHAR,
    "trials_run" VARCHAR,
    "default_clock_mhz" BIGINT,
    "clock_mhz" BIGINT,
    "sessions" BIGINT
);
CREATE TABLE ended_waste (
    "run" VARCHAR,
    "job" VARCHAR,
    "cause" VARCHAR,
    "energy_j" DOUBLE,
    "duration_s" DOUBLE,
    "share" DOUBLE,
    "sessions" BIGINT
);
CREATE TABLE events (
    "log_id" VARCHAR,
    "offset" BIGINT,
    "host" VARCHAR,
    "session" VARCHAR,
    "sequence" BIGINT,
    "kind" VARCHAR,
    "t_ns" BIGINT,
    "ended_ns" BIGINT,
    "index" BIGINT,
    "name" VARCHAR,
    "value" DOUBLE,
    "placed" VARCHAR,
    "uncertainty_ns" BIGINT
);
CREATE TABLE forecasts (
    "run" VARCHAR,
    "step" BIGINT,
    "made_wall_ns" BIGINT,
    "epochs_done" BIGINT,
    "epochs" BIGINT,
    "steps" BIGINT,
    "power_limit_w" DOUBLE,
    "spent_j" DOUBLE,
    "spent_s" DOUBLE,
    "energy_j" DOUBLE,
    "energy_p2_5_j" DOUBLE,
    "energy_p97_5_j" DOUBLE,
    "duration_s" DOUBLE,
    "duration_p2_5_s" DOUBLE,
    "duration_p97_5_s" DOUBLE
);
CREATE TABLE frames (
    "log_id" VARCHAR,
    "offset" BIGINT,
    "host" VARCHAR,
    "t_ns" BIGINT,
    "topic" VARCHAR,
    "body" BLOB
);
CREATE TABLE gaps (
    "host" VARCHAR,
    "what" VARCHAR,
    "t_ns" BIGINT,
    "count" BIGINT,
    "reason" VARCHAR,
    "log_id" VARCHAR,
    "first_offset" BIGINT
);
CREATE TABLE gpu_limits (
    "run" VARCHAR,
    "round" BIGINT,
    "gpu" VARCHAR,
    "t_ns" BIGINT,
    "power_limit_w" DOUBLE,
    "job_limit_w" DOUBLE,
    "steps" BIGINT,
    "energy_percent" DOUBLE,
    "time_percent" DOUBLE,
    "reason" VARCHAR
);
CREATE TABLE gpus (
    "gpu" VARCHAR,
    "host" VARCHAR,
    "index" BIGINT,
    "name" VARCHAR,
    "driver" VARCHAR,
    "counts_energy" BOOLEAN,
    "min_limit_w" DOUBLE,
    "max_limit_w" DOUBLE,
    "default_limit_w" DOUBLE,
    "found_limit_w" DOUBLE,
    "mig" BOOLEAN,
    "period_ms" DOUBLE,
    "counter_kind" VARCHAR,
    "sensor_window_ms" DOUBLE,
    "gone" VARCHAR,
    "scope" VARCHAR,
    "tenants" VARCHAR[],
    "sensor_gain" DOUBLE,
    "sensor_gain_error" DOUBLE,
    "sensor_calibrated" BOOLEAN,
    "sensor_gain_source" VARCHAR
);
CREATE TABLE hosts (
    "log_id" VARCHAR,
    "offset" BIGINT,
    "host" VARCHAR,
    "boot_id" VARCHAR,
    "monotonic_ns" BIGINT,
    "wall_ns" BIGINT,
    "error_ns" BIGINT
);
CREATE TABLE hours (
    "gpu" VARCHAR,
    "host" VARCHAR,
    "began_at" TIMESTAMP,
    "energy_j" DOUBLE,
    "covered_s" DOUBLE,
    "peak_w" DOUBLE,
    "limit_w" DOUBLE,
    "clock_mhz" DOUBLE,
    "temperature_c" DOUBLE,
    "utilization_pct" DOUBLE,
    "readings" BIGINT
);
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
    "energy_high_j" DOUBLE,
    "job" VARCHAR,
    "gpu_model" VARCHAR,
    "waiting_w" DOUBLE,
    "measured_wall_ns" BIGINT
);
CREATE TABLE jobs (
    "job" VARCHAR,
    "version" BIGINT,
    "batch_sizes" BIGINT[],
    "default_batch_size" BIGINT,
    "metric" VARCHAR,
    "target" DOUBLE,
    "lower_is_better" BOOLEAN,
    "max_epochs" BIGINT,
    "eta" DOUBLE,
    "beta" DOUBLE,
    "cost_window" BIGINT
);
CREATE TABLE logs (
    "log_id" VARCHAR,
    "host" VARCHAR,
    "next_offset" BIGINT,
    "logged_ns" BIGINT,
    "interpreted_offset" BIGINT
);
CREATE TABLE meta (
    "application" VARCHAR,
    "schema_version" INTEGER,
    "archive_id" VARCHAR,
    "starts" BIGINT
);
CREATE TABLE metrics (
    "session" VARCHAR,
    "run" VARCHAR,
    "name" VARCHAR,
    "t_ns" BIGINT,
    "step" BIGINT,
    "value" DOUBLE,
    "epoch" BIGINT
);
CREATE TABLE minutes (
    "gpu" VARCHAR,
    "host" VARCHAR,
    "began_at" TIMESTAMP,
    "energy_j" DOUBLE,
    "covered_s" DOUBLE,
    "peak_w" DOUBLE,
    "limit_w" DOUBLE,
    "clock_mhz" DOUBLE,
    "temperature_c" DOUBLE,
    "utilization_pct" DOUBLE,
    "readings" BIGINT
);
CREATE TABLE own_use (
    "host" VARCHAR,
    "service" VARCHAR,
    "began_wall_ns" BIGINT,
    "ended_wall_ns" BIGINT,
    "began_at" TIMESTAMP,
    "ended_at" TIMESTAMP,
    "duration_s" DOUBLE,
    "cpu_s" DOUBLE,
    "host_cpu_s" DOUBLE,
    "processors" BIGINT,
    "host_energy_j" DOUBLE,
    "energy_low_j" DOUBLE,
    "energy_high_j" DOUBLE,
    "reason" VARCHAR
);
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
    "reason" VARCHAR,
    "profile_run" VARCHAR
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
    "iterations" BIGINT,
    "saved" DOUBLE,
    "saved_low" DOUBLE,
    "saved_high" DOUBLE,
    "longer" DOUBLE,
    "longer_low" DOUBLE,
    "longer_high" DOUBLE,
    "state" VARCHAR,
    "reason" VARCHAR
);
CREATE TABLE profiled (
    "session" VARCHAR,
    "run" VARCHAR,
    "round" BIGINT,
    "job" VARCHAR,
    "gpu_model" VARCHAR,
    "driver" VARCHAR,
    "gpus" BIGINT,
    "world_size" BIGINT,
    "batch_size" BIGINT,
    "least_limit_w" DOUBLE,
    "highest_limit_w" DOUBLE,
    "control" VARCHAR,
    "power_limit_w" DOUBLE,
    "steps" BIGINT,
    "duration_s" DOUBLE,
    "energy_j" DOUBLE,
    "measured_run" VARCHAR,
    "measured_round" BIGINT,
    "measured_wall_ns" BIGINT,
    "chosen_limit_w" DOUBLE
);
CREATE TABLE readings (
    "log_id" VARCHAR,
    "offset" BIGINT,
    "logged_ns" BIGINT,
    "gpu" VARCHAR,
    "t_lo_ns" BIGINT,
    "t_hi_ns" BIGINT,
    "energy_mj" BIGINT,
    "power_mw" INTEGER,
    "limit_mw" INTEGER,
    "requested_mw" INTEGER,
    "clock_mhz" INTEGER,
    "temperature_c" SMALLINT,
    "utilization_pct" SMALLINT,
    "seen" VARCHAR,
    "host" VARCHAR,
    "read_at" TIMESTAMP
);
CREATE TABLE recalls (
    "session" VARCHAR,
    "run" VARCHAR,
    "round" BIGINT,
    "profile_run" VARCHAR,
    "profile_round" BIGINT,
    "measured_wall_ns" BIGINT,
    "limits" STRUCT(power_limit_w DOUBLE, steps BIGINT, duration_s DOUBLE, energy_j DOUBLE, run VARCHAR, round BIGINT)[]
);
CREATE TABLE removed (
    "table" VARCHAR,
    "before" TIMESTAMP,
    "rows" BIGINT,
    "removed_at" TIMESTAMP
);
CREATE TABLE seals (
    "number" BIGINT,
    "hash" VARCHAR,
    "sealed_ns" BIGINT,
    "public_key" VARCHAR,
    "signature" VARCHAR
);
CREATE TABLE seconds (
    "gpu" VARCHAR,
    "host" VARCHAR,
    "began_at" TIMESTAMP,
    "energy_j" DOUBLE,
    "covered_s" DOUBLE,
    "peak_w" DOUBLE,
    "limit_w" DOUBLE,
    "clock_mhz" DOUBLE,
    "temperature_c" DOUBLE,
    "utilization_pct" DOUBLE,
    "readings" BIGINT
);
CREATE TABLE sessions (
    "session" VARCHAR,
    "run" VARCHAR,
    "job" VARCHAR,
    "rank" BIGINT,
    "world_size" BIGINT,
    "host" VARCHAR,
    "pid" BIGINT,
    "uid" BIGINT,
    "gpus" VARCHAR[],
    "boundary" VARCHAR,
    "began_ns" BIGINT,
    "ended_ns" BIGINT,
    "began_wall_ns" BIGINT,
    "wall_error_ns" BIGINT,
    "began_at" TIMESTAMP,
    "ended_at" TIMESTAMP,
    "ended_how" VARCHAR,
    "may_command" BOOLEAN,
    "command_reason" VARCHAR,
    "batch_size" BIGINT,
    "start" BIGINT
);
CREATE TABLE settings (
    "start" BIGINT,
    "name" VARCHAR,
    "value" VARCHAR
);
CREATE TABLE signals (
    "name" VARCHAR,
    "unit" VARCHAR,
    "begin_ns" BIGINT,
    "end_ns" BIGINT,
    "begins_at" TIMESTAMP,
    "ends_at" TIMESTAMP,
    "value" DOUBLE,
    "place" VARCHAR,
    "year" BIGINT,
    "source" VARCHAR,
    "licence" VARCHAR,
    "imported_ns" BIGINT
);
CREATE TABLE simulated_tries (
    "game" VARCHAR,
    "number" BIGINT,
    "recurrence" BIGINT,
    "batch_size" BIGINT,
    "epochs" BIGINT,
    "energy_j" DOUBLE,
    "time_s" DOUBLE,
    "cost_j" DOUBLE,
    "ended" VARCHAR,
    "optimum_j" DOUBLE
);
CREATE TABLE simulations (
    "game" VARCHAR,
    "world" VARCHAR,
    "gpu" VARCHAR,
    "workload" VARCHAR,
    "player" VARCHAR,
    "seed" BIGINT,
    "eta" DOUBLE,
    "beta" DOUBLE,
    "cost_window" BIGINT,
    "drift" VARCHAR,
    "overlap" DOUBLE,
    "recurrences" BIGINT,
    "default_energy_j" DOUBLE,
    "default_time_s" DOUBLE,
    "default_cost_j" DOUBLE
);
CREATE TABLE trials (
    "run" VARCHAR,
    "number" BIGINT,
    "round" BIGINT,
    "power_limit_w" DOUBLE,
    "clock_mhz" BIGINT,
    "steps" BIGINT,
    "duration_s" DOUBLE,
    "energy_j" DOUBLE,
    "average_power_w" DOUBLE,
    "cost" DOUBLE,
    "temperature_c" DOUBLE,
    "began_ns" BIGINT,
    "ended_ns" BIGINT,
    "confirms" BOOLEAN
);
CREATE TABLE tries (
    "job" VARCHAR,
    "number" BIGINT,
    "version" BIGINT,
    "recurrence" BIGINT,
    "run" VARCHAR,
    "session" VARCHAR,
    "attempt" BIGINT,
    "setup" VARCHAR,
    "batch_size" BIGINT,
    "policy" VARCHAR,
    "reason" VARCHAR,
    "stop_cost_j" DOUBLE,
    "began_wall_ns" BIGINT,
    "ended_wall_ns" BIGINT,
    "began_at" TIMESTAMP,
    "ended_at" TIMESTAMP,
    "epochs" BIGINT,
    "energy_j" DOUBLE,
    "duration_s" DOUBLE,
    "cost_j" DOUBLE,
    "epoch_cost_j" DOUBLE,
    "metrics" DOUBLE[],
    "ended" VARCHAR,
    "ended_why" VARCHAR
);
CREATE TABLE turns (
    "log_id" VARCHAR,
    "offset" BIGINT
);
CREATE TABLE windows (
    "session" VARCHAR,
    "run" VARCHAR,
    "job" VARCHAR,
    "rank" BIGINT,
    "host" VARCHAR,
    "kind" VARCHAR,
    "name" VARCHAR,
    "index" BIGINT,
    "gpu" VARCHAR,
    "begin_ns" BIGINT,
    "end_ns" BIGINT,
    "began_at" TIMESTAMP,
    "duration_s" DOUBLE,
    "energy_j" DOUBLE,
    "energy_low_j" DOUBLE,
    "energy_high_j" DOUBLE,
    "energy_p2_5_j" DOUBLE,
    "energy_p97_5_j" DOUBLE,
    "phase_coverage" DOUBLE,
    "power_limit_w" DOUBLE,
    "estimator" VARCHAR,
    "quality" VARCHAR,
    "shared" BOOLEAN
);
