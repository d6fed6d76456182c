-- Who holds which lease of a site, which analyzers there are, and what a shard remembers of earlier runs. Run again,
-- it changes nothing.

CREATE SCHEMA IF NOT EXISTS zs;

CREATE TABLE IF NOT EXISTS zs.sites (site text PRIMARY KEY, shards integer NOT NULL, version integer NOT NULL);

-- `name`: a part of the stream (frames-3), the outbox (rows), a shard (shard-17), or the keeper.
-- `next`: of a part, the sequence number of its stream that comes next.
CREATE TABLE IF NOT EXISTS zs.leases (
    site text NOT NULL, name text NOT NULL, holder text NOT NULL, epoch bigint NOT NULL, until timestamptz NOT NULL,
    ttl_s double precision NOT NULL, next bigint NOT NULL DEFAULT 1, behind_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (site, name)
);

CREATE TABLE IF NOT EXISTS zs.analyzers (
    site text NOT NULL, holder text NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (site, holder)
);

CREATE TABLE IF NOT EXISTS zs.remembered (
    site text NOT NULL, shard integer NOT NULL, kind text NOT NULL, key text NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (site, shard, kind, key)
);
