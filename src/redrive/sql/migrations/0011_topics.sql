-- Topics: what is published goes to every kind that subscribes to it. Rows made by plain SQL are as good as ours:
-- INSERT INTO subscriptions (topic, kind) VALUES (...) is enough.

-- A topic is words between dots; in a subscription * stands for one word and # for any number of them, as in the binding
-- keys of AMQP, whose limit of 255 bytes holds here as well. A publish looks up the few stems that its topic can have, and
-- of the patterns under those tries each.
CREATE TABLE {subscriptions} (
    topic        text NOT NULL,
    kind         text NOT NULL,
    owner        text NOT NULL DEFAULT 'operator',
    priority     smallint NOT NULL DEFAULT 5,
    max_attempts int NOT NULL DEFAULT 5,
    aliases      text[] NOT NULL DEFAULT '{{}}',
    created_by   text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    seen_at      timestamptz,
    disabled_at  timestamptz,
    stem         text NOT NULL GENERATED ALWAYS AS (coalesce(substring(topic || '.' FROM '^((?:[^.*#]+\.)*)'), '')) STORED,
    pattern      text GENERATED ALWAYS AS (
        CASE WHEN topic ~ '[*#]' THEN
            '^' || replace(replace(replace(regexp_replace(topic || '.', '[][\\^$()|{{}}+?]', '\\\&', 'g'),
                '.', '\.'), '*', '[^.]+'), '#\.', '(?:[^.]+\.)*') || '$'
        END) STORED,
    PRIMARY KEY (topic, kind, owner),
    CONSTRAINT subscriptions_topic_is_words_between_dots CHECK (topic ~ '^([^.*#]+|[*#])(\.([^.*#]+|[*#]))*$'),
    CONSTRAINT subscriptions_topic_is_at_most_255_bytes CHECK (octet_length(topic) <= 255),
    CONSTRAINT subscriptions_kind_is_1_to_1000_bytes CHECK (octet_length(kind) BETWEEN 1 AND 1000),
    CONSTRAINT subscriptions_owner_is_code_or_operator CHECK (owner IN ('code', 'operator')),
    CONSTRAINT subscriptions_priority_is_0_to_9 CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT subscriptions_max_attempts_is_at_least_1 CHECK (max_attempts >= 1)
) WITH (fillfactor = 50);
COMMENT ON COLUMN {subscriptions}.owner IS 'code: workers keep it as their code has it; operator: it is left alone';
COMMENT ON COLUMN {subscriptions}.aliases IS 'former names of the kind: what subscribes under one of them gets no second job';
COMMENT ON COLUMN {subscriptions}.seen_at IS 'when a live worker last had it in its code';
COMMENT ON COLUMN {subscriptions}.disabled_at IS 'since when it is in no code any more; what is published makes no job for it';
COMMENT ON COLUMN {subscriptions}.stem IS 'the words before the first wildcard, each with its dot';
COMMENT ON COLUMN {subscriptions}.pattern IS 'as a regular expression, where there is a wildcard';
CREATE INDEX subscriptions_stem_idx ON {subscriptions} (stem);

-- What was published and nobody subscribed to, about once an hour and topic. No unique index: to find out that another
-- transaction has noted it as well, a publisher would have to wait for that.
CREATE TABLE {unheard_topics} (
    topic text NOT NULL,
    at    timestamptz NOT NULL
);
CREATE INDEX unheard_topics_idx ON {unheard_topics} (topic, at);

-- One row a kind that a publish of this topic makes a job for.
CREATE FUNCTION {schema}.subscribers(topic text)
RETURNS TABLE (kind text, priority smallint, max_attempts int) LANGUAGE sql STABLE AS $$
    WITH words AS MATERIALIZED (
        SELECT string_to_array(subscribers.topic, '.') AS w
    ), heard AS MATERIALIZED (
        SELECT DISTINCT ON (s.kind) s.kind, s.priority, s.max_attempts, s.aliases
        FROM {subscriptions} s
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
COMMENT ON FUNCTION {schema}.subscribers(text) IS 'the kinds that get a job when this topic is published';

-- Note that nobody subscribes to a topic. It waits for nobody, and a program that makes up topics can't fill the disk.
CREATE FUNCTION {schema}.note_unheard(topic text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM {unheard_topics} u WHERE u.topic = note_unheard.topic AND u.at > {clock}() - interval '1 hour')
       AND (SELECT count(*) FROM (SELECT FROM {unheard_topics} LIMIT 10000) few) < 10000
       AND pg_try_advisory_xact_lock(hashtextextended(note_unheard.topic, {lock})) THEN
        INSERT INTO {unheard_topics} (topic, at) VALUES (note_unheard.topic, {clock}());
    END IF;
END $$;

-- publish() for programs, triggers and other languages: a job for each subscriber, in the caller's transaction. A row for
-- each; with a key those that have one alive already, as created = false. No row: nobody subscribes.
CREATE FUNCTION {schema}.publish(
    topic text,
    payload jsonb DEFAULT '{{}}'::jsonb,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    priority int DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    key text DEFAULT NULL,
    lane text DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    metadata jsonb DEFAULT NULL,
    lanes jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL
) RETURNS TABLE (id bigint, kind text, created boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    starts timestamptz := coalesce(publish.run_at, {clock}() + coalesce(publish.delay, '0'));
    noted jsonb := coalesce(publish.metadata, '{{}}'::jsonb) || jsonb_build_object('topic', publish.topic);
    body jsonb := coalesce(publish.payload, '{{}}'::jsonb);
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
        INSERT INTO {jobs} AS j (kind, payload, run_at, priority, max_attempts, lane, expires_at, metadata, batch)
        SELECT s.kind, body, starts, coalesce(publish.priority, s.priority), coalesce(publish.max_attempts, s.max_attempts),
               coalesce(publish.lane, publish.lanes ->> s.kind, ''), publish.expires_at, noted, publish.batch
        FROM {schema}.subscribers(publish.topic) s
        RETURNING j.id, j.kind, true;
    ELSE
        FOR each IN SELECT s.*, publish.key || '@' || s.kind AS one FROM {schema}.subscribers(publish.topic) s LOOP
            LOOP
                RETURN QUERY
                SELECT j.id, each.kind, false FROM {jobs} j WHERE j.key = each.one AND j.status IN ('pending', 'running');
                EXIT WHEN FOUND;
                RETURN QUERY
                INSERT INTO {jobs} AS j (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata, batch)
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
        PERFORM {schema}.note_unheard(publish.topic);
    END IF;
END $$;
