-- How far each log is archived, and rows that wait for the lake: in the database of the catalog, so that the commit of
-- a snapshot changes both or nothing. Run again, it changes nothing. The leases are in `analyzers/leases/leases.sql`.

CREATE TABLE IF NOT EXISTS zs.logs (
    log_id text PRIMARY KEY, host text, next_offset bigint NOT NULL, logged_ns bigint
);

-- Rows that the analyzers of shards have derived. They wait here for the lake.
CREATE TABLE IF NOT EXISTS zs.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, site text NOT NULL, shard integer NOT NULL,
    rows integer NOT NULL, body bytea NOT NULL
);

-- A commit of ours says under which leases it commits, from which sequence number of each stream to which, of each log
-- from which offset to which, and which batches of rows it takes out of the outbox. It fails whole if another process
-- has taken a lease over, or if these were committed already.
CREATE OR REPLACE FUNCTION zs.fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    declared jsonb;
    part record;
    log record;
    taken bigint;
BEGIN
    IF new.commit_extra_info IS NULL OR left(new.commit_extra_info, 8) <> '{"site":' THEN
        RETURN new;
    END IF;
    declared := new.commit_extra_info::jsonb;
    FOR part IN
        SELECT * FROM jsonb_to_recordset(declared->'parts') AS x(name text, epoch bigint, "from" bigint, until bigint)
        ORDER BY name
    LOOP
        UPDATE zs.leases SET next = part.until WHERE site = declared->>'site' AND name = part.name
            AND epoch = part.epoch AND next = part."from";
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fenced off: % goes on elsewhere', part.name;
        END IF;
    END LOOP;
    FOR log IN
        SELECT * FROM jsonb_to_recordset(declared->'logs')
            AS x(log_id text, host text, first bigint, next bigint, logged_ns bigint)
    LOOP
        INSERT INTO zs.logs VALUES (log.log_id, log.host, log.next, log.logged_ns)
            ON CONFLICT (log_id) DO UPDATE
            SET host = excluded.host, next_offset = excluded.next_offset, logged_ns = excluded.logged_ns
            WHERE logs.next_offset = log.first;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fenced off: log % is archived elsewhere', log.log_id;
        END IF;
    END LOOP;
    DELETE FROM zs.outbox WHERE id IN (SELECT value::bigint FROM jsonb_array_elements_text(declared->'batches'));
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken <> coalesce(jsonb_array_length(declared->'batches'), 0) THEN
        RAISE EXCEPTION 'fenced off: these rows are archived elsewhere';
    END IF;
    new.commit_extra_info := (declared - 'logs' - 'batches')::text;
    RETURN new;
END $$;

CREATE OR REPLACE TRIGGER zs_fence BEFORE INSERT ON ducklake_snapshot_changes
    FOR EACH ROW EXECUTE FUNCTION zs.fence();
