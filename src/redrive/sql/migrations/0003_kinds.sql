-- What operators set for a kind, in force at the next claim of every worker: pauses and limits. A row made by plain SQL is
-- as good as ours.

CREATE TABLE {kinds} (
    kind              text PRIMARY KEY,
    paused_at         timestamptz,
    paused_by         text,
    paused_reason     text,
    paused_until      timestamptz,
    running_most      int,
    rate              double precision,
    burst             int,
    lane_running_most int,
    lane_rate         double precision,
    lane_burst        int,
    empty_at          timestamptz,
    limited           boolean GENERATED ALWAYS AS (
        num_nonnulls(running_most, rate, lane_running_most, lane_rate) > 0
    ) STORED,
    updated_at        timestamptz NOT NULL DEFAULT now(),
    -- A name says what is asked for, since the name is what Postgres shows.
    CONSTRAINT kinds_kind_is_1_to_1000_bytes CHECK (octet_length(kind) BETWEEN 1 AND 1000),
    CONSTRAINT kinds_running_most_is_at_least_1 CHECK (running_most >= 1 AND lane_running_most >= 1),
    CONSTRAINT kinds_rate_is_over_0 CHECK (
        rate >= 1e-6 AND rate <= 1e6 AND lane_rate >= 1e-6 AND lane_rate <= 1e6 -- NaN is above all numbers
    ),
    CONSTRAINT kinds_burst_is_at_least_1_and_goes_with_a_rate CHECK (
        burst >= 1 AND lane_burst >= 1 AND (burst IS NULL OR rate IS NOT NULL) AND (lane_burst IS NULL OR lane_rate IS NOT NULL)
    ),
    CONSTRAINT kinds_burst_is_at_most_a_year_of_rate CHECK (burst / rate <= 31536000 AND lane_burst / lane_rate <= 31536000),
    CONSTRAINT kinds_times_are_finite_and_paused_until_null_is_for_ever CHECK (
        least(paused_at, paused_until, empty_at) >= '1970-01-01 00:00+00'
        AND greatest(paused_at, paused_until, empty_at) < '9000-01-01 00:00+00'
    ),
    CONSTRAINT kinds_all_can_be_paused_but_not_limited CHECK (kind <> '*' OR NOT limited),
    CONSTRAINT kinds_pause_begins_with_paused_at CHECK (
        paused_at IS NOT NULL OR num_nonnulls(paused_by, paused_reason, paused_until) = 0
    )
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
COMMENT ON COLUMN {kinds}.kind IS '* for a pause of all kinds';
COMMENT ON COLUMN {kinds}.paused_until IS 'when the pause ends by itself; NULL: when somebody ends it';
COMMENT ON COLUMN {kinds}.running_most IS 'how many may run at once, in all workers together';
COMMENT ON COLUMN {kinds}.rate IS 'how many may start a second, in all workers together';
COMMENT ON COLUMN {kinds}.burst IS 'how many may start at once after a pause; by default a tenth of rate, and at least 2';
COMMENT ON COLUMN {kinds}.lane_running_most IS 'as running_most, for each lane of the kind by itself; so are lane_rate and lane_burst';
COMMENT ON COLUMN {kinds}.empty_at IS 'the instant up to which the rate is used up';

-- The same instant for each lane of a kind with a lane_rate. A row older than a burst says nothing and is removed.
CREATE TABLE {lane_rates} (
    kind     text NOT NULL,
    lane     text NOT NULL,
    empty_at timestamptz NOT NULL CHECK (empty_at >= '1970-01-01 00:00+00' AND empty_at < '9000-01-01 00:00+00'),
    PRIMARY KEY (kind, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- A limit counts what runs, not what somebody remembers to have started: nothing can leak. Jobs of kinds without a limit
-- are in no index for it.
ALTER TABLE {jobs} ADD COLUMN counted boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN {jobs}.counted IS 'while it runs it counts towards the limits of its kind';
ALTER TABLE {archive} ADD COLUMN counted boolean NOT NULL DEFAULT false;
CREATE INDEX jobs_counted_idx ON {jobs} (kind, lane) WHERE counted AND status || '' = 'running';

-- What runs already when a limit is set counts as well. A job that somebody has locked is about to end.
CREATE FUNCTION {schema}.count_running() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {jobs} SET counted = true
    WHERE id = ANY(ARRAY(
        SELECT id FROM {jobs} WHERE status = 'running' AND kind = NEW.kind AND NOT counted FOR UPDATE SKIP LOCKED
    ));
    RETURN NULL;
END $$;

CREATE TRIGGER kinds_count_running AFTER INSERT OR UPDATE OF running_most, lane_running_most ON {kinds} FOR EACH ROW
    WHEN (num_nonnulls(NEW.running_most, NEW.lane_running_most) > 0)
    EXECUTE FUNCTION {schema}.count_running();

-- Workers that sleep look at once whether there is something to take now.
CREATE FUNCTION {schema}.tell_of_kind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify({channel}, 'kinds');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER kinds_tell AFTER INSERT OR DELETE ON {kinds} FOR EACH ROW EXECUTE FUNCTION {schema}.tell_of_kind();
CREATE TRIGGER kinds_tell_of_change AFTER UPDATE ON {kinds} FOR EACH ROW
    WHEN ((OLD.paused_at, OLD.paused_until, OLD.running_most, OLD.rate, OLD.burst, OLD.lane_running_most, OLD.lane_rate, OLD.lane_burst)
          IS DISTINCT FROM
          (NEW.paused_at, NEW.paused_until, NEW.running_most, NEW.rate, NEW.burst, NEW.lane_running_most, NEW.lane_rate, NEW.lane_burst))
    EXECUTE FUNCTION {schema}.tell_of_kind();
