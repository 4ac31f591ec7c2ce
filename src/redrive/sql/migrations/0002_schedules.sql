-- Schedules: what is to be enqueued when, and what became of each slot. Rows made by plain SQL are as good as ours:
-- INSERT INTO schedules (name, kind, cron) VALUES (...) is enough, and the next worker plans it.

CREATE TABLE {schedules} (
    name          text PRIMARY KEY,
    kind          text NOT NULL,
    payload       jsonb NOT NULL DEFAULT '{{}}'::jsonb,
    cron          text,
    every         interval,
    at            timestamptz,
    timezone      text NOT NULL DEFAULT 'UTC',
    anchor        timestamptz NOT NULL DEFAULT date_trunc('second', now()),
    priority      smallint NOT NULL DEFAULT 5,
    max_attempts  int NOT NULL DEFAULT 5,
    lane          text NOT NULL DEFAULT '',
    missed        text NOT NULL DEFAULT 'latest',
    missed_most   int NOT NULL DEFAULT 100,
    missed_age    interval,
    overlap       text NOT NULL DEFAULT 'skip',
    owner         text NOT NULL DEFAULT 'operator',
    paused_at     timestamptz,
    paused_by     text,
    paused_reason text,
    disabled_at   timestamptz,
    seen_at       timestamptz,
    next_run_at   timestamptz,
    waiting_slot  timestamptz,
    last_run_at   timestamptz,
    last_job_id   bigint,
    ended_at      timestamptz,
    problem       text,
    revision      int NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    -- A name says what is asked for, since the name is what Postgres shows.
    CONSTRAINT schedules_name_is_1_to_1000_bytes CHECK (octet_length(name) BETWEEN 1 AND 1000),
    CONSTRAINT schedules_kind_is_1_to_1000_bytes CHECK (octet_length(kind) BETWEEN 1 AND 1000),
    CONSTRAINT schedules_lane_is_at_most_1000_bytes CHECK (octet_length(lane) <= 1000),
    CONSTRAINT schedules_exactly_one_of_cron_every_at CHECK (num_nonnulls(cron, every, at) = 1),
    -- A month is no length of time; what is longer than a driver can read would stop the other schedules too.
    CONSTRAINT schedules_every_is_1_second_to_100_years_without_months CHECK (
        every BETWEEN interval '1 second' AND interval '36500 days' AND extract(epoch FROM date_trunc('month', every)) = 0
    ),
    CONSTRAINT schedules_missed_is_skip_latest_or_all CHECK (missed IN ('skip', 'latest', 'all')),
    CONSTRAINT schedules_missed_most_is_1_to_1000 CHECK (missed_most BETWEEN 1 AND 1000),
    CONSTRAINT schedules_missed_age_is_0_to_100_years CHECK (missed_age BETWEEN interval '0' AND interval '36500 days'),
    CONSTRAINT schedules_overlap_is_skip_queue_one_or_allow CHECK (overlap IN ('skip', 'queue one', 'allow')),
    CONSTRAINT schedules_owner_is_code_or_operator CHECK (owner IN ('code', 'operator')),
    CONSTRAINT schedules_priority_is_0_to_9 CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT schedules_max_attempts_is_at_least_1 CHECK (max_attempts >= 1),
    CONSTRAINT schedules_times_are_from_1970_to_9000 CHECK (
        least(at, anchor, paused_at, disabled_at, seen_at, next_run_at, waiting_slot, last_run_at, ended_at, created_at,
              updated_at) >= '1970-01-01 00:00+00'
        AND greatest(at, anchor, paused_at, disabled_at, seen_at, next_run_at, waiting_slot, last_run_at, ended_at, created_at,
                     updated_at) < '9000-01-01 00:00+00'
    )
) WITH (
    fillfactor = 50,                            -- room for the version that each slot leaves; no index is touched by it
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500
);
COMMENT ON COLUMN {schedules}.cron IS 'five fields, or six with the seconds first, or a name like @daily; read in timezone';
COMMENT ON COLUMN {schedules}.every IS 'a length of time between slots, counted from anchor';
COMMENT ON COLUMN {schedules}.at IS 'once, at this instant';
COMMENT ON COLUMN {schedules}.missed IS 'what becomes of slots at which no worker ran: skip, latest or all of them';
COMMENT ON COLUMN {schedules}.missed_most IS 'with all: how many are made up for at once, the newest ones';
COMMENT ON COLUMN {schedules}.missed_age IS 'how old a missed slot may be and still be made up for, NULL for any age';
COMMENT ON COLUMN {schedules}.overlap IS 'while the job of the last run is pending or running: skip, queue one or allow';
COMMENT ON COLUMN {schedules}.owner IS 'code: workers keep it as their code has it; operator: it is left alone';
COMMENT ON COLUMN {schedules}.disabled_at IS 'since when no live worker has had it in its code';
COMMENT ON COLUMN {schedules}.seen_at IS 'when a live worker last had it in its code';
COMMENT ON COLUMN {schedules}.next_run_at IS 'the next slot; NULL: a worker is to work it out';
COMMENT ON COLUMN {schedules}.waiting_slot IS 'with queue one: the slot that waits for the job before it to end';
COMMENT ON COLUMN {schedules}.last_run_at IS 'the last slot that was enqueued, or when it was last run by hand';
COMMENT ON COLUMN {schedules}.ended_at IS 'when a schedule that runs once was done with';
COMMENT ON COLUMN {schedules}.problem IS 'why it can''t be planned, such as a zone that nobody knows';
COMMENT ON COLUMN {schedules}.revision IS 'counts changes of what is to run when: a worker that saw another plans nothing';

-- One row a slot, so that none runs twice, and why those that did not run did not. Without a foreign key: it outlives its
-- schedule and its job.
CREATE TABLE {slots} (
    schedule   text NOT NULL,
    slot       timestamptz NOT NULL,
    outcome    text NOT NULL CONSTRAINT schedule_slots_outcome_is_enqueued_or_skipped CHECK (outcome IN ('enqueued', 'skipped')),
    reason     text,
    job_id     bigint,
    decided_at timestamptz NOT NULL,
    PRIMARY KEY (schedule, slot)
);
COMMENT ON COLUMN {slots}.slot IS 'the instant for which it was, not the one at which it was decided';

-- A changed definition is planned anew, whoever changed it and by what means; so is what was paused or disabled, whose
-- slots of that time are not made up for.
CREATE FUNCTION {schema}.replan_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE TRIGGER schedules_replan BEFORE UPDATE ON {schedules} FOR EACH ROW
    WHEN ((OLD.cron, OLD.every, OLD.at, OLD.timezone, OLD.anchor, OLD.paused_at, OLD.disabled_at)
          IS DISTINCT FROM (NEW.cron, NEW.every, NEW.at, NEW.timezone, NEW.anchor, NEW.paused_at, NEW.disabled_at))
    EXECUTE FUNCTION {schema}.replan_schedule();

-- Workers sleep until the next slot that they know of: tell them of others. Not of what they write themselves at each slot,
-- since a NOTIFY makes the commits of the whole database queue.
CREATE FUNCTION {schema}.tell_of_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('redrive.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify({channel}, 'schedules');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER schedules_tell AFTER INSERT OR DELETE ON {schedules} FOR EACH ROW
    EXECUTE FUNCTION {schema}.tell_of_schedule();
CREATE TRIGGER schedules_tell_of_change AFTER UPDATE ON {schedules} FOR EACH ROW
    WHEN (OLD.revision <> NEW.revision)
    EXECUTE FUNCTION {schema}.tell_of_schedule();
