-- Power budgets of a site, its GPUs under them, and the grants of shards (`analyzers/power_budget/grants.py`).
-- Run again, it changes nothing.

CREATE TABLE IF NOT EXISTS zs.budgets (
    site text NOT NULL, name text NOT NULL, set_ns bigint NOT NULL, end_ns bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (site, name)
);

CREATE TABLE IF NOT EXISTS zs.budget_gpus (
    site text NOT NULL, budget text NOT NULL, gpu text NOT NULL, host text NOT NULL, found_mw bigint NOT NULL,
    shard integer, wanted integer, leaving boolean NOT NULL DEFAULT false, PRIMARY KEY (site, budget, gpu)
);

CREATE TABLE IF NOT EXISTS zs.budget_grants (
    site text NOT NULL, budget text NOT NULL, shard integer NOT NULL, epoch bigint NOT NULL,
    granted_mw bigint NOT NULL, least_mw bigint NOT NULL, wanted_mw bigint NOT NULL, weight double precision NOT NULL,
    abandoned boolean NOT NULL, PRIMARY KEY (site, budget, shard)
);
