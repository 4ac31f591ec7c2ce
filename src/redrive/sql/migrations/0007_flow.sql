-- What follows a job, enqueued by its success in the same commit; and a job that takes the key of one that runs.

-- Enqueue the jobs of a JSON array; one whose key lives already is left out. Gives how many there were. A function and no
-- part of the statements that call it: a statement that may insert wakes a sleeping worker, also where it inserts nothing.
-- Those with keys come in the order of these, which is the same for all who insert at the same time.
CREATE FUNCTION {schema}.follow(followers jsonb) RETURNS int LANGUAGE plpgsql STRICT AS $$
DECLARE
    made int;
BEGIN
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata)
    SELECT f.kind, f.payload::jsonb, coalesce(f.run_at, {clock}() + make_interval(secs => f.delay)), f.priority,
           f.max_attempts, f.key, f.lane,
           coalesce(f.expires_at, {clock}() + make_interval(secs => f.expires_in)), f.metadata::jsonb
    FROM jsonb_array_elements(followers) WITH ORDINALITY AS e(job, place)
    CROSS JOIN LATERAL jsonb_to_record(e.job) AS f(
        kind text, payload text, key text, priority smallint, max_attempts int, lane text, run_at timestamptz,
        delay double precision, expires_at timestamptz, expires_in double precision, metadata text
    )
    ORDER BY f.key COLLATE "C" NULLS FIRST, e.place
    ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$;

-- A newcomer that counts only what is pending takes the key over from a job that runs. That one ends as it may; but it
-- does not wait again beside its successor, which will do the same.
ALTER TABLE {jobs} ADD COLUMN superseded boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN {jobs}.superseded IS 'while it ran, a job with its key was enqueued: it ends with this try';
ALTER TABLE {archive} ADD COLUMN superseded boolean NOT NULL DEFAULT false;

-- For keys that hold for a time, whatever has become of the job.
CREATE INDEX jobs_key_succeeded_idx ON {jobs} (key, created_at) WHERE key IS NOT NULL AND status = 'succeeded';
