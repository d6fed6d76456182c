-- Which analyzer decides on which shard of a site's jobs, and what a shard remembers of earlier runs. Run again, it
-- changes nothing.

CREATE SCHEMA IF NOT EXISTS zs;

CREATE TABLE IF NOT EXISTS zs.sites (site text PRIMARY KEY, shards integer NOT NULL, version integer NOT NULL);

CREATE TABLE IF NOT EXISTS zs.shards (
    site text NOT NULL, shard integer NOT NULL, holder text NOT NULL, epoch bigint NOT NULL, until timestamptz NOT NULL,
    behind_ms bigint NOT NULL DEFAULT 0, PRIMARY KEY (site, shard)
);

CREATE TABLE IF NOT EXISTS zs.analyzers (
    site text NOT NULL, holder text NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (site, holder)
);

CREATE TABLE IF NOT EXISTS zs.remembered (
    site text NOT NULL, shard integer NOT NULL, kind text NOT NULL, key text NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (site, shard, kind, key)
);
