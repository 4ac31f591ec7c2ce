-- The sum of the migrations, for readers; redrive never runs it. A test holds it against them, and after a
-- new one writes it anew: REDRIVE_WRITE_SCHEMA=1 make test TESTS=tests/test_migrate.py
-- PostgreSQL 18

CREATE SCHEMA redrive;

CREATE DOMAIN redrive.job_status AS text
	CONSTRAINT job_status_known CHECK ((VALUE = ANY (ARRAY['pending'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'dead'::text])));

COMMENT ON DOMAIN redrive.job_status IS 'pending: waits for run_at; running: a worker holds the lease; succeeded; failed: ended on purpose (cancelled, discarded); dead: a human must look';

CREATE FUNCTION redrive.add_histogram(sum bigint[], histogram integer[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT coalesce(array_agg(coalesce(sum[place], 0) + coalesce(histogram[place], 0) ORDER BY place), '{}')
    FROM generate_series(1, greatest(array_upper(sum, 1), array_upper(histogram, 1))) AS place
$$;

CREATE TABLE redrive.breakers (
    kind text NOT NULL,
    target text NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    opened_at timestamp with time zone DEFAULT now() NOT NULL,
    opened_by text,
    reason text,
    probe_at timestamp with time zone DEFAULT now() NOT NULL,
    probe_pause double precision DEFAULT 5 NOT NULL,
    probe_longest double precision DEFAULT 60 NOT NULL,
    probes integer DEFAULT 0 NOT NULL,
    peak double precision DEFAULT 2 NOT NULL,
    usual_rate double precision DEFAULT 0 NOT NULL,
    closed_at timestamp with time zone,
    closed_by text,
    empty_at timestamp with time zone,
    slack_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT breakers_closing_begins_with_closed_at CHECK (((state <> 'closing'::text) OR (num_nulls(closed_at, empty_at, slack_at) = 0))),
    CONSTRAINT breakers_names_are_at_most_1000_bytes CHECK ((((octet_length(kind) >= 1) AND (octet_length(kind) <= 1000)) AND (octet_length(target) <= 1000))),
    CONSTRAINT breakers_peak_is_over_1 CHECK (((peak > (1)::double precision) AND (peak <= (100)::double precision))),
    CONSTRAINT breakers_probes_are_seconds_apart CHECK (((probe_pause > (0)::double precision) AND (probe_pause <= (315360000)::double precision) AND (probe_longest > (0)::double precision) AND (probe_longest <= (315360000)::double precision))),
    CONSTRAINT breakers_state_is_open_closing_or_closed CHECK ((state = ANY (ARRAY['open'::text, 'closing'::text, 'closed'::text]))),
    CONSTRAINT breakers_times_are_finite_and_probe_at_infinity_is_never CHECK (((LEAST(opened_at, probe_at, closed_at, empty_at, slack_at) >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(opened_at, closed_at, empty_at, slack_at) < '9000-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT breakers_usual_rate_is_a_rate CHECK (((usual_rate >= (0)::double precision) AND (usual_rate <= ('1000000000'::numeric)::double precision)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='200');

COMMENT ON COLUMN redrive.breakers.target IS 'the lane whose jobs are held, or empty for all of the kind';

COMMENT ON COLUMN redrive.breakers.state IS 'open: jobs are held; closing: the backlog is let out at a rising rate; closed: over, kept to be looked at';

COMMENT ON COLUMN redrive.breakers.probe_at IS 'when the next job is let through as a probe; infinity: when somebody closes it';

COMMENT ON COLUMN redrive.breakers.probe_pause IS 'seconds from one probe to the next, doubled each time up to probe_longest';

COMMENT ON COLUMN redrive.breakers.usual_rate IS 'jobs a second before the outage, in all workers; peak is how many times that is let out';

COMMENT ON COLUMN redrive.breakers.empty_at IS 'the instant up to which the rate of closing is used up; slack_at: the same, with more patience';

CREATE FUNCTION redrive.breaker_rate(b redrive.breakers) RETURNS double precision
    LANGUAGE sql STABLE
    AS $$
    SELECT least(
        greatest(1, b.usual_rate / 4) * power(2, least(40, greatest(0, extract(epoch FROM "redrive"."clock"() - b.closed_at)::float8) / 15)),
        CASE WHEN b.usual_rate > 0 THEN greatest(1, 0.85 * b.peak * b.usual_rate) ELSE 1e6 END
    )
$$;

CREATE FUNCTION redrive.breaker_room(b redrive.breakers) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE b.state
        WHEN 'open' THEN (
            b.probe_at <= "redrive"."clock"() OR b.probe_at < 'infinity' AND b.opened_at > "redrive"."clock"() + interval '1 min' -- it has gone back
        )::int::bigint
        WHEN 'closing' THEN CASE WHEN b.empty_at > "redrive"."clock"() + interval '1 min' THEN 1 ELSE floor(least(
            greatest(2, ceil("redrive".breaker_rate(b) / 8)),
            extract(epoch FROM "redrive"."clock"() - b.empty_at)::float8 * "redrive".breaker_rate(b) + 1e-6
        )) END::bigint
    END
$$;

CREATE FUNCTION redrive.clock() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT statement_timestamp() + coalesce(nullif(current_setting('redrive.clock_offset', true), ''), '0')::interval
$$;

CREATE FUNCTION redrive.count_running() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE "redrive"."jobs" SET counted = true
    WHERE id = ANY(ARRAY(
        SELECT id FROM "redrive"."jobs" WHERE status = 'running' AND kind = NEW.kind AND NOT counted FOR UPDATE SKIP LOCKED
    ));
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.enqueue(kind text, payload jsonb DEFAULT '{}'::jsonb, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay interval DEFAULT NULL::interval, priority integer DEFAULT 5, max_attempts integer DEFAULT 5, key text DEFAULT NULL::text, lane text DEFAULT ''::text, expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, metadata jsonb DEFAULT NULL::jsonb) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    job bigint;
BEGIN
    IF enqueue.run_at IS NOT NULL AND enqueue.delay IS NOT NULL THEN
        RAISE EXCEPTION 'enqueue: give run_at or delay, not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF enqueue.kind IS NULL OR enqueue.kind = '' THEN
        RAISE EXCEPTION 'enqueue: kind is empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        SELECT id INTO job FROM "redrive"."jobs" j WHERE j.key = enqueue.key AND j.status IN ('pending', 'running');
        IF FOUND THEN
            RETURN job;
        END IF;
        INSERT INTO "redrive"."jobs" (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata)
        VALUES (enqueue.kind, coalesce(enqueue.payload, '{}'::jsonb),
                coalesce(enqueue.run_at, "redrive"."clock"() + coalesce(enqueue.delay, '0')),
                enqueue.priority, enqueue.max_attempts, enqueue.key, coalesce(enqueue.lane, ''),
                enqueue.expires_at, enqueue.metadata)
        ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING
        RETURNING id INTO job;
        IF FOUND THEN
            RETURN job;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION redrive.failure_group(fingerprint text, locked_by text, last_error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
    SELECT CASE WHEN fingerprint IS NOT NULL AND locked_by IS NULL THEN fingerprint
           ELSE lpad(to_hex(hashtextextended(left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
               substring(rtrim(right(coalesce(last_error, ''), 1000), E' \n\r\t') COLLATE "C" FROM '[^\n]*$'),
               '''[^'']{0,200}''|"[^"]{0,200}"', '<value>', 'g'),
               '[[:alnum:]_.+-]+@[[:alnum:]_.-]+', '<email>', 'g'),
               '(?=[[:xdigit:]-]*[0-9])[[:xdigit:]-]{8,}', '<hex>', 'g'),
               '[0-9]+([.,:][0-9]+)*', '<n>', 'g'), 500), 0)), 16, '0') END
$_$;

CREATE FUNCTION redrive.follow(followers jsonb) RETURNS integer
    LANGUAGE plpgsql STRICT
    AS $$
DECLARE
    made int;
BEGIN
    INSERT INTO "redrive"."jobs" (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata)
    SELECT f.kind, f.payload::jsonb, coalesce(f.run_at, "redrive"."clock"() + make_interval(secs => f.delay)), f.priority,
           f.max_attempts, f.key, f.lane,
           coalesce(f.expires_at, "redrive"."clock"() + make_interval(secs => f.expires_in)), f.metadata::jsonb
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

CREATE FUNCTION redrive.keep_broken() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM "redrive"."breakers" b WHERE b.kind = OLD.kind AND b.state <> 'closed') THEN
        INSERT INTO "redrive"."kinds" (kind, broken) VALUES (OLD.kind, true) ON CONFLICT (kind) DO UPDATE SET broken = true;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.note_breaker() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        IF NEW.state <> 'closed' AND (TG_OP = 'INSERT' OR OLD.state = 'closed' OR OLD.kind <> NEW.kind) THEN
            INSERT INTO "redrive"."kinds" (kind, broken) VALUES (NEW.kind, true) ON CONFLICT (kind) DO UPDATE SET broken = true;
        END IF;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        PERFORM FROM "redrive"."kinds" WHERE kind = OLD.kind AND broken FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND AND NOT EXISTS (SELECT FROM "redrive"."breakers" b WHERE b.kind = OLD.kind AND b.state <> 'closed') THEN
            UPDATE "redrive"."kinds" SET broken = false WHERE kind = OLD.kind;
        END IF;
    END IF;
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('redrive_87ee1b8128540ac26d45', 'kinds');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.note_unheard(topic text) RETURNS void
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM "redrive"."unheard_topics" u WHERE u.topic = note_unheard.topic AND u.at > "redrive"."clock"() - interval '1 hour')
       AND (SELECT count(*) FROM (SELECT FROM "redrive"."unheard_topics" LIMIT 10000) few) < 10000
       AND pg_try_advisory_xact_lock(hashtextextended(note_unheard.topic, 2840629984317346940)) THEN
        INSERT INTO "redrive"."unheard_topics" (topic, at) VALUES (note_unheard.topic, "redrive"."clock"());
    END IF;
END $$;

CREATE FUNCTION redrive.publish(topic text, payload jsonb DEFAULT '{}'::jsonb, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay interval DEFAULT NULL::interval, priority integer DEFAULT NULL::integer, max_attempts integer DEFAULT NULL::integer, key text DEFAULT NULL::text, lane text DEFAULT NULL::text, expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, metadata jsonb DEFAULT NULL::jsonb, lanes jsonb DEFAULT NULL::jsonb, batch bigint DEFAULT NULL::bigint) RETURNS TABLE(id bigint, kind text, created boolean)
    LANGUAGE plpgsql
    AS $_$
#variable_conflict use_column
DECLARE
    starts timestamptz := coalesce(publish.run_at, "redrive"."clock"() + coalesce(publish.delay, '0'));
    noted jsonb := coalesce(publish.metadata, '{}'::jsonb) || jsonb_build_object('topic', publish.topic);
    body jsonb := coalesce(publish.payload, '{}'::jsonb);
    each record;
BEGIN
    IF publish.run_at IS NOT NULL AND publish.delay IS NOT NULL THEN
        RAISE EXCEPTION 'publish: give run_at or delay, not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.topic IS NULL OR publish.topic !~ '^[^.*#]+(\.[^.*#]+)*$' OR octet_length(publish.topic) > 255 THEN
        RAISE EXCEPTION 'publish: the topic % must be words between dots, without * or #, of at most 255 bytes',
            coalesce(quote_literal(publish.topic), 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.key IS NULL THEN
        RETURN QUERY
        INSERT INTO "redrive"."jobs" AS j (kind, payload, run_at, priority, max_attempts, lane, expires_at, metadata, batch)
        SELECT s.kind, body, starts, coalesce(publish.priority, s.priority), coalesce(publish.max_attempts, s.max_attempts),
               coalesce(publish.lane, publish.lanes ->> s.kind, ''), publish.expires_at, noted, publish.batch
        FROM "redrive".subscribers(publish.topic) s
        RETURNING j.id, j.kind, true;
    ELSE
        FOR each IN SELECT s.*, publish.key || '@' || s.kind AS one FROM "redrive".subscribers(publish.topic) s LOOP
            LOOP
                RETURN QUERY
                SELECT j.id, each.kind, false FROM "redrive"."jobs" j WHERE j.key = each.one AND j.status IN ('pending', 'running');
                EXIT WHEN FOUND;
                RETURN QUERY
                INSERT INTO "redrive"."jobs" AS j (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata, batch)
                VALUES (each.kind, body, starts, coalesce(publish.priority, each.priority),
                        coalesce(publish.max_attempts, each.max_attempts), each.one,
                        coalesce(publish.lane, publish.lanes ->> each.kind, ''), publish.expires_at, noted, publish.batch)
                ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING
                RETURNING j.id, each.kind, true;
                EXIT WHEN FOUND;
            END LOOP;
        END LOOP;
    END IF;
    IF NOT FOUND THEN -- of the INSERT whether it made a job, of the loop whether it turned
        PERFORM "redrive".note_unheard(publish.topic);
    END IF;
END $_$;

CREATE FUNCTION redrive.quantile(histogram bigint[], share double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN place = 1 THEN 0.0001 ELSE 0.0001 * 2 ^ ((place - 1.5) / 4.0)::double precision END
    FROM (
        SELECT place, sum(jobs) OVER (ORDER BY place) AS upto, sum(jobs) OVER () AS total
        FROM unnest(histogram) WITH ORDINALITY AS u(jobs, place)
    ) h
    WHERE total > 0 AND upto >= greatest(share, 0) * total AND upto > 0
    ORDER BY place
    LIMIT 1
$$;

CREATE FUNCTION redrive.replan_schedule() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.revision := OLD.revision + 1;
    NEW.problem := NULL;
    IF NEW.next_run_at IS NOT DISTINCT FROM OLD.next_run_at THEN
        NEW.next_run_at := NULL;
    END IF;
    IF (NEW.cron, NEW.every, NEW.at) IS DISTINCT FROM (OLD.cron, OLD.every, OLD.at) THEN
        NEW.ended_at := NULL;
    END IF;
    NEW.updated_at := now();
    RETURN NEW;
END $$;

CREATE FUNCTION redrive.subscribers(topic text) RETURNS TABLE(kind text, priority smallint, max_attempts integer)
    LANGUAGE sql STABLE
    AS $$
    WITH words AS MATERIALIZED (
        SELECT string_to_array(subscribers.topic, '.') AS w
    ), heard AS MATERIALIZED (
        SELECT DISTINCT ON (s.kind) s.kind, s.priority, s.max_attempts, s.aliases
        FROM "redrive"."subscriptions" s
        WHERE s.stem = ANY (ARRAY(
                  SELECT array_to_string(w[1:n], '.') || CASE WHEN n > 0 THEN '.' ELSE '' END
                  FROM words, generate_series(0, cardinality(w)) n))
          AND s.disabled_at IS NULL
          AND CASE WHEN s.pattern IS NULL THEN s.topic = subscribers.topic ELSE subscribers.topic || '.' ~ s.pattern END
        ORDER BY s.kind, s.owner, length(s.stem) DESC, s.topic
    )
    SELECT h.kind, h.priority, h.max_attempts
    FROM heard h
    WHERE NOT EXISTS (SELECT FROM heard o WHERE h.kind = ANY (o.aliases) AND o.kind <> h.kind)
    ORDER BY h.kind
$$;

COMMENT ON FUNCTION redrive.subscribers(topic text) IS 'the kinds that get a job when this topic is published';

CREATE FUNCTION redrive.tell_of_adoption() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('redrive_87ee1b8128540ac26d45', 'adoptions');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.tell_of_kind() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('redrive_87ee1b8128540ac26d45', 'kinds');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.tell_of_requeue() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('redrive_87ee1b8128540ac26d45', 'requeues');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.tell_of_schedule() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('redrive_87ee1b8128540ac26d45', 'schedules');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.wake() RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF pg_try_advisory_lock_shared(2840629984317346940) THEN
        RETURN NOT pg_advisory_unlock_shared(2840629984317346940);
    END IF;
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('redrive_87ee1b8128540ac26d45', '');       -- off is for PREPARE TRANSACTION, which refuses after a NOTIFY
    END IF;
    RETURN true;
END $$;

COMMENT ON FUNCTION redrive.wake() IS 'wakes the worker that keeps watch, if one does; says whether one did';

CREATE FUNCTION redrive.wake_on_insert() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM "redrive"."wake"();
    RETURN NULL;
END $$;

CREATE AGGREGATE redrive.merged(integer[]) (
    SFUNC = redrive.add_histogram,
    STYPE = bigint[],
    INITCOND = '{}'
);

CREATE TABLE redrive.adopted_rows (
    adoption bigint NOT NULL,
    row_key text NOT NULL,
    job bigint,
    state text NOT NULL,
    owed text,
    due_at timestamp with time zone,
    tries integer DEFAULT 0 NOT NULL,
    note text,
    since timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT adopted_rows_state_is_one_that_there_is CHECK ((state = ANY (ARRAY['held'::text, 'new'::text, 'waiting'::text, 'claimed'::text, 'ended'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_analyze_scale_factor='0.05', autovacuum_analyze_threshold='1000');

COMMENT ON COLUMN redrive.adopted_rows.state IS 'held: left alone; new: to be made a job; waiting, claimed: its job waits, runs; ended: it has, and the row can''t say so';

COMMENT ON COLUMN redrive.adopted_rows.owed IS 'what could not be written to the row yet: waiting, returned, succeeded or dead';

COMMENT ON COLUMN redrive.adopted_rows.due_at IS 'when to see to it again; NULL where there is nothing to do';

CREATE TABLE redrive.adoptions (
    id bigint NOT NULL,
    name text NOT NULL,
    table_oid oid NOT NULL,
    map jsonb NOT NULL,
    by_trigger boolean NOT NULL,
    by_sweep boolean NOT NULL,
    beside boolean NOT NULL,
    cutover timestamp with time zone NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL,
    by text,
    paused_at timestamp with time zone,
    paused_by text,
    ending_at timestamp with time zone,
    ready boolean DEFAULT false NOT NULL,
    index_made text,
    round_at timestamp with time zone,
    swept text,
    tidied text,
    tidied_at timestamp with time zone,
    trouble text,
    trouble_at timestamp with time zone
)
WITH (fillfactor='50');

COMMENT ON COLUMN redrive.adoptions.name IS 'the table''s, with its schema, quoted where need be';

COMMENT ON COLUMN redrive.adoptions.beside IS 'the old worker goes on: rows are written as claimed from the moment they are taken in';

COMMENT ON COLUMN redrive.adoptions.paused_at IS 'since then rows are noted, and made jobs when it is resumed';

COMMENT ON COLUMN redrive.adoptions.ending_at IS 'since then rows are handed back';

COMMENT ON COLUMN redrive.adoptions.ready IS 'rows from before the cut-over are noted, so that a sweep leaves them alone';

COMMENT ON COLUMN redrive.adoptions.swept IS 'the sweep has come to this row; NULL at the beginning. tidied: the same of adopted_rows';

COMMENT ON COLUMN redrive.adoptions.trouble IS 'why rows could not be read or written, the last time that was so';

ALTER TABLE redrive.adoptions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.adoptions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.alert_messages (
    id bigint NOT NULL,
    channel text NOT NULL,
    sort text NOT NULL,
    message jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    sent_at timestamp with time zone,
    error text
)
WITH (fillfactor='50');

COMMENT ON COLUMN redrive.alert_messages.sort IS 'alert or digest';

COMMENT ON COLUMN redrive.alert_messages.error IS 'why it was not sent, the last time';

ALTER TABLE redrive.alert_messages ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.alert_messages_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.alert_state (
    one boolean DEFAULT true NOT NULL,
    looked_at timestamp with time zone,
    last_failure bigint,
    digest_at timestamp with time zone,
    CONSTRAINT alert_state_is_one_row CHECK (one)
)
WITH (fillfactor='50');

COMMENT ON COLUMN redrive.alert_state.last_failure IS 'deaths up to this row of failures have been counted';

CREATE TABLE redrive.alerts (
    rule text NOT NULL,
    subject text NOT NULL,
    text text NOT NULL,
    value double precision NOT NULL,
    told_value double precision NOT NULL,
    began_at timestamp with time zone NOT NULL,
    told_at timestamp with time zone NOT NULL,
    missed integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');

COMMENT ON COLUMN redrive.alerts.value IS 'how bad it is, in the rule''s own measure';

COMMENT ON COLUMN redrive.alerts.missed IS 'looks since it was last found: after two it is over';

CREATE TABLE redrive.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    by text,
    action text NOT NULL,
    filter jsonb DEFAULT '{}'::jsonb NOT NULL,
    reason text,
    moved bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    job_id bigint,
    requeue_id bigint,
    before jsonb,
    after jsonb
);

COMMENT ON COLUMN redrive.audit.filter IS 'what was asked for';

COMMENT ON COLUMN redrive.audit.moved IS 'to how many it was done';

COMMENT ON COLUMN redrive.audit.skipped IS 'of those that were meant, how many were in another state when their turn came';

COMMENT ON COLUMN redrive.audit.before IS 'what was changed: a payload, a definition; after is what it became';

ALTER TABLE redrive.audit ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.batches (
    id bigint NOT NULL,
    name text,
    follower jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    jobs bigint,
    succeeded bigint,
    failed bigint,
    dead bigint
);

COMMENT ON COLUMN redrive.batches.follower IS 'the job that follows, as follow() takes it';

COMMENT ON COLUMN redrive.batches.ended_at IS 'when the last of its jobs had ended; from then on the counts stand';

ALTER TABLE redrive.batches ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.batches_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.jobs (
    id bigint NOT NULL,
    kind text NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    status redrive.job_status DEFAULT 'pending'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    run_at timestamp with time zone DEFAULT now() NOT NULL,
    locked_at timestamp with time zone,
    locked_by text,
    last_error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    priority smallint DEFAULT 5 NOT NULL,
    lane text DEFAULT ''::text NOT NULL,
    key text,
    claims integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    alone boolean DEFAULT false NOT NULL,
    expires_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    progress jsonb,
    result jsonb,
    metadata jsonb,
    counted boolean DEFAULT false NOT NULL,
    fingerprint text,
    superseded boolean DEFAULT false NOT NULL,
    batch bigint,
    CONSTRAINT jobs_priority_range CHECK (((priority >= 0) AND (priority <= 9)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_analyze_scale_factor='0.05', autovacuum_analyze_threshold='1000', autovacuum_vacuum_cost_delay='1');

COMMENT ON COLUMN redrive.jobs.attempts IS 'tries that count: a hand-back, a snooze and a worker''s death give theirs back';

COMMENT ON COLUMN redrive.jobs.priority IS '0 to 9, lower runs first';

COMMENT ON COLUMN redrive.jobs.key IS 'at most one pending or running job has it';

COMMENT ON COLUMN redrive.jobs.claims IS 'claims so far, never reset: with locked_by it is the lease';

COMMENT ON COLUMN redrive.jobs.crashes IS 'worker deaths while this job ran with nothing beside it';

COMMENT ON COLUMN redrive.jobs.alone IS 'its worker died while it may have run: the next claim takes it with nothing beside it';

COMMENT ON COLUMN redrive.jobs.counted IS 'while it runs it counts towards the limits of its kind';

COMMENT ON COLUMN redrive.jobs.fingerprint IS 'of its last failure: the same for the same fault';

COMMENT ON COLUMN redrive.jobs.superseded IS 'while it ran, a job with its key was enqueued: it ends with this try';

COMMENT ON COLUMN redrive.jobs.batch IS 'the batch that it was enqueued with';

CREATE VIEW redrive.dead_letters AS
 SELECT id,
    kind,
    lane,
    updated_at AS died_at,
    created_at,
    attempts,
    status,
    COALESCE(NULLIF("substring"(rtrim(last_error, '
 '::text), '([^\n]*)$'::text), ''::text), '(no error text)'::text) AS error,
    last_error,
    payload,
    metadata
   FROM redrive.jobs
  WHERE (((status)::text = ANY (ARRAY['failed'::text, 'dead'::text])) AND (((status)::text = 'dead'::text) OR (last_error IS NULL) OR (last_error !~ '^(cancelled|discarded)'::text)));

COMMENT ON VIEW redrive.dead_letters IS 'jobs at which a human must look; error is the last line of last_error';

CREATE TABLE redrive.deploys (
    version text NOT NULL,
    at timestamp with time zone NOT NULL
);

CREATE TABLE redrive.failures (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    kind text NOT NULL,
    claim integer NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    failed_at timestamp with time zone NOT NULL,
    duration double precision,
    worker text,
    error_type text NOT NULL,
    message text NOT NULL,
    traceback text,
    fingerprint text,
    key text,
    expires_at timestamp with time zone,
    version text
);

COMMENT ON COLUMN redrive.failures.outcome IS 'what became of the job: retried, held (by a breaker, the try is given back), dead, failed or reclaimed';

COMMENT ON COLUMN redrive.failures.duration IS 'seconds from the start of the handler; NULL when its worker died';

COMMENT ON COLUMN redrive.failures.key IS 'the job''s key and, next to it, expires_at: a dead job''s row gives them up';

COMMENT ON COLUMN redrive.failures.version IS 'of the application, as its worker was told (app_version)';

ALTER TABLE redrive.failures ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.failures_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.jobs_archive (
    id bigint CONSTRAINT jobs_id_not_null NOT NULL,
    kind text CONSTRAINT jobs_kind_not_null NOT NULL,
    payload jsonb CONSTRAINT jobs_payload_not_null NOT NULL,
    status redrive.job_status CONSTRAINT jobs_status_not_null NOT NULL,
    attempts integer CONSTRAINT jobs_attempts_not_null NOT NULL,
    max_attempts integer CONSTRAINT jobs_max_attempts_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT jobs_run_at_not_null NOT NULL,
    locked_at timestamp with time zone,
    locked_by text,
    last_error text,
    created_at timestamp with time zone CONSTRAINT jobs_created_at_not_null NOT NULL,
    updated_at timestamp with time zone CONSTRAINT jobs_updated_at_not_null NOT NULL,
    priority smallint CONSTRAINT jobs_priority_not_null NOT NULL,
    lane text CONSTRAINT jobs_lane_not_null NOT NULL,
    key text,
    claims integer CONSTRAINT jobs_claims_not_null NOT NULL,
    crashes integer CONSTRAINT jobs_crashes_not_null NOT NULL,
    alone boolean CONSTRAINT jobs_alone_not_null NOT NULL,
    expires_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    progress jsonb,
    result jsonb,
    metadata jsonb,
    counted boolean DEFAULT false NOT NULL,
    fingerprint text,
    superseded boolean DEFAULT false NOT NULL,
    batch bigint
)
PARTITION BY RANGE (updated_at);

CREATE TABLE redrive.jobs_archive_default (
    id bigint CONSTRAINT jobs_id_not_null NOT NULL,
    kind text CONSTRAINT jobs_kind_not_null NOT NULL,
    payload jsonb CONSTRAINT jobs_payload_not_null NOT NULL,
    status redrive.job_status CONSTRAINT jobs_status_not_null NOT NULL,
    attempts integer CONSTRAINT jobs_attempts_not_null NOT NULL,
    max_attempts integer CONSTRAINT jobs_max_attempts_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT jobs_run_at_not_null NOT NULL,
    locked_at timestamp with time zone,
    locked_by text,
    last_error text,
    created_at timestamp with time zone CONSTRAINT jobs_created_at_not_null NOT NULL,
    updated_at timestamp with time zone CONSTRAINT jobs_updated_at_not_null NOT NULL,
    priority smallint CONSTRAINT jobs_priority_not_null NOT NULL,
    lane text CONSTRAINT jobs_lane_not_null NOT NULL,
    key text,
    claims integer CONSTRAINT jobs_claims_not_null NOT NULL,
    crashes integer CONSTRAINT jobs_crashes_not_null NOT NULL,
    alone boolean CONSTRAINT jobs_alone_not_null NOT NULL,
    expires_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    progress jsonb,
    result jsonb,
    metadata jsonb,
    counted boolean DEFAULT false CONSTRAINT jobs_archive_counted_not_null NOT NULL,
    fingerprint text,
    superseded boolean DEFAULT false CONSTRAINT jobs_archive_superseded_not_null NOT NULL,
    batch bigint
);

ALTER TABLE redrive.jobs ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.kinds (
    kind text NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    paused_reason text,
    paused_until timestamp with time zone,
    running_most integer,
    rate double precision,
    burst integer,
    lane_running_most integer,
    lane_rate double precision,
    lane_burst integer,
    empty_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    broken boolean DEFAULT false NOT NULL,
    limited boolean GENERATED ALWAYS AS ((broken OR (num_nonnulls(running_most, rate, lane_running_most, lane_rate) > 0))) STORED,
    route text DEFAULT 'postgres'::text NOT NULL,
    CONSTRAINT kinds_all_can_be_paused_but_not_limited CHECK (((kind <> '*'::text) OR (NOT limited))),
    CONSTRAINT kinds_all_have_no_route_together CHECK (((kind <> '*'::text) OR (route = 'postgres'::text))),
    CONSTRAINT kinds_burst_is_at_least_1_and_goes_with_a_rate CHECK (((burst >= 1) AND (lane_burst >= 1) AND ((burst IS NULL) OR (rate IS NOT NULL)) AND ((lane_burst IS NULL) OR (lane_rate IS NOT NULL)))),
    CONSTRAINT kinds_burst_is_at_most_a_year_of_rate CHECK (((((burst)::double precision / rate) <= (31536000)::double precision) AND (((lane_burst)::double precision / lane_rate) <= (31536000)::double precision))),
    CONSTRAINT kinds_kind_is_1_to_1000_bytes CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 1000))),
    CONSTRAINT kinds_pause_begins_with_paused_at CHECK (((paused_at IS NOT NULL) OR (num_nonnulls(paused_by, paused_reason, paused_until) = 0))),
    CONSTRAINT kinds_rate_is_over_0 CHECK (((rate >= (0.000001)::double precision) AND (rate <= ('1000000'::numeric)::double precision) AND (lane_rate >= (0.000001)::double precision) AND (lane_rate <= ('1000000'::numeric)::double precision))),
    CONSTRAINT kinds_route_is_postgres_or_amqp CHECK ((route = ANY (ARRAY['postgres'::text, 'amqp'::text]))),
    CONSTRAINT kinds_running_most_is_at_least_1 CHECK (((running_most >= 1) AND (lane_running_most >= 1))),
    CONSTRAINT kinds_times_are_finite_and_paused_until_null_is_for_ever CHECK (((LEAST(paused_at, paused_until, empty_at) >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(paused_at, paused_until, empty_at) < '9000-01-01 00:00:00+00'::timestamp with time zone)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='200');

COMMENT ON COLUMN redrive.kinds.kind IS '* for a pause of all kinds';

COMMENT ON COLUMN redrive.kinds.paused_until IS 'when the pause ends by itself; NULL: when somebody ends it';

COMMENT ON COLUMN redrive.kinds.running_most IS 'how many may run at once, in all workers together';

COMMENT ON COLUMN redrive.kinds.rate IS 'how many may start a second, in all workers together';

COMMENT ON COLUMN redrive.kinds.burst IS 'how many may start at once after a pause; by default a tenth of rate, and at least 2';

COMMENT ON COLUMN redrive.kinds.lane_running_most IS 'as running_most, for each lane of the kind by itself; so are lane_rate and lane_burst';

COMMENT ON COLUMN redrive.kinds.empty_at IS 'the instant up to which the rate is used up';

COMMENT ON COLUMN redrive.kinds.broken IS 'it has breakers that are not closed; kept by a trigger';

COMMENT ON COLUMN redrive.kinds.route IS 'postgres: workers claim its jobs; amqp: redrive relay hands them to a broker';

CREATE TABLE redrive.lane_rates (
    kind text NOT NULL,
    lane text NOT NULL,
    empty_at timestamp with time zone NOT NULL,
    CONSTRAINT lane_rates_empty_at_check CHECK (((empty_at >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (empty_at < '9000-01-01 00:00:00+00'::timestamp with time zone)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');

CREATE TABLE redrive.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE VIEW redrive.queue_depth AS
 SELECT kind,
    count(*) FILTER (WHERE ((status)::text = 'pending'::text)) AS pending,
    count(*) FILTER (WHERE (((status)::text = 'pending'::text) AND (run_at <= redrive.clock()))) AS due,
    count(*) FILTER (WHERE (((status)::text = 'pending'::text) AND (attempts > 0))) AS retrying,
    count(*) FILTER (WHERE ((status)::text = 'running'::text)) AS running,
    (EXTRACT(epoch FROM (redrive.clock() - min(GREATEST(run_at, '1970-01-01 00:00:00+00'::timestamp with time zone)) FILTER (WHERE (((status)::text = 'pending'::text) AND (run_at <= redrive.clock()))))))::double precision AS oldest_due
   FROM ( SELECT jobs.kind,
            jobs.status,
            jobs.run_at,
            jobs.attempts
           FROM redrive.jobs
          WHERE ((jobs.status)::text = 'pending'::text)
        UNION ALL
         SELECT jobs.kind,
            jobs.status,
            jobs.run_at,
            jobs.attempts
           FROM redrive.jobs
          WHERE ((jobs.status)::text = 'running'::text)) live
  GROUP BY kind;

COMMENT ON VIEW redrive.queue_depth IS 'what waits and what runs, by kind: all of it is counted; oldest_due in seconds';

CREATE TABLE redrive.requeues (
    id bigint NOT NULL,
    filter jsonb NOT NULL,
    rate double precision,
    canary boolean DEFAULT true NOT NULL,
    by text,
    reason text,
    status text DEFAULT 'waiting'::text NOT NULL,
    why text,
    matched bigint,
    moved bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    canary_id bigint,
    canary_at timestamp with time zone,
    after_id bigint DEFAULT '-9223372036854775808'::bigint NOT NULL,
    rounds integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    advanced_at timestamp with time zone,
    ended_at timestamp with time zone,
    CONSTRAINT requeues_filter_is_an_object CHECK ((jsonb_typeof(filter) = 'object'::text)),
    CONSTRAINT requeues_rate_is_over_0 CHECK (((rate >= (0.000001)::double precision) AND (rate <= ('1000000'::numeric)::double precision))),
    CONSTRAINT requeues_status_is_one_that_there_is CHECK ((status = ANY (ARRAY['waiting'::text, 'canary'::text, 'running'::text, 'done'::text, 'stopped'::text, 'failed'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');

COMMENT ON COLUMN redrive.requeues.filter IS 'which jobs, of those that were dead at started_at';

COMMENT ON COLUMN redrive.requeues.rate IS 'jobs a second; NULL as quick as it goes';

COMMENT ON COLUMN redrive.requeues.canary IS 'send one, and the others only if it succeeds';

COMMENT ON COLUMN redrive.requeues.why IS 'why it was stopped or failed';

COMMENT ON COLUMN redrive.requeues.matched IS 'how many there were at started_at; NULL until somebody has counted them';

COMMENT ON COLUMN redrive.requeues.after_id IS 'jobs up to this one have had their turn';

COMMENT ON COLUMN redrive.requeues.rounds IS 'how often it has come to the end: the second round is for jobs that somebody had locked';

COMMENT ON COLUMN redrive.requeues.advanced_at IS 'up to when the rate is used up';

ALTER TABLE redrive.requeues ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME redrive.requeues_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE redrive.schedule_slots (
    schedule text NOT NULL,
    slot timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    reason text,
    job_id bigint,
    decided_at timestamp with time zone NOT NULL,
    CONSTRAINT schedule_slots_outcome_is_enqueued_or_skipped CHECK ((outcome = ANY (ARRAY['enqueued'::text, 'skipped'::text])))
);

COMMENT ON COLUMN redrive.schedule_slots.slot IS 'the instant for which it was, not the one at which it was decided';

CREATE TABLE redrive.schedules (
    name text NOT NULL,
    kind text NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    cron text,
    every interval,
    at timestamp with time zone,
    timezone text DEFAULT 'UTC'::text NOT NULL,
    anchor timestamp with time zone DEFAULT date_trunc('second'::text, now()) NOT NULL,
    priority smallint DEFAULT 5 NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    lane text DEFAULT ''::text NOT NULL,
    missed text DEFAULT 'latest'::text NOT NULL,
    missed_most integer DEFAULT 100 NOT NULL,
    missed_age interval,
    overlap text DEFAULT 'skip'::text NOT NULL,
    owner text DEFAULT 'operator'::text NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    paused_reason text,
    disabled_at timestamp with time zone,
    seen_at timestamp with time zone,
    next_run_at timestamp with time zone,
    waiting_slot timestamp with time zone,
    last_run_at timestamp with time zone,
    last_job_id bigint,
    ended_at timestamp with time zone,
    problem text,
    revision integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT schedules_every_is_1_second_to_100_years_without_months CHECK ((((every >= '00:00:01'::interval) AND (every <= '36500 days'::interval)) AND (EXTRACT(epoch FROM date_trunc('month'::text, every)) = (0)::numeric))),
    CONSTRAINT schedules_exactly_one_of_cron_every_at CHECK ((num_nonnulls(cron, every, at) = 1)),
    CONSTRAINT schedules_kind_is_1_to_1000_bytes CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 1000))),
    CONSTRAINT schedules_lane_is_at_most_1000_bytes CHECK ((octet_length(lane) <= 1000)),
    CONSTRAINT schedules_max_attempts_is_at_least_1 CHECK ((max_attempts >= 1)),
    CONSTRAINT schedules_missed_age_is_0_to_100_years CHECK (((missed_age >= '00:00:00'::interval) AND (missed_age <= '36500 days'::interval))),
    CONSTRAINT schedules_missed_is_skip_latest_or_all CHECK ((missed = ANY (ARRAY['skip'::text, 'latest'::text, 'all'::text]))),
    CONSTRAINT schedules_missed_most_is_1_to_1000 CHECK (((missed_most >= 1) AND (missed_most <= 1000))),
    CONSTRAINT schedules_name_is_1_to_1000_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 1000))),
    CONSTRAINT schedules_overlap_is_skip_queue_one_or_allow CHECK ((overlap = ANY (ARRAY['skip'::text, 'queue one'::text, 'allow'::text]))),
    CONSTRAINT schedules_owner_is_code_or_operator CHECK ((owner = ANY (ARRAY['code'::text, 'operator'::text]))),
    CONSTRAINT schedules_priority_is_0_to_9 CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT schedules_times_are_from_1970_to_9000 CHECK (((LEAST(at, anchor, paused_at, disabled_at, seen_at, next_run_at, waiting_slot, last_run_at, ended_at, created_at, updated_at) >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(at, anchor, paused_at, disabled_at, seen_at, next_run_at, waiting_slot, last_run_at, ended_at, created_at, updated_at) < '9000-01-01 00:00:00+00'::timestamp with time zone)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');

COMMENT ON COLUMN redrive.schedules.cron IS 'five fields, or six with the seconds first, or a name like @daily; read in timezone';

COMMENT ON COLUMN redrive.schedules.every IS 'a length of time between slots, counted from anchor';

COMMENT ON COLUMN redrive.schedules.at IS 'once, at this instant';

COMMENT ON COLUMN redrive.schedules.missed IS 'what becomes of slots at which no worker ran: skip, latest or all of them';

COMMENT ON COLUMN redrive.schedules.missed_most IS 'with all: how many are made up for at once, the newest ones';

COMMENT ON COLUMN redrive.schedules.missed_age IS 'how old a missed slot may be and still be made up for, NULL for any age';

COMMENT ON COLUMN redrive.schedules.overlap IS 'while the job of the last run is pending or running: skip, queue one or allow';

COMMENT ON COLUMN redrive.schedules.owner IS 'code: workers keep it as their code has it; operator: it is left alone';

COMMENT ON COLUMN redrive.schedules.disabled_at IS 'since when no live worker has had it in its code';

COMMENT ON COLUMN redrive.schedules.seen_at IS 'when a live worker last had it in its code';

COMMENT ON COLUMN redrive.schedules.next_run_at IS 'the next slot; NULL: a worker is to work it out';

COMMENT ON COLUMN redrive.schedules.waiting_slot IS 'with queue one: the slot that waits for the job before it to end';

COMMENT ON COLUMN redrive.schedules.last_run_at IS 'the last slot that was enqueued, or when it was last run by hand';

COMMENT ON COLUMN redrive.schedules.ended_at IS 'when a schedule that runs once was done with';

COMMENT ON COLUMN redrive.schedules.problem IS 'why it can''t be planned, such as a zone that nobody knows';

COMMENT ON COLUMN redrive.schedules.revision IS 'counts changes of what is to run when: a worker that saw another plans nothing';

CREATE TABLE redrive.stats (
    minute timestamp with time zone NOT NULL,
    kind text NOT NULL,
    worker text NOT NULL,
    minutes integer DEFAULT 1 NOT NULL,
    succeeded integer DEFAULT 0 NOT NULL,
    retried integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    died integer DEFAULT 0 NOT NULL,
    snoozed integer DEFAULT 0 NOT NULL,
    handed_back integer DEFAULT 0 NOT NULL,
    reclaimed integer DEFAULT 0 NOT NULL,
    ran integer DEFAULT 0 NOT NULL,
    wait_seconds double precision DEFAULT 0 NOT NULL,
    run_seconds double precision DEFAULT 0 NOT NULL,
    waits integer[] DEFAULT '{}'::integer[] NOT NULL,
    runs integer[] DEFAULT '{}'::integer[] NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500');

COMMENT ON COLUMN redrive.stats.minute IS 'when it begins; what ended in it is counted in it';

COMMENT ON COLUMN redrive.stats.worker IS 'who counted; '''' where it is a sum';

COMMENT ON COLUMN redrive.stats.minutes IS 'how many it stands for: 1, 10 or 60';

COMMENT ON COLUMN redrive.stats.retried IS 'failed, and to be tried again; those that are held by a breaker as well';

COMMENT ON COLUMN redrive.stats.failed IS 'cancelled while they ran, and discarded';

COMMENT ON COLUMN redrive.stats.reclaimed IS 'taken back by this worker from others that were lost';

COMMENT ON COLUMN redrive.stats.ran IS 'runs of the handler that ended, whatever came of them: what the seconds are sums of';

COMMENT ON COLUMN redrive.stats.wait_seconds IS 'from the time at which each was due to its start';

COMMENT ON COLUMN redrive.stats.waits IS 'histogram of the waits: how many took up to 0.0001 s is waits[1], and each further place reaches 2^(1/4) times as far; the zeros at both ends are left out, so it may begin at [30]. So it is with runs';

CREATE TABLE redrive.subscriptions (
    topic text NOT NULL,
    kind text NOT NULL,
    owner text DEFAULT 'operator'::text NOT NULL,
    priority smallint DEFAULT 5 NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    aliases text[] DEFAULT '{}'::text[] NOT NULL,
    created_by text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone,
    disabled_at timestamp with time zone,
    stem text GENERATED ALWAYS AS (COALESCE("substring"((topic || '.'::text), '^((?:[^.*#]+\.)*)'::text), ''::text)) STORED NOT NULL,
    pattern text GENERATED ALWAYS AS (
CASE
    WHEN (topic ~ '[*#]'::text) THEN (('^'::text || replace(replace(replace(regexp_replace((topic || '.'::text), '[][\\^$()|{}+?]'::text, '\\\&'::text, 'g'::text), '.'::text, '\.'::text), '*'::text, '[^.]+'::text), '#\.'::text, '(?:[^.]+\.)*'::text)) || '$'::text)
    ELSE NULL::text
END) STORED,
    CONSTRAINT subscriptions_kind_is_1_to_1000_bytes CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 1000))),
    CONSTRAINT subscriptions_max_attempts_is_at_least_1 CHECK ((max_attempts >= 1)),
    CONSTRAINT subscriptions_owner_is_code_or_operator CHECK ((owner = ANY (ARRAY['code'::text, 'operator'::text]))),
    CONSTRAINT subscriptions_priority_is_0_to_9 CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT subscriptions_topic_is_at_most_255_bytes CHECK ((octet_length(topic) <= 255)),
    CONSTRAINT subscriptions_topic_is_words_between_dots CHECK ((topic ~ '^([^.*#]+|[*#])(\.([^.*#]+|[*#]))*$'::text))
)
WITH (fillfactor='50');

COMMENT ON COLUMN redrive.subscriptions.owner IS 'code: workers keep it as their code has it; operator: it is left alone';

COMMENT ON COLUMN redrive.subscriptions.aliases IS 'former names of the kind: what subscribes under one of them gets no second job';

COMMENT ON COLUMN redrive.subscriptions.seen_at IS 'when a live worker last had it in its code';

COMMENT ON COLUMN redrive.subscriptions.disabled_at IS 'since when it is in no code any more; what is published makes no job for it';

COMMENT ON COLUMN redrive.subscriptions.stem IS 'the words before the first wildcard, each with its dot';

COMMENT ON COLUMN redrive.subscriptions.pattern IS 'as a regular expression, where there is a wildcard';

CREATE VIEW redrive.throughput AS
 SELECT minute,
    kind,
    minutes,
    sum(succeeded) AS succeeded,
    sum(retried) AS retried,
    sum(failed) AS failed,
    sum(died) AS died,
    sum(snoozed) AS snoozed,
    sum(handed_back) AS handed_back,
    sum(reclaimed) AS reclaimed,
    sum(ran) AS ran,
    (sum(wait_seconds) / (NULLIF(sum(ran), 0))::double precision) AS wait_mean,
    redrive.quantile(redrive.merged(waits), (0.5)::double precision) AS wait_p50,
    redrive.quantile(redrive.merged(waits), (0.95)::double precision) AS wait_p95,
    (sum(run_seconds) / (NULLIF(sum(ran), 0))::double precision) AS run_mean,
    redrive.quantile(redrive.merged(runs), (0.5)::double precision) AS run_p50,
    redrive.quantile(redrive.merged(runs), (0.95)::double precision) AS run_p95
   FROM redrive.stats
  GROUP BY minute, kind, minutes;

COMMENT ON VIEW redrive.throughput IS 'what became of jobs, by minute (ten after two hours, an hour after a day) and kind; times in seconds';

CREATE TABLE redrive.unheard_topics (
    topic text NOT NULL,
    at timestamp with time zone NOT NULL
);

CREATE TABLE redrive.workers (
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    kinds text[] NOT NULL,
    concurrency integer NOT NULL,
    in_flight integer DEFAULT 0 NOT NULL,
    lease interval NOT NULL,
    listener_pid integer,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    problem text,
    app_version text,
    clock_skew double precision
)
WITH (fillfactor='50');

COMMENT ON COLUMN redrive.workers.lease IS 'how long its jobs stay its own without a heartbeat';

COMMENT ON COLUMN redrive.workers.problem IS 'what its own loops complain of, NULL when all of them turn';

COMMENT ON COLUMN redrive.workers.app_version IS 'of the application; version is that of redrive';

COMMENT ON COLUMN redrive.workers.clock_skew IS 'seconds by which its machine''s clock is ahead of the database''s';

CREATE VIEW redrive.workers_alive AS
 SELECT name,
    host,
    pid,
    version,
    app_version,
    kinds,
    concurrency,
    in_flight,
    started_at,
    heartbeat_at,
    (EXTRACT(epoch FROM (redrive.clock() - heartbeat_at)))::double precision AS silent_for,
    (heartbeat_at > (redrive.clock() - lease)) AS alive,
    clock_skew,
    problem
   FROM redrive.workers;

COMMENT ON VIEW redrive.workers_alive IS 'worker processes of the last day, and whether each has been heard within its lease';

ALTER TABLE ONLY redrive.jobs_archive ATTACH PARTITION redrive.jobs_archive_default DEFAULT;

ALTER TABLE ONLY redrive.adopted_rows
    ADD CONSTRAINT adopted_rows_pkey PRIMARY KEY (adoption, row_key);

ALTER TABLE ONLY redrive.adoptions
    ADD CONSTRAINT adoptions_one_a_table UNIQUE (table_oid);

ALTER TABLE ONLY redrive.adoptions
    ADD CONSTRAINT adoptions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.alert_messages
    ADD CONSTRAINT alert_messages_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.alert_state
    ADD CONSTRAINT alert_state_pkey PRIMARY KEY (one);

ALTER TABLE ONLY redrive.alerts
    ADD CONSTRAINT alerts_pkey PRIMARY KEY (rule, subject);

ALTER TABLE ONLY redrive.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.breakers
    ADD CONSTRAINT breakers_pkey PRIMARY KEY (kind, target);

ALTER TABLE ONLY redrive.deploys
    ADD CONSTRAINT deploys_pkey PRIMARY KEY (at, version);

ALTER TABLE ONLY redrive.failures
    ADD CONSTRAINT failures_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.kinds
    ADD CONSTRAINT kinds_pkey PRIMARY KEY (kind);

ALTER TABLE ONLY redrive.lane_rates
    ADD CONSTRAINT lane_rates_pkey PRIMARY KEY (kind, lane);

ALTER TABLE ONLY redrive.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY redrive.requeues
    ADD CONSTRAINT requeues_pkey PRIMARY KEY (id);

ALTER TABLE ONLY redrive.schedule_slots
    ADD CONSTRAINT schedule_slots_pkey PRIMARY KEY (schedule, slot);

ALTER TABLE ONLY redrive.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);

ALTER TABLE ONLY redrive.stats
    ADD CONSTRAINT stats_pkey PRIMARY KEY (minute, kind, worker, minutes);

ALTER TABLE ONLY redrive.subscriptions
    ADD CONSTRAINT subscriptions_pkey PRIMARY KEY (topic, kind, owner);

ALTER TABLE ONLY redrive.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (name);

CREATE INDEX adopted_rows_due_idx ON redrive.adopted_rows USING btree (adoption, due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX alert_messages_waiting_idx ON redrive.alert_messages USING btree (due_at) WHERE (sent_at IS NULL);

CREATE INDEX audit_job_idx ON redrive.audit USING btree (job_id, id) WHERE (job_id IS NOT NULL);

CREATE INDEX batches_open_idx ON redrive.batches USING btree (id) WHERE (ended_at IS NULL);

CREATE INDEX failures_group_idx ON redrive.failures USING btree (kind, fingerprint, failed_at) INCLUDE (version) WHERE (fingerprint IS NOT NULL);

CREATE INDEX failures_job_idx ON redrive.failures USING btree (job_id, id);

CREATE INDEX jobs_alone_idx ON redrive.jobs USING btree (run_at, id) WHERE alone;

CREATE INDEX jobs_archive_id_idx ON ONLY redrive.jobs_archive USING btree (id);

CREATE INDEX jobs_archive_default_id_idx ON redrive.jobs_archive_default USING btree (id);

CREATE INDEX jobs_batch_idx ON redrive.jobs USING btree (batch, status, id) WHERE (batch IS NOT NULL);

CREATE INDEX jobs_claim_idx ON redrive.jobs USING btree (kind, priority, lane, run_at, id) WHERE ((status)::text = 'pending'::text);

CREATE INDEX jobs_counted_idx ON redrive.jobs USING btree (kind, lane) WHERE (counted AND (((status)::text || ''::text) = 'running'::text));

CREATE INDEX jobs_dead_idx ON redrive.jobs USING btree (kind, fingerprint, id) INCLUDE (updated_at) WHERE ((fingerprint IS NOT NULL) AND (locked_by IS NULL) AND (((status)::text = 'dead'::text) OR (((status)::text = 'failed'::text) AND ((last_error IS NULL) OR (last_error !~ '^(cancelled|discarded)'::text)))));

CREATE INDEX jobs_ended_idx ON redrive.jobs USING btree (status, id) WHERE ((status)::text = ANY (ARRAY['failed'::text, 'dead'::text]));

CREATE INDEX jobs_exhausted_idx ON redrive.jobs USING btree (id) WHERE ((attempts >= max_attempts) AND (((status)::text || ''::text) = 'pending'::text));

CREATE INDEX jobs_expiry_idx ON redrive.jobs USING btree (expires_at) WHERE ((expires_at IS NOT NULL) AND (((status)::text || ''::text) = 'pending'::text));

CREATE UNIQUE INDEX jobs_key_idx ON redrive.jobs USING btree (key) WHERE ((key IS NOT NULL) AND ((status)::text = ANY (ARRAY['pending'::text, 'running'::text])));

CREATE INDEX jobs_key_succeeded_idx ON redrive.jobs USING btree (key, created_at) WHERE ((key IS NOT NULL) AND ((status)::text = 'succeeded'::text));

CREATE INDEX jobs_retrying_idx ON redrive.jobs USING btree (kind, fingerprint, id) WHERE ((fingerprint IS NOT NULL) AND (attempts > 0) AND (((status)::text || ''::text) = 'pending'::text));

CREATE INDEX jobs_running_idx ON redrive.jobs USING btree (locked_by, id) WHERE ((status)::text = 'running'::text);

CREATE INDEX jobs_strange_idx ON redrive.jobs USING btree (kind, redrive.failure_group(fingerprint, locked_by, last_error), id) WHERE (((fingerprint IS NULL) OR (locked_by IS NOT NULL)) AND (((status)::text = 'dead'::text) OR (((status)::text = 'failed'::text) AND ((last_error IS NULL) OR (last_error !~ '^(cancelled|discarded)'::text)))));

CREATE INDEX jobs_unexplained_idx ON redrive.jobs USING btree (status, id) WHERE (((status)::text = ANY (ARRAY['failed'::text, 'dead'::text])) AND ((status)::text <> 'dead'::text) AND ((last_error IS NULL) OR (last_error !~ '^(cancelled|discarded)'::text)));

CREATE INDEX requeues_active_idx ON redrive.requeues USING btree (id) WHERE (status = ANY (ARRAY['waiting'::text, 'canary'::text, 'running'::text]));

CREATE INDEX stats_to_sum_up_idx ON redrive.stats USING btree (minutes, minute);

CREATE INDEX subscriptions_stem_idx ON redrive.subscriptions USING btree (stem);

CREATE INDEX unheard_topics_idx ON redrive.unheard_topics USING btree (topic, at);

ALTER INDEX redrive.jobs_archive_id_idx ATTACH PARTITION redrive.jobs_archive_default_id_idx;

CREATE TRIGGER adoptions_tell AFTER INSERT OR DELETE ON redrive.adoptions FOR EACH ROW EXECUTE FUNCTION redrive.tell_of_adoption();

CREATE TRIGGER adoptions_tell_of_change AFTER UPDATE ON redrive.adoptions FOR EACH ROW WHEN ((((old.paused_at IS DISTINCT FROM new.paused_at) OR (old.ending_at IS DISTINCT FROM new.ending_at)) OR (old.ready IS DISTINCT FROM new.ready))) EXECUTE FUNCTION redrive.tell_of_adoption();

CREATE TRIGGER breakers_note AFTER INSERT OR DELETE ON redrive.breakers FOR EACH ROW EXECUTE FUNCTION redrive.note_breaker();

CREATE TRIGGER breakers_note_change AFTER UPDATE ON redrive.breakers FOR EACH ROW WHEN ((((old.kind IS DISTINCT FROM new.kind) OR (old.state IS DISTINCT FROM new.state)) OR (old.opened_at IS DISTINCT FROM new.opened_at))) EXECUTE FUNCTION redrive.note_breaker();

CREATE TRIGGER jobs_wake BEFORE INSERT ON redrive.jobs FOR EACH STATEMENT WHEN ((NOT (pg_try_advisory_lock_shared('2840629984317346940'::bigint) AND pg_advisory_unlock_shared('2840629984317346940'::bigint)))) EXECUTE FUNCTION redrive.wake_on_insert();

CREATE TRIGGER kinds_count_running AFTER INSERT OR UPDATE OF running_most, lane_running_most ON redrive.kinds FOR EACH ROW WHEN ((num_nonnulls(new.running_most, new.lane_running_most) > 0)) EXECUTE FUNCTION redrive.count_running();

CREATE TRIGGER kinds_keep_broken AFTER DELETE ON redrive.kinds FOR EACH ROW EXECUTE FUNCTION redrive.keep_broken();

CREATE TRIGGER kinds_tell AFTER INSERT OR DELETE ON redrive.kinds FOR EACH ROW EXECUTE FUNCTION redrive.tell_of_kind();

CREATE TRIGGER kinds_tell_of_change AFTER UPDATE ON redrive.kinds FOR EACH ROW WHEN (((((((((old.paused_at IS DISTINCT FROM new.paused_at) OR (old.paused_until IS DISTINCT FROM new.paused_until)) OR (old.running_most IS DISTINCT FROM new.running_most)) OR (old.rate IS DISTINCT FROM new.rate)) OR (old.burst IS DISTINCT FROM new.burst)) OR (old.lane_running_most IS DISTINCT FROM new.lane_running_most)) OR (old.lane_rate IS DISTINCT FROM new.lane_rate)) OR (old.lane_burst IS DISTINCT FROM new.lane_burst))) EXECUTE FUNCTION redrive.tell_of_kind();

CREATE TRIGGER kinds_tell_of_route AFTER UPDATE OF route ON redrive.kinds FOR EACH ROW WHEN ((old.route <> new.route)) EXECUTE FUNCTION redrive.tell_of_kind();

CREATE TRIGGER requeues_tell AFTER INSERT ON redrive.requeues FOR EACH ROW EXECUTE FUNCTION redrive.tell_of_requeue();

CREATE TRIGGER schedules_replan BEFORE UPDATE ON redrive.schedules FOR EACH ROW WHEN ((((((((old.cron IS DISTINCT FROM new.cron) OR (old.every IS DISTINCT FROM new.every)) OR (old.at IS DISTINCT FROM new.at)) OR (old.timezone IS DISTINCT FROM new.timezone)) OR (old.anchor IS DISTINCT FROM new.anchor)) OR (old.paused_at IS DISTINCT FROM new.paused_at)) OR (old.disabled_at IS DISTINCT FROM new.disabled_at))) EXECUTE FUNCTION redrive.replan_schedule();

CREATE TRIGGER schedules_tell AFTER INSERT OR DELETE ON redrive.schedules FOR EACH ROW EXECUTE FUNCTION redrive.tell_of_schedule();

CREATE TRIGGER schedules_tell_of_change AFTER UPDATE ON redrive.schedules FOR EACH ROW WHEN ((old.revision <> new.revision)) EXECUTE FUNCTION redrive.tell_of_schedule();
