-- Breakers: while a service that a kind of jobs calls is down, its jobs wait without spending attempts, one of them at a
-- time is sent as a probe, and afterwards the backlog is let out at a rising rate. A row made by plain SQL is as good as
-- ours.

CREATE TABLE {breakers} (
    kind          text NOT NULL,
    target        text NOT NULL,
    state         text NOT NULL DEFAULT 'open',
    opened_at     timestamptz NOT NULL DEFAULT now(),
    opened_by     text,
    reason        text,
    probe_at      timestamptz NOT NULL DEFAULT now(),
    probe_pause   double precision NOT NULL DEFAULT 5,
    probe_longest double precision NOT NULL DEFAULT 60,
    probes        int NOT NULL DEFAULT 0,
    peak          double precision NOT NULL DEFAULT 2,
    usual_rate    double precision NOT NULL DEFAULT 0,
    closed_at     timestamptz,
    closed_by     text,
    empty_at      timestamptz,
    slack_at      timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, target),
    CONSTRAINT breakers_names_are_at_most_1000_bytes CHECK (
        octet_length(kind) BETWEEN 1 AND 1000 AND octet_length(target) <= 1000
    ),
    CONSTRAINT breakers_state_is_open_closing_or_closed CHECK (state IN ('open', 'closing', 'closed')),
    CONSTRAINT breakers_closing_begins_with_closed_at CHECK (
        state <> 'closing' OR num_nulls(closed_at, empty_at, slack_at) = 0
    ),
    CONSTRAINT breakers_probes_are_seconds_apart CHECK (
        probe_pause > 0 AND probe_pause <= 315360000 AND probe_longest > 0 AND probe_longest <= 315360000 -- NaN is above all
    ),
    CONSTRAINT breakers_peak_is_over_1 CHECK (peak > 1 AND peak <= 100),
    CONSTRAINT breakers_usual_rate_is_a_rate CHECK (usual_rate >= 0 AND usual_rate <= 1e9),
    CONSTRAINT breakers_times_are_finite_and_probe_at_infinity_is_never CHECK (
        least(opened_at, probe_at, closed_at, empty_at, slack_at) >= '1970-01-01 00:00+00'
        AND greatest(opened_at, closed_at, empty_at, slack_at) < '9000-01-01 00:00+00'
    )
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
COMMENT ON COLUMN {breakers}.target IS 'the lane whose jobs are held, or empty for all of the kind';
COMMENT ON COLUMN {breakers}.state IS
    'open: jobs are held; closing: the backlog is let out at a rising rate; closed: over, kept to be looked at';
COMMENT ON COLUMN {breakers}.probe_at IS 'when the next job is let through as a probe; infinity: when somebody closes it';
COMMENT ON COLUMN {breakers}.probe_pause IS 'seconds from one probe to the next, doubled each time up to probe_longest';
COMMENT ON COLUMN {breakers}.usual_rate IS 'jobs a second before the outage, in all workers; peak is how many times that is let out';
COMMENT ON COLUMN {breakers}.empty_at IS 'the instant up to which the rate of closing is used up; slack_at: the same, with more patience';

-- Jobs a second that a closing breaker lets out: a quarter of the usual rate at first, twice as much every quarter of a minute, up
-- to nearly peak times the usual, so that with the few that may go at once it is no more; without a known rate there is
-- nothing to go by but the doubling.
CREATE FUNCTION {schema}.breaker_rate(b {breakers}) RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT least(
        greatest(1, b.usual_rate / 4) * power(2, least(40, greatest(0, extract(epoch FROM {clock}() - b.closed_at)::float8) / 15)),
        CASE WHEN b.usual_rate > 0 THEN greatest(1, 0.85 * b.peak * b.usual_rate) ELSE 1e6 END
    )
$$;

-- How many jobs a breaker lets through now; NULL where it is closed and lets all through.
CREATE FUNCTION {schema}.breaker_room(b {breakers}) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE b.state
        WHEN 'open' THEN (
            b.probe_at <= {clock}() OR b.probe_at < 'infinity' AND b.opened_at > {clock}() + interval '1 min' -- it has gone back
        )::int::bigint
        WHEN 'closing' THEN CASE WHEN b.empty_at > {clock}() + interval '1 min' THEN 1 ELSE floor(least(
            greatest(2, ceil({schema}.breaker_rate(b) / 8)),
            extract(epoch FROM {clock}() - b.empty_at)::float8 * {schema}.breaker_rate(b) + 1e-6
        )) END::bigint
    END
$$;

-- A kind of which any breaker is not closed is claimed as kinds with limits are: one worker at a time counts what may go.
ALTER TABLE {kinds} ADD COLUMN broken boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN {kinds}.broken IS 'it has breakers that are not closed; kept by a trigger';
ALTER TABLE {kinds} DROP COLUMN limited;
ALTER TABLE {kinds} ADD COLUMN limited boolean GENERATED ALWAYS AS (
    broken OR num_nonnulls(running_most, rate, lane_running_most, lane_rate) > 0
) STORED;
ALTER TABLE {kinds} ADD CONSTRAINT kinds_all_can_be_paused_but_not_limited CHECK (kind <> '*' OR NOT limited);

-- The mark is set by whoever has the kind's row, also where it stands already: so who takes it away overlooks nobody. It
-- is taken away only where that row is free. A claim has it locked while it goes to the breaker's, which is locked here:
-- each would wait for the other; that claim, or the next one, sees to the mark.
CREATE FUNCTION {schema}.note_breaker() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        IF NEW.state <> 'closed' AND (TG_OP = 'INSERT' OR OLD.state = 'closed' OR OLD.kind <> NEW.kind) THEN
            INSERT INTO {kinds} (kind, broken) VALUES (NEW.kind, true) ON CONFLICT (kind) DO UPDATE SET broken = true;
        END IF;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        PERFORM FROM {kinds} WHERE kind = OLD.kind AND broken FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND AND NOT EXISTS (SELECT FROM {breakers} b WHERE b.kind = OLD.kind AND b.state <> 'closed') THEN
            UPDATE {kinds} SET broken = false WHERE kind = OLD.kind;
        END IF;
    END IF;
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify({channel}, 'kinds');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER breakers_note AFTER INSERT OR DELETE ON {breakers} FOR EACH ROW EXECUTE FUNCTION {schema}.note_breaker();
CREATE TRIGGER breakers_note_change AFTER UPDATE ON {breakers} FOR EACH ROW
    WHEN ((OLD.kind, OLD.state, OLD.opened_at) IS DISTINCT FROM (NEW.kind, NEW.state, NEW.opened_at))
    EXECUTE FUNCTION {schema}.note_breaker();

-- Who removes the row of a kind to be rid of its limits has said nothing of its breakers.
CREATE FUNCTION {schema}.keep_broken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {breakers} b WHERE b.kind = OLD.kind AND b.state <> 'closed') THEN
        INSERT INTO {kinds} (kind, broken) VALUES (OLD.kind, true) ON CONFLICT (kind) DO UPDATE SET broken = true;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER kinds_keep_broken AFTER DELETE ON {kinds} FOR EACH ROW EXECUTE FUNCTION {schema}.keep_broken();

COMMENT ON COLUMN {stats}.retried IS 'failed, and to be tried again; those that are held by a breaker as well';
COMMENT ON COLUMN {failures}.outcome IS
    'what became of the job: retried, held (by a breaker, the try is given back), dead, failed or reclaimed';
