-- Every statement of redrive. A line "-- name: …" begins one; names in braces are composed per installation.
-- States stand as bare literals everywhere: 'pending'::job_status or status = $1 would miss the partial indexes.


------------------------------------------------------------------------------------------------ what producers say

-- name: insert_job
INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, lane, expires_at, metadata, batch)
SELECT %(kind)s::text, %(payload)s::text::jsonb,
       coalesce(%(run_at)s::timestamptz, {clock}() + make_interval(secs => %(delay)s::float8)),
       %(priority)s::smallint, %(max_attempts)s::int, %(lane)s::text,
       coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
       %(metadata)s::text::jsonb, %(batch)s::bigint
RETURNING id, true AS created

-- name: insert_keyed_job
-- The live job of the same key is looked for first, so that a duplicate burns no id; ON CONFLICT settles the race.
-- No row at all means that the rival was committed after this snapshot and is gone or not yet visible: say it again.
WITH existing AS (
    SELECT id FROM {jobs} WHERE key = %(key)s::text AND status IN ('pending', 'running')
), created AS (
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata, batch)
    SELECT %(kind)s::text, %(payload)s::text::jsonb,
           coalesce(%(run_at)s::timestamptz, {clock}() + make_interval(secs => %(delay)s::float8)),
           %(priority)s::smallint, %(max_attempts)s::int, %(key)s::text, %(lane)s::text,
           coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
           %(metadata)s::text::jsonb, %(batch)s::bigint
    WHERE NOT EXISTS (SELECT FROM existing)
    ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING
    RETURNING id
)
SELECT id, true AS created FROM created
UNION ALL
SELECT id, false FROM existing

-- name: insert_job_once
-- As insert_keyed_job, where more is said of the key: that a job which runs doesn't count, since it began before
-- (:while_pending; that one gives its key up), that one which succeeded counts for a while (:lately, seconds), and what
-- is to become of one that waits (:replace). No row: something has changed under way, say it again.
WITH lately AS (
    SELECT id FROM {jobs}
    WHERE key = %(key)s::text AND status = 'succeeded' AND created_at > {clock}() - make_interval(secs => %(lately)s::float8)
    ORDER BY created_at DESC LIMIT 1
), live AS (
    SELECT id, status || '' = 'pending' AS waits FROM {jobs} WHERE key = %(key)s::text AND status IN ('pending', 'running')
), freed AS (
    UPDATE {jobs} SET key = NULL, superseded = true, updated_at = {clock}()
    WHERE %(while_pending)s AND id = (SELECT id FROM live WHERE NOT waits) AND status || '' = 'running'
      AND NOT EXISTS (SELECT FROM lately)
    RETURNING id
), changed AS (
    UPDATE {jobs}
    SET kind = %(kind)s::text, payload = %(payload)s::text::jsonb, priority = %(priority)s::smallint,
        max_attempts = %(max_attempts)s::int, lane = %(lane)s::text, attempts = 0,
        run_at = CASE WHEN %(retimed)s THEN coalesce(%(run_at)s::timestamptz, {clock}() + make_interval(secs => %(delay)s::float8))
                      ELSE run_at END,
        expires_at = coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
        metadata = %(metadata)s::text::jsonb, updated_at = {clock}()
    WHERE %(replace)s AND id = (SELECT id FROM live WHERE waits) AND status || '' = 'pending' AND key = %(key)s::text
      AND NOT EXISTS (SELECT FROM lately)
    RETURNING id
), created AS (
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata, batch)
    SELECT %(kind)s::text, %(payload)s::text::jsonb,
           coalesce(%(run_at)s::timestamptz, {clock}() + make_interval(secs => %(delay)s::float8)),
           %(priority)s::smallint, %(max_attempts)s::int, %(key)s::text, %(lane)s::text,
           coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
           %(metadata)s::text::jsonb, %(batch)s::bigint
    WHERE NOT EXISTS (SELECT FROM lately) AND NOT EXISTS (SELECT FROM live WHERE waits OR NOT %(while_pending)s)
      AND (SELECT count(*) FROM freed) >= 0 -- first
    ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING
    RETURNING id
)
SELECT id, true AS created, false AS replaced FROM created
UNION ALL
SELECT id, false, true FROM changed
UNION ALL
SELECT id, false, false FROM lately
UNION ALL
SELECT id, false, false FROM live
WHERE NOT EXISTS (SELECT FROM lately) AND (waits AND NOT %(replace)s OR NOT waits AND NOT %(while_pending)s)

-- name: insert_jobs
-- One row a payload: with keys in the order of these, in which rivals wait for each other and never in a circle, and else
-- in their own. A key that lives already, or came earlier in the same batch, makes no row.
-- The lookup is a scalar subquery, one probe of jobs_key_idx a row whatever the statistics say: NOT EXISTS is planned as a
-- join, and where they were taken in a quiet hour it reads every live key anew for each row (500,000 pending: 3 s a chunk).
WITH given AS (
    SELECT ordinal, payload, key, lane
    FROM unnest(%(payloads)s::text[], %(keys)s::text[], %(lanes)s::text[]) WITH ORDINALITY AS g(payload, key, lane, ordinal)
), created AS (
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata, batch)
    SELECT %(kind)s::text, payload::jsonb,
           coalesce(%(run_at)s::timestamptz, {clock}() + make_interval(secs => %(delay)s::float8)),
           %(priority)s::smallint, %(max_attempts)s::int, key, coalesce(g.lane, %(lane)s::text),
           coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
           %(metadata)s::text::jsonb, %(batch)s::bigint
    FROM given g
    WHERE (SELECT j.id FROM {jobs} j WHERE j.key = g.key AND j.status IN ('pending', 'running')) IS NULL
    ORDER BY key COLLATE "C", ordinal
    ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING
    RETURNING id, key
)
SELECT id, key FROM created ORDER BY id

-- name: copy_jobs
-- The fast road, for a batch with nothing but payloads of its own.
COPY {jobs} (kind, payload, priority, max_attempts, lane) FROM STDIN


------------------------------------------------------------------------------------------------ what workers say

-- name: survey_lanes
-- Which lanes (kind, priority, lane) hold pending jobs, and when the first of each is due. A loose index scan: one probe a
-- lane, whatever its length; it writes nothing, so it is also the poll of an idle worker. Lanes that the worker knows
-- are looked at from where it says, and for others it looks in the gaps between those, where as a rule no entry is.
-- Kinds that are paused, or go another route, are not looked at. The last row is about no lane: what time it is, whether a job waits for its trial, and
-- which kinds have limits, each with the seconds after which it may be worth while to ask again, and whether the end of a
-- job makes it so; which breakers are not closed; and whether a batch has not ended.
WITH RECURSIVE paused AS MATERIALIZED (
    SELECT ARRAY(
        SELECT kind FROM {kinds}
        WHERE paused_at IS NOT NULL AND coalesce(paused_until > {clock}(), true) OR kind <> '*' AND route <> {route}
    ) AS kinds
), known AS MATERIALIZED ( -- nobody is to stumble over the names of others' kinds
    SELECT ARRAY(SELECT DISTINCT kind FROM unnest(%(kinds)s::text[]) AS k(kind)) AS kinds
), found AS (
    SELECT g.kind, f.priority, f.lane, f.run_at, f.id, g.before_priority, g.before_lane
    FROM unnest(%(gap_kinds)s::text[], %(after_priorities)s::smallint[], %(after_lanes)s::text[],
                %(before_priorities)s::smallint[], %(before_lanes)s::text[])
         AS g(kind, after_priority, after_lane, before_priority, before_lane)
    CROSS JOIN LATERAL (
        SELECT priority, lane, run_at, id FROM {jobs}
        WHERE NOT ARRAY[g.kind, '*'] && (SELECT kinds FROM paused) AND status = 'pending' AND kind = g.kind AND (priority, lane) > (g.after_priority, g.after_lane)
          AND (priority, lane) < (g.before_priority, g.before_lane)
        ORDER BY priority, lane, run_at, id
        LIMIT 1
    ) f
    UNION ALL
    SELECT l.kind, n.priority, n.lane, n.run_at, n.id, l.before_priority, l.before_lane
    FROM found l
    CROSS JOIN LATERAL (
        SELECT priority, lane, run_at, id FROM {jobs}
        WHERE status = 'pending' AND kind = l.kind AND (priority, lane) > (l.priority, l.lane)
          AND (priority, lane) < (l.before_priority, l.before_lane)
        ORDER BY priority, lane, run_at, id
        LIMIT 1
    ) n
)
SELECT k.kind, k.priority, k.lane, f.run_at, f.id, false AS suspects, NULL::text[] AS limited, NULL::float8[] AS pauses,
       NULL::boolean[] AS by_running, NULL AS breakers, NULL::boolean AS batches
FROM unnest(%(kinds)s::text[], %(priorities)s::smallint[], %(lanes)s::text[],
            %(starts)s::timestamptz[], %(start_ids)s::bigint[]) AS k(kind, priority, lane, start, start_id)
CROSS JOIN LATERAL (
    SELECT run_at, id FROM {jobs}
    WHERE NOT ARRAY[k.kind, '*'] && (SELECT kinds FROM paused)
      AND status = 'pending' AND kind = k.kind AND priority = k.priority AND lane = k.lane
      AND (run_at, id) > (k.start, k.start_id)
    ORDER BY run_at, id
    LIMIT 1
) f
UNION ALL
(SELECT kind, priority, lane, run_at, id, false, NULL, NULL, NULL, NULL, NULL FROM found LIMIT %(page)s)
UNION ALL
SELECT NULL, NULL, NULL, {clock}(), NULL,
       EXISTS (
           SELECT FROM {jobs} j
           WHERE alone AND status || '' = 'pending' AND run_at <= {clock}()
             AND NOT ARRAY[j.kind, '*'] && (SELECT kinds FROM paused)
             AND NOT EXISTS (
                 SELECT FROM {breakers} b
                 WHERE b.kind = j.kind AND b.target IN ('', j.lane) AND {schema}.breaker_room(b) <= 0 AND b.state = 'open'
             )
       ),
       ARRAY(SELECT kind FROM {kinds} WHERE limited AND kind = ANY((SELECT kinds FROM known)::text[]) ORDER BY kind),
       ARRAY(
           SELECT greatest(0.05, least(
               1, 1 / rate, 1 / lane_rate, 0.25 + 0 * coalesce(running_most, lane_running_most),
               (SELECT min(1 / {schema}.breaker_rate(b)) FROM {breakers} b WHERE b.kind = k.kind AND state = 'closing')
           ))
           FROM {kinds} k WHERE limited AND kind = ANY((SELECT kinds FROM known)::text[]) ORDER BY kind
       ),
       ARRAY(
           SELECT num_nonnulls(running_most, lane_running_most) > 0 FROM {kinds}
           WHERE limited AND kind = ANY((SELECT kinds FROM known)::text[]) ORDER BY kind
       ),
       (
           SELECT json_agg(json_build_array(
                      kind, target, state, (extract(epoch FROM opened_at) * 1000000)::bigint,
                      CASE WHEN probe_at < 'infinity' THEN extract(epoch FROM probe_at - {clock}()) END,
                      extract(epoch FROM {clock}() - opened_at)
                  ))::text
           FROM {breakers} WHERE state <> 'closed' AND kind = ANY((SELECT kinds FROM known)::text[])
       ),
       EXISTS (SELECT FROM {batches} WHERE ended_at IS NULL)

-- name: claimed_job
-- What a claim gives of each job that it takes, in the order in which ClaimedJob takes it: a part of each of them.
id, kind, payload::text, attempts, max_attempts, claims, crashes, priority, lane, run_at, created_at, metadata::text,
CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - (SELECT {clock}()))::float8
     WHEN expires_at < (SELECT {clock}()) THEN -1 END AS expires_in

-- name: due_jobs
-- What a claim takes: up to :limit due jobs. The one query in which a simplification loses jobs or the machine:
--
-- * `due` walks the lanes in the order given (the worker's: by priority, then in turn) and locks, lane by lane, the
--   rows that it takes. The limits inside and outside are pulled row by row, so nothing is locked and left.
-- * It is MATERIALIZED because a subquery that the planner may run again would lock and take more than its LIMIT.
-- * SKIP LOCKED leaves rows of other workers alone; their lock and their change of state are this one statement.
-- * The UPDATE goes to its rows by ctid, which no statistics can turn into another plan and which saves a second descent
--   of the primary key. The lock holds each row where it is. Only a row that was changed between snapshot and lock is
--   locked at a place that this snapshot can't see: it is left as it was, for the next claim.
-- * (run_at, id) > start begins where this worker last stopped, over the dead entries that a long transaction keeps.
--   The worker passes -infinity to look from the head. No ends are given but when it looks through the way behind.
-- * Kinds that are paused, go another route or have limits are left out, whatever the worker knows of them: see claim_limited.
-- * `NOT alone`: what may have killed its worker is claimed by claim_alone, with nothing beside it.
-- * (SELECT {clock}()) is said once a statement, {clock}() once a row.
--
-- Payloads come as text, times as they are sent (see store.claim), and counts stay below their limit: one odd row must
-- not spoil the answer for the others.
--
-- The index is jobs_claim_idx (kind, priority, lane, run_at, id) WHERE status = 'pending'.
due AS MATERIALIZED (
    SELECT j.tid
    FROM unnest(%(kinds)s::text[], %(priorities)s::smallint[], %(lanes)s::text[], %(quotas)s::int[],
                %(starts)s::timestamptz[], %(start_ids)s::bigint[], %(ends)s::timestamptz[], %(end_ids)s::bigint[])
         AS l(kind, priority, lane, quota, start, start_id, until, until_id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM {jobs}
        WHERE NOT ARRAY[l.kind, '*'] && ARRAY(
                SELECT kind FROM {kinds}
                WHERE limited OR paused_at IS NOT NULL AND coalesce(paused_until > {clock}(), true)
                   OR kind <> '*' AND route <> {route}
            )
          AND status = 'pending' AND kind = l.kind AND priority = l.priority AND lane = l.lane
          AND (run_at, id) > (l.start, l.start_id) AND NOT alone
          AND (run_at, id) <= (least(l.until, {clock}()), coalesce(l.until_id, 9223372036854775807))
        ORDER BY run_at, id
        FOR UPDATE SKIP LOCKED
        LIMIT l.quota
    ) j
    LIMIT %(limit)s
)

-- name: claim_jobs
-- Take due jobs, to run them here.
WITH {due_jobs}
UPDATE {jobs}
SET status = 'running', attempts = least(attempts, 2147483646) + 1, claims = least(claims, 2147483646) + 1,
    counted = false, locked_at = (SELECT {clock}()), locked_by = %(worker)s, updated_at = (SELECT {clock}())
WHERE ctid = ANY(ARRAY(SELECT tid FROM due))
RETURNING {claimed_job}

-- name: send_jobs
-- Take due jobs off the table, to hand them to a broker before this transaction ends.
WITH {due_jobs}, {taken}
SELECT * FROM taken

-- name: wait_for_broker
-- While the broker is waited for this transaction says nothing, and the server is not to take it for frozen meanwhile.
SET LOCAL idle_in_transaction_session_timeout = '35s'

-- name: taken_to_run
-- What a claim with limits makes of `due`: jobs that run.
taken AS (
    UPDATE {jobs}
    SET status = 'running', attempts = least(attempts, 2147483646) + 1, claims = least(claims, 2147483646) + 1,
        counted = true, locked_at = (SELECT {clock}()), locked_by = %(worker)s, updated_at = (SELECT {clock}())
    WHERE ctid = ANY(ARRAY(SELECT tid FROM due))
    RETURNING {claimed_job}
)

-- name: taken_on_trial
-- The same for a job on trial.
taken AS (
    UPDATE {jobs}
    SET status = 'running', attempts = least(attempts, 2147483646) + 1, claims = least(claims, 2147483646) + 1,
        counted = (kind = ANY(%(locked)s::text[])), locked_at = (SELECT {clock}()), locked_by = %(worker)s, updated_at = (SELECT {clock}())
    WHERE ctid = ANY(ARRAY(SELECT tid FROM due))
    RETURNING {claimed_job},
              (SELECT count(*)::int FROM {failures} f WHERE f.job_id = {jobs}.id AND f.error_type = 'WorkerLost') AS reclaims
)

-- name: taken_to_send
-- The same for a broker: rows go, and come back where there is more to be said of a job than that it succeeded. Those stay
-- whose end the tables are asked about: of a batch, with a key, of a kind that has a limit of jobs at once. They are held by
-- the broker, which forgets nothing, so nobody takes them back. What goes to the exchange of topics has no end to wait for.
kept AS (
    UPDATE {jobs}
    SET status = 'running', attempts = least(attempts, 2147483646) + 1, claims = least(claims, 2147483646) + 1,
        counted = true, locked_at = (SELECT {clock}()), locked_by = {broker}, updated_at = (SELECT {clock}())
    WHERE ctid = ANY(ARRAY(SELECT tid FROM due))
      AND kind <> {topics} AND (num_nonnulls(key, batch) > 0
           OR kind = ANY(ARRAY(SELECT kind FROM {kinds} WHERE num_nonnulls(running_most, lane_running_most) > 0)))
    RETURNING {claimed_job}, expires_at, alone, true AS kept
), moved AS (
    DELETE FROM {jobs}
    WHERE ctid = ANY(ARRAY(SELECT tid FROM due))
      AND (kind = {topics} OR num_nonnulls(key, batch) = 0
           AND kind <> ALL(ARRAY(SELECT kind FROM {kinds} WHERE num_nonnulls(running_most, lane_running_most) > 0)))
    RETURNING id, kind, payload::text, least(attempts, 2147483646) + 1 AS attempts, max_attempts,
              least(claims, 2147483646) + 1 AS claims, crashes, priority, lane, run_at, created_at, metadata::text,
              CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - (SELECT {clock}()))::float8
                   WHEN expires_at < (SELECT {clock}()) THEN -1 END AS expires_in, expires_at, alone, false AS kept
), taken AS (
    SELECT * FROM kept UNION ALL SELECT * FROM moved
)

-- name: lock_limits
-- What runs of a kind can't be counted by the statement that claims: its snapshot does not see what a rival is about to
-- commit. So the kind's row is locked in one statement, and counted and claimed in the next of the same transaction. Where
-- a rival has it, the kind is left out this time.
SELECT kind FROM {kinds} WHERE limited AND kind = ANY(%(kinds)s::text[]) ORDER BY kind FOR NO KEY UPDATE SKIP LOCKED

-- name: claim_limited
-- As claim_jobs, of kinds whose rows this transaction has locked: no more than their limits leave open, which is the LIMIT
-- of each kind and of each of its lanes. A lane may stand there once for each priority, and they share what it has: the
-- last condition of `due` sees to that. A rate is a bucket of tokens (generic cell rate algorithm, ITU-T I.371): all
-- that is kept of it is the instant up to which it is used up. A bucket holds two, unless somebody says one, since with one
-- whatever time passes between a token's being there and a worker's asking would be lost.
WITH room AS MATERIALIZED (
    SELECT kind, broken, rate, full_burst / rate AS span, empty_at,
           lane_running_most, lane_rate, full_lane_burst, full_lane_burst / lane_rate AS lane_span,
           least(
               running_most - (
                   SELECT count(*) FROM (
                       SELECT FROM {jobs} r WHERE r.counted AND r.status || '' = 'running' AND r.kind = k.kind
                       LIMIT k.running_most -- more need not be counted
                   ) r
               ),
               CASE WHEN empty_at IS NULL THEN full_burst
                    ELSE floor(least(full_burst, extract(epoch FROM {clock}() - empty_at)::float8 * rate + 1e-6)) END,
               (SELECT {schema}.breaker_room(b) FROM {breakers} b WHERE b.kind = k.kind AND b.target = '')
           )::bigint AS open
    FROM {kinds} k
    CROSS JOIN LATERAL (
        SELECT coalesce(burst, greatest(2 + 0 * rate, ceil(rate / 10))) AS full_burst,
               coalesce(lane_burst, greatest(2 + 0 * lane_rate, ceil(lane_rate / 10))) AS full_lane_burst
    ) b
    WHERE kind = ANY(%(locked)s::text[]) AND limited AND route = {route}
      AND NOT EXISTS (
          SELECT FROM {kinds} p
          WHERE p.kind IN (k.kind, '*') AND p.paused_at IS NOT NULL AND coalesce(p.paused_until > {clock}(), true)
      )
), found AS MATERIALIZED (
    SELECT k.kind, d.*
    FROM room k
    CROSS JOIN LATERAL (
        SELECT j.tid, l.lane, l.place, o.open
        FROM unnest(%(kinds)s::text[], %(priorities)s::smallint[], %(lanes)s::text[], %(quotas)s::int[],
                    %(starts)s::timestamptz[], %(start_ids)s::bigint[], %(ends)s::timestamptz[], %(end_ids)s::bigint[])
             WITH ORDINALITY
             AS l(kind, priority, lane, quota, start, start_id, until, until_id, place)
        LEFT JOIN {lane_rates} r ON r.kind = l.kind AND r.lane = l.lane AND k.lane_rate IS NOT NULL
        CROSS JOIN LATERAL (
            SELECT least(
                k.lane_running_most - CASE WHEN k.lane_running_most IS NOT NULL THEN (
                    SELECT count(*) FROM (
                        SELECT FROM {jobs} t
                        WHERE t.counted AND t.status || '' = 'running' AND t.kind = l.kind AND t.lane = l.lane
                        LIMIT k.lane_running_most
                    ) t
                ) END,
                CASE WHEN r.empty_at IS NULL THEN k.full_lane_burst
                     ELSE floor(least(k.full_lane_burst, extract(epoch FROM {clock}() - r.empty_at)::float8 * k.lane_rate + 1e-6))
                END,
                (
                    SELECT {schema}.breaker_room(b) FROM {breakers} b
                    WHERE k.broken AND b.kind = l.kind AND b.target = l.lane AND b.target <> ''
                )
            )::bigint AS open
        ) o
        CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM {jobs}
            WHERE status = 'pending' AND kind = l.kind AND priority = l.priority AND lane = l.lane
              AND (run_at, id) > (l.start, l.start_id) AND NOT alone
              AND (run_at, id) <= (least(l.until, {clock}()), coalesce(l.until_id, 9223372036854775807))
            ORDER BY run_at, id
            FOR UPDATE SKIP LOCKED
            LIMIT CASE WHEN o.open < 0 THEN 0 WHEN o.open < l.quota THEN o.open ELSE l.quota END
        ) j
        WHERE l.kind = k.kind
        LIMIT CASE WHEN k.open < 0 THEN 0 ELSE k.open END
    ) d
    LIMIT %(limit)s
), due AS MATERIALIZED (
    SELECT tid
    FROM (SELECT *, row_number() OVER (PARTITION BY kind, lane ORDER BY place) AS number FROM found) f
    WHERE open IS NULL OR number <= open
), {taken}, spent AS (
    UPDATE {kinds} k
    SET empty_at = greatest(r.empty_at, {clock}() - make_interval(secs => r.span)) + make_interval(secs => t.jobs / r.rate)
    FROM room r
    JOIN (SELECT kind, count(*) AS jobs FROM taken GROUP BY kind) t USING (kind)
    WHERE k.kind = r.kind AND r.rate IS NOT NULL
), spent_of_lanes AS (
    INSERT INTO {lane_rates} AS l (kind, lane, empty_at)
    SELECT t.kind, t.lane, {clock}() - make_interval(secs => r.lane_span) + make_interval(secs => t.jobs / r.lane_rate)
    FROM room r
    JOIN (SELECT kind, lane, count(*) AS jobs FROM taken GROUP BY kind, lane) t USING (kind)
    WHERE r.lane_rate IS NOT NULL
    ON CONFLICT (kind, lane) DO UPDATE
    SET empty_at = EXCLUDED.empty_at + greatest('0', l.empty_at - ({clock}() - (
        SELECT make_interval(secs => r.lane_span) FROM room r WHERE r.kind = l.kind
    )))
), probed AS (
    UPDATE {breakers} b
    SET probes = CASE WHEN state = 'open' THEN least(probes, 2147483646) + 1 ELSE probes END,
        probe_at = CASE WHEN state = 'open' THEN {clock}() + make_interval(secs => probe_pause * (0.9 + 0.2 * random()))
                        ELSE probe_at END,
        probe_pause = CASE WHEN state = 'open' THEN least(probe_longest, 2 * probe_pause) ELSE probe_pause END,
        empty_at = CASE WHEN state = 'closing' THEN
            greatest(least(empty_at, {clock}()), {clock}() - make_interval(secs => greatest(2, ceil({schema}.breaker_rate(b) / 8)) / {schema}.breaker_rate(b)))
            + make_interval(secs => t.jobs / {schema}.breaker_rate(b)) ELSE empty_at END,
        slack_at = CASE WHEN state = 'closing' THEN
            least({clock}(), greatest(slack_at, {clock}() - interval '30 s') + make_interval(secs => t.jobs / {schema}.breaker_rate(b) / 0.8))
            ELSE slack_at END,
        opened_at = least(opened_at, {clock}()), closed_at = least(closed_at, {clock}()) -- should the clock have gone back
    FROM (
        SELECT kind, '' AS target, count(*) AS jobs FROM taken GROUP BY kind
        UNION ALL
        SELECT kind, lane, count(*) FROM taken WHERE lane <> '' GROUP BY kind, lane
    ) t
    WHERE b.kind = t.kind AND b.target = t.target AND b.state <> 'closed'
      AND (SELECT true FROM {breakers} f WHERE f.kind = t.kind AND f.target = t.target FOR NO KEY UPDATE SKIP LOCKED)
), mended AS ( -- what took the last breaker away may have found the kind's row locked by a claim
    UPDATE {kinds} k SET broken = false
    FROM room r
    WHERE k.kind = r.kind AND r.broken AND r.rate IS NULL
      AND NOT EXISTS (SELECT FROM {breakers} b WHERE b.kind = r.kind AND b.state <> 'closed')
)
SELECT * FROM taken

-- name: claim_alone
-- Take one job that may have killed its worker, for a trial with nothing new beside it. The state is tested through an
-- expression: before the first ANALYZE half of all jobs count as `alone`, and jobs_claim_idx would be walked whole. Of a
-- kind with limits only where this transaction has locked its row; rates are no matter for the few that there are. While
-- a breaker is open it may be the probe, as any other: it may be the only one that is left to be sent.
WITH due AS MATERIALIZED (
    SELECT ctid AS tid FROM {jobs} j
    WHERE alone AND status || '' = 'pending' AND kind = ANY(%(kinds)s::text[]) AND run_at <= {clock}()
      AND NOT EXISTS (
          SELECT FROM {kinds} k
          WHERE k.kind IN (j.kind, '*')
            AND (k.paused_at IS NOT NULL AND coalesce(k.paused_until > {clock}(), true) OR k.kind <> '*' AND k.route <> {route}
                 OR k.limited AND k.kind <> ALL(%(locked)s::text[])
                 OR k.running_most <= (
                     SELECT count(*) FROM {jobs} r WHERE r.counted AND r.status || '' = 'running' AND r.kind = j.kind
                 )
                 OR k.lane_running_most <= (
                     SELECT count(*) FROM {jobs} r
                     WHERE r.counted AND r.status || '' = 'running' AND r.kind = j.kind AND r.lane = j.lane
                 ))
      )
      AND NOT EXISTS (
          SELECT FROM {breakers} b
          WHERE b.kind = j.kind AND b.target IN ('', j.lane) AND b.state = 'open' AND {schema}.breaker_room(b) <= 0
      )
    ORDER BY run_at, id
    FOR UPDATE SKIP LOCKED
    LIMIT 1
), {taken}, probed AS (
    UPDATE {breakers} b
    SET probes = least(probes, 2147483646) + 1, opened_at = least(opened_at, {clock}()),
        probe_at = {clock}() + make_interval(secs => probe_pause * (0.9 + 0.2 * random())),
        probe_pause = least(probe_longest, 2 * probe_pause)
    FROM taken t
    WHERE b.kind = t.kind AND b.target IN ('', t.lane) AND b.state = 'open'
      AND (SELECT true FROM {breakers} f WHERE f.kind = b.kind AND f.target = b.target FOR NO KEY UPDATE SKIP LOCKED)
)
SELECT * FROM taken

-- name: acquit_job
-- It has run through its trial and its worker lives. The worker takes other work again, and should it be lost after all,
-- that is not put down to this job for having been alone. A row that is locked, as by complete() in a transaction still
-- open, is passed over: the outcomes of others are written after this.
UPDATE {jobs} SET alone = false
WHERE id = (
    SELECT id FROM {jobs}
    WHERE id = %(id)s AND claims = %(claim)s AND locked_by = %(worker)s AND status || '' = 'running'
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id

-- name: succeed_jobs
-- The common outcome, in a batch. The lease is locked_by, claims and the state; a row that doesn't come back was lost. The
-- ids come sorted: the primary key is walked in their order, which is that of the locks (a bitmap would be another, and
-- is off on our connections), and each id finds its claim at its own place among them.
-- The state is tested through an expression on purpose: a bare status = 'running' would be answered from
-- jobs_running_idx, which holds every dead entry since the last vacuum. And nothing is joined: a join would be the
-- planner's to turn round, and by statistics from before the first claim the table would be read whole for every batch.
UPDATE {jobs} SET status = 'succeeded', updated_at = (SELECT {clock}()), alone = false
WHERE id = ANY(%(ids)s::bigint[]) AND claims = (%(claims)s::int[])[width_bucket(id, %(ids)s::bigint[])]
  AND locked_by = %(worker)s AND status || '' = 'running'
RETURNING id

-- name: finish_jobs
-- Every other outcome, with its row in failures. `verdict` is where the database has the last word: a job that was
-- asked to stop does not run again, one past its deadline or its budget is dead. At death the row is made ready for any
-- requeue: no key, no deadline, no lease, no crashes; what they were stands in failures.
WITH given AS (
    SELECT * FROM unnest(
        %(ids)s::bigint[], %(claims)s::int[], %(outcomes)s::text[], %(delays)s::float8[], %(errors)s::text[],
        %(results)s::text[], %(durations)s::float8[], %(error_types)s::text[], %(messages)s::text[],
        %(tracebacks)s::text[], %(fingerprints)s::text[], %(lanes)s::text[], %(followers)s::text[]
    ) AS g(id, claim, outcome, delay, last_error, result, duration, error_type, message, traceback, fingerprint, lane, followers)
), held AS MATERIALIZED (
    SELECT j.id, j.kind, j.attempts, j.key, j.expires_at, j.claims, g.outcome, g.delay, g.last_error, g.result,
           g.duration, g.error_type, g.message, g.traceback, g.fingerprint, g.lane, g.followers,
           CASE
               WHEN g.outcome = 'succeeded' THEN 'succeeded'
               WHEN g.outcome = 'failed' THEN 'failed'
               WHEN g.outcome = 'died' THEN 'dead'
               WHEN j.cancel_requested_at IS NOT NULL OR j.superseded AND (g.outcome <> 'retried' OR j.attempts < j.max_attempts)
                   THEN 'failed'
               WHEN g.outcome = 'retried' AND j.attempts >= j.max_attempts THEN 'dead'
               WHEN g.outcome = 'crashed' AND j.crashes >= %(max_crashes)s - 1 THEN 'dead'
               WHEN j.expires_at <= {clock}() + make_interval(secs => g.delay) THEN 'dead'
               ELSE 'pending'
           END AS verdict,
           CASE
               WHEN g.outcome IN ('succeeded', 'failed', 'died') THEN NULL
               WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled while it ran'
               WHEN j.superseded AND (g.outcome <> 'retried' OR j.attempts < j.max_attempts)
                   THEN 'cancelled: superseded by a job with the same key, enqueued while it ran'
               WHEN g.outcome = 'retried' AND j.attempts >= j.max_attempts THEN NULL
               WHEN g.outcome = 'crashed' AND j.crashes >= %(max_crashes)s - 1
                   THEN 'poison: it ended or tried to end its worker ' || j.crashes::bigint + 1 || ' times'
               WHEN j.expires_at <= {clock}() + make_interval(secs => g.delay)
                   THEN 'deadline: expires_at ' || j.expires_at || ' comes before the next try'
           END AS reason
    FROM given g
    CROSS JOIN LATERAL (
        SELECT * FROM {jobs}
        WHERE id = g.id AND claims = g.claim AND locked_by = %(worker)s AND status || '' = 'running'
        FOR NO KEY UPDATE -- a foreign key of the user's to the row, checked in an open transaction, is not in the way
    ) j
), finished AS (
    UPDATE {jobs} AS j
    SET status = h.verdict,
        attempts = CASE WHEN h.outcome IN ('snoozed', 'held', 'handed_back', 'crashed') THEN greatest(j.attempts, 1) - 1
                        ELSE j.attempts END,
        lane = coalesce(h.lane, j.lane),
        run_at = CASE WHEN h.verdict = 'pending' THEN {clock}() + make_interval(secs => h.delay) ELSE j.run_at END,
        last_error = coalesce(h.reason || coalesce(E'\n' || h.last_error, ''), h.last_error, j.last_error),
        result = coalesce(h.result::jsonb, j.result),
        locked_at = CASE WHEN h.verdict IN ('pending', 'dead') THEN NULL ELSE j.locked_at END,
        locked_by = CASE WHEN h.verdict IN ('pending', 'dead') THEN NULL ELSE j.locked_by END,
        key = CASE WHEN h.verdict IN ('dead', 'failed') THEN NULL ELSE j.key END,
        expires_at = CASE WHEN h.verdict IN ('dead', 'failed') THEN NULL ELSE j.expires_at END,
        cancel_requested_at = CASE WHEN h.verdict = 'dead' THEN NULL ELSE j.cancel_requested_at END,
        superseded = j.superseded AND h.verdict <> 'dead',
        crashes = CASE WHEN h.verdict = 'dead' THEN 0 WHEN h.outcome = 'crashed' THEN j.crashes + 1 ELSE j.crashes END,
        alone = CASE WHEN h.outcome = 'handed_back' AND h.verdict = 'pending' THEN j.alone ELSE false END,
        fingerprint = coalesce(h.fingerprint, CASE WHEN h.verdict = 'dead' THEN 'DeadlinePassed' ELSE j.fingerprint END),
        updated_at = {clock}()
    FROM held h
    WHERE j.id = h.id AND j.id = ANY(ARRAY(SELECT id FROM held))
    RETURNING j.id, j.last_error
), recorded AS (
    INSERT INTO {failures} (job_id, kind, claim, attempt, outcome, failed_at, duration, worker, error_type, message,
                            traceback, fingerprint, version, key, expires_at)
    SELECT id, kind, claims, attempts,
           CASE WHEN verdict <> 'pending' THEN verdict WHEN outcome = 'held' THEN 'held' ELSE 'retried' END,
           {clock}(), duration, %(worker)s,
           coalesce(error_type, CASE WHEN verdict = 'failed' THEN 'Cancelled' ELSE 'DeadlinePassed' END),
           coalesce(message, reason, ''), traceback,
           coalesce(fingerprint, CASE WHEN verdict = 'dead' THEN 'DeadlinePassed' END),
           (SELECT app_version FROM {workers} WHERE name = %(worker)s), key, expires_at
    FROM held
    WHERE error_type IS NOT NULL OR verdict = 'dead'
), followed AS MATERIALIZED ( -- after the end of all of them, and all at once: see follow()
    SELECT {schema}.follow(jsonb_agg(e.job ORDER BY h.id, e.place)) AS jobs
    FROM finished f
    JOIN held h ON h.id = f.id AND h.verdict = 'succeeded'
    CROSS JOIN LATERAL jsonb_array_elements(h.followers::jsonb) WITH ORDINALITY AS e(job, place)
)
SELECT h.id, h.verdict AS status, coalesce(h.reason, h.message, '') AS reason, (SELECT jobs FROM followed) AS followed
FROM held h JOIN finished f ON f.id = h.id

-- name: hand_back_mislaid
-- Jobs that are this worker's by the table and not by its memory: the answer of a claim was lost on its way.
UPDATE {jobs}
SET status = CASE WHEN superseded OR cancel_requested_at IS NOT NULL THEN 'failed' ELSE 'pending' END,
    attempts = greatest(attempts, 1) - 1, run_at = {clock}(), key = CASE WHEN cancel_requested_at IS NULL THEN key END,
    last_error = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled while a worker held it'
                      WHEN superseded THEN 'cancelled: superseded by a job with the same key, enqueued while it ran'
                      ELSE last_error END,
    locked_at = NULL, locked_by = NULL, updated_at = {clock}()
WHERE status = 'running' AND locked_by = %(worker)s AND NOT id = ANY(%(known)s::bigint[])
RETURNING id

-- name: was_written
-- Of outcomes that found no lease: which are there all the same, written by a try whose answer was lost.
SELECT j.id
FROM unnest(%(ids)s::bigint[], %(claims)s::int[]) AS o(id, claim)
CROSS JOIN LATERAL (
    SELECT id FROM {jobs}
    WHERE id = o.id AND claims = o.claim AND locked_by = %(worker)s AND status <> 'running'
    LIMIT 1
) j

-- name: written_outcomes
-- Of outcomes that found no lease: which a try whose answer was lost has written all the same, and as what. A retry and a
-- death leave no lease behind and the row may have been claimed anew, but their failure stands; a snooze or a hand-back
-- is told by the claim, unless a reaper came first.
SELECT o.id, coalesce(f.status, j.status) AS status, coalesce(f.message, '') AS reason
FROM unnest(%(ids)s::bigint[], %(claims)s::int[]) AS o(id, claim)
LEFT JOIN LATERAL (
    SELECT CASE WHEN outcome IN ('retried', 'held') THEN 'pending' ELSE outcome END AS status, message FROM {failures}
    WHERE job_id = o.id AND claim = o.claim AND worker = %(worker)s AND error_type <> 'WorkerLost'
    ORDER BY id DESC LIMIT 1
) f ON true
LEFT JOIN LATERAL (
    SELECT id, status FROM {jobs}
    WHERE id = o.id AND claims = o.claim AND status <> 'running'
      AND (locked_by = %(worker)s OR locked_by IS NULL AND NOT EXISTS (
          SELECT FROM {failures} l WHERE l.job_id = o.id AND l.claim = o.claim AND l.error_type = 'WorkerLost'))
    LIMIT 1 -- a lookup a row, as in cancel_requests
) j ON true
WHERE f.status IS NOT NULL OR j.id IS NOT NULL

-- name: locked_jobs
-- Of these rows, those that another transaction holds. Asked when an outcome had to wait too long: one transaction that
-- somebody forgot to end must not hold up the outcomes of other jobs.
WITH free AS MATERIALIZED (
    SELECT id FROM {jobs} WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM {jobs} WHERE id = ANY(%(ids)s::bigint[]) AND id NOT IN (SELECT id FROM free)

-- name: renew_leases
-- locked_at of long runs follows the clock, so that a hand-written reaper with a fixed age leaves them alone. A row that
-- somebody has locked has its turn next time: a heartbeat waits for nobody.
WITH held AS MATERIALIZED (
    SELECT id FROM {jobs}
    WHERE id = ANY(%(ids)s::bigint[]) AND locked_by = %(worker)s AND status || '' = 'running'
      AND locked_at < {clock}() - interval '2 minutes'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {jobs} SET locked_at = {clock}() WHERE id = ANY(ARRAY(SELECT id FROM held))

-- name: cancel_requests
-- Which of the jobs running here were asked to stop, and which are not this worker's any more.
SELECT g.id, j.cancel_requested_at IS NOT NULL AND j.id IS NOT NULL AS cancelled, j.id IS NULL AS lost
FROM unnest(%(ids)s::bigint[], %(claims)s::int[]) AS g(id, claim)
LEFT JOIN LATERAL (
    SELECT id, cancel_requested_at FROM {jobs}
    WHERE id = g.id AND claims = g.claim AND locked_by = %(worker)s AND status || '' = 'running'
    LIMIT 1 -- a lookup a row, whatever the statistics say: without it this is a join, and reads the whole table
) j ON true
WHERE j.id IS NULL OR j.cancel_requested_at IS NOT NULL

-- name: write_progress
-- A row that its handler has locked (complete() in a transaction still open) is passed over: no outcome waits for it.
-- Looked up row by row, as in succeed_jobs.
WITH held AS MATERIALIZED (
    SELECT j.id, g.progress
    FROM unnest(%(ids)s::bigint[], %(claims)s::int[], %(values)s::text[]) AS g(id, claim, progress)
    CROSS JOIN LATERAL (
        SELECT id FROM {jobs}
        WHERE id = g.id AND claims = g.claim AND locked_by = %(worker)s AND status || '' = 'running'
        FOR NO KEY UPDATE SKIP LOCKED
    ) j
)
UPDATE {jobs} AS j SET progress = h.progress::jsonb
FROM held h
WHERE j.id = h.id AND j.id = ANY(ARRAY(SELECT id FROM held))
RETURNING j.id

-- name: complete_job
-- In the user's own transaction: their writes, the job's success and what is to follow it are one commit.
UPDATE {jobs}
SET status = 'succeeded', updated_at = {clock}(), alone = false, result = coalesce(%(result)s::text::jsonb, result)
WHERE id = %(id)s AND claims = %(claim)s AND locked_by = %(worker)s AND status || '' = 'running'
RETURNING id, {schema}.follow(%(followers)s::text::jsonb) AS followed

-- name: beat
-- The worker is alive; so are the leases of all its jobs. Answers in how many seconds the next of the others will have
-- been silent for its whole lease, so that a death is noticed when it is due and not at the next round.
WITH alive AS (
    INSERT INTO {workers} (name, host, pid, version, app_version, kinds, concurrency, in_flight, lease, listener_pid,
                           heartbeat_at, problem, clock_skew)
    VALUES (%(name)s, %(host)s, %(pid)s, %(version)s, %(app_version)s::text, %(kinds)s::text[], %(concurrency)s, %(in_flight)s,
            make_interval(secs => %(lease)s::float8), %(listener_pid)s, {clock}(), %(problem)s, %(clock_skew)s::float8)
    ON CONFLICT (name) DO UPDATE
    SET heartbeat_at = {clock}(), in_flight = excluded.in_flight, listener_pid = excluded.listener_pid,
        problem = excluded.problem, kinds = excluded.kinds, lease = excluded.lease, clock_skew = excluded.clock_skew
)
SELECT extract(epoch FROM min(heartbeat_at + lease) - {clock}())::float8 AS next_silent,
       extract(epoch FROM {clock}())::float8 AS clock, extract(epoch FROM statement_timestamp())::float8 AS server_clock
FROM {workers}
WHERE name <> %(name)s AND heartbeat_at > {clock}() - lease - interval '10 minutes'

-- name: leave
-- A worker that stopped in good order takes its row with it.
DELETE FROM {workers} WHERE name = %(name)s

-- name: wake_another
-- Wake one other worker: one that has free slots, or (:other_kinds) one that knows a kind that this one does not.
SELECT name FROM {workers}
WHERE name <> %(worker)s AND heartbeat_at > {clock}() - lease AND listener_pid > 0 AND in_flight < concurrency
  AND (NOT %(other_kinds)s OR NOT kinds <@ %(kinds)s::text[])
ORDER BY random()
LIMIT 1

-- name: notify
SELECT pg_notify(%(channel)s, %(message)s)

-- name: listen
LISTEN {heard}

-- name: try_sentry
SELECT pg_try_advisory_lock({lock}) AS held

-- name: leave_sentry
SELECT pg_advisory_unlock({lock})

-- name: session_facts
-- A session that does not show the nonce we started it with is behind a pooler that shares it.
SELECT pg_backend_pid() AS pid, coalesce(current_setting('redrive.session', true), '') AS nonce,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only,
       current_setting('server_version_num')::int AS server_version,
       current_setting('default_transaction_isolation') AS isolation,
       current_setting('server_encoding') AS encoding

-- name: spell
-- Fails where the database's encoding has no letters for the text.
SELECT %(text)s::text AS text

-- name: end_last_session
-- The session before this one, if it is still there; the name guards against a process id that has come round again.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %(pid)s AND application_name = current_setting('application_name') AND usename = current_user

-- name: backend_pid
SELECT pg_backend_pid() AS pid


------------------------------------------------------------------------------------------------ upkeep, on every worker

-- name: survey_held
-- What the reaper has to do: whether any job is held, whether any that waits can't run any more (bury_hopeless), and who
-- holds running jobs by a name of ours and has no row in workers: its row was deleted, and it may be alive and about to
-- bring it back.
WITH RECURSIVE holders AS (
    (SELECT locked_by FROM {jobs} WHERE status = 'running' AND locked_by IS NOT NULL ORDER BY locked_by LIMIT 1)
    UNION ALL
    SELECT (SELECT j.locked_by FROM {jobs} j WHERE j.status = 'running' AND j.locked_by > h.locked_by
            ORDER BY j.locked_by LIMIT 1)
    FROM holders h WHERE h.locked_by IS NOT NULL
)
SELECT ARRAY(
           SELECT h.locked_by FROM holders h
           WHERE h.locked_by ~ %(own_name)s AND NOT EXISTS (SELECT FROM {workers} w WHERE w.name = h.locked_by)
       ) AS ownerless,
       EXISTS (SELECT FROM {jobs} WHERE status = 'running') AS held,
       EXISTS (SELECT FROM {jobs}
               WHERE expires_at IS NOT NULL AND expires_at <= {clock}() AND status || '' = 'pending')
       OR EXISTS (SELECT FROM {jobs} WHERE attempts >= max_attempts AND status || '' = 'pending') AS hopeless

-- name: reap_jobs
-- Take back the jobs of workers that are gone. One statement, safe on every worker at once: the row of a silent worker
-- is locked, so a beat that comes at this instant waits and finds its jobs gone; a job that ended or was claimed anew
-- meanwhile no longer matches. Holders without a row: ours (told by the shape of the name) when the caller has missed
-- the row for a lease (:orphaned), strangers by the age of the lock, as in the tutorial. A time more than a day ahead,
-- infinity too, is no sign of life: nothing would ever be younger.
--
-- The judge's own row must be fresh: a statement that was sent before the server froze is carried out after, when nobody
-- has been heard.
--
-- What may have been running is claimed alone next time. Only a death with nothing beside it counts as a crash, so
-- the neighbours of a job that kills its process lose nothing. While workers die that ran nothing of its kind, machines or
-- the network are going, and a death says little of a job: it takes twice as many; not where one was to be enough. Where
-- a job is dead for it, that is left for a while to a live worker that knows the kind, if the judge does not (:kinds): it
-- has the kind's on_dead.
WITH RECURSIVE holders AS (
    (SELECT locked_by FROM {jobs} WHERE status = 'running' AND locked_by IS NOT NULL ORDER BY locked_by LIMIT 1)
    UNION ALL
    SELECT (SELECT j.locked_by FROM {jobs} j WHERE j.status = 'running' AND j.locked_by > h.locked_by
            ORDER BY j.locked_by LIMIT 1)
    FROM holders h WHERE h.locked_by IS NOT NULL
), silent AS MATERIALIZED (
    SELECT w.name FROM {workers} w
    WHERE w.heartbeat_at < {clock}() - w.lease AND w.name IN (SELECT locked_by FROM holders)
      AND EXISTS (SELECT FROM {workers} j WHERE j.name = %(judge)s AND j.heartbeat_at > {clock}() - j.lease * 2 / 3)
    FOR UPDATE SKIP LOCKED
), candidates AS (
    SELECT j.id, j.claims, j.locked_by
    FROM (
        SELECT name AS holder, interval '0' AS age FROM silent
        UNION ALL
        SELECT h.locked_by, make_interval(secs => CASE WHEN h.locked_by ~ %(own_name)s THEN %(lease)s::float8
                                                       ELSE %(foreign_age)s::float8 END)
        FROM holders h
        WHERE h.locked_by IS NOT NULL AND NOT EXISTS (SELECT FROM {workers} w WHERE w.name = h.locked_by)
          AND (h.locked_by !~ %(own_name)s OR h.locked_by = ANY(%(orphaned)s::text[])) AND h.locked_by <> {broker}
    ) gone
    JOIN {jobs} j ON j.status = 'running' AND j.locked_by = gone.holder
    WHERE gone.age = interval '0' OR coalesce(
              CASE WHEN j.locked_at < {clock}() + interval '1 day' THEN j.locked_at END,
              CASE WHEN j.updated_at < {clock}() + interval '1 day' THEN j.updated_at END, '-infinity') < {clock}() - gone.age
    UNION ALL
    SELECT id, claims, locked_by FROM {jobs}
    WHERE status = 'running' AND locked_by IS NULL
      AND coalesce(CASE WHEN locked_at < {clock}() + interval '1 day' THEN locked_at END,
                   CASE WHEN updated_at < {clock}() + interval '1 day' THEN updated_at END, '-infinity')
          < {clock}() - make_interval(secs => %(foreign_age)s::float8)
), orphans AS MATERIALIZED (
    SELECT j.id, j.kind, j.attempts, j.key, j.expires_at, j.claims, j.crashes, j.alone, j.locked_by,
           j.cancel_requested_at, j.superseded, j.locked_by ~ %(own_name)s AS ours
    FROM candidates c
    JOIN {jobs} j ON j.id = c.id
    WHERE j.status || '' = 'running' AND j.claims = c.claims AND j.locked_by IS NOT DISTINCT FROM c.locked_by
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
    LIMIT 1000
), dead AS MATERIALIZED (
    SELECT w.name, w.heartbeat_at FROM {workers} w
    WHERE w.heartbeat_at < {clock}() - w.lease AND w.heartbeat_at > {clock}() - w.lease - interval '10 minutes'
      AND w.listener_pid IS DISTINCT FROM 0 -- what those at the broker ran is not in failures
      AND w.name NOT IN (SELECT locked_by FROM holders WHERE locked_by IS NOT NULL) -- judged already
), respite AS MATERIALIZED (
    SELECT k.kind FROM (SELECT DISTINCT kind FROM orphans WHERE crashes >= %(max_crashes)s::bigint - 1) k
    WHERE EXISTS (
        SELECT FROM dead d
        WHERE NOT EXISTS (
            SELECT FROM {failures} f
            WHERE f.kind = k.kind AND f.fingerprint = 'WorkerLost' AND f.worker = d.name
              AND f.failed_at > (SELECT min(heartbeat_at) FROM dead) - interval '10 minutes'
        )
    )
), judged AS (
    SELECT o.*, c.crashed, p.poison,
           CASE
               WHEN o.cancel_requested_at IS NOT NULL OR o.superseded THEN 'failed'
               WHEN p.poison THEN 'dead'
               WHEN o.expires_at <= {clock}() THEN 'dead'
               ELSE 'pending'
           END AS verdict
    FROM orphans o
    CROSS JOIN LATERAL (
        SELECT coalesce(o.ours, false)
               AND (o.alone OR (SELECT count(*) FROM orphans n WHERE n.locked_by = o.locked_by) = 1) AS crashed
    ) c
    CROSS JOIN LATERAL (
        SELECT c.crashed AND o.crashes >= %(max_crashes)s::bigint - 1
               AND (%(max_crashes)s::bigint = 1 OR o.crashes >= %(max_crashes)s::bigint * 2 - 1
                    OR o.kind NOT IN (SELECT kind FROM respite)) AS poison
    ) p
), worded AS (
    SELECT *,
           CASE
               WHEN verdict = 'failed' AND superseded AND cancel_requested_at IS NULL THEN 'cancelled: superseded by a job with the same key, enqueued while it ran'
               WHEN verdict = 'failed' THEN 'cancelled; its worker ' || coalesce(locked_by, '(unnamed)') || ' was lost'
               WHEN verdict = 'dead' AND poison
                   THEN 'poison: its worker died ' || CASE crashes WHEN 0 THEN 'once' ELSE crashes::bigint + 1 || ' times' END || ' while it ran alone, the last was ' || locked_by
               WHEN verdict = 'dead' THEN 'deadline: expires_at ' || expires_at || ' has passed; its worker '
                   || coalesce(locked_by, '(unnamed)') || ' was lost'
               ELSE 'worker lost: ' || coalesce(locked_by, '(unnamed)') || ' fell silent; reclaimed'
           END AS reason
    FROM judged d
    WHERE verdict <> 'dead' OR kind = ANY(%(kinds)s::text[])
       OR NOT EXISTS (SELECT FROM {workers} w WHERE w.heartbeat_at > {clock}() - w.lease AND d.kind = ANY(w.kinds)
                        AND w.listener_pid IS DISTINCT FROM 0) -- those at the broker do not reap
       OR NOT EXISTS (SELECT FROM {workers} l
                      WHERE l.name = d.locked_by AND l.heartbeat_at > {clock}() - l.lease - interval '3 minutes')
), reclaimed AS (
    UPDATE {jobs} AS j
    SET status = w.verdict,
        attempts = greatest(j.attempts, 1) - 1,
        crashes = CASE WHEN w.verdict = 'dead' THEN 0 WHEN w.crashed THEN j.crashes + 1 ELSE j.crashes END,
        alone = w.verdict = 'pending' AND coalesce(w.ours, false),
        run_at = CASE WHEN w.verdict = 'pending' THEN {clock}() ELSE j.run_at END,
        last_error = w.reason,
        locked_at = NULL, locked_by = NULL,
        key = CASE WHEN w.verdict = 'pending' THEN j.key END,
        expires_at = CASE WHEN w.verdict = 'pending' THEN j.expires_at END,
        cancel_requested_at = CASE WHEN w.verdict = 'dead' THEN NULL ELSE j.cancel_requested_at END,
        fingerprint = 'WorkerLost', updated_at = {clock}()
    FROM worded w
    WHERE j.id = w.id
    RETURNING j.id
), recorded AS (
    INSERT INTO {failures} (job_id, kind, claim, attempt, outcome, failed_at, worker, error_type, message, fingerprint,
                            version, key, expires_at)
    SELECT id, kind, claims, attempts, CASE verdict WHEN 'pending' THEN 'reclaimed' ELSE verdict END, {clock}(), locked_by,
           'WorkerLost', reason, 'WorkerLost', (SELECT app_version FROM {workers} l WHERE l.name = w.locked_by), key,
           expires_at
    FROM worded w
)
SELECT w.id, w.kind, w.attempts, w.locked_by AS worker, w.verdict AS status, w.reason
FROM worded w JOIN reclaimed r ON r.id = w.id

-- name: end_silent_sentries
-- A frozen or cut-off sentry keeps the lock and nobody is woken: end its session. Process ids come round again, so the
-- session must have begun before the worker fell silent.
SELECT pg_terminate_backend(l.pid)
FROM pg_locks l
JOIN {workers} w ON w.listener_pid = l.pid
JOIN pg_stat_activity a ON a.pid = l.pid AND a.backend_start < w.heartbeat_at
WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.classid::bigint << 32 | l.objid::bigint) = {lock}
  AND w.heartbeat_at < {clock}() - w.lease

-- name: bury_hopeless
-- Pending jobs that can't run any more die in plain sight, also those of kinds that nobody knows: past their deadline, or
-- without an attempt left (max_attempts was lowered, or a stranger wrote them so). Each lookup is of an index of its own.
-- A deadline of a moment ago is left to those who know the kind, as in reap_jobs.
WITH hopeless AS MATERIALIZED (
    SELECT id, kind, attempts, claims, key, expires_at,
           CASE WHEN attempts >= max_attempts THEN 'AttemptsExhausted' ELSE 'DeadlinePassed' END AS error_type,
           CASE WHEN attempts >= max_attempts THEN 'no attempt left: ' || attempts || ' of ' || max_attempts || ' were used'
                ELSE 'deadline: expires_at ' || expires_at || ' passed before the job could run' END AS reason
    FROM {jobs} j
    WHERE id = ANY(ARRAY(
              SELECT id FROM {jobs}
              WHERE expires_at IS NOT NULL AND expires_at <= {clock}() AND status || '' = 'pending' LIMIT 500)
          || ARRAY(SELECT id FROM {jobs} WHERE attempts >= max_attempts AND status || '' = 'pending' LIMIT 500))
      AND status || '' = 'pending'
      AND (attempts >= max_attempts OR expires_at < {clock}() - interval '3 minutes' OR kind = ANY(%(kinds)s::text[])
           OR NOT EXISTS (SELECT FROM {workers} w WHERE w.heartbeat_at > {clock}() - w.lease AND j.kind = ANY(w.kinds)
                           AND w.listener_pid IS DISTINCT FROM 0))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
), buried AS (
    UPDATE {jobs} AS j
    SET status = 'dead', last_error = h.reason || coalesce(E'\n' || j.last_error, ''), key = NULL, expires_at = NULL, crashes = 0,
        alone = false, superseded = false, cancel_requested_at = NULL, locked_at = NULL, locked_by = NULL, fingerprint = h.error_type,
        updated_at = {clock}()
    FROM hopeless h
    WHERE j.id = h.id
    RETURNING j.id
), recorded AS (
    INSERT INTO {failures} (job_id, kind, claim, attempt, outcome, failed_at, error_type, message, fingerprint, key, expires_at)
    SELECT id, kind, claims, attempts, 'dead', {clock}(), error_type, reason, error_type, key, expires_at FROM hopeless
)
SELECT h.id, h.kind, h.attempts, NULL::text AS worker, 'dead' AS status, h.reason
FROM hopeless h JOIN buried b ON b.id = h.id

-- name: scan_finished
-- A window of rows in id order for the pruner: which of them have outlived their retention, where the window ends, and
-- whether it has reached rows too young for any retention to have passed: all of them, for one may be dated ahead.
WITH looked AS MATERIALIZED (
    SELECT id, status, created_at, updated_at FROM {jobs} WHERE id > %(after)s ORDER BY id LIMIT %(window)s
)
SELECT coalesce(max(id), %(after)s) AS last_id, count(*) AS seen,
       coalesce(bool_and(created_at > {clock}() - make_interval(secs => %(shortest)s::float8)), true) AS young,
       coalesce(array_agg(id ORDER BY id) FILTER (
           WHERE (status = 'succeeded' AND updated_at < {clock}() - make_interval(secs => %(succeeded)s::float8))
              OR (status = 'failed' AND updated_at < {clock}() - make_interval(secs => %(failed)s::float8))
              OR (status = 'dead' AND updated_at < {clock}() - make_interval(secs => %(dead)s::float8))), '{{}}') AS expired
FROM looked

-- name: delete_finished
WITH expired AS MATERIALIZED (
    SELECT id FROM {jobs}
    WHERE id = ANY(%(ids)s::bigint[]) AND status IN ('succeeded', 'failed', 'dead')
      AND updated_at < {clock}() - make_interval(secs => %(shortest)s::float8) -- sent back since the scan, and ended anew
    ORDER BY id FOR UPDATE SKIP LOCKED
)
DELETE FROM {jobs} WHERE id = ANY(ARRAY(SELECT id FROM expired)) RETURNING id

-- name: archive_finished
WITH expired AS MATERIALIZED (
    SELECT id FROM {jobs}
    WHERE id = ANY(%(ids)s::bigint[]) AND status IN ('succeeded', 'failed', 'dead')
      AND updated_at < {clock}() - make_interval(secs => %(shortest)s::float8) -- sent back since the scan, and ended anew
    ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {jobs} WHERE id = ANY(ARRAY(SELECT id FROM expired)) RETURNING *
)
INSERT INTO {archive} SELECT * FROM gone RETURNING id

-- name: archive_months
-- The months, from last month to the next, for which the archive has no partition yet; in UTC, whatever the session's
-- time zone, or the partitions of two workers would overlap.
SELECT to_char(month, 'YYYYMM') AS name, to_char(month, 'YYYY-MM-DD 00:00+00') AS first,
       to_char(month + interval '1 month', 'YYYY-MM-DD 00:00+00') AS past
FROM generate_series(date_trunc('month', {clock}() AT TIME ZONE 'UTC') - interval '1 month',
                     date_trunc('month', {clock}() AT TIME ZONE 'UTC') + interval '1 month', interval '1 month') AS month
WHERE to_regclass(format('%%I.%%I', {schema_name}::text, 'jobs_archive_' || to_char(month, 'YYYYMM'))) IS NULL

-- name: add_archive_month
-- One at a time, in one transaction: of two workers that make it at once the second finds it made.
SELECT pg_advisory_xact_lock(hashtextextended('redrive archive ' || {schema_name}, 0));
CREATE TABLE IF NOT EXISTS {partition} PARTITION OF {archive} FOR VALUES FROM ({first}) TO ({past})

-- name: prune_failures
DELETE FROM {failures} WHERE id = ANY(ARRAY(
    SELECT id FROM (SELECT id, failed_at FROM {failures} ORDER BY id LIMIT %(window)s) oldest
    WHERE failed_at < {clock}() - make_interval(secs => %(failures)s::float8)))
RETURNING id

-- name: prune_workers
-- Rows of workers that died stay for a day, to be seen; as long as one holds a job it stays.
DELETE FROM {workers} w
WHERE w.heartbeat_at < {clock}() - interval '1 day'
  AND NOT EXISTS (SELECT FROM {jobs} j WHERE j.status = 'running' AND j.locked_by = w.name)


------------------------------------------------------------------------------------------------ schedules, on every worker

-- name: scheduler_state
-- Whether there is anything to schedule by: the release before this one had no such tables, and a role may lack the right.
SELECT t.schedules IS NOT NULL AND t.slots IS NOT NULL AS installed,
       coalesce(has_table_privilege(t.schedules, 'SELECT') AND has_table_privilege(t.schedules, 'INSERT')
                AND has_table_privilege(t.schedules, 'UPDATE') AND has_table_privilege(t.slots, 'SELECT')
                AND has_table_privilege(t.slots, 'INSERT') AND has_table_privilege(t.slots, 'DELETE'), false) AS allowed,
       current_user::text AS role
FROM (SELECT to_regclass(format('%%I.schedules', {schema_name}::text)) AS schedules,
             to_regclass(format('%%I.schedule_slots', {schema_name}::text)) AS slots) t

-- name: register_schedules
-- What this worker has in its code: a new one is made, one of the code's is brought up to date, an operator's is left alone
-- and so is what an operator paused. A row that somebody has locked has its turn next time, as everywhere here: this is
-- said on the connection of the heartbeat, which waits for nobody.
WITH given AS (
    SELECT * FROM unnest(
        %(names)s::text[], %(kinds)s::text[], %(payloads)s::text[], %(crons)s::text[], %(everies)s::interval[],
        %(timezones)s::text[], %(priorities)s::smallint[], %(max_attempts)s::int[], %(lanes)s::text[], %(missed)s::text[],
        %(mosts)s::int[], %(ages)s::interval[], %(overlaps)s::text[]
    ) AS g(name, kind, payload, cron, every, timezone, priority, max_attempts, lane, missed, missed_most, missed_age, overlap)
), held AS MATERIALIZED (
    SELECT s.name FROM given g JOIN {schedules} s ON s.name = g.name
    WHERE s.owner = 'code'
    ORDER BY s.name
    FOR NO KEY UPDATE OF s SKIP LOCKED
), kept AS (
    UPDATE {schedules} AS s
    SET kind = g.kind, payload = g.payload::jsonb, cron = g.cron, every = g.every, at = NULL, timezone = g.timezone,
        priority = g.priority, max_attempts = g.max_attempts, lane = g.lane, missed = g.missed,
        missed_most = g.missed_most, missed_age = g.missed_age, overlap = g.overlap, disabled_at = NULL, seen_at = {clock}(),
        updated_at = CASE WHEN (s.kind, s.payload, s.priority, s.max_attempts, s.lane, s.missed, s.missed_most,
                                s.missed_age, s.overlap)
                               IS DISTINCT FROM (g.kind, g.payload::jsonb, g.priority, g.max_attempts, g.lane, g.missed,
                                g.missed_most, g.missed_age, g.overlap)
                          THEN {clock}() ELSE s.updated_at END
    FROM held h JOIN given g ON g.name = h.name
    WHERE s.name = h.name
    RETURNING s.name
), added AS (
    INSERT INTO {schedules} (name, kind, payload, cron, every, timezone, priority, max_attempts, lane, missed, missed_most,
                             missed_age, overlap, owner, anchor, seen_at)
    SELECT g.name, g.kind, g.payload::jsonb, g.cron, g.every, g.timezone, g.priority, g.max_attempts, g.lane, g.missed,
           g.missed_most, g.missed_age, g.overlap, 'code', date_trunc('second', {clock}()), {clock}()
    FROM given g
    WHERE NOT EXISTS (SELECT FROM {schedules} s WHERE s.name = g.name)
    ON CONFLICT (name) DO NOTHING
    RETURNING name
)
SELECT g.name, coalesce(s.owner, 'code') AS owner, k.name IS NOT NULL OR a.name IS NOT NULL AS registered
FROM given g
LEFT JOIN {schedules} s ON s.name = g.name
LEFT JOIN kept k ON k.name = g.name
LEFT JOIN added a ON a.name = g.name

-- name: look_at_schedules
-- What is due by the server's clock, in how many seconds the next will be, and on the way the sign that this worker has
-- :mine in its code. One statement, since it is all that an idle worker says about schedules. A worker that has been up
-- for the grace itself (:judge) disables what no live worker has had in its code for so long. What was found to be broken
-- is looked at again now and then (:retry), since a zone that one machine doesn't know (:strange) another one may.
WITH seen AS (
    UPDATE {schedules} SET seen_at = {clock}()
    WHERE name = ANY(ARRAY(
        SELECT name FROM {schedules}
        WHERE owner = 'code' AND name = ANY(%(mine)s::text[]) AND seen_at < {clock}() - interval '50 seconds'
        ORDER BY name FOR NO KEY UPDATE SKIP LOCKED))
), gone AS (
    UPDATE {schedules} SET disabled_at = {clock}()
    WHERE name = ANY(ARRAY(
        SELECT name FROM {schedules}
        WHERE %(judge)s AND owner = 'code' AND disabled_at IS NULL AND NOT name = ANY(%(mine)s::text[])
          AND coalesce(seen_at, created_at) < {clock}() - make_interval(secs => %(grace)s::float8)
        ORDER BY name FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING name
), active AS MATERIALIZED (
    SELECT s.*, s.waiting_slot IS NOT NULL AND (
               SELECT j.id FROM {jobs} j WHERE j.id = s.last_job_id AND j.status || '' IN ('pending', 'running') LIMIT 1
           ) IS NULL AS may_go_on -- a lookup a row, as in cancel_requests
    FROM {schedules} s
    WHERE s.paused_at IS NULL AND s.disabled_at IS NULL AND s.ended_at IS NULL
      AND (s.problem IS NULL OR %(everything)s OR %(retry)s)
      AND (s.next_run_at IS NULL OR NOT s.timezone = ANY(%(strange)s::text[]))
)
SELECT {clock}() AS now, c.next_in, c.waiting, (SELECT array_agg(name ORDER BY name) FROM gone) AS disabled,
       d.name, d.cron, d.every, d.at, d.timezone, d.anchor, d.missed, d.missed_most, d.missed_age, d.next_run_at,
       d.may_go_on, d.revision, d.problem
FROM (SELECT extract(epoch FROM min(next_run_at) FILTER (WHERE next_run_at > {clock}()) - {clock}())::float8 AS next_in,
             coalesce(bool_or(waiting_slot IS NOT NULL), false) AS waiting
      FROM active) c
LEFT JOIN LATERAL (
    SELECT * FROM active
    WHERE next_run_at IS NULL OR next_run_at <= {clock}() OR may_go_on OR %(everything)s
    ORDER BY next_run_at NULLS FIRST, name
    LIMIT %(most)s
) d ON true

-- name: plan_schedules
-- Write down when the next slots are, or why there is none to be had. Whoever saw another definition writes nothing.
WITH given AS (
    SELECT * FROM unnest(%(names)s::text[], %(revisions)s::int[], %(seen)s::timestamptz[], %(nexts)s::timestamptz[],
                         %(problems)s::text[]) AS g(name, revision, seen, next, problem)
), held AS MATERIALIZED (
    SELECT s.name, g.next, g.problem
    FROM given g JOIN {schedules} s ON s.name = g.name
    WHERE s.revision = g.revision AND s.next_run_at IS NOT DISTINCT FROM g.seen
    ORDER BY s.name
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE {schedules} AS s SET next_run_at = h.next, problem = h.problem
FROM held h
WHERE s.name = h.name
RETURNING s.name

-- name: advance_schedules
-- The slots that were due, their jobs and the next slot, in one commit: no leader, and no slot lost or doubled.
--
-- * Whoever comes second finds another next_run_at (or the row locked) and does nothing at all. The rows of schedule_slots
--   are the second line: their key holds should a clock go back.
-- * `wanted` are the slots that the caller has worked out, with the reason of each that is not to run, and the one that has
--   waited for the job before it. What overlap says is decided here, by the state of that job: dead or gone, it blocks
--   nothing; an orphan is running until it is reclaimed.
-- * Slots that are made up for were asked for in so many words (missed = all): they do not stand in each other's way.
-- * A schedule that runs once has no run before it.
WITH given AS (
    SELECT * FROM unnest(%(names)s::text[], %(revisions)s::int[], %(seen)s::timestamptz[], %(nexts)s::timestamptz[])
        AS g(name, revision, seen, next)
), held AS MATERIALIZED (
    SELECT s.name, s.kind, s.payload, s.priority, s.max_attempts, s.lane, s.waiting_slot, s.last_job_id, g.next,
           CASE WHEN s.at IS NULL THEN s.overlap ELSE 'allow' END AS overlap
    FROM given g JOIN {schedules} s ON s.name = g.name
    WHERE s.revision = g.revision AND s.next_run_at IS NOT DISTINCT FROM g.seen
      AND s.paused_at IS NULL AND s.disabled_at IS NULL AND s.ended_at IS NULL
    ORDER BY s.name
    FOR NO KEY UPDATE OF s SKIP LOCKED
), owed AS (
    SELECT o.name, o.slot, o.reason, o.late
    FROM unnest(%(slot_names)s::text[], %(slots)s::timestamptz[], %(reasons)s::text[], %(late)s::boolean[])
        AS o(name, slot, reason, late)
    UNION ALL
    SELECT name, waiting_slot, NULL, false FROM held WHERE waiting_slot IS NOT NULL
), wanted AS (
    SELECT o.*, h.overlap, h.waiting_slot, b.id AS live_job, b.status AS live_status,
           o.reason IS NULL AND (h.overlap = 'allow' OR b.id IS NULL AND (o.late OR row_number() OVER (
               PARTITION BY o.name, o.reason IS NULL ORDER BY o.slot) = 1)) AS starts,
           rtrim(rtrim(to_char(o.slot AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z' AS spelt
    FROM owed o
    JOIN held h ON h.name = o.name
    LEFT JOIN LATERAL (
        SELECT id, status FROM {jobs} WHERE id = h.last_job_id AND status || '' IN ('pending', 'running') LIMIT 1
    ) b ON true
    WHERE (SELECT x.slot FROM {slots} x WHERE x.schedule = o.name AND x.slot = o.slot LIMIT 1) IS NULL
), judged AS MATERIALIZED (
    SELECT w.*,
           NOT starts AND reason IS NULL AND overlap = 'queue one' AND row_number() OVER (
               PARTITION BY name, starts, reason IS NULL ORDER BY slot) = 1 AS waits
    FROM wanted w
), made AS (
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, lane, metadata)
    SELECT h.kind, h.payload, {clock}(), h.priority, h.max_attempts, h.lane,
           jsonb_build_object('schedule', j.name, 'slot', j.spelt)
    FROM judged j JOIN held h ON h.name = j.name
    WHERE j.starts
    ORDER BY j.slot, j.name
    RETURNING id, metadata ->> 'schedule' AS name, metadata ->> 'slot' AS spelt
), recorded AS (
    INSERT INTO {slots} (schedule, slot, outcome, reason, job_id, decided_at)
    SELECT j.name, j.slot, CASE WHEN j.starts THEN 'enqueued' ELSE 'skipped' END,
           CASE WHEN j.starts AND j.late THEN 'missed, and made up for'
                WHEN j.starts AND j.slot = j.waiting_slot THEN 'waited for the job before it to end'
                WHEN j.starts THEN NULL
                ELSE coalesce(j.reason, 'overlap: ' || coalesce('job ' || j.live_job || ' of the run before is ' || j.live_status,
                              'another run was enqueued just before')) END,
           m.id, {clock}()
    FROM judged j LEFT JOIN made m ON m.name = j.name AND m.spelt = j.spelt
    WHERE NOT j.waits
    RETURNING schedule, slot, outcome, reason, job_id
), moved AS (
    UPDATE {schedules} AS s
    SET next_run_at = h.next, problem = NULL, ended_at = CASE WHEN h.next IS NULL THEN {clock}() END,
        waiting_slot = (SELECT j.slot FROM judged j WHERE j.name = h.name AND j.waits),
        last_run_at = coalesce(r.slot, s.last_run_at), last_job_id = coalesce(r.job_id, s.last_job_id)
    FROM held h
    LEFT JOIN LATERAL (
        SELECT slot, job_id FROM recorded WHERE schedule = h.name AND outcome = 'enqueued' ORDER BY slot DESC LIMIT 1
    ) r ON true
    WHERE s.name = h.name
    RETURNING s.name
)
SELECT v.name, h.kind, r.slot, r.outcome, r.reason, r.job_id
FROM moved v JOIN held h ON h.name = v.name LEFT JOIN recorded r ON r.schedule = v.name

-- name: pause_kind
WITH done AS (
    INSERT INTO {kinds} AS k (kind, paused_at, paused_by, paused_reason, paused_until)
    SELECT %(kind)s::text, {clock}(), %(by)s::text, %(reason)s::text, %(until)s::timestamptz
    WHERE coalesce(%(until)s::timestamptz > {clock}(), true)
    ON CONFLICT (kind) DO UPDATE
    SET paused_at = EXCLUDED.paused_at, paused_by = EXCLUDED.paused_by, paused_reason = EXCLUDED.paused_reason,
        paused_until = EXCLUDED.paused_until, updated_at = {clock}()
    RETURNING kind, paused_at, paused_by, paused_reason, paused_until, coalesce(paused_until > {clock}(), true) AS paused,
              running_most, rate, burst, lane_running_most, lane_rate, lane_burst, route,
              (SELECT count(*)::int FROM {jobs} r WHERE r.kind = k.kind AND r.status = 'running') AS running
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'pause', jsonb_strip_nulls(jsonb_build_object('kind', kind, 'until', paused_until)),
           %(why)s::text, 1
    FROM done
)
SELECT * FROM done

-- name: resume_kind
WITH done AS (
    UPDATE {kinds} k
    SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL, updated_at = {clock}()
    WHERE kind = %(kind)s::text AND paused_at IS NOT NULL
    RETURNING kind, paused_at, paused_by, paused_reason, paused_until, false AS paused,
              running_most, rate, burst, lane_running_most, lane_rate, lane_burst, route,
              (SELECT count(*)::int FROM {jobs} r WHERE r.kind = k.kind AND r.status = 'running') AS running
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'resume', jsonb_build_object('kind', kind), %(why)s::text, 1
    FROM done
)
SELECT * FROM done

-- name: limit_kind
-- What is used up of a rate goes with the rate that it was reckoned by.
WITH was AS (
    SELECT running_most, rate, burst, lane_running_most, lane_rate, lane_burst FROM {kinds} WHERE kind = %(kind)s::text
), done AS (
    INSERT INTO {kinds} AS k (kind, running_most, rate, burst, lane_running_most, lane_rate, lane_burst)
    VALUES (%(kind)s::text, %(running)s::int, %(rate)s::float8, %(burst)s::int, %(lane_running)s::int, %(lane_rate)s::float8,
            %(lane_burst)s::int)
    ON CONFLICT (kind) DO UPDATE
    SET running_most = EXCLUDED.running_most, rate = EXCLUDED.rate, burst = EXCLUDED.burst,
        lane_running_most = EXCLUDED.lane_running_most, lane_rate = EXCLUDED.lane_rate, lane_burst = EXCLUDED.lane_burst,
        empty_at = CASE WHEN k.rate = EXCLUDED.rate THEN k.empty_at END, updated_at = {clock}()
    RETURNING kind, paused_at, paused_by, paused_reason, paused_until,
              paused_at IS NOT NULL AND coalesce(paused_until > {clock}(), true) AS paused,
              running_most, rate, burst, lane_running_most, lane_rate, lane_burst, route,
              (SELECT count(*)::int FROM {jobs} r WHERE r.kind = k.kind AND r.status = 'running') AS running
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, before, after)
    SELECT {clock}(), %(who)s::text, 'limit', jsonb_build_object('kind', kind), %(why)s::text, 1,
           (SELECT jsonb_strip_nulls(to_jsonb(was)) FROM was),
           jsonb_strip_nulls(jsonb_build_object(
               'running_most', running_most, 'rate', rate, 'burst', burst, 'lane_running_most', lane_running_most,
               'lane_rate', lane_rate, 'lane_burst', lane_burst))
    FROM done
)
SELECT * FROM done

-- name: route_kind
-- Where jobs of a kind go from now on. What waits in the table goes the new way, what is at the broker the one that it is on.
WITH was AS (
    SELECT route FROM {kinds} WHERE kind = %(kind)s::text
), done AS (
    INSERT INTO {kinds} AS k (kind, route) VALUES (%(kind)s::text, %(route)s::text)
    ON CONFLICT (kind) DO UPDATE SET route = EXCLUDED.route, updated_at = {clock}()
    RETURNING kind, paused_at, paused_by, paused_reason, paused_until,
              paused_at IS NOT NULL AND coalesce(paused_until > {clock}(), true) AS paused,
              running_most, rate, burst, lane_running_most, lane_rate, lane_burst, route,
              (SELECT count(*)::int FROM {jobs} r WHERE r.kind = k.kind AND r.status = 'running') AS running
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, before, after)
    SELECT {clock}(), %(who)s::text, 'route', jsonb_build_object('kind', kind), %(why)s::text, 1,
           jsonb_build_object('route', coalesce((SELECT route FROM was), 'postgres')), jsonb_build_object('route', route)
    FROM done
)
SELECT * FROM done

-- name: list_kinds
SELECT kind, paused_at, paused_by, paused_reason, paused_until,
       paused_at IS NOT NULL AND coalesce(paused_until > {clock}(), true) AS paused,
       running_most, rate, burst, lane_running_most, lane_rate, lane_burst, route,
       (SELECT count(*)::int FROM {jobs} r WHERE r.kind = k.kind AND r.status = 'running') AS running
FROM {kinds} k
WHERE (paused_at IS NOT NULL OR num_nonnulls(running_most, rate, lane_running_most, lane_rate) > 0 OR route <> 'postgres'
       OR %(broken)s AND broken)
  AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
ORDER BY kind

-- name: acts_on_kinds
-- Who limited and who routed these kinds last, as far as the newest acts tell: there is no index for it.
SELECT DISTINCT ON (filter ->> 'kind', action) filter ->> 'kind' AS kind, action, at, by, reason, after
FROM (SELECT * FROM {audit} ORDER BY id DESC LIMIT 10000) newest
WHERE action IN ('limit', 'route') AND filter ->> 'kind' = ANY(%(kinds)s::text[])
ORDER BY filter ->> 'kind', action, id DESC

-- name: open_batch
INSERT INTO {batches} (name, follower, created_at) VALUES (%(name)s::text, %(follower)s::text::jsonb, {clock}()) RETURNING id

-- name: batch_is_ours
-- No row: there is no such batch, it has ended, or it was not opened in this transaction. The number of a transaction is
-- as stored without its upper half, which is that of the nearest to our own.
SELECT id FROM {batches}
WHERE id = %(batch)s
  AND CASE WHEN ended_at IS NULL
           THEN txid_status((SELECT u - ((u - xmin::text::bigint) & 4294967295) FROM (SELECT txid_current() + 2147483648) AS t(u)))
      END = 'in progress'

-- name: over_batches
-- Of a batch no job comes to be after its commit, so where this sees none alive all have ended.
SELECT id FROM {batches} b
WHERE ended_at IS NULL AND id <> ALL(%(refused)s::bigint[])
  AND NOT EXISTS (SELECT FROM {jobs} j WHERE j.batch = b.id AND j.status IN ('pending', 'running'))
ORDER BY id
LIMIT 100

-- name: end_batches
-- What follows is told how they ended; of the dead the first thousand by name.
WITH over AS MATERIALIZED (
    SELECT id FROM {batches} b
    WHERE id = ANY(%(ids)s::bigint[]) AND ended_at IS NULL
      AND NOT EXISTS (SELECT FROM {jobs} j WHERE j.batch = b.id AND j.status IN ('pending', 'running')) -- sent back since
    ORDER BY id
    FOR UPDATE SKIP LOCKED
), counted AS (
    SELECT o.id, count(j.id) AS jobs, count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE status = 'dead') AS dead
    FROM over o LEFT JOIN {jobs} j ON j.batch = o.id
    GROUP BY o.id
), ended AS (
    UPDATE {batches} b
    SET ended_at = {clock}(), jobs = c.jobs, succeeded = c.succeeded, failed = c.failed, dead = c.dead
    FROM counted c
    WHERE b.id = c.id
    RETURNING b.id, b.name, b.follower, b.jobs, b.succeeded, b.failed, b.dead
)
SELECT id, name, jobs, succeeded, failed, dead, {schema}.follow(jsonb_build_array(follower || jsonb_build_object(
           'payload', jsonb_build_object(
               'batch', id, 'name', name, 'jobs', jobs, 'succeeded', succeeded, 'failed', failed,
               'dead', to_jsonb(ARRAY(
                   SELECT j.id FROM {jobs} j WHERE j.batch = e.id AND j.status = 'dead' ORDER BY j.id LIMIT 1000
               )),
               'payload', (follower ->> 'payload')::jsonb
           )::text
       ))) AS followed
FROM ended e

-- name: list_batches
-- Counted are the jobs of those that have not ended, up to a limit each.
SELECT b.id, b.name, b.follower ->> 'kind' AS kind, b.created_at, b.ended_at,
       coalesce(b.jobs, c.jobs) AS jobs, coalesce(b.succeeded, c.succeeded) AS succeeded,
       coalesce(b.failed, c.failed) AS failed, coalesce(b.dead, c.dead) AS dead
FROM (
    SELECT * FROM {batches} WHERE %(ended)s OR ended_at IS NULL ORDER BY id DESC LIMIT %(limit)s
) b
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE status = 'dead') AS dead
    FROM (SELECT status FROM {jobs} j WHERE b.ended_at IS NULL AND j.batch = b.id LIMIT %(most)s) j
) c
ORDER BY b.id DESC

-- name: prune_batches
DELETE FROM {batches} WHERE ended_at < {clock}() - make_interval(secs => %(keep)s::float8)

-- name: outages_elsewhere
-- Tries at other workers that failed by the same fault, lately and since the breaker was closed.
SELECT f.job_id
FROM {failures} f
JOIN {jobs} j ON j.id = f.job_id AND j.lane = CASE WHEN %(target)s::text = '' THEN j.lane ELSE %(target)s::text END
WHERE f.kind = %(kind)s::text AND f.fingerprint = %(fingerprint)s::text AND f.outcome = 'retried'
  AND f.failed_at > greatest(
      {clock}() - make_interval(secs => %(window)s::float8),
      (SELECT closed_at FROM {breakers} WHERE kind = %(kind)s::text AND target = %(target)s::text)
  )
  AND f.worker <> %(worker)s
ORDER BY f.failed_at DESC
LIMIT 20

-- name: open_breaker
-- The kind's row is locked before the breaker's, as a claim does. Where the breaker is open already, a worker that saw the
-- same adds its own part to the usual rate; an outage that flares up again goes on with the pauses that it had.
WITH of_kind AS MATERIALIZED (
    INSERT INTO {kinds} AS k (kind, broken) VALUES (%(kind)s::text, true)
    ON CONFLICT (kind) DO UPDATE SET broken = true
    RETURNING kind
), opened AS (
    INSERT INTO {breakers} AS b (kind, target, opened_at, opened_by, reason, probe_at, probe_pause, probe_longest, peak, usual_rate)
    SELECT kind, %(target)s::text, {clock}(), %(by)s::text, %(reason)s::text,
           coalesce({clock}() + make_interval(secs => %(hold)s::float8), 'infinity'),
           %(pause)s::float8, %(longest)s::float8, %(peak)s::float8, %(usual_rate)s::float8
    FROM of_kind
    ON CONFLICT (kind, target) DO UPDATE
    SET state = 'open',
        opened_at = CASE WHEN b.state = 'closed' THEN EXCLUDED.opened_at ELSE b.opened_at END,
        opened_by = CASE WHEN b.state = 'closed' OR %(by_hand)s THEN EXCLUDED.opened_by ELSE b.opened_by END,
        reason = CASE WHEN b.state <> 'open' OR %(by_hand)s THEN EXCLUDED.reason ELSE b.reason END,
        probe_at = CASE WHEN b.state = 'open' AND NOT %(by_hand)s THEN greatest(b.probe_at, {clock}() + make_interval(secs => %(asked)s::float8))
                        ELSE EXCLUDED.probe_at END,
        probe_pause = CASE WHEN b.state = 'closed' THEN EXCLUDED.probe_pause ELSE b.probe_pause END,
        probe_longest = EXCLUDED.probe_longest,
        probes = CASE WHEN b.state = 'closed' THEN 0 ELSE b.probes END,
        peak = EXCLUDED.peak,
        usual_rate = CASE b.state WHEN 'closed' THEN EXCLUDED.usual_rate WHEN 'open' THEN b.usual_rate + EXCLUDED.usual_rate
                                  ELSE b.usual_rate END,
        closed_at = NULL, closed_by = NULL, empty_at = NULL, slack_at = NULL, updated_at = {clock}()
    RETURNING kind, target, state, opened_at, opened_by, reason, probe_at = 'infinity' AS by_hand,
              CASE WHEN probe_at < 'infinity' THEN probe_at END AS probe_at, probes, usual_rate, closed_at, closed_by,
              {schema}.breaker_rate(b) AS rate, opened_at = {clock}() AS opened
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'breaker open', jsonb_build_object('kind', kind, 'target', target), %(why)s::text, 1
    FROM opened WHERE %(by_hand)s
)
SELECT * FROM opened

-- name: add_usual_rate
-- What another worker did a second for a target, before it learnt that the breaker is open.
UPDATE {breakers} SET usual_rate = usual_rate + %(usual_rate)s::float8
WHERE kind = %(kind)s::text AND target = %(target)s::text AND state = 'open' AND (extract(epoch FROM opened_at) * 1000000)::bigint = %(opened)s::bigint
RETURNING target

-- name: close_breaker
-- A probe was answered, or somebody says that it is over. What has come in during the outage is as good a measure of the
-- usual rate as what was done before it, so the larger of the two is taken; more than 100,000 need not be counted.
WITH of_kind AS MATERIALIZED (
    SELECT kind FROM {kinds} WHERE kind = %(kind)s::text FOR NO KEY UPDATE
), closed AS (
    UPDATE {breakers} b
    SET state = CASE WHEN %(at_once)s THEN 'closed' ELSE 'closing' END,
        closed_at = {clock}(), closed_by = %(by)s::text, empty_at = {clock}(), slack_at = {clock}(), updated_at = {clock}(),
        usual_rate = CASE WHEN %(at_once)s THEN usual_rate ELSE greatest(usual_rate, CASE WHEN b.target = '' THEN (
            SELECT count(*) FROM (
                SELECT FROM {jobs} j
                WHERE j.status = 'pending' AND j.kind = b.kind AND j.created_at >= b.opened_at AND j.run_at <= {clock}()
                LIMIT 100000
            ) j
        ) ELSE ( -- as in list_breakers
            SELECT count(*) FROM (
                SELECT FROM {jobs} j
                WHERE j.status = 'pending' AND j.kind = b.kind AND j.lane = b.target
                  AND j.priority = ANY(ARRAY[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]::smallint[])
                  AND j.created_at >= b.opened_at AND j.run_at <= {clock}()
                LIMIT 100000
            ) j
        ) END / greatest(10, extract(epoch FROM {clock}() - b.opened_at)::float8)) END
    WHERE b.kind IN (SELECT kind FROM of_kind) AND b.target = %(target)s::text
      AND (b.state = 'open' AND (%(by_hand)s OR b.probe_at < 'infinity') OR %(at_once)s AND b.state = 'closing')
    RETURNING kind, target, state, opened_at, opened_by, reason, probe_at = 'infinity' AS by_hand,
              CASE WHEN probe_at < 'infinity' THEN probe_at END AS probe_at, probes, usual_rate, closed_at, closed_by,
              {schema}.breaker_rate(b) AS rate
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'breaker close', jsonb_build_object('kind', kind, 'target', target), %(why)s::text, 1
    FROM closed WHERE %(by_hand)s
)
SELECT * FROM closed

-- name: end_breakers
-- The backlog is out where for a while less than four fifths of what might have gone did: slack_at then falls behind. And
-- where for an hour nobody has taken the probe that was due, and nothing waits that could be one, it is open for nobody.
WITH over AS MATERIALIZED (
    SELECT b.kind, b.target
    FROM {breakers} b JOIN {kinds} k ON k.kind = b.kind
    WHERE b.state = 'closing' AND (b.slack_at <= {clock}() - interval '10 s' OR b.slack_at > {clock}() + interval '1 min')
       OR b.state = 'open' AND b.probe_at <= {clock}() - interval '1 hour' AND NOT CASE WHEN b.target = '' THEN EXISTS (
           SELECT FROM {jobs} j WHERE j.status = 'pending' AND j.kind = b.kind
       ) ELSE EXISTS ( -- as in list_breakers
           SELECT FROM {jobs} j
           WHERE j.status = 'pending' AND j.kind = b.kind AND j.lane = b.target
             AND j.priority = ANY(ARRAY[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]::smallint[])
       ) END
    ORDER BY b.kind
    FOR NO KEY UPDATE OF k SKIP LOCKED
)
UPDATE {breakers} b
SET state = 'closed', updated_at = {clock}()
FROM over o
WHERE b.kind = o.kind AND b.target = o.target
  AND (b.state = 'closing' AND (b.slack_at <= {clock}() - interval '10 s' OR b.slack_at > {clock}() + interval '1 min')
       OR b.state = 'open' AND b.probe_at <= {clock}() - interval '1 hour')
RETURNING b.kind, b.target, extract(epoch FROM {clock}() - b.opened_at)::float8 AS lasted

-- name: raise_usual_rates
-- The rate from before an outage that fell into a quiet hour would hold back a busy one for ever: what came in during the
-- last five minutes, and still waits, is a usual rate as well. Told by the newest 100,000 jobs, those of all kinds.
WITH due AS MATERIALIZED (
    SELECT kind, target FROM {breakers} WHERE state = 'closing' AND updated_at <= {clock}() - interval '5 min'
), newest AS MATERIALIZED (
    SELECT kind, lane, status, created_at FROM {jobs} WHERE EXISTS (SELECT FROM due) ORDER BY id DESC LIMIT 100000
), came AS MATERIALIZED (
    SELECT kind, lane, count(*) AS jobs FROM newest
    WHERE status = 'pending' AND created_at BETWEEN {clock}() - interval '5 min' AND {clock}()
    GROUP BY kind, lane
)
UPDATE {breakers} b
SET usual_rate = greatest(b.usual_rate, coalesce((
        SELECT sum(c.jobs) FROM came c WHERE c.kind = b.kind AND (b.target = '' OR c.lane = b.target)
    ), 0) / 300), updated_at = {clock}()
FROM due d
WHERE b.kind = d.kind AND b.target = d.target AND b.state = 'closing' AND b.updated_at <= {clock}() - interval '5 min'
RETURNING b.target

-- name: list_breakers
-- The jobs that wait are counted up to a limit, which is said; those that are not due as well, for the try that met the
-- outage has put its job off. The time is taken once: it is compared with thousands of rows.
WITH here AS MATERIALIZED (
    SELECT {clock}() AS now
)
SELECT b.kind, b.target, state, opened_at, opened_by, reason, probe_at = 'infinity' AS by_hand,
       CASE WHEN probe_at < 'infinity' THEN probe_at END AS probe_at, probes, usual_rate, closed_at, closed_by,
       {schema}.breaker_rate(b) AS rate, c.waiting, c.due
FROM {breakers} b
CROSS JOIN LATERAL (
    SELECT count(*)::int AS waiting, (count(*) FILTER (WHERE j.run_at <= (SELECT now FROM here)))::int AS due
    FROM (
        ( -- in the order of the index, as in depths
            SELECT run_at FROM {jobs} w
            WHERE b.target = '' AND w.status = 'pending' AND w.kind = b.kind
            ORDER BY priority, lane, run_at, id
            LIMIT %(most)s
        ) UNION ALL ( -- every priority is named, for that makes it one descent of the index each, and not a walk through the kind
            SELECT run_at FROM {jobs} w
            WHERE b.target <> '' AND w.status = 'pending' AND w.kind = b.kind AND w.lane = b.target
              AND w.priority = ANY(ARRAY[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]::smallint[])
            LIMIT %(most)s
        )
    ) j
) c
WHERE (%(kind)s::text IS NULL OR b.kind = %(kind)s::text) AND (%(closed)s OR state <> 'closed')
ORDER BY state = 'closed', b.kind, b.target

-- name: put_off
-- Of the jobs that a breaker held, those that wait for a time to which their own try has put them off: how many, up to
-- :most, and until when. What was enqueued for later has had no try.
SELECT count(*)::int AS jobs, max(run_at) AS until
FROM (
    ( -- both as in list_breakers: by a limit alone the whole table looks short
        SELECT run_at FROM {jobs}
        WHERE %(target)s::text = '' AND status = 'pending' AND kind = %(kind)s::text AND run_at > {clock}() AND claims > 0
        ORDER BY priority, lane, run_at, id
        LIMIT %(most)s
    ) UNION ALL (
        SELECT run_at FROM {jobs}
        WHERE %(target)s::text <> '' AND status = 'pending' AND kind = %(kind)s::text AND lane = %(target)s::text
          AND priority = ANY(ARRAY[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]::smallint[]) AND run_at > {clock}() AND claims > 0
        LIMIT %(most)s
    )
) j

-- name: prune_breakers
DELETE FROM {breakers} WHERE state = 'closed' AND updated_at < {clock}() - make_interval(secs => %(keep)s::float8)

-- name: prune_lane_rates
-- What is used up of a lane's rate says nothing once it has filled again.
DELETE FROM {lane_rates} l
WHERE NOT EXISTS (
    SELECT FROM {kinds} k
    WHERE k.kind = l.kind
      AND l.empty_at > {clock}() - make_interval(secs => coalesce(k.lane_burst, greatest(2 + 0 * k.lane_rate, ceil(k.lane_rate / 10))) / k.lane_rate)
)

-- name: prune_slots
-- Slots that were decided long ago, schedule by schedule along the key. The last of each stays, for it is what list shows.
WITH RECURSIVE each AS (
    (SELECT schedule FROM {slots} ORDER BY schedule LIMIT 1)
    UNION ALL
    SELECT (SELECT x.schedule FROM {slots} x WHERE x.schedule > e.schedule ORDER BY x.schedule LIMIT 1)
    FROM each e WHERE e.schedule IS NOT NULL
), old AS (
    SELECT o.schedule, o.slot
    FROM each e
    CROSS JOIN LATERAL (
        SELECT schedule, slot FROM {slots}
        WHERE schedule = e.schedule AND slot < {clock}() - make_interval(secs => %(keep)s::float8)
          AND decided_at < {clock}() - make_interval(secs => %(keep)s::float8)
        ORDER BY slot
        LIMIT %(window)s
    ) o
    WHERE e.schedule IS NOT NULL
    LIMIT %(window)s
)
DELETE FROM {slots} x USING old WHERE x.schedule = old.schedule AND x.slot = old.slot RETURNING x.slot


------------------------------------------------------------------------------------------------ what was counted

-- name: record_stats
-- What a worker counted, as whole rows: said twice it is no harm.
INSERT INTO {stats} AS s (minute, kind, worker, succeeded, retried, failed, died, snoozed, handed_back, reclaimed, ran,
                          wait_seconds, run_seconds, waits, runs)
SELECT to_timestamp(g.minute), g.kind, %(worker)s, g.succeeded, g.retried, g.failed, g.died, g.snoozed, g.handed_back,
       g.reclaimed, g.ran, g.wait_seconds, g.run_seconds, g.waits::int[], g.runs::int[]
FROM unnest(%(minutes)s::bigint[], %(kinds)s::text[], %(succeeded)s::int[], %(retried)s::int[], %(failed)s::int[],
            %(died)s::int[], %(snoozed)s::int[], %(handed_back)s::int[], %(reclaimed)s::int[], %(ran)s::int[],
            %(wait_seconds)s::float8[], %(run_seconds)s::float8[], %(waits)s::text[], %(runs)s::text[])
     AS g(minute, kind, succeeded, retried, failed, died, snoozed, handed_back, reclaimed, ran, wait_seconds, run_seconds,
          waits, runs)
ON CONFLICT (minute, kind, worker, minutes) DO UPDATE
SET succeeded = excluded.succeeded, retried = excluded.retried, failed = excluded.failed, died = excluded.died,
    snoozed = excluded.snoozed, handed_back = excluded.handed_back, reclaimed = excluded.reclaimed, ran = excluded.ran,
    wait_seconds = excluded.wait_seconds, run_seconds = excluded.run_seconds, waits = excluded.waits, runs = excluded.runs

-- name: sum_up_stats
-- The oldest :step seconds that are over for :age seconds and not one row a kind yet. What comes late, after a long outage,
-- is added to the sum by the same statement. One worker at a time, and nobody waits.
WITH span AS MATERIALIZED (
    SELECT f.first, pg_try_advisory_xact_lock({stats_lock}) AS mine
    FROM (
        SELECT to_timestamp(floor(extract(epoch FROM min(minute)) / %(step)s) * %(step)s) AS first
        FROM (
            SELECT minute FROM {stats}
            WHERE minutes = %(of_minutes)s AND (worker <> '' OR minutes < %(step)s / 60)
            ORDER BY minutes, minute LIMIT 1
        ) o
    ) f
    WHERE f.first <= {clock}() - make_interval(secs => %(age)s + %(step)s)
), gone AS (
    DELETE FROM {stats}
    WHERE minute >= (SELECT first FROM span WHERE mine)
      AND minute < (SELECT first FROM span) + make_interval(secs => %(step)s) AND minutes <= %(step)s / 60
    RETURNING *
), summed AS (
    SELECT kind, sum(succeeded) AS succeeded, sum(retried) AS retried, sum(failed) AS failed, sum(died) AS died,
           sum(snoozed) AS snoozed, sum(handed_back) AS handed_back, sum(reclaimed) AS reclaimed, sum(ran) AS ran,
           sum(wait_seconds) AS wait_seconds, sum(run_seconds) AS run_seconds, {schema}.merged(waits) AS waits,
           {schema}.merged(runs) AS runs, min(array_lower(waits, 1)) AS first_wait, min(array_lower(runs, 1)) AS first_run
    FROM gone GROUP BY kind
)
INSERT INTO {stats} (minute, kind, worker, minutes, succeeded, retried, failed, died, snoozed, handed_back, reclaimed, ran,
                     wait_seconds, run_seconds, waits, runs)
SELECT (SELECT first FROM span), kind, '', %(step)s / 60, succeeded, retried, failed, died, snoozed, handed_back, reclaimed,
       ran, wait_seconds, run_seconds,
       CASE WHEN first_wait IS NULL THEN '{{}}'
            ELSE format('[%%s:%%s]=%%s', first_wait, array_upper(waits, 1), waits[first_wait:]::text)::int[] END,
       CASE WHEN first_run IS NULL THEN '{{}}'
            ELSE format('[%%s:%%s]=%%s', first_run, array_upper(runs, 1), runs[first_run:]::text)::int[] END
FROM summed
RETURNING kind

-- name: prune_stats
DELETE FROM {stats}
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {stats} WHERE minute < {clock}() - make_interval(secs => %(keep)s::float8) ORDER BY minute LIMIT %(window)s
))
RETURNING 1

-- name: prune_deploys
-- The last one stays: the next is one only if it is another version.
DELETE FROM {deploys}
WHERE at < {clock}() - make_interval(secs => %(keep)s::float8) AND at < (SELECT max(at) FROM {deploys})

-- name: mark_deploy
-- A worker with this version has begun. It is no news while another that lives has the same, nor where it was the last.
INSERT INTO {deploys} (version, at)
SELECT %(version)s::text, date_trunc('second', {clock}())
WHERE %(version)s::text IS DISTINCT FROM (SELECT version FROM {deploys} ORDER BY at DESC, version LIMIT 1)
  AND NOT EXISTS (
      SELECT FROM {workers} WHERE app_version = %(version)s AND name <> %(worker)s AND heartbeat_at > {clock}() - lease
  )
ON CONFLICT DO NOTHING

-- name: read_stats
-- The rows as they are, by steps of :step seconds (0 for one step) and kind ('' for all). They are added up in Python: to
-- unnest and group so many small arrays takes Postgres five times as long.
SELECT CASE WHEN %(step)s::float8 > 0 THEN floor(extract(epoch FROM minute) / %(step)s::float8) * %(step)s::float8 ELSE 0 END::bigint,
       CASE WHEN %(by_kind)s THEN kind ELSE '' END, succeeded, retried, failed, died, snoozed, handed_back, reclaimed, ran,
       wait_seconds, run_seconds, coalesce(array_lower(waits, 1), 1), waits, coalesce(array_lower(runs, 1), 1), runs
FROM {stats}
WHERE minute >= to_timestamp(%(since)s::float8) AND minute < to_timestamp(%(until)s::float8)
  AND (%(kind)s::text IS NULL OR kind = %(kind)s)

-- name: depths
-- What there is of each kind that has something pending, running or dead, no more than :most counted of each sort. The
-- kinds, and the oldest due job of each lane, are found by loose index scans, one probe a lane. What is counted has the
-- order of its index: for a mere LIMIT the planner walks the table, which for a kind that has few jobs is all of it.
WITH RECURSIVE lanes AS (
    (SELECT kind, priority, lane, run_at FROM {jobs} WHERE status = 'pending' ORDER BY kind, priority, lane, run_at, id LIMIT 1)
    UNION ALL
    SELECT n.kind, n.priority, n.lane, n.run_at
    FROM lanes l
    CROSS JOIN LATERAL (
        SELECT kind, priority, lane, run_at FROM {jobs}
        WHERE status = 'pending' AND (kind, priority, lane) > (l.kind, l.priority, l.lane)
        ORDER BY kind, priority, lane, run_at, id LIMIT 1
    ) n
), waiting AS (
    SELECT kind, min(run_at) FILTER (WHERE run_at <= {clock}()) AS first FROM lanes GROUP BY kind
), dead_kinds AS (
    (SELECT kind FROM {jobs}
     WHERE fingerprint IS NOT NULL AND locked_by IS NULL
       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
     ORDER BY kind, fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT kind FROM {jobs}
            WHERE fingerprint IS NOT NULL AND locked_by IS NULL
              AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
              AND kind > d.kind
            ORDER BY kind, fingerprint LIMIT 1)
    FROM dead_kinds d WHERE d.kind IS NOT NULL
), strange_kinds AS (
    (SELECT kind FROM {jobs}
     WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
     ORDER BY kind, {failure_group}(fingerprint, locked_by, last_error) LIMIT 1)
    UNION ALL
    SELECT (SELECT kind FROM {jobs}
            WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
              AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
              AND kind > d.kind
            ORDER BY kind, {failure_group}(fingerprint, locked_by, last_error) LIMIT 1)
    FROM strange_kinds d WHERE d.kind IS NOT NULL
), running AS (
    SELECT kind, count(*) AS jobs FROM (SELECT kind FROM {jobs} WHERE status = 'running' ORDER BY locked_by, id LIMIT %(most)s) r GROUP BY kind
), kinds AS (
    SELECT kind FROM waiting UNION SELECT kind FROM dead_kinds WHERE kind IS NOT NULL
    UNION SELECT kind FROM strange_kinds WHERE kind IS NOT NULL UNION SELECT kind FROM running
    ORDER BY kind LIMIT %(kinds)s
)
SELECT k.kind, p.pending, p.due, t.retrying, coalesce(r.jobs, 0) AS running, d.dead,
       CASE WHEN w.first IS NOT NULL
            THEN extract(epoch FROM {clock}() - greatest(w.first, '1970-01-01 00:00+00'))::float8 END AS oldest_due,
       %(most)s::bigint AS most
FROM kinds k
LEFT JOIN waiting w USING (kind)
LEFT JOIN running r USING (kind)
CROSS JOIN LATERAL (
    SELECT count(*) AS pending, count(*) FILTER (WHERE run_at <= {clock}()) AS due
    FROM (
        SELECT run_at FROM {jobs} WHERE status = 'pending' AND kind = k.kind
        ORDER BY kind, priority, lane, run_at, id LIMIT %(most)s
    ) x
) p
CROSS JOIN LATERAL (
    SELECT count(*) AS retrying
    FROM (
        SELECT FROM {jobs}
        WHERE fingerprint IS NOT NULL AND attempts > 0 AND status || '' = 'pending' AND kind = k.kind
        ORDER BY kind, fingerprint, id LIMIT %(most)s
    ) x
) t
CROSS JOIN LATERAL (
    SELECT least(ours + strange, %(most)s) AS dead
    FROM (
        SELECT (SELECT count(*) FROM (
                    SELECT FROM {jobs} WHERE fingerprint IS NOT NULL AND locked_by IS NULL
                       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
                       AND kind = k.kind
                    ORDER BY kind, fingerprint, id LIMIT %(most)s) o) AS ours,
               (SELECT count(*) FROM (
                    SELECT FROM {jobs} WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
                       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
                       AND kind = k.kind
                    ORDER BY kind, {failure_group}(fingerprint, locked_by, last_error), id LIMIT %(most)s) o) AS strange
    ) both_sorts
) d
ORDER BY k.kind

-- name: fleet
-- A relay runs no job: it is no worker here, and its slots are none; but it may have fallen silent, or complain.
SELECT count(*) FILTER (WHERE alive AND works_as <> 'relay') AS alive, count(*) FILTER (WHERE NOT alive) AS silent,
       coalesce(sum(concurrency) FILTER (WHERE alive AND works_as <> 'relay'), 0) AS slots,
       coalesce(sum(in_flight) FILTER (WHERE alive AND works_as <> 'relay'), 0) AS in_flight,
       count(*) FILTER (WHERE alive AND problem IS NOT NULL) AS complaining,
       (SELECT count(*) FROM {schedules}
        WHERE paused_at IS NULL AND disabled_at IS NULL AND ended_at IS NULL
          AND (problem IS NOT NULL
               OR coalesce(next_run_at, updated_at) < {clock}() - make_interval(secs => %(patience)s::float8))) AS late,
       coalesce((SELECT array_agg(DISTINCT kind) FROM {workers} k, unnest(k.kinds) AS kind
                 WHERE k.heartbeat_at > {clock}() - k.lease), '{{}}') AS known
FROM (SELECT concurrency, in_flight, problem, {works_as} AS works_as, heartbeat_at > {clock}() - lease AS alive
      FROM {workers}) w

-- name: stats_clock
SELECT extract(epoch FROM {clock}())::float8 AS now

-- name: list_deploys
SELECT version, at FROM {deploys} WHERE at >= {clock}() - make_interval(secs => %(span)s::float8)
ORDER BY at, version

-- name: inflow
-- How many jobs came in, by the newest :newest rows: within :window seconds, or within the time that those rows span.
WITH newest AS MATERIALIZED (
    SELECT kind, created_at FROM {jobs} ORDER BY id DESC LIMIT %(newest)s
), recent AS (
    SELECT kind, created_at FROM newest
    WHERE created_at > {clock}() - make_interval(secs => %(window)s::float8) AND created_at <= {clock}()
), span AS (
    SELECT CASE WHEN count(*) = %(newest)s THEN extract(epoch FROM {clock}() - min(created_at))::float8
                ELSE %(window)s::float8 END AS seconds
    FROM recent
)
SELECT kind, count(*) AS jobs, (SELECT seconds FROM span) AS seconds FROM recent GROUP BY kind ORDER BY kind


------------------------------------------------------------------------------------------------ what operators say of schedules

-- name: add_schedule
-- No row in the answer: the name is that of a schedule of the code. What isn't changed keeps its next slot (a trigger sees
-- to the rest), so that it can be said at every start of an application.
WITH was AS (
    SELECT jsonb_strip_nulls(to_jsonb(s)) - ARRAY['revision', 'updated_at', 'next_run_at'] AS row
    FROM {schedules} s WHERE name = %(name)s
), done AS (
    INSERT INTO {schedules} AS s (name, kind, payload, cron, every, at, timezone, anchor, priority, max_attempts, lane, missed,
                                  missed_most, missed_age, overlap, next_run_at)
    VALUES (%(name)s, %(kind)s, %(payload)s::text::jsonb, %(cron)s, %(every)s::interval, %(at)s::timestamptz, %(timezone)s,
            %(anchor)s::timestamptz, %(priority)s, %(max_attempts)s, %(lane)s, %(missed)s, %(most)s, %(age)s::interval,
            %(overlap)s, %(next)s::timestamptz)
    ON CONFLICT (name) DO UPDATE
    SET kind = excluded.kind, payload = excluded.payload, cron = excluded.cron, every = excluded.every, at = excluded.at,
        timezone = excluded.timezone, anchor = CASE WHEN %(anchored)s THEN excluded.anchor ELSE s.anchor END,
        priority = excluded.priority, max_attempts = excluded.max_attempts, lane = excluded.lane, missed = excluded.missed,
        missed_most = excluded.missed_most, missed_age = excluded.missed_age, overlap = excluded.overlap,
        updated_at = CASE WHEN (s.kind, s.payload, s.priority, s.max_attempts, s.lane, s.missed, s.missed_most, s.missed_age, s.overlap)
                               IS DISTINCT FROM (excluded.kind, excluded.payload, excluded.priority, excluded.max_attempts,
                                excluded.lane, excluded.missed, excluded.missed_most, excluded.missed_age, excluded.overlap)
                          THEN {clock}() ELSE s.updated_at END
    WHERE s.owner = 'operator'
    RETURNING name, jsonb_strip_nulls(to_jsonb(s)) - ARRAY['revision', 'updated_at', 'next_run_at'] AS row
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, before, after)
    SELECT {clock}(), %(who)s::text, 'schedule add', jsonb_build_object('schedule', name), %(why)s::text, 1,
           (SELECT row FROM was), row
    FROM done
    WHERE row IS DISTINCT FROM (SELECT row FROM was) -- said again at every start of an application
)
SELECT name FROM done

-- name: remove_schedule
-- One of the code's would come back with the next worker that starts, unless none has it any more.
WITH done AS (
    DELETE FROM {schedules} s WHERE name = %(name)s AND (owner = 'operator' OR disabled_at IS NOT NULL)
    RETURNING name, jsonb_strip_nulls(to_jsonb(s)) AS row
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, before)
    SELECT {clock}(), %(who)s::text, 'schedule remove', jsonb_build_object('schedule', name), %(why)s::text, 1, row
    FROM done
)
SELECT name FROM done

-- name: pause_schedule
WITH done AS (
    UPDATE {schedules}
    SET paused_at = coalesce(paused_at, {clock}()), paused_by = %(by)s, paused_reason = %(reason)s
    WHERE name = %(name)s
    RETURNING name
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'schedule pause', jsonb_build_object('schedule', name), %(why)s::text, 1 FROM done
)
SELECT name FROM done

-- name: resume_schedule
WITH done AS (
    UPDATE {schedules} SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE name = %(name)s RETURNING name
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'schedule resume', jsonb_build_object('schedule', name), %(why)s::text, 1 FROM done
)
SELECT name FROM done

-- name: run_schedule
-- Now, whatever its plan, its overlap and its pause say; the run counts as its last.
WITH chosen AS MATERIALIZED (
    SELECT * FROM {schedules} WHERE name = %(name)s FOR NO KEY UPDATE
), made AS (
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, lane, metadata)
    SELECT kind, payload, {clock}(), priority, max_attempts, lane, jsonb_build_object('schedule', name) FROM chosen
    RETURNING id, kind
), recorded AS (
    INSERT INTO {slots} (schedule, slot, outcome, reason, job_id, decided_at)
    SELECT %(name)s, {clock}(), 'enqueued', 'run by hand', id, {clock}() FROM made
    ON CONFLICT DO NOTHING
), moved AS (
    UPDATE {schedules} SET last_run_at = {clock}(), last_job_id = (SELECT id FROM made)
    WHERE name = %(name)s AND EXISTS (SELECT FROM made)
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, job_id)
    SELECT {clock}(), %(who)s::text, 'schedule run', jsonb_build_object('schedule', %(name)s::text), %(why)s::text, 1, id
    FROM made
)
SELECT id, kind, true AS created FROM made

-- name: list_schedules
SELECT s.name, s.kind, s.payload, s.cron, s.every, s.at, s.timezone, s.anchor, s.priority, s.max_attempts, s.lane, s.missed,
       s.missed_most AS most, s.missed_age AS age, s.overlap, s.owner, s.paused_at, s.paused_by, s.paused_reason,
       s.disabled_at, s.seen_at, s.next_run_at, s.waiting_slot, s.last_run_at, s.last_job_id, s.ended_at, s.problem,
       s.created_at, s.updated_at, l.slot AS last_slot, l.outcome AS last_outcome, l.reason AS last_reason
FROM {schedules} s
LEFT JOIN LATERAL (
    SELECT slot, outcome, reason FROM {slots} x WHERE x.schedule = s.name ORDER BY slot DESC LIMIT 1
) l ON true
WHERE %(name)s::text IS NULL OR s.name = %(name)s
ORDER BY s.name

-- name: list_slots
SELECT schedule, slot, outcome, reason, job_id, decided_at FROM {slots}
WHERE schedule = %(name)s
ORDER BY slot DESC
LIMIT %(limit)s

-- name: late_schedules
-- Due for so long that no worker can be looking after it, or without a plan for a reason.
SELECT name, problem, extract(epoch FROM {clock}() - coalesce(next_run_at, updated_at))::float8 AS late
FROM {schedules}
WHERE paused_at IS NULL AND disabled_at IS NULL AND ended_at IS NULL
  AND (problem IS NOT NULL OR coalesce(next_run_at, updated_at) < {clock}() - make_interval(secs => %(patience)s::float8))
ORDER BY name
LIMIT 20


------------------------------------------------------------------------------------------------ topics

-- name: publish
SELECT id, kind, created
FROM {schema}.publish(
    topic => %(topic)s::text, payload => %(payload)s::text::jsonb, run_at => %(run_at)s::timestamptz,
    delay => CASE WHEN %(run_at)s::timestamptz IS NULL THEN make_interval(secs => %(delay)s::float8) END,
    priority => %(priority)s::int, max_attempts => %(max_attempts)s::int, key => %(key)s::text, lane => %(lane)s::text,
    expires_at => coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
    metadata => %(metadata)s::text::jsonb, lanes => %(lanes)s::text::jsonb, batch => %(batch)s::bigint)

-- name: publish_many
-- As insert_jobs, for each of the subscribers. The lanes of a payload are those of the kinds that name their target.
WITH heard AS MATERIALIZED (
    SELECT kind, priority, max_attempts FROM {schema}.subscribers(%(topic)s::text)
), given AS MATERIALIZED (
    SELECT ordinal, payload::jsonb AS payload, key, lanes::jsonb AS lanes
    FROM unnest(%(payloads)s::text[], %(keys)s::text[], %(lanes)s::text[]) WITH ORDINALITY AS g(payload, key, lanes, ordinal)
), wanted AS (
    SELECT g.ordinal, h.kind, g.payload, h.priority, h.max_attempts, g.key || '@' || h.kind AS key,
           coalesce(%(lane)s::text, g.lanes ->> h.kind, '') AS lane
    FROM given g CROSS JOIN heard h
), created AS (
    INSERT INTO {jobs} (kind, payload, run_at, priority, max_attempts, key, lane, expires_at, metadata, batch)
    SELECT w.kind, w.payload, coalesce(%(run_at)s::timestamptz, {clock}() + make_interval(secs => %(delay)s::float8)),
           coalesce(%(priority)s::int, w.priority), coalesce(%(max_attempts)s::int, w.max_attempts), w.key, w.lane,
           coalesce(%(expires_at)s::timestamptz, {clock}() + make_interval(secs => %(expires_in)s::float8)),
           coalesce(%(metadata)s::text::jsonb, '{{}}'::jsonb) || jsonb_build_object('topic', %(topic)s::text), %(batch)s::bigint
    FROM wanted w
    WHERE w.key IS NULL
       OR (SELECT j.id FROM {jobs} j WHERE j.key = w.key AND j.status IN ('pending', 'running')) IS NULL
    ORDER BY w.key COLLATE "C", w.ordinal, w.kind
    ON CONFLICT (key) WHERE key IS NOT NULL AND status IN ('pending', 'running') DO NOTHING
    RETURNING id
)
SELECT id FROM created ORDER BY id

-- name: note_unheard
-- What publish() does itself. No row in the answer: somebody subscribes.
SELECT {schema}.note_unheard(%(topic)s::text)::text AS noted
WHERE NOT EXISTS (SELECT FROM {schema}.subscribers(%(topic)s::text))

-- name: register_subscriptions
-- What this process has in its code: a new one is made, one that was disabled is in force again. Producers wait for whoever
-- has a row locked, since what they publish next must find it; workers have their turn later (:patience).
WITH given AS (
    SELECT topic, kind, priority, max_attempts, string_to_array(nullif(aliases, ''), chr(31)) AS aliases
    FROM unnest(%(topics)s::text[], %(kinds)s::text[], %(priorities)s::smallint[], %(max_attempts)s::int[], %(aliases)s::text[])
         AS g(topic, kind, priority, max_attempts, aliases)
), held AS MATERIALIZED (
    SELECT s.topic, s.kind
    FROM given g JOIN {subscriptions} s ON s.topic = g.topic AND s.kind = g.kind
    WHERE s.owner = 'code'
    ORDER BY s.topic, s.kind
    FOR NO KEY UPDATE OF s {patience}
), kept AS (
    UPDATE {subscriptions} AS s
    SET priority = g.priority, max_attempts = g.max_attempts, aliases = coalesce(g.aliases, '{{}}'), disabled_at = NULL,
        seen_at = {clock}()
    FROM held h JOIN given g ON g.topic = h.topic AND g.kind = h.kind
    WHERE s.topic = h.topic AND s.kind = h.kind AND s.owner = 'code'
    RETURNING s.topic, s.kind
), added AS (
    INSERT INTO {subscriptions} (topic, kind, owner, priority, max_attempts, aliases, created_at, seen_at)
    SELECT g.topic, g.kind, 'code', g.priority, g.max_attempts, coalesce(g.aliases, '{{}}'), {clock}(), {clock}()
    FROM given g
    WHERE NOT EXISTS (SELECT FROM {subscriptions} s WHERE s.topic = g.topic AND s.kind = g.kind AND s.owner = 'code')
    ORDER BY g.topic, g.kind
    ON CONFLICT (topic, kind, owner) DO NOTHING
    RETURNING topic, kind
)
SELECT topic, kind FROM kept
UNION ALL
SELECT topic, kind FROM added

-- name: look_at_subscriptions
-- The sign that this worker has these in its code. One that has been up for the grace itself (:judge) disables what is in no
-- code any more. That a live worker runs the kind, and none has had the subscription in its code for so long, says it; that
-- nobody runs the kind may be an outage, through which it goes on for days and its jobs wait.
WITH mine AS (
    SELECT topic, kind FROM unnest(%(topics)s::text[], %(kinds)s::text[]) AS g(topic, kind)
), seen AS (
    UPDATE {subscriptions} AS s SET seen_at = {clock}(), disabled_at = NULL
    FROM (SELECT o.topic, o.kind
          FROM mine m JOIN {subscriptions} o ON o.topic = m.topic AND o.kind = m.kind
          WHERE o.owner = 'code' AND (o.seen_at < {clock}() - make_interval(secs => %(fresh)s::float8) OR o.disabled_at IS NOT NULL)
          ORDER BY o.topic, o.kind FOR NO KEY UPDATE OF o SKIP LOCKED) h
    WHERE s.topic = h.topic AND s.kind = h.kind AND s.owner = 'code'
), gone AS (
    UPDATE {subscriptions} AS s SET disabled_at = {clock}()
    FROM (SELECT o.topic, o.kind
          FROM {subscriptions} o
          WHERE %(judge)s AND o.owner = 'code' AND o.disabled_at IS NULL
            AND NOT EXISTS (SELECT FROM mine m WHERE m.topic = o.topic AND m.kind = o.kind)
            AND coalesce(o.seen_at, o.created_at) < {clock}() - make_interval(secs => %(grace)s::float8)
            AND (EXISTS (SELECT FROM {workers} w WHERE w.heartbeat_at > {clock}() - w.lease AND o.kind = ANY (w.kinds))
                 OR coalesce(o.seen_at, o.created_at) < {clock}() - make_interval(secs => %(silence)s::float8))
          ORDER BY o.topic, o.kind FOR NO KEY UPDATE OF o SKIP LOCKED) h
    WHERE s.topic = h.topic AND s.kind = h.kind AND s.owner = 'code'
    RETURNING s.topic, s.kind
), forgotten AS (
    DELETE FROM {unheard_topics} WHERE at < {clock}() - interval '7 days'
)
SELECT topic, kind FROM gone ORDER BY topic, kind

-- name: list_subscriptions
SELECT topic, kind, owner, priority, max_attempts, created_by, created_at, seen_at, disabled_at
FROM {subscriptions}
WHERE (%(kind)s::text IS NULL OR kind = %(kind)s)
  AND (%(topic)s::text IS NULL OR topic = %(topic)s
       OR CASE WHEN pattern IS NULL THEN false ELSE %(topic)s || '.' ~ pattern END)
ORDER BY topic, kind, owner

-- name: list_unheard
-- What is published and has no subscriber yet.
SELECT u.topic, min(u.at) AS since, max(u.at) AS last
FROM {unheard_topics} u
WHERE NOT EXISTS (SELECT FROM {schema}.subscribers(u.topic))
GROUP BY u.topic
ORDER BY max(u.at) DESC
LIMIT %(limit)s

-- name: add_subscription
WITH was AS (
    SELECT priority, max_attempts FROM {subscriptions} WHERE topic = %(topic)s AND kind = %(kind)s AND owner = 'operator'
), done AS (
    INSERT INTO {subscriptions} AS s (topic, kind, owner, priority, max_attempts, created_by, created_at)
    VALUES (%(topic)s, %(kind)s, 'operator', %(priority)s, %(max_attempts)s, %(by)s, {clock}())
    ON CONFLICT (topic, kind, owner) DO UPDATE
    SET priority = excluded.priority, max_attempts = excluded.max_attempts, disabled_at = NULL
    RETURNING topic, kind, priority, max_attempts
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, before, after)
    SELECT {clock}(), %(who)s::text, 'topic add', jsonb_build_object('topic', topic, 'kind', kind), %(why)s::text, 1,
           (SELECT to_jsonb(was) FROM was), jsonb_build_object('priority', priority, 'max_attempts', max_attempts)
    FROM done
    WHERE (priority, max_attempts) IS DISTINCT FROM (SELECT (priority, max_attempts) FROM was)
)
SELECT topic, kind FROM done

-- name: remove_subscription
-- One of the code's would come back with the next worker that starts, unless none has it any more.
WITH done AS (
    DELETE FROM {subscriptions}
    WHERE topic = %(topic)s AND kind = %(kind)s AND (owner = 'operator' OR disabled_at IS NOT NULL)
    RETURNING topic, kind, owner, priority, max_attempts
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, before)
    SELECT {clock}(), %(who)s::text, 'topic remove', jsonb_build_object('topic', topic, 'kind', kind), %(why)s::text, 1,
           jsonb_build_object('owner', owner, 'priority', priority, 'max_attempts', max_attempts)
    FROM done
)
SELECT topic, kind FROM done


------------------------------------------------------------------------------------------------ what operators say

-- name: get_job
SELECT * FROM {jobs} WHERE id = %(id)s

-- name: failures_of_job
SELECT * FROM {failures} WHERE job_id = %(id)s ORDER BY id

-- name: list_jobs
-- Newest first, a page after a known id; a missing filter is NULL.
SELECT * FROM {jobs}
WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(kind)s::text IS NULL OR kind = %(kind)s)
  AND (%(key)s::text IS NULL OR key = %(key)s) AND (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (%(error)s::text IS NULL OR last_error ILIKE %(error)s)
ORDER BY id DESC
LIMIT %(limit)s

-- name: count_jobs
SELECT kind, status, count(*) AS jobs, count(*) FILTER (WHERE status = 'pending' AND run_at <= {clock}()) AS due,
       count(*) FILTER (WHERE status = 'pending' AND attempts > 0) AS retrying,
       extract(epoch FROM {clock}() - min(greatest(run_at, '1970-01-01 00:00+00'))
                                  FILTER (WHERE status = 'pending' AND run_at <= {clock}()))::float8 AS oldest_due
FROM {jobs} GROUP BY kind, status ORDER BY kind, status

-- name: wake
SELECT {wake}()

-- name: cancel_jobs
-- A pending job ends here; a running one is asked to stop and ends through its worker.
WITH chosen AS MATERIALIZED (
    SELECT id, status FROM {jobs}
    WHERE status IN ('pending', 'running') AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s))
      AND (%(kind)s::text IS NULL OR kind = %(kind)s) AND (%(key)s::text IS NULL OR key = %(key)s)
      AND id > %(after)s
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE
), cancelled AS (
    UPDATE {jobs} AS j
    SET status = CASE WHEN j.status = 'pending' THEN 'failed' ELSE j.status END,
        last_error = CASE WHEN j.status = 'pending' THEN %(words)s ELSE j.last_error END,
        key = CASE WHEN j.status = 'pending' THEN NULL ELSE j.key END,
        alone = j.alone AND j.status <> 'pending',
        cancel_requested_at = {clock}(), updated_at = {clock}()
    FROM chosen c
    WHERE j.id = c.id
    RETURNING j.id, c.status AS was
), opened AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'cancel', %(filter)s::text::jsonb, %(why)s::text, (SELECT count(*) FROM cancelled)
    WHERE %(act)s::bigint IS NULL AND EXISTS (SELECT FROM cancelled)
    RETURNING id
), counted AS (
    UPDATE {audit} SET moved = moved + (SELECT count(*) FROM cancelled) WHERE id = %(act)s RETURNING id
)
SELECT c.id, c.was, coalesce((SELECT id FROM opened), (SELECT id FROM counted)) AS act FROM cancelled c

-- name: cancel_preview
SELECT count(*) FILTER (WHERE status = 'pending') AS pending, count(*) FILTER (WHERE status = 'running') AS running,
       (array_agg(id ORDER BY id))[1:10] AS sample
FROM {jobs}
WHERE status IN ('pending', 'running') AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s))
  AND (%(kind)s::text IS NULL OR kind = %(kind)s) AND (%(key)s::text IS NULL OR key = %(key)s)

-- name: works_as
-- What a process is, as its row tells: a relay runs no kind, and a worker with --broker says that it listens to nobody.
CASE WHEN cardinality(kinds) = 0 THEN 'relay' WHEN listener_pid = 0 THEN 'worker --broker' ELSE 'worker' END

-- name: list_workers
SELECT name, host, pid, version, app_version, {works_as} AS works_as, kinds, concurrency, in_flight, started_at, problem,
       extract(epoch FROM {clock}() - heartbeat_at)::float8 AS silent_for, extract(epoch FROM lease)::float8 AS lease,
       heartbeat_at > {clock}() - lease AS alive
FROM {workers} ORDER BY name

-- name: heard_of_kind
-- Whether anything here has to do with a kind, and whether a worker was ever here, for else nobody can tell. A job that
-- only waits says nothing: it may be the slip of the pen itself. Each question is one descent of an index or about a
-- small table; of jobs the newest are looked at, and a week of what was counted.
SELECT EXISTS (SELECT FROM {workers} WHERE %(kind)s::text = ANY(kinds))
       OR EXISTS (
           SELECT FROM {kinds}
           WHERE kind = %(kind)s::text
             AND (paused_at IS NOT NULL OR limited OR route <> 'postgres')
       )
       OR EXISTS (SELECT FROM {schedules} WHERE kind = %(kind)s::text)
       OR EXISTS (SELECT FROM {subscriptions} WHERE kind = %(kind)s::text)
       OR EXISTS (SELECT FROM {failures} WHERE fingerprint IS NOT NULL AND kind = %(kind)s::text)
       OR EXISTS (
           SELECT FROM (SELECT kind, claims, status FROM {jobs} ORDER BY id DESC LIMIT 2000) j
           WHERE j.kind = %(kind)s::text AND (j.claims > 0 OR j.status IN ('running', 'succeeded'))
       )
       OR EXISTS (
           SELECT FROM {stats}
           WHERE minute > {clock}() - interval '7 days' AND kind = %(kind)s::text AND ran + succeeded + retried > 0
       ) AS known,
       EXISTS (SELECT FROM {workers}) OR EXISTS (SELECT FROM {stats}) AS worked

-- name: known_kinds
-- The kinds that heard_of_kind knows of, but for what only failed: to name them to whom has named another.
SELECT kind FROM {kinds} WHERE paused_at IS NOT NULL OR limited OR route <> 'postgres'
UNION
SELECT kind FROM {schedules}
UNION
SELECT kind FROM {subscriptions}
UNION
SELECT kind FROM (SELECT kind, claims, status FROM {jobs} ORDER BY id DESC LIMIT 2000) j
WHERE j.claims > 0 OR j.status IN ('running', 'succeeded')
UNION
SELECT kind FROM {stats} WHERE minute > {clock}() - interval '7 days' AND ran + succeeded + retried > 0
LIMIT 1000

-- name: long_at_broker
-- Of jobs that keep their row while they are at the broker: for how long, by kind, where it is long. So many at most.
SELECT kind, count(*) AS jobs, extract(epoch FROM {clock}() - min(locked_at))::float8 AS age
FROM (
    SELECT kind, locked_at FROM {jobs}
    WHERE status = 'running' AND locked_by = {broker} AND locked_at < {clock}() - make_interval(secs => %(age)s::float8)
    LIMIT 10000
) j
GROUP BY kind ORDER BY kind

-- name: at_broker
-- Of jobs that keep their row while they are at the broker, those that are meant, with a sample.
SELECT count(*) AS jobs, (array_agg(id ORDER BY id))[1:10] AS sample, array_agg(DISTINCT kind) AS kinds
FROM {jobs}
WHERE status = 'running' AND locked_by = {broker} AND locked_at <= %(until)s::timestamptz
  AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s)) AND (%(kind)s::text IS NULL OR kind = %(kind)s)

-- name: send_again
-- Those go back to wait as if they had not been sent: the try that nobody made is given back, key and deadline stay. The
-- claim is not given back. So a message that is there after all is of an earlier claim: it is run, and what comes of it
-- counts for nothing. A row that a worker is about to bring home is locked, and is not the broker's any more.
WITH chosen AS MATERIALIZED (
    SELECT id, cancel_requested_at IS NOT NULL OR superseded AS unwanted FROM {jobs}
    WHERE status = 'running' AND locked_by = {broker} AND locked_at <= %(until)s::timestamptz
      AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s)) AND (%(kind)s::text IS NULL OR kind = %(kind)s)
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), sent AS (
    UPDATE {jobs} AS j
    SET status = CASE WHEN c.unwanted THEN 'failed' ELSE 'pending' END,
        attempts = greatest(j.attempts, 1) - 1, run_at = {clock}(),
        key = CASE WHEN c.unwanted THEN NULL ELSE j.key END,
        last_error = CASE WHEN c.unwanted THEN 'cancelled; its message was gone from the broker' ELSE j.last_error END,
        locked_at = NULL, locked_by = NULL, updated_at = {clock}()
    FROM chosen c
    WHERE j.id = c.id
    RETURNING j.id
), opened AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'requeue', %(filter)s::text::jsonb, %(why)s::text, (SELECT count(*) FROM sent)
    WHERE %(act)s::bigint IS NULL AND EXISTS (SELECT FROM sent)
    RETURNING id
), counted AS (
    UPDATE {audit} SET moved = moved + (SELECT count(*) FROM sent) WHERE id = %(act)s RETURNING id
)
SELECT s.id, coalesce((SELECT id FROM opened), (SELECT id FROM counted)) AS act FROM sent s ORDER BY s.id

-- name: oldest_due
-- The oldest due job of each kind that has any, one probe a kind and priority (a loose index scan, as in survey_lanes).
WITH RECURSIVE found AS (
    (SELECT kind, priority, lane, run_at FROM {jobs} WHERE status = 'pending' ORDER BY kind, priority, lane, run_at, id LIMIT 1)
    UNION ALL
    SELECT n.kind, n.priority, n.lane, n.run_at
    FROM found l
    CROSS JOIN LATERAL (
        SELECT kind, priority, lane, run_at FROM {jobs}
        WHERE status = 'pending' AND (kind, priority, lane) > (l.kind, l.priority, l.lane)
        ORDER BY kind, priority, lane, run_at, id LIMIT 1
    ) n
)
SELECT kind, extract(epoch FROM {clock}() - greatest(min(run_at), '1970-01-01 00:00+00'))::float8 AS age FROM found WHERE run_at <= {clock}()
GROUP BY kind ORDER BY age DESC

-- name: horizon_holder
-- Where many dead rows are kept: who keeps them, by holding the oldest transaction that some reader might still need. Most
-- often a session; a prepared transaction or a replication slot does it as well, and outlives its session.
SELECT h.what, h.name, h.application, h.state, h.seconds, s.n_dead_tup AS dead
FROM (
    SELECT 'session' AS what, pid::text AS name, application_name AS application, state,
           extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
           greatest(age(backend_xmin), age(backend_xid)) AS held
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared transaction', gid, '', 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name::text, '', CASE WHEN active THEN 'active' ELSE 'not active' END, NULL, age(xmin)
    FROM pg_replication_slots
) h
CROSS JOIN pg_stat_user_tables s
WHERE s.schemaname = {schema_name} AND s.relname = 'jobs' AND s.n_dead_tup >= %(many)s AND h.held IS NOT NULL
  AND coalesce(h.seconds >= %(age)s::float8, true)
ORDER BY h.held DESC
LIMIT 1

-- name: silent_holders
-- Who holds running jobs and has been silent for so many leases that the reapers of others should have taken them back.
SELECT j.locked_by AS worker, count(*) AS jobs,
       extract(epoch FROM {clock}() - min(coalesce(w.heartbeat_at, j.locked_at, j.updated_at)))::float8 AS silent_for
FROM {jobs} j
LEFT JOIN {workers} w ON w.name = j.locked_by
WHERE j.status = 'running' AND j.locked_by IS DISTINCT FROM {broker}
  AND coalesce(w.heartbeat_at, j.locked_at, j.updated_at) < {clock}() - %(slack)s::float8 * coalesce(
          w.lease, make_interval(secs => CASE WHEN j.locked_by ~ %(own_name)s THEN %(lease)s::float8
                                              ELSE %(foreign_age)s::float8 END))
GROUP BY j.locked_by
ORDER BY jobs DESC
LIMIT 20

-- name: unexplained_failures
-- A `failed` that gives none of our reasons was written by a stranger, and nobody looks at it unless told.
SELECT kind, count(*) AS jobs, max(id) AS last_id
FROM {jobs}
WHERE status = 'failed' AND updated_at >= {clock}() - make_interval(secs => %(within)s::float8)
  AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)')
GROUP BY kind
ORDER BY jobs DESC
LIMIT 20

-- name: clock
SELECT {clock}() AS now

-- name: transaction_began
SELECT transaction_timestamp() AS began

-- name: probe_json
-- Whether a driver gives JSON as text or read.
SELECT '""'::jsonb

-- name: read_clock
-- The clock as a test has moved it in its own session, and by how much.
SELECT statement_timestamp() + moved::interval AS now, moved
FROM (SELECT coalesce(nullif(current_setting('redrive.clock_offset', true), ''), '0') AS moved) s

-- name: move_clock
SELECT set_config('redrive.clock_offset', (
    coalesce(nullif(current_setting('redrive.clock_offset', true), ''), '0')::interval
    + make_interval(secs => %(seconds)s::float8))::text, false)

-- name: clear_jobs
-- For tests that can't roll back.
WITH gone AS (DELETE FROM {jobs}) DELETE FROM {failures}

-- name: set_clock
SELECT set_config('redrive.clock_offset', %(moved)s, false)


------------------------------------------------------------------------------------------------ what the desk asks
-- It must survive the incident: what is counted is counted up to a cap and shown as such, what is read is read along an
-- index, and every reading has so many milliseconds.

-- name: desk_terms
-- Said first in each transaction of the desk that only looks.
SELECT set_config('transaction_read_only', 'on', true) AS read_only,
       set_config('statement_timeout', %(timeout)s::text, true) AS timeout, set_config('jit', 'off', true) AS jit

-- name: desk_place
SELECT {clock}() AS now, clock_timestamp() AS time, current_database()::text AS database, current_user::text AS role,
       current_setting('server_version') AS version, pg_is_in_recovery() AS replica,
       current_setting('default_transaction_read_only') = 'on' AS read_only,
       has_table_privilege(format('%%I.jobs', {schema_name}::text), 'UPDATE') AS may_write

-- name: desk_running
-- updated_at of a running job is its claim or its last progress; locked_at is renewed.
SELECT kind, count(*) AS jobs, count(*) FILTER (WHERE cancel_requested_at IS NOT NULL) AS stopping,
       extract(epoch FROM {clock}() - min(updated_at))::float8 AS longest
FROM {jobs} WHERE status = 'running' GROUP BY kind ORDER BY kind LIMIT 500

-- name: desk_holders
SELECT locked_by AS worker, count(*) AS jobs, extract(epoch FROM {clock}() - min(updated_at))::float8 AS longest
FROM {jobs} WHERE status = 'running' GROUP BY locked_by LIMIT 500

-- name: desk_overdue
-- Running for longer than the handler's timeout: a thread can't be stopped, and what it said last is its updated_at.
SELECT j.id, j.kind, j.locked_by AS worker, t.timeout, extract(epoch FROM {clock}() - j.updated_at)::float8 AS seconds
FROM unnest(%(kinds)s::text[], %(timeouts)s::float8[]) AS t(kind, timeout)
JOIN {jobs} j ON j.kind = t.kind
WHERE j.status = 'running' AND j.updated_at < {clock}() - make_interval(secs => t.timeout + %(slack)s::float8)
  AND j.locked_by IS DISTINCT FROM {broker}
ORDER BY j.updated_at
LIMIT 20

-- name: desk_suspects
-- Their worker died while they may have run.
(SELECT id, kind, status::text, crashes, updated_at FROM {jobs} WHERE status = 'running' AND crashes > 0 ORDER BY id LIMIT 20)
UNION ALL
(SELECT id, kind, status::text, crashes, updated_at FROM {jobs} WHERE alone AND status || '' = 'pending' ORDER BY run_at, id LIMIT 20)

-- name: desk_failures
-- The failed attempts of the last day by kind, as far as the newest of them reach.
WITH newest AS MATERIALIZED (
    SELECT kind, outcome, error_type, failed_at FROM {failures} ORDER BY id DESC LIMIT %(most)s::int
)
SELECT kind, count(*) AS day, count(*) FILTER (WHERE failed_at >= {clock}() - interval '1 hour') AS hour,
       count(*) FILTER (WHERE outcome = 'dead') AS dead, mode() WITHIN GROUP (ORDER BY error_type) AS mostly,
       max(failed_at) AS last,
       (SELECT count(*) >= %(most)s::int AND min(failed_at) > {clock}() - interval '1 day' FROM newest) AS capped
FROM newest
WHERE failed_at >= {clock}() - interval '1 day'
GROUP BY kind
ORDER BY hour DESC, day DESC, kind
LIMIT 50

-- name: desk_horizon
-- Who holds the oldest transaction that some reader might still need: until it ends no dead row can be removed.
SELECT what, name, application, state, seconds, query
FROM (
    SELECT 'session' AS what, pid::text AS name, application_name AS application, coalesce(state, '') AS state,
           extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds, left(query, 500) AS query,
           greatest(age(backend_xmin), age(backend_xid)) AS held
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared transaction', gid, '', 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float8, '', age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name::text, '', CASE WHEN active THEN 'active' ELSE 'not active' END, NULL, '', age(xmin)
    FROM pg_replication_slots
) h
WHERE held IS NOT NULL
ORDER BY held DESC, seconds DESC NULLS LAST
LIMIT 1

-- name: desk_tables
SELECT relname::text AS name, n_live_tup AS live, n_dead_tup AS dead, greatest(last_autovacuum, last_vacuum) AS vacuumed,
       greatest(last_autoanalyze, last_analyze) AS analyzed, pg_table_size(relid) AS bytes, pg_indexes_size(relid) AS index_bytes
FROM pg_stat_user_tables
WHERE schemaname = {schema_name}::text
ORDER BY pg_table_size(relid) DESC, relname
LIMIT 20

-- name: desk_server
SELECT pg_notification_queue_usage() AS notifications, current_setting('max_connections')::int AS connections_most,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       (SELECT count(*) FROM pg_stat_replication) AS replicas,
       (SELECT max(extract(epoch FROM replay_lag))::float8 FROM pg_stat_replication) AS replica_lag,
       CASE WHEN pg_is_in_recovery() THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 END AS behind,
       (SELECT count(*) FROM pg_replication_slots WHERE NOT active) AS idle_slots

-- name: desk_bounds
SELECT coalesce(min(id), 0) AS first, coalesce(max(id), 0) AS last FROM {jobs}

-- name: desk_search
-- One piece of a search: the ids from :low up to, not including, :before, newest first. Which rows are looked at is one of
-- the ways; all but the one asked for are known to be empty when the statement is planned, which is done anew each time.
-- The caller goes from piece to piece, as large as its time allows, so what no index serves costs no more than that.
SELECT id, kind, status::text, attempts, max_attempts, run_at, locked_at, locked_by, created_at, updated_at, priority, lane,
       key, crashes, cancel_requested_at,
       CASE WHEN length(last_error) > 3000 THEN left(last_error, 500) || E'\n...\n' || right(last_error, 2000)
            ELSE last_error END AS last_error,
       CASE WHEN pg_column_size(payload) < 8000 THEN payload END AS payload
FROM (
    SELECT * FROM {jobs} WHERE %(way)s::text = 'all' AND id >= %(low)s::bigint AND id < %(before)s::bigint
    UNION ALL
    SELECT * FROM {jobs} WHERE %(way)s::text IN ('dead', 'ended') AND status = 'dead' AND id >= %(low)s::bigint AND id < %(before)s::bigint
    UNION ALL
    SELECT * FROM {jobs} WHERE %(way)s::text IN ('failed', 'ended') AND status = 'failed' AND id >= %(low)s::bigint AND id < %(before)s::bigint
    UNION ALL
    SELECT * FROM {jobs} WHERE %(way)s::text = 'running' AND status = 'running' AND id >= %(low)s::bigint AND id < %(before)s::bigint
    UNION ALL
    SELECT * FROM {jobs} WHERE %(way)s::text = 'batch' AND batch = ANY(%(batches)s::bigint[]) AND id >= %(low)s::bigint AND id < %(before)s::bigint
    UNION ALL
    SELECT * FROM {jobs} WHERE %(way)s::text = 'ids' AND id = ANY(%(ids)s::bigint[]) AND id < %(before)s::bigint
) j
WHERE (%(statuses)s::text[] IS NULL OR status::text = ANY(%(statuses)s::text[])
       OR 'due' = ANY(%(statuses)s) AND status = 'pending' AND run_at <= {clock}()
       OR 'scheduled' = ANY(%(statuses)s) AND status = 'pending' AND run_at > {clock}()
       OR 'retrying' = ANY(%(statuses)s) AND status = 'pending' AND attempts > 0)
  AND (%(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s::text[]))
  AND (%(not_kinds)s::text[] IS NULL OR kind <> ALL(%(not_kinds)s::text[]))
  AND (%(lanes)s::text[] IS NULL OR lane = ANY(%(lanes)s::text[]))
  AND (%(keys)s::text[] IS NULL OR key = ANY(%(keys)s::text[]))
  AND (%(workers)s::text[] IS NULL OR locked_by = ANY(%(workers)s::text[]))
  AND (%(batches)s::bigint[] IS NULL OR batch = ANY(%(batches)s::bigint[]))
  AND (%(created_before)s::timestamptz IS NULL OR created_at <= %(created_before)s::timestamptz)
  AND (%(created_after)s::timestamptz IS NULL OR created_at >= %(created_after)s::timestamptz)
  AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s::timestamptz)
  AND (%(until)s::timestamptz IS NULL OR updated_at <= %(until)s::timestamptz)
  AND (%(errors)s::text[] IS NULL OR last_error ILIKE ALL(%(errors)s::text[]))
  AND (%(words)s::text[] IS NULL OR concat_ws(' ', kind, key, lane, last_error) ILIKE ALL(%(words)s::text[]))
  AND (%(paths)s::text[] IS NULL OR NOT EXISTS (
          SELECT FROM unnest(%(documents)s::text[], %(paths)s::text[], %(values)s::text[]) AS c(document, path, value)
          WHERE NOT coalesce((CASE c.document WHEN 'payload' THEN payload WHEN 'metadata' THEN metadata WHEN 'result' THEN result
                              END) #>> c.path::text[] LIKE c.value, false)
      ))
ORDER BY id DESC
LIMIT %(limit)s

-- name: desk_first_waiting
-- The pending jobs in the order in which those of each kind are taken, a page after a known one. Times as text: some
-- are beyond what Python can hold.
SELECT id, kind, priority, lane, run_at::text AS run_at FROM {jobs}
WHERE status = 'pending' AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
  AND (%(after_kind)s::text IS NULL OR (kind, priority, lane, run_at, id) > (
          %(after_kind)s::text, %(after_priority)s::smallint, %(after_lane)s::text, %(after_run_at)s::timestamptz,
          %(after_id)s::bigint))
ORDER BY kind, priority, lane, run_at, id
LIMIT %(limit)s

-- name: desk_run_now
-- Let pending jobs run now that wait for a later time, with the row in the audit. Their attempts stay as they are.
WITH chosen AS MATERIALIZED (
    SELECT id FROM {jobs}
    WHERE id = ANY(%(ids)s::bigint[]) AND status || '' = 'pending' AND run_at > {clock}()
    ORDER BY id
    FOR NO KEY UPDATE
), moved AS (
    UPDATE {jobs} SET run_at = {clock}(), updated_at = {clock}()
    WHERE id = ANY(ARRAY(SELECT id FROM chosen))
    RETURNING id
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, skipped, job_id)
    SELECT {clock}(), %(who)s::text, 'run now', jsonb_build_object('ids', %(ids)s::bigint[]), %(why)s::text,
           (SELECT count(*) FROM moved), cardinality(%(ids)s::bigint[]) - (SELECT count(*) FROM moved),
           CASE WHEN cardinality(%(ids)s::bigint[]) = 1 THEN (%(ids)s::bigint[])[1] END
    WHERE EXISTS (SELECT FROM moved)
)
SELECT id FROM moved ORDER BY id

-- name: desk_history
SELECT * FROM {failures} WHERE job_id = %(id)s::bigint ORDER BY id DESC LIMIT %(limit)s

-- name: desk_at
-- When the first job from this id on was enqueued.
SELECT created_at FROM {jobs} WHERE id >= %(id)s::bigint ORDER BY id LIMIT 1
------------------------------------------------------------------------------------------------ what needs a human, and sending it back

-- name: failure_groups
-- The groups with dead jobs, or with jobs that failed and will be tried again; or the :group of :kind alone. Each index is
-- walked group by group (a loose index scan), and each count ends at :cap, so that the answer takes as long for a million dead
-- as for ten thousand. Dead jobs of ours are counted within their index. What history knows is asked of the groups on the
-- page alone, within its index.
WITH RECURSIVE dying AS (
    (SELECT kind, fingerprint AS grp FROM {jobs}
     WHERE fingerprint IS NOT NULL AND locked_by IS NULL
       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
       AND %(group)s::text IS NULL AND kind >= coalesce(%(kind)s::text, '')
     ORDER BY kind, fingerprint LIMIT 1)
    UNION ALL
    SELECT n.kind, n.grp
    FROM dying l
    CROSS JOIN LATERAL (
        SELECT kind, fingerprint AS grp FROM {jobs}
        WHERE fingerprint IS NOT NULL AND locked_by IS NULL
          AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
          AND (kind, fingerprint) > (l.kind, l.grp)
        ORDER BY kind, fingerprint LIMIT 1
    ) n
    WHERE l.kind = coalesce(%(kind)s::text, l.kind)
), strange AS (
    (SELECT kind, {failure_group}(fingerprint, locked_by, last_error) AS grp FROM {jobs}
     WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
       AND %(group)s::text IS NULL AND kind >= coalesce(%(kind)s::text, '')
     ORDER BY kind, {failure_group}(fingerprint, locked_by, last_error) LIMIT 1)
    UNION ALL
    SELECT n.kind, n.grp
    FROM strange l
    CROSS JOIN LATERAL (
        SELECT kind, {failure_group}(fingerprint, locked_by, last_error) AS grp FROM {jobs}
        WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
          AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
          AND (kind, {failure_group}(fingerprint, locked_by, last_error)) > (l.kind, l.grp)
        ORDER BY kind, {failure_group}(fingerprint, locked_by, last_error) LIMIT 1
    ) n
    WHERE l.kind = coalesce(%(kind)s::text, l.kind)
), failing AS (
    (SELECT kind, fingerprint AS grp FROM {jobs}
     WHERE fingerprint IS NOT NULL AND attempts > 0 AND status || '' = 'pending'
       AND %(retrying)s AND %(group)s::text IS NULL AND kind >= coalesce(%(kind)s::text, '')
     ORDER BY kind, fingerprint LIMIT 1)
    UNION ALL
    SELECT n.kind, n.grp
    FROM failing l
    CROSS JOIN LATERAL (
        SELECT kind, fingerprint AS grp FROM {jobs}
        WHERE fingerprint IS NOT NULL AND attempts > 0 AND status || '' = 'pending' AND (kind, fingerprint) > (l.kind, l.grp)
        ORDER BY kind, fingerprint LIMIT 1
    ) n
    WHERE l.kind = coalesce(%(kind)s::text, l.kind)
), each AS MATERIALIZED (
    SELECT kind, grp, bool_or(is_strange) AS is_strange
    FROM ((SELECT kind, grp, false AS is_strange FROM dying LIMIT %(groups)s)
          UNION ALL (SELECT kind, grp, true FROM strange LIMIT %(groups)s)
          UNION ALL (SELECT kind, grp, false FROM failing LIMIT %(groups)s)
          UNION ALL SELECT %(kind)s, %(group)s, true WHERE %(group)s IS NOT NULL) g
    WHERE kind = coalesce(%(kind)s, kind) AND starts_with(grp, %(prefix)s::text)
    GROUP BY kind, grp
), page AS MATERIALIZED (
    SELECT g.kind, g.grp, d.dead, r.retrying, d.first, d.last, d.sample
    FROM each g
    CROSS JOIN LATERAL (
        SELECT count(*) AS dead, min(updated_at) AS first, max(updated_at) AS last,
               (array_agg(id ORDER BY id DESC))[1:3] AS sample
        FROM (
            (SELECT id, updated_at FROM {jobs}
             WHERE fingerprint IS NOT NULL AND locked_by IS NULL
               AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
               AND kind = g.kind AND fingerprint = g.grp
               AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
             ORDER BY id DESC
             LIMIT %(cap)s + 1)
            UNION ALL
            (SELECT id, updated_at FROM {jobs}
             WHERE g.is_strange AND (fingerprint IS NULL OR locked_by IS NOT NULL)
               AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
               AND kind = g.kind AND {failure_group}(fingerprint, locked_by, last_error) = g.grp
               AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
             ORDER BY id DESC
             LIMIT %(cap)s + 1)
        ) x
    ) d
    CROSS JOIN LATERAL (
        SELECT count(*) AS retrying FROM (
            SELECT FROM {jobs}
            WHERE fingerprint IS NOT NULL AND attempts > 0 AND status || '' = 'pending'
              AND kind = g.kind AND fingerprint = g.grp
              AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
            LIMIT %(cap)s + 1
        ) x
    ) r
    WHERE d.dead > 0 OR %(retrying)s AND r.retrying > 0
    ORDER BY d.dead DESC, r.retrying DESC, g.kind, g.grp
    LIMIT %(limit)s
)
SELECT p.kind, p.grp AS key, p.dead, p.retrying, f.failures, least(b.first, p.first) AS first,
       greatest(f.last, p.last) AS last, f.last_hour, f.day_before, coalesce(f.versions, '{{}}') AS versions,
       coalesce(p.sample, '{{}}') AS sample,
       coalesce(p.sample[1], w.job_id) AS newest_id, w.error_type, w.message, {clock}() AS now, %(cap)s::int AS cap, %(history)s::int AS history,
       CASE WHEN w.error_type IS NULL THEN (SELECT last_error FROM {jobs} j WHERE j.id = p.sample[1]) END AS last_error
FROM page p
CROSS JOIN LATERAL (
    SELECT count(*) AS failures, max(failed_at) AS last,
           count(*) FILTER (WHERE failed_at > {clock}() - interval '1 hour') AS last_hour,
           count(*) FILTER (WHERE failed_at <= {clock}() - interval '1 hour' AND failed_at > {clock}() - interval '25 hours')
               AS day_before,
           array_agg(DISTINCT version) FILTER (WHERE version IS NOT NULL) AS versions
    FROM (
        SELECT failed_at, version FROM {failures}
        WHERE fingerprint IS NOT NULL AND kind = p.kind AND fingerprint = p.grp
        ORDER BY failed_at DESC
        LIMIT %(history)s + 1
    ) x
) f
LEFT JOIN LATERAL (
    SELECT failed_at AS first FROM {failures}
    WHERE fingerprint IS NOT NULL AND kind = p.kind AND fingerprint = p.grp
    ORDER BY failed_at
    LIMIT 1
) b ON true
LEFT JOIN LATERAL (
    SELECT job_id, error_type, left(message, 2000) AS message FROM {failures}
    WHERE fingerprint IS NOT NULL AND kind = p.kind AND fingerprint = p.grp
    ORDER BY failed_at DESC
    LIMIT 1
) w ON true
ORDER BY p.dead DESC, p.retrying DESC, p.kind, p.grp

-- name: last_failure_of_group
SELECT * FROM {failures}
WHERE fingerprint IS NOT NULL AND kind = %(kind)s AND fingerprint = %(group)s
ORDER BY failed_at DESC
LIMIT 1

-- name: dead_of_group
-- Newest first, a page before a known id.
SELECT * FROM (
    (SELECT * FROM {jobs}
     WHERE fingerprint IS NOT NULL AND locked_by IS NULL
       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
       AND kind = %(kind)s AND fingerprint = %(group)s AND id < coalesce(%(before)s::bigint, 9223372036854775807)
     ORDER BY id DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM {jobs}
     WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
       AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
       AND kind = %(kind)s AND {failure_group}(fingerprint, locked_by, last_error) = %(group)s
       AND id < coalesce(%(before)s::bigint, 9223372036854775807)
     ORDER BY id DESC LIMIT %(limit)s)
) j
ORDER BY id DESC
LIMIT %(limit)s

-- name: requeue_preview
-- A `failed` without one of our reasons counts as dead, as everywhere here. Counted up to :most, all where that is NULL.
SELECT count(*) AS jobs, min(updated_at) AS first, max(updated_at) AS last, (array_agg(id ORDER BY id))[1:10] AS sample,
       coalesce(max(id), 0) AS last_id, {clock}() AS now
FROM (
    SELECT id, updated_at
    FROM (
        SELECT * FROM {jobs}
        WHERE %(group)s::text IS NULL AND %(ids)s::bigint[] IS NULL AND 'dead' = ANY(%(statuses)s::text[]) AND status = 'dead'
        UNION ALL
        SELECT * FROM {jobs}
        WHERE %(group)s IS NULL AND %(ids)s IS NULL AND 'dead' = ANY(%(statuses)s) AND 'failed' <> ALL(%(statuses)s)
          AND status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)')
        UNION ALL
        SELECT * FROM {jobs}
        WHERE %(group)s IS NULL AND %(ids)s IS NULL AND 'failed' = ANY(%(statuses)s) AND status = 'failed'
        UNION ALL
        SELECT * FROM {jobs}
        WHERE %(group)s IS NULL AND %(ids)s IS NOT NULL AND id = ANY(%(ids)s) AND status || '' IN ('failed', 'dead')
        UNION ALL
        SELECT * FROM {jobs}
        WHERE fingerprint IS NOT NULL AND locked_by IS NULL
          AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
          AND kind = %(kind)s::text AND fingerprint = %(group)s
        UNION ALL
        SELECT * FROM {jobs}
        WHERE (fingerprint IS NULL OR locked_by IS NOT NULL)
          AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
          AND kind = %(kind)s AND {failure_group}(fingerprint, locked_by, last_error) = %(group)s
    ) j
    WHERE (status = ANY(%(statuses)s::text[])
           OR 'dead' = ANY(%(statuses)s::text[]) AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
      AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s)) AND (%(kind)s::text IS NULL OR kind = %(kind)s)
      AND (%(error)s::text IS NULL OR last_error ILIKE %(error)s)
      AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR updated_at <= %(until)s)
      AND (%(path1)s::text[] IS NULL OR payload #>> %(path1)s IS NOT DISTINCT FROM %(value1)s::text)
      AND (%(path2)s::text[] IS NULL OR payload #>> %(path2)s IS NOT DISTINCT FROM %(value2)s::text)
      AND (%(path3)s::text[] IS NULL OR payload #>> %(path3)s IS NOT DISTINCT FROM %(value3)s::text)
      AND (%(path4)s::text[] IS NULL OR payload #>> %(path4)s IS NOT DISTINCT FROM %(value4)s::text)
    LIMIT %(most)s
) meant

-- name: requeue_jobs
-- Send a batch back with a fresh budget; the history stays in failures. One engine for sending back at once and over time.
--
-- * `pace` says how many may go now: :limit, or what the rate of the row of requeues has open (a bucket of tokens that
--   holds no more than some seconds', so that a time in which no worker lived is not made up for in one go). Who gets
--   that row's lock and finds it where he saw it (:after, :seen) advances it, and everyone else does nothing.
-- * `reach` is the next :window of jobs that could be meant, in id order along an index of its own for each way to say
--   which, so that a filter that few match costs many small statements instead of a long one. Only the branch that is
--   asked for runs. All is said by comparisons of rows and in the order of those: with a bare id > after, or ordered by the
--   id alone, the primary key looks short to some plans, and the table is walked along it.
-- * The state is tested again under the lock, so two operators at once move each job once. A row that somebody has locked
--   is passed over.
-- * With a rate they are due one after another.
WITH pace AS MATERIALIZED (
    SELECT NULL::bigint AS id, %(limit)s::int AS quota, NULL::float8 AS rate, NULL::timestamptz AS base
    WHERE %(requeue)s::bigint IS NULL
    UNION ALL
    SELECT id, least(%(limit)s::int, CASE WHEN rate IS NULL THEN %(limit)s::int
                     ELSE floor(least(1e6, extract(epoch FROM {clock}() - base)::float8 * rate + 1e-6)) END)::int, rate, base
    FROM (
        SELECT id, rate, greatest(coalesce(advanced_at, '-infinity'), {clock}() - make_interval(
                   secs => CASE WHEN advanced_at IS NULL THEN 1 / rate ELSE greatest(%(burst)s::float8, 1 / rate) END)) AS base
        FROM {requeues}
        WHERE id = %(requeue)s AND after_id = %(after)s AND status = %(seen)s::text
        FOR NO KEY UPDATE SKIP LOCKED
    ) mine
), reach AS MATERIALIZED (
    SELECT id FROM (
        (SELECT id FROM {jobs}
         WHERE %(group)s::text IS NULL AND %(ids)s::bigint[] IS NULL AND 'dead' = ANY(%(statuses)s::text[])
           AND (SELECT quota FROM pace) > 0
           AND status IN ('failed', 'dead') AND (status, id) > ('dead', %(after)s) AND (status, id) <= ('dead', %(last)s)
         ORDER BY status, id LIMIT %(window)s)
        UNION
        (SELECT id FROM {jobs}
         WHERE %(group)s::text IS NULL AND %(ids)s::bigint[] IS NULL AND 'dead' = ANY(%(statuses)s::text[])
           AND (SELECT quota FROM pace) > 0
           AND status IN ('failed', 'dead') AND status <> 'dead'
           AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)')
           AND (status, id) > ('failed', %(after)s) AND (status, id) <= ('failed', %(last)s)
         ORDER BY status, id LIMIT %(window)s)
        UNION
        (SELECT id FROM {jobs}
         WHERE %(group)s::text IS NULL AND %(ids)s::bigint[] IS NULL AND 'failed' = ANY(%(statuses)s::text[])
           AND (SELECT quota FROM pace) > 0
           AND status IN ('failed', 'dead') AND (status, id) > ('failed', %(after)s) AND (status, id) <= ('failed', %(last)s)
         ORDER BY status, id LIMIT %(window)s)
        UNION
        (SELECT id FROM {jobs}
         WHERE %(group)s::text IS NOT NULL AND (SELECT quota FROM pace) > 0
           AND fingerprint IS NOT NULL AND locked_by IS NULL
           AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
           AND (kind, fingerprint, id) > (%(kind)s, %(group)s, %(after)s)
           AND (kind, fingerprint, id) <= (%(kind)s, %(group)s, %(last)s)
         ORDER BY kind, fingerprint, id LIMIT %(window)s)
        UNION
        (SELECT id FROM {jobs}
         WHERE %(group)s::text IS NOT NULL AND (SELECT quota FROM pace) > 0
           AND (fingerprint IS NULL OR locked_by IS NOT NULL)
           AND (status = 'dead' OR status = 'failed' AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
           AND (kind, {failure_group}(fingerprint, locked_by, last_error), id) > (%(kind)s, %(group)s, %(after)s)
           AND (kind, {failure_group}(fingerprint, locked_by, last_error), id) <= (%(kind)s, %(group)s, %(last)s)
         ORDER BY kind, {failure_group}(fingerprint, locked_by, last_error), id LIMIT %(window)s)
        UNION
        (SELECT id FROM {jobs}
         WHERE %(ids)s::bigint[] IS NOT NULL AND %(group)s::text IS NULL AND (SELECT quota FROM pace) > 0
           AND id = ANY(%(ids)s::bigint[]) AND id > %(after)s AND id <= %(last)s
         ORDER BY id LIMIT %(window)s)
    ) next
    ORDER BY id LIMIT %(window)s
), chosen AS MATERIALIZED (
    SELECT id FROM {jobs}
    WHERE id = ANY(ARRAY(SELECT id FROM reach)) AND status || '' IN ('failed', 'dead')
      AND (status = ANY(%(statuses)s::text[])
           OR 'dead' = ANY(%(statuses)s::text[]) AND (last_error IS NULL OR last_error !~ '^(cancelled|discarded)'))
      AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s)) AND (%(kind)s::text IS NULL OR kind = %(kind)s)
      AND (%(group)s::text IS NULL OR {failure_group}(fingerprint, locked_by, last_error) = %(group)s)
      AND (%(error)s::text IS NULL OR last_error ILIKE %(error)s)
      AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR updated_at <= %(until)s)
      AND (%(path1)s::text[] IS NULL OR payload #>> %(path1)s IS NOT DISTINCT FROM %(value1)s::text)
      AND (%(path2)s::text[] IS NULL OR payload #>> %(path2)s IS NOT DISTINCT FROM %(value2)s::text)
      AND (%(path3)s::text[] IS NULL OR payload #>> %(path3)s IS NOT DISTINCT FROM %(value3)s::text)
      AND (%(path4)s::text[] IS NULL OR payload #>> %(path4)s IS NOT DISTINCT FROM %(value4)s::text)
    ORDER BY id
    LIMIT coalesce((SELECT quota FROM pace), 0)
    FOR UPDATE SKIP LOCKED
), turns AS (
    SELECT id, row_number() OVER (ORDER BY id) AS turn FROM chosen
), sent AS (
    UPDATE {jobs} AS j
    SET status = 'pending', attempts = 0, crashes = 0, alone = false, last_error = NULL, progress = NULL,
        run_at = {clock}() + make_interval(secs => coalesce((t.turn - 1) / (SELECT rate FROM pace), 0)),
        key = NULL, superseded = false, expires_at = NULL, cancel_requested_at = NULL, locked_at = NULL, locked_by = NULL,
        fingerprint = NULL,
        updated_at = {clock}()
    FROM turns t
    WHERE j.id = t.id AND j.id = ANY(ARRAY(SELECT id FROM chosen))
    RETURNING j.id
), done AS (
    SELECT (SELECT count(*) FROM sent) AS moved, (SELECT count(*) FROM reach) AS reached,
           (SELECT count(*) FROM chosen) >= p.quota AS full_batch,
           CASE WHEN p.quota <= 0 THEN %(after)s
                WHEN (SELECT count(*) FROM chosen) >= p.quota THEN (SELECT max(id) FROM chosen)
                ELSE coalesce((SELECT max(id) FROM reach), %(after)s) END AS after_id,
           p.id, p.base, p.rate, p.quota
    FROM pace p
), advanced AS (
    UPDATE {requeues} AS r
    SET moved = r.moved + d.moved, after_id = d.after_id,
        status = CASE WHEN r.status <> 'waiting' THEN r.status WHEN r.canary AND d.moved > 0 THEN 'canary'
                      WHEN r.canary THEN 'waiting' ELSE 'running' END,
        canary_id = CASE WHEN r.status = 'waiting' AND r.canary THEN (SELECT max(id) FROM sent) ELSE r.canary_id END,
        canary_at = CASE WHEN r.status = 'waiting' AND r.canary AND d.moved > 0 THEN {clock}() ELSE r.canary_at END,
        advanced_at = CASE WHEN r.rate IS NULL THEN {clock}() ELSE d.base + make_interval(secs => d.moved / r.rate) END
    FROM done d
    WHERE r.id = d.id AND r.id = %(requeue)s
    RETURNING r.status
), opened AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved)
    SELECT {clock}(), %(who)s::text, 'requeue', %(filter)s::text::jsonb, %(why)s::text, moved FROM done
    WHERE id IS NULL AND moved > 0 AND %(audit)s::bigint IS NULL
    RETURNING id
), counted AS (
    UPDATE {audit} AS a SET moved = a.moved + d.moved FROM done d
    WHERE d.id IS NULL AND a.id = %(audit)s
    RETURNING a.id
)
SELECT ARRAY(SELECT id FROM sent ORDER BY id) AS ids, d.after_id, (d.full_batch OR d.reached >= %(window)s) AS more,
       d.quota, coalesce((SELECT id FROM opened), (SELECT id FROM counted)) AS audit, (SELECT status FROM advanced) AS status
FROM done d

-- name: start_requeue
WITH made AS (
    INSERT INTO {requeues} (filter, rate, canary, by, reason, matched, started_at)
    VALUES (%(filter)s::text::jsonb, %(rate)s::float8, %(canary)s, %(who)s::text, %(why)s::text, %(matched)s,
            %(started_at)s::timestamptz)
    RETURNING *
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, requeue_id, after)
    SELECT {clock}(), by, 'requeue started', filter, reason, id,
           jsonb_build_object('matched', matched, 'rate', rate, 'canary', canary)
    FROM made
)
SELECT * FROM made

-- name: list_requeues
SELECT * FROM {requeues}
WHERE (%(id)s::bigint IS NULL OR id = %(id)s) AND (NOT %(active)s OR status IN ('waiting', 'canary', 'running'))
ORDER BY id DESC
LIMIT %(limit)s

-- name: active_requeues
-- What workers have to advance, each with what has become of its canary.
SELECT r.*, j.id IS NOT NULL AS canary_found, j.status AS canary_status, j.last_error AS canary_error,
       j.last_error IS NOT NULL AND j.attempts > CASE j.status WHEN 'running' THEN 1 ELSE 0 END AS canary_failed
FROM {requeues} r
LEFT JOIN LATERAL (
    SELECT id, status, attempts, last_error FROM {jobs} WHERE id = r.canary_id
    UNION ALL
    SELECT id, status, attempts, last_error FROM {archive} WHERE id = r.canary_id
    LIMIT 1
) j ON true
WHERE r.status IN ('waiting', 'canary', 'running')
ORDER BY r.id

-- name: turn_requeue
-- From one state to the next, where it is still as it was seen: the canary came through, or the end was reached for the
-- first time.
UPDATE {requeues} SET status = %(status)s, rounds = %(rounds)s, after_id = %(after)s, advanced_at = {clock}()
WHERE id = ANY(ARRAY(
    SELECT id FROM {requeues} WHERE id = %(id)s AND status = %(seen)s AND after_id = %(seen_after)s
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING id

-- name: end_requeue
-- Done, stopped or failed, with its row in audit. What was skipped is known only of one that came to its end.
WITH ended AS (
    UPDATE {requeues}
    SET status = %(status)s, why = %(why)s::text, ended_at = {clock}(), matched = coalesce(matched, moved),
        skipped = CASE WHEN %(status)s = 'done' THEN greatest(coalesce(matched, moved) - moved, 0) ELSE 0 END
    WHERE id = ANY(ARRAY(
        SELECT id FROM {requeues}
        WHERE id = %(id)s AND status IN ('waiting', 'canary', 'running') AND (%(seen)s::text IS NULL OR status = %(seen)s)
        FOR NO KEY UPDATE
    ))
    RETURNING *
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, skipped, requeue_id)
    SELECT {clock}(), coalesce(%(by)s::text, by), 'requeue ' || status, filter, coalesce(why, reason), moved, skipped, id
    FROM ended
)
SELECT * FROM ended

-- name: edit_payload
-- A dead (or failed) job's, before it is sent back; what it was stands in audit.
WITH held AS MATERIALIZED (
    SELECT id, kind, payload FROM {jobs} WHERE id = %(id)s AND status || '' IN ('failed', 'dead') FOR UPDATE
), edited AS (
    UPDATE {jobs} AS j
    SET payload = %(payload)s::text::jsonb,
        status = CASE WHEN %(send)s THEN 'pending' ELSE j.status END,
        attempts = CASE WHEN %(send)s THEN 0 ELSE j.attempts END,
        run_at = CASE WHEN %(send)s THEN {clock}() ELSE j.run_at END,
        last_error = CASE WHEN %(send)s THEN NULL ELSE j.last_error END,
        fingerprint = CASE WHEN %(send)s THEN NULL ELSE j.fingerprint END,
        progress = CASE WHEN %(send)s THEN NULL ELSE j.progress END,
        cancel_requested_at = CASE WHEN %(send)s THEN NULL ELSE j.cancel_requested_at END,
        locked_by = CASE WHEN %(send)s THEN NULL ELSE j.locked_by END,
        locked_at = CASE WHEN %(send)s THEN NULL ELSE j.locked_at END,
        crashes = 0, alone = false, superseded = false, key = NULL, expires_at = NULL, updated_at = {clock}()
    FROM held h
    WHERE j.id = h.id AND j.id = %(id)s
    RETURNING j.id
), noted AS (
    INSERT INTO {audit} (at, by, action, filter, reason, moved, job_id, before, after)
    SELECT {clock}(), %(who)s::text, CASE WHEN %(send)s THEN 'edit and requeue' ELSE 'edit' END,
           jsonb_build_object('kind', kind, 'ids', jsonb_build_array(id)), %(why)s::text, 1, id, payload, %(payload)s::text::jsonb
    FROM held
)
SELECT id FROM edited

-- name: estimated_jobs
-- About how many jobs there are, as the last ANALYZE or vacuum saw it; counting millions takes seconds.
SELECT greatest(c.reltuples, 0)::bigint AS jobs
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema_name} AND c.relname = 'jobs'

-- name: admin_patience
-- In the transaction of a page: no search of it goes on for ever.
SELECT set_config('statement_timeout', %(timeout)s, true)

-- name: list_audit
-- Newest first, a page before a known id.
SELECT * FROM {audit}
WHERE (%(job)s::bigint IS NULL OR job_id = %(job)s) AND (%(requeue)s::bigint IS NULL OR requeue_id = %(requeue)s)
  AND (%(action)s::text IS NULL OR action = %(action)s) AND (%(by)s::text IS NULL OR by = %(by)s)
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC
LIMIT %(limit)s

-- name: write_audit
-- For what is done in several statements: begun with one, brought up to date by the others.
INSERT INTO {audit} (at, by, action, filter, reason, moved)
VALUES ({clock}(), %(who)s::text, %(action)s::text, %(filter)s::text::jsonb, %(why)s::text, %(moved)s)
RETURNING id

-- name: count_audit
UPDATE {audit} SET moved = %(moved)s, skipped = %(skipped)s WHERE id = %(id)s

-- name: prune_audit
DELETE FROM {audit} WHERE id = ANY(ARRAY(
    SELECT id FROM (SELECT id, at FROM {audit} ORDER BY id LIMIT %(window)s) oldest
    WHERE at < {clock}() - make_interval(secs => %(keep)s::float8)))
RETURNING id

-- name: prune_requeues
DELETE FROM {requeues} WHERE ended_at < {clock}() - make_interval(secs => %(keep)s::float8)


------------------------------------------------------------------------------------------------ what people are told

-- name: begin_alert_look
-- Who moves this row on looks: of all workers one, and the others find that it has been done.
UPDATE {alert_state} SET looked_at = {clock}()
WHERE one AND coalesce(looked_at <= {clock}() - make_interval(secs => %(every)s::float8), true)
RETURNING looked_at AS now, last_failure, digest_at

-- name: keep_alert_look
-- A look that takes long is still under way: nobody else begins one, unless somebody has.
UPDATE {alert_state} SET looked_at = {clock}() WHERE one AND looked_at = %(looked_at)s::timestamptz
RETURNING looked_at

-- name: alert_deaths
-- Deaths by kind since the row of failures that was read last.
WITH recent AS MATERIALIZED (
    SELECT id, kind, outcome FROM {failures} WHERE id > %(after)s::bigint ORDER BY id LIMIT 100000
)
SELECT kind, count(*) FILTER (WHERE outcome = 'dead') AS deaths, max(id) AS last FROM recent GROUP BY kind

-- name: read_alerts
SELECT rule, subject, text, value, told_value, began_at, told_at, missed FROM {alerts} ORDER BY began_at, rule, subject

-- name: write_alerts
-- What is remembered of a look, and the messages that it gave rise to: all of it or nothing. Nothing where somebody else
-- has begun a look meanwhile: what both found would be told twice.
WITH held AS (
    UPDATE {alert_state}
    SET last_failure = coalesce(%(last)s::bigint, (SELECT coalesce(max(id), 0) FROM {failures})),
        digest_at = coalesce(%(digest_at)s::timestamptz, digest_at, {clock}())
    WHERE one AND looked_at = %(looked_at)s::timestamptz
    RETURNING one
), kept AS (
    INSERT INTO {alerts} AS a (rule, subject, text, value, told_value, began_at, told_at, missed)
    SELECT n.* FROM held, unnest(%(rule)s::text[], %(subject)s::text[], %(text)s::text[], %(value)s::float8[], %(told_value)s::float8[],
                         %(began_at)s::timestamptz[], %(told_at)s::timestamptz[], %(missed)s::int[]) AS n
    ON CONFLICT (rule, subject) DO UPDATE
    SET text = excluded.text, value = excluded.value, told_value = excluded.told_value, told_at = excluded.told_at,
        missed = excluded.missed
), gone AS (
    DELETE FROM {alerts} a
    USING held, unnest(%(over_rules)s::text[], %(over_subjects)s::text[]) AS o(rule, subject)
    WHERE a.rule = o.rule AND a.subject = o.subject
), sent AS (
    INSERT INTO {alert_messages} (channel, sort, message, created_at, due_at)
    SELECT channel, sort, message::jsonb, {clock}(), {clock}()
    FROM held, unnest(%(channels)s::text[], %(sorts)s::text[], %(messages)s::text[]) AS m(channel, sort, message)
), old AS (
    DELETE FROM {alert_messages} WHERE created_at < {clock}() - interval '30 days'
)
SELECT one FROM held

-- name: claim_alert_message
-- Take one message for as long as a slow server may need for it: nobody else sends it meanwhile, and a worker that dies
-- with it loses nothing. After a day it is given up.
UPDATE {alert_messages}
SET tries = tries + 1, due_at = {clock}() + interval '5 minutes'
WHERE id = (
    SELECT id FROM {alert_messages}
    WHERE sent_at IS NULL AND due_at <= {clock}() AND channel = ANY(%(channels)s::text[])
      AND created_at > {clock}() - interval '1 day'
    ORDER BY due_at, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING id, channel, message, tries

-- name: settle_alert_message
UPDATE {alert_messages}
SET sent_at = CASE WHEN %(error)s::text IS NULL THEN {clock}() END, error = %(error)s,
    due_at = {clock}() + make_interval(secs => least(3600, 30 * 2 ^ least(tries - 1, 10))::float8)
WHERE id = %(id)s

-- name: alert_channels
SELECT channel, max(sent_at) AS sent_at, count(*) FILTER (WHERE sent_at IS NULL AND created_at > {clock}() - interval '1 day') AS waiting,
       (array_agg(error ORDER BY created_at DESC) FILTER (WHERE sent_at IS NULL AND error IS NOT NULL
                                                            AND created_at > {clock}() - interval '1 day'))[1] AS error
FROM {alert_messages} GROUP BY channel ORDER BY channel

-- name: alert_state
SELECT {clock}() AS now, looked_at, last_failure, digest_at FROM {alert_state}


------------------------------------------------------------------------------------------------ what the doctor asks
-- All of it only looks, and reads the catalogs and a bounded number of rows.

-- name: doctor_timeout
SELECT set_config('statement_timeout', %(timeout)s, true)

-- name: doctor_tables
SELECT c.relname::text AS name, s.n_live_tup AS live, s.n_dead_tup AS dead, s.n_mod_since_analyze AS changed,
       s.last_autovacuum AS autovacuumed, greatest(s.last_autovacuum, s.last_vacuum) AS vacuumed,
       pg_table_size(c.oid) AS bytes, age(c.relfrozenxid) AS frozen_age,
       coalesce(array_to_string(c.reloptions, ',') ~ 'autovacuum_enabled=(false|off|no|0)', false) AS autovacuum_off
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE n.nspname = {schema_name}::text AND c.relkind = 'r'
ORDER BY pg_table_size(c.oid) DESC, c.relname

-- name: doctor_indexes
SELECT c.relname::text AS name, t.relname::text AS table_name, i.indisvalid AND i.indisready AS valid,
       pg_relation_size(c.oid) AS bytes, greatest(c.reltuples, 0)::bigint AS entries
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = {schema_name}::text
ORDER BY c.relname

-- name: doctor_triggers
SELECT g.tgname::text AS name, t.relname::text AS table_name, g.tgenabled::text AS enabled
FROM pg_trigger g
JOIN pg_class t ON t.oid = g.tgrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = {schema_name}::text AND NOT g.tgisinternal
ORDER BY g.tgname

-- name: doctor_roles
-- As whom workers are here now, and this session.
SELECT usename::text AS role, bool_or(application_name LIKE 'redrive claim %%') AS works
FROM pg_stat_activity
WHERE datname = current_database()
  AND (application_name LIKE 'redrive claim %%' OR pid = pg_backend_pid()) AND usename IS NOT NULL
GROUP BY usename ORDER BY usename

-- name: doctor_rights
-- Which of the rights given a role does not have.
SELECT g.table_name AS name, g.privilege
FROM unnest(%(tables)s::text[], %(privileges)s::text[]) WITH ORDINALITY AS g(table_name, privilege, nth)
WHERE NOT coalesce(has_table_privilege(%(role)s::name, to_regclass(format('%%I.%%I', {schema_name}::text, g.table_name)), g.privilege), true)
ORDER BY g.nth

-- name: doctor_usage
SELECT has_schema_privilege(%(role)s::name, {schema_name}, 'USAGE') AS allowed

-- name: doctor_sequences
SELECT sequencename::text AS name, last_value AS last, max_value AS most, cycle
FROM pg_sequences WHERE schemaname = {schema_name}::text ORDER BY sequencename

-- name: doctor_settings
SELECT current_setting('autovacuum')::boolean AS autovacuum, current_setting('track_counts')::boolean AS track_counts,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout') AS idle_in_transaction,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
       current_setting('autovacuum_freeze_max_age')::bigint AS freeze_max_age,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS frozen_age,
       current_setting('server_version') AS version, pg_is_in_recovery() AS standby,
       pg_has_role(current_user, 'pg_monitor', 'MEMBER') OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS sees_all,
       current_user::text AS role, current_database()::text AS database

-- name: doctor_listeners
-- Living workers that hear nothing: without a session that listens, or with one that is gone.
SELECT w.name, w.listener_pid IS NULL AS deaf, w.listener_pid > 0 AND a.pid IS NULL AS gone
FROM {workers} w
LEFT JOIN pg_stat_activity a ON a.pid = w.listener_pid
WHERE w.heartbeat_at > {clock}() - w.lease
ORDER BY w.name

-- name: doctor_clocks
SELECT host, max(clock_skew) AS ahead, min(clock_skew) AS least
FROM {workers} WHERE heartbeat_at > {clock}() - lease AND clock_skew IS NOT NULL
GROUP BY host ORDER BY host

-- name: doctor_oldest
-- The oldest succeeded job among the first thousand rows.
SELECT extract(epoch FROM {clock}() - min(updated_at))::float8 AS age, (SELECT count(*) FROM (SELECT FROM {jobs} LIMIT 1) x) AS any
FROM (SELECT status, updated_at FROM {jobs} ORDER BY id LIMIT 1000) first
WHERE status = 'succeeded'

-- name: doctor_statements_place
SELECT n.nspname::text AS schema, e.extversion AS version, current_setting('server_version_num')::int AS server_version
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'

-- name: doctor_statements
-- How much of this database's time went into statements that name the schema, and what a claim takes.
SELECT sum({total_time})::float8 AS total, coalesce(sum({total_time}) FILTER (WHERE ours), 0)::float8 AS ours,
       sum({wal_written}) FILTER (WHERE ours)::float8 AS wal, sum(calls) FILTER (WHERE claims)::bigint AS claims,
       (sum({total_time}) FILTER (WHERE claims) / nullif(sum(calls) FILTER (WHERE claims), 0))::float8 AS claim_ms,
       extract(epoch FROM clock_timestamp() - {since})::float8 AS seconds
FROM (
    SELECT *, position(%(quoted)s::text IN query) > 0 OR position({schema_name}::text || '.jobs' IN query) > 0 AS ours,
           query LIKE '%%due AS MATERIALIZED%%SKIP LOCKED%%' AND position(%(quoted)s::text IN query) > 0 AS claims
    FROM {statements_view} s
    WHERE s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
) s

-- name: doctor_counted_since
(SELECT stats_reset FROM {info_view})

-- name: doctor_counted_since_unknown
NULL::timestamptz


------------------------------------------------------------------------------------------------ what capacity asks
-- It only looks. The newest rows say what payloads are now, and what was in their place a year ago does not matter.

-- name: capacity_payload
SELECT avg(octet_length(payload::text))::float8 AS bytes, count(*) AS jobs
FROM (SELECT payload FROM {jobs} ORDER BY id DESC LIMIT %(newest)s::int) newest

-- name: capacity_server
SELECT current_setting('max_connections')::int AS most,
       current_setting('superuser_reserved_connections')::int
       + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       (SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND application_name ~ '^redrive (claim|outcome|heartbeat|listen)') AS workers,
       pg_size_bytes(current_setting('shared_buffers'))::float8 AS buffers,
       pg_size_bytes(current_setting('max_wal_size'))::float8 AS wal_size,
       (SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()) AS since,
       current_setting('server_version') AS version

-- name: capacity_processes
SELECT count(*) AS processes, count(DISTINCT host) AS hosts
FROM {workers} WHERE heartbeat_at > {clock}() - lease AND {works_as} <> 'relay'


------------------------------------------------------------------------------------------------ what the doctor prescribes
-- Never run by redrive: shown, with the names put in, to whoever is to run it.

-- name: remedy_end_session
SELECT pg_terminate_backend({pid});

-- name: remedy_end_prepared
ROLLBACK PREPARED {gid};

-- name: remedy_drop_slot
SELECT pg_drop_replication_slot({slot});

-- name: remedy_switch_on
ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf();

-- name: remedy_autovacuum
ALTER TABLE {table} RESET (autovacuum_enabled);

-- name: remedy_vacuum
VACUUM (ANALYZE) {table};

-- name: remedy_reindex
REINDEX INDEX CONCURRENTLY {index};

-- name: remedy_drop_index
DROP INDEX CONCURRENTLY {index};

-- name: remedy_enable_trigger
ALTER TABLE {table} ENABLE TRIGGER {trigger};

-- name: remedy_usage
GRANT USAGE ON SCHEMA {schema} TO {role};

-- name: remedy_rights
GRANT {privileges} ON {table} TO {role};

-- name: remedy_monitor
GRANT pg_monitor TO {role};

-- name: remedy_sequence
ALTER SEQUENCE {sequence} AS bigint NO MAXVALUE;

-- name: remedy_idle
ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '10min';

-- name: remedy_find_listener
SELECT pid, application_name, state, xact_start FROM pg_stat_activity ORDER BY xact_start;

-- name: remedy_find_slots
SELECT slot_name FROM pg_replication_slots WHERE NOT active;


------------------------------------------------------------------------------------------------ the schema itself

-- name: installed_version
SELECT max(version) AS version FROM {migrations}

-- name: applied_migrations
SELECT version FROM {migrations} ORDER BY version

-- name: schema_state
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema_name}) AS has_schema,
       to_regclass(format('%%I.migrations', {schema_name}::text)) IS NOT NULL AS has_migrations,
       coalesce((SELECT array_agg(relname::text ORDER BY relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = {schema_name} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')), '{{}}') AS tables,
       has_database_privilege(current_database(), 'CREATE') AS may_create_schema,
       current_user::text AS role, current_setting('server_version_num')::int AS server_version

-- name: migration_lock
-- One migration at a time per installation; the lock ends with the transaction, also through a pooler.
SELECT pg_advisory_xact_lock({migration_lock})

-- name: migration_timeout
SELECT set_config('lock_timeout', %(timeout)s, true)

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: create_migrations
CREATE TABLE IF NOT EXISTS {migrations} (
    version    int PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: record_migration
INSERT INTO {migrations} (version, name) VALUES ({version}, {name})


------------------------------------------------------------------------------------------------ what redrive bench says
-- All of it in a scratch schema of its own. Rates and waits are read from the rows afterwards: what was measured is what
-- is in the table, and nothing is asked of the database while it works.

-- name: bench_leftovers
SELECT nspname::text AS name FROM pg_namespace WHERE nspname LIKE 'redrive\_bench\_%%' ORDER BY 1

-- name: bench_place
SELECT current_database()::text AS database, current_user::text AS role, version() AS server,
       current_setting('server_version') AS server_version, pg_is_in_recovery() AS standby

-- name: bench_counters
-- Of the whole server and the whole database: other traffic is in them.
SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8 AS wal,
       (SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()) AS transactions

-- name: bench_last_id
SELECT coalesce(max(id), 0) AS id FROM {jobs}

-- name: bench_unfinished
-- Backwards along the primary key, where the last job is found at once for as long as it waits.
SELECT id FROM {jobs} WHERE id > %(after)s::bigint AND status || '' <> 'succeeded' ORDER BY id DESC LIMIT 1

-- name: bench_drained
-- From the first claim to the last outcome, by the database's clock: each is the time at which its statement began.
SELECT count(*) FILTER (WHERE status = 'succeeded') AS jobs, count(*) AS rows,
       extract(epoch FROM max(updated_at) - min(locked_at))::float8 AS seconds
FROM {jobs} WHERE id > %(after)s::bigint

-- name: bench_backlog
-- The most jobs that were in the table and not ended at one moment.
WITH steps AS (
    SELECT created_at AS at, 1 AS step FROM {jobs}
    UNION ALL
    SELECT updated_at, -1 FROM {jobs} WHERE status = 'succeeded'
), levels AS (
    SELECT sum(step) OVER (ORDER BY at, step DESC ROWS UNBOUNDED PRECEDING) AS level FROM steps
)
SELECT coalesce(max(level), 0)::bigint AS most,
       (SELECT count(*) FROM {jobs} WHERE status <> 'succeeded' OR updated_at > (SELECT max(created_at) FROM {jobs})) AS last
FROM levels

-- name: bench_clear
TRUNCATE {jobs}, {failures}, {workers}

-- name: bench_drop
DROP SCHEMA IF EXISTS {schema} CASCADE


------------------------------------------------------------------------------------- a stranger's table: what it is
-- Of `redrive adopt`. All of it reads, most of it only the catalogs; it needs no table of redrive's own.

-- name: adopt_find
-- The table of that name as this session's search path finds it, and where there is none, names that are like it.
SELECT to_regclass(%(name)s::text)::oid AS oid,
       ARRAY(SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_|^information_schema$'
               AND (lower(c.relname) = lower(%(bare)s::text) OR length(%(bare)s::text) > 2 AND position(lower(%(bare)s::text) IN lower(c.relname)) > 0)
             ORDER BY lower(c.relname) <> lower(%(bare)s::text), c.relname LIMIT 5) AS alike

-- name: adopt_table
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS sort,
       format('%%I.%%I', n.nspname, c.relname) AS qualified,
       pg_get_userbyid(c.relowner)::text AS owner, c.reltuples::float8 AS estimate,
       CASE WHEN c.relkind = 'p'
            THEN (SELECT coalesce(sum(pg_total_relation_size(i.inhrelid)), 0) FROM pg_inherits i WHERE i.inhparent = c.oid)
            ELSE pg_total_relation_size(c.oid) END::bigint AS bytes,
       c.relpersistence::text AS persistence, c.relrowsecurity AS row_security, c.relforcerowsecurity AS forced,
       row_security_active(c.oid) AS filtered
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %(table)s::oid

-- name: adopt_columns
WITH RECURSIVE types AS (
    SELECT a.attnum, a.atttypid AS type, a.atttypmod AS typmod, NULL::oid AS domain, false AS refuses_null
    FROM pg_attribute a WHERE a.attrelid = %(table)s::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT types.attnum, t.typbasetype, CASE WHEN types.typmod >= 0 THEN types.typmod ELSE t.typtypmod END, t.oid,
           types.refuses_null OR t.typnotnull
    FROM types JOIN pg_type t ON t.oid = types.type WHERE t.typtype = 'd'
)
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, t.typname AS base,
       CASE WHEN t.typname IN ('varchar', 'bpchar') AND types.typmod > 4 THEN types.typmod - 4 END AS width,
       NOT (a.attnotnull OR types.refuses_null) AS nullable, pg_get_expr(d.adbin, d.adrelid) AS default,
       a.attgenerated <> '' OR a.attidentity = 'a' AS generated,
       ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) AS labels,
       ARRAY(SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k
             WHERE k.contype = 'c' AND (k.contypid IN (SELECT w.domain FROM types w WHERE w.attnum = a.attnum)
                                        OR k.conrelid = a.attrelid AND k.conkey = ARRAY[a.attnum])) AS checks,
       has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS readable,
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE') AS writable
FROM types
JOIN pg_type t ON t.oid = types.type AND t.typtype <> 'd'
JOIN pg_attribute a ON a.attrelid = %(table)s::oid AND a.attnum = types.attnum
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
ORDER BY a.attnum

-- name: adopt_indexes
SELECT c.relname::text AS name, pg_get_indexdef(i.indexrelid) AS definition, i.indisprimary AS primary,
       i.indisunique AS unique, i.indisvalid AND i.indisready AS valid,
       pg_get_expr(i.indpred, i.indrelid) AS predicate,
       ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
             LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
             WHERE k.place <= i.indnkeyatts ORDER BY k.place) AS columns
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %(table)s::oid
ORDER BY NOT i.indisprimary, NOT i.indisunique, 1

-- name: adopt_constraints
-- Those of the table, and the foreign keys of others that lead to it.
SELECT k.conname::text AS name, k.contype::text AS sort, pg_get_constraintdef(k.oid) AS definition, k.convalidated AS validated,
       CASE WHEN k.confrelid = %(table)s::oid AND k.conrelid <> %(table)s::oid THEN k.conrelid::regclass::text END AS referrer
FROM pg_constraint k
WHERE (k.conrelid = %(table)s::oid OR k.confrelid = %(table)s::oid) AND k.contype IN ('p', 'u', 'c', 'f', 'x')
ORDER BY k.confrelid = %(table)s::oid, k.contype, k.conname

-- name: adopt_triggers
SELECT t.tgname::text AS name, pg_get_triggerdef(t.oid, true) AS definition, t.tgenabled <> 'D' AS enabled
FROM pg_trigger t WHERE t.tgrelid = %(table)s::oid AND NOT t.tgisinternal
ORDER BY t.tgname

-- name: adopt_policies
SELECT p.polname::text AS name, p.polcmd::text AS command, p.polpermissive AS permissive,
       CASE WHEN p.polroles = '{{0}}' THEN ARRAY['public']
            ELSE ARRAY(SELECT r.rolname::text FROM pg_roles r WHERE r.oid = ANY (p.polroles) ORDER BY 1) END AS roles,
       p.polroles = '{{0}}' OR EXISTS (SELECT FROM unnest(p.polroles) r (oid) WHERE pg_has_role(r.oid, 'MEMBER')) AS ours,
       pg_get_expr(p.polqual, p.polrelid) AS condition
FROM pg_policy p WHERE p.polrelid = %(table)s::oid
ORDER BY p.polname

-- name: adopt_place
-- Who asks, where, and with which rights.
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS told,
       current_database()::text AS database, current_user::text AS role, r.rolsuper AS super, r.rolbypassrls AS bypasses,
       pg_is_in_recovery() AS standby, current_setting('TimeZone') AS zone, statement_timestamp() AS now,
       pg_has_role(c.relowner, 'USAGE') AS owns,
       ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRIGGER']) p
             WHERE has_table_privilege(c.oid, p)) AS rights,
       has_schema_privilege(c.relnamespace, 'USAGE') AS enters,
       (SELECT s.n_dead_tup FROM pg_stat_all_tables s WHERE s.relid = c.oid) AS dead,
       (SELECT greatest(s.last_analyze, s.last_autoanalyze) FROM pg_stat_all_tables s WHERE s.relid = c.oid) AS analyzed,
       ARRAY(SELECT format('%%s of %%s', split_part(x, '=', 2), coalesce('role ' || q.rolname, 'database ' || d.datname))
             FROM pg_db_role_setting g LEFT JOIN pg_roles q ON q.oid = g.setrole LEFT JOIN pg_database d ON d.oid = g.setdatabase,
                  unnest(g.setconfig) x
             WHERE lower(x) LIKE 'timezone=%%' AND (g.setdatabase = 0 OR d.datname = current_database())) AS zones
FROM pg_roles r, pg_class c WHERE r.rolname = current_user AND c.oid = %(table)s::oid

-- name: adopt_pieces
-- Where the rows are: the table, its partitions, the tables that inherit from it. NULL pages: no plain table.
WITH RECURSIVE pieces AS (
    SELECT %(table)s::oid AS oid
    UNION
    SELECT i.inhrelid FROM pieces JOIN pg_inherits i ON i.inhparent = pieces.oid
)
SELECT n.nspname AS schema, c.relname AS name, c.reltuples::float8 AS estimate,
       CASE WHEN c.relkind = 'r' THEN pg_relation_size(c.oid) / current_setting('block_size')::int END AS pages,
       has_table_privilege(c.oid, 'SELECT') AS readable
FROM pieces JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p'
ORDER BY c.oid

-- name: adopt_probe
-- A few rows, to see what the columns hold before all of them are counted.
SELECT {columns} FROM (SELECT {wanted} FROM {table} LIMIT 2000) few

-- name: adopt_probe_distinct
count(DISTINCT {column}::text)

-- name: adopt_probe_largest
max({column}::float8)

-- name: adopt_census
-- Rows of one stretch of the table by the values of their columns of state and by what their times say: one pass, one
-- hash. What each group means is decided in Python, which knows the words. Two of each group's rows stand for it.
SELECT {groups}, count(*) AS rows, {ends}
FROM {source} GROUP BY {places} LIMIT {most}

-- name: adopt_group
{what} AS {name}

-- name: adopt_group_text
{column}::text

-- name: adopt_group_fate
-- How far a row is, of a table that has no word for it.
CASE WHEN {unknown} THEN NULL WHEN {done} THEN 'true' WHEN {died} THEN 'dead' WHEN {taken} THEN 'taken' ELSE 'false' END

-- name: adopt_group_set
{column} IS NOT NULL

-- name: adopt_group_reached
coalesce({column} >= {most}, false)

-- name: adopt_group_before
coalesce({time} < {cutoff}, false)

-- name: adopt_group_due
-- Whether a row has a time, and whether that is ahead, past, or long past.
CASE WHEN {column} IS NULL THEN 'none' WHEN {time} > {now} THEN 'ahead' WHEN {time} < {cutoff} THEN 'late' ELSE 'past' END

-- name: adopt_group_least
min({time})

-- name: adopt_group_greatest
max({time})

-- name: adopt_source_whole
{table}

-- name: adopt_source_stretch
ONLY {table} WHERE ctid >= {begin}::tid AND ctid < {end}::tid

-- name: adopt_source_rest
ONLY {table} WHERE ctid >= {begin}::tid

-- name: adopt_source_sample
{table} TABLESAMPLE SYSTEM ({percent})

-- name: adopt_settings
-- Of this transaction alone: how long a statement may take and wait, and no compiling for one pass.
SELECT set_config('statement_timeout', %(timeout)s::text, true) AS timeout, set_config('lock_timeout', '3s', true) AS patience,
       set_config('jit', 'off', true) AS jit

-- name: adopt_sample
SELECT {columns} FROM ONLY {table} WHERE ctid = ANY ({rows}::tid[]) AND {condition}

-- name: adopt_sample_any
SELECT {columns} FROM {table} WHERE {condition} LIMIT {most}

-- name: adopt_sample_column
left({column}::text, 2000) AS {name}

-- name: adopt_copies
-- Of a table without a key: rows that are another's exact copy, and how many sorts of them there are.
SELECT coalesce(sum(copies - 1), 0)::bigint AS rows, count(*) AS sorts
FROM (SELECT count(*) AS copies FROM {table} t GROUP BY hashtextextended(t::text, 0) HAVING count(*) > 1) same

-- name: adopt_checks
SELECT k.conname::text AS name, pg_get_constraintdef(k.oid) AS definition, pg_get_expr(k.conbin, k.conrelid) AS expression,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)) AS columns
FROM pg_constraint k WHERE k.conrelid = %(table)s::oid AND k.contype = 'c'
ORDER BY k.conname

-- name: adopt_prove_rows
-- Some rows that wait; where none does, a row of NULLs.
SELECT * FROM {table} WHERE {condition} LIMIT {most}

-- name: adopt_prove_values
{values}::jsonb

-- name: adopt_prove_time
jsonb_build_object({name}, {when})

-- name: adopt_prove_now
statement_timestamp()

-- name: adopt_prove_changed
SELECT {name}.* FROM ({rows}) was
CROSS JOIN LATERAL jsonb_populate_record(NULL::{table}, to_jsonb(was) || {changes}) {name}

-- name: adopt_prove_count
SELECT count(*) FROM ({rows}) rows

-- name: adopt_prove_check
SELECT count(*) FROM ({rows}) rows WHERE NOT ({check})

-- name: adopt_remedy_usage
GRANT USAGE ON SCHEMA {schema} TO {role}

-- name: adopt_remedy_grant
GRANT {rights} ON {table} TO {role}

-- name: adopt_remedy_grant_columns
GRANT {right} ({columns}) ON {table} TO {role}

-- name: adopt_remedy_policy
CREATE POLICY redrive ON {table} TO {role} USING (true) WITH CHECK (true)

-- name: adopt_remedy_logged
ALTER TABLE {table} SET LOGGED

-- name: adopt_remedy_reindex
REINDEX INDEX CONCURRENTLY {index}

-- The tutorial's table made into redrive's own where it stands, see redrive.adopt.inplace. What can wait for nobody is done
-- in short transactions; a column's new type comes by a second column, since a change of type would rewrite the table under
-- a lock that stops everything, and so would a domain that has its constraint from the beginning.

-- name: inplace_state
SELECT coalesce(c.reloptions, '{{}}') AS options, t.typtype::text AS sort, tn.nspname AS type_schema, t.typname AS type,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = %(table)s::oid AND a.attname = 'redrive_status' AND NOT a.attisdropped) AS begun,
       coalesce((SELECT k.convalidated FROM pg_constraint k
                 WHERE k.conrelid = %(table)s::oid AND k.conname = 'redrive_status_there'), false) AS copied,
       EXISTS (SELECT FROM pg_type o WHERE o.typname = 'job_status' AND o.typnamespace = c.relnamespace) AS named,
       (SELECT count(*) FROM pg_attribute a JOIN pg_class o ON o.oid = a.attrelid
        WHERE a.atttypid = t.oid AND o.oid <> c.oid AND o.relkind NOT IN ('i', 'I') AND NOT a.attisdropped) AS others,
       ARRAY(SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
             WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = c.oid AND d.refobjsubid = s.attnum) AS views,
       ARRAY(SELECT o.relname::text FROM pg_class o WHERE o.relnamespace = c.relnamespace AND o.oid <> c.oid
             AND o.relkind IN ('r', 'v', 'm', 'p', 'f')) AS tables,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = to_regclass(format('%%I.migrations', n.nspname))
             AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS migrations
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute s ON s.attrelid = c.oid AND s.attname = 'status'
JOIN pg_type t ON t.oid = s.atttypid JOIN pg_namespace tn ON tn.oid = t.typnamespace
WHERE c.oid = %(table)s::oid

-- name: inplace_indexes
-- The table's own indexes of the state, which go with its column.
SELECT i.indexrelid::bigint AS oid, x.relname::text AS name, pg_get_indexdef(i.indexrelid) AS definition
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = %(table)s::oid AND EXISTS (
    SELECT FROM pg_depend d JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
    WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refobjid = i.indrelid AND a.attname = 'status')
ORDER BY 2

-- name: inplace_made
-- Copies of those that were made before, whole or not.
SELECT x.relname::text AS name, i.indisvalid AS valid FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = %(table)s::oid

-- name: inplace_versions
SELECT version FROM {migrations}

-- name: inplace_domain
CREATE DOMAIN {schema}.job_status AS text CONSTRAINT job_status_known CHECK (VALUE IN ({states}))

-- name: inplace_domain_begin
CREATE DOMAIN {schema}.redrive_job_status AS text

-- name: inplace_column_begin
ALTER TABLE {jobs} ADD COLUMN redrive_status {schema}.redrive_job_status

-- name: inplace_domain_known
ALTER DOMAIN {schema}.redrive_job_status ADD CONSTRAINT job_status_known CHECK (VALUE IN ({states})) NOT VALID

-- name: inplace_function
CREATE FUNCTION {schema}.redrive_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.redrive_status := NEW.status::text;
    RETURN NEW;
END $$

-- name: inplace_trigger
CREATE TRIGGER redrive_status BEFORE INSERT OR UPDATE ON {jobs} FOR EACH ROW EXECUTE FUNCTION {schema}.redrive_status()

-- name: inplace_copy
WITH slice AS (
    SELECT id FROM {jobs} WHERE id > {after} ORDER BY id LIMIT {most}
), copied AS (
    UPDATE {jobs} j SET redrive_status = j.status::text FROM slice WHERE j.id = slice.id AND j.redrive_status IS NULL
)
SELECT max(id) AS last, count(*) AS rows FROM slice

-- name: inplace_there
ALTER TABLE {jobs} ADD CONSTRAINT {name} CHECK ({column} IS NOT NULL) NOT VALID

-- name: inplace_validate
ALTER TABLE {jobs} VALIDATE CONSTRAINT {name}

-- name: inplace_not_null
-- The valid constraint spares the look at every row.
ALTER TABLE {jobs} ALTER COLUMN {column} SET NOT NULL

-- name: inplace_drop_constraint
ALTER TABLE {jobs} DROP CONSTRAINT {name}

-- name: inplace_default
ALTER TABLE {jobs} ALTER COLUMN {column} SET DEFAULT {value}

-- name: inplace_drop_trigger
DROP TRIGGER redrive_status ON {jobs}

-- name: inplace_drop_function
DROP FUNCTION {schema}.redrive_status()

-- name: inplace_drop_column
ALTER TABLE {jobs} DROP COLUMN status

-- name: inplace_rename_column
ALTER TABLE {jobs} RENAME COLUMN redrive_status TO status

-- name: inplace_rename_enum
ALTER TYPE {type} RENAME TO job_status_was

-- name: inplace_rename_domain
ALTER DOMAIN {schema}.redrive_job_status RENAME TO job_status

-- name: inplace_drop_enum
DROP TYPE {type}

-- name: inplace_rename_index
ALTER INDEX {index} RENAME TO {name}

-- name: inplace_drop_index
DROP INDEX CONCURRENTLY IF EXISTS {index}

-- name: inplace_add_column
ALTER TABLE {jobs} ADD COLUMN IF NOT EXISTS {definition}

-- name: inplace_check
ALTER TABLE {jobs} ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID

-- name: inplace_known
-- Of a column of text: the states that there are.
ALTER TABLE {jobs} ADD CONSTRAINT jobs_status_known CHECK (status IN ({states})) NOT VALID

-- name: inplace_storage
ALTER TABLE {jobs} SET ({settings})

-- Terms of a mapping, put together by redrive.adopt.terms and composed into statements. Values are literals in them, so
-- that a trigger, an index and a query all say the same. The time of a naive column is read with the zone that the map
-- says, whatever the session's TimeZone is.

-- name: adopt_term_true
true

-- name: adopt_term_in
{column} IN ({values})

-- name: adopt_known_in
-- Never NULL, so that its contrary isn't either.
coalesce({column} IN ({values}), false)

-- name: adopt_not
NOT {what}

-- name: adopt_term_null
{column} IS NULL

-- name: adopt_term_where
-- The line's end closes what might be a comment.
({where}
)

-- name: adopt_term_tries_left
coalesce({column}, 0) < {most}

-- name: adopt_term_most
coalesce({column}, {most})

-- name: adopt_time_timestamptz
{column}

-- name: adopt_time_timestamp
({column}::timestamp AT TIME ZONE {zone})

-- name: adopt_time_epoch_s
to_timestamp({column}::float8)

-- name: adopt_time_epoch_ms
to_timestamp({column}::float8 / 1000)

-- name: adopt_time_iso
-- The cast to timestamp would drop an offset without a word: only texts that have none are read by the zone.
(CASE WHEN {column} ~ '^\d{{4}}-\d\d-\d\d.*(Z|z|[+-]\d\d(:?\d\d)?)$' AND {column} !~ '^\d{{4}}-\d\d-\d\d$' THEN {column}::timestamptz
      WHEN {column} ~ '^\d{{4}}-\d\d-\d\d' THEN {column}::timestamp AT TIME ZONE {zone} END)

-- name: adopt_spell_timestamptz
{time}

-- name: adopt_spell_timestamp
({time} AT TIME ZONE {zone})

-- name: adopt_spell_epoch_s
floor(extract(epoch FROM {time}))::bigint

-- name: adopt_spell_epoch_ms
floor(extract(epoch FROM {time}) * 1000)::bigint

-- name: adopt_spell_iso
to_char({time} AT TIME ZONE {zone}, 'YYYY-MM-DD"T"HH24:MI:SS.MS') || {offset}


------------------------------------------------------------------------------------- adoptions: the bridge to a table
-- What stands between a stranger's table and the jobs is made when it is connected: five functions and three triggers of
-- its own, with the map's terms written into them, so that no row pays for reading a map. All of them run with the rights
-- of who connected it (SECURITY DEFINER), so neither the application needs rights on our tables nor a worker on theirs.
-- Their search_path has the table's own schema behind pg_catalog, because the table's own triggers run below them.
--
--   in     adopt_inserted, adopt_updated   the table's row waits: a job, in the same transaction
--   begin  adopt_job                       a job is claimed: its row is written as claimed, in the same transaction
--   out    adopt_job                       a job ends, or waits again: so does its row, in the same transaction
--   later  adopt_round                     what the others could not do, and the sweep; said by the workers
--
-- Begin and out are one trigger on the jobs, BEFORE UPDATE OF status. So it is all the same who claims and who writes an
-- outcome: a worker in whatever mode, a reaper, an operator, a hand-written loop; and the engine knows nothing of it. A
-- claimed job whose row is gone never reaches the worker: the trigger ends it and lets the claim pass it over.
--
-- Nothing here waits for a row: one that somebody has locked is passed over, its job comes again in a moment, and what was
-- to be written is owed. An error at one row is caught there and is no other job's trouble.

-- name: adopt_take
-- Make jobs of the rows with these keys, of those that wait and have none. Where the old worker goes on beside us, they are
-- written as claimed at once: what it has not seen it can't send, and what it has read before it will find changed.
-- What is remembered is looked for by a scalar subquery, as in insert_jobs: NOT EXISTS is planned as a join, which where
-- the statistics are from before the first row reads all of it anew for each row (measured: 10,000 rows took 26 s).
CREATE FUNCTION {take}(_keys text[], _again boolean, _gap interval) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {home}, pg_temp {planned} SET lock_timeout = '1s' AS $redrive$
#variable_conflict use_column
DECLARE
    _all text[] := _keys;
    _made int := 0;
    _now int;
BEGIN
    -- In pieces: what is joined here is so small that no plan of the join is a bad one.
    FOR _from IN 1 .. cardinality(_all) BY 200 LOOP
    _keys := _all[_from : _from + 199];
    IF _again THEN
        DELETE FROM {adopted_rows} WHERE ctid = ANY(ARRAY(
            SELECT e.ctid FROM {adopted_rows} e
            WHERE e.adoption = {adoption} AND e.row_key = ANY(_keys) AND e.state IN ('held', 'new', 'ended')
            ORDER BY e.row_key FOR UPDATE SKIP LOCKED
        ));
    END IF;
    WITH found AS MATERIALIZED (
        SELECT {key}::text AS its_key, nextval({job_ids}) AS job, {kind} AS kind, {due} AS due_time,
               {priority} AS job_priority, {most} AS most, {tries} AS tries
        FROM {table} AS its_row
        WHERE {key} = ANY(_keys::{key_type}[]) AND {runnable}
          AND (SELECT e.adoption FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = its_row.{key}::text) IS NULL
        ORDER BY its_row.{key}
        {row_lock}
    ), entered AS (
        INSERT INTO {adopted_rows} (adoption, row_key, job, state)
        SELECT {adoption}, its_key, job, 'waiting' FROM found
        ON CONFLICT (adoption, row_key) DO NOTHING
        RETURNING row_key, job
    ), {blinded} created AS (
        INSERT INTO {jobs} (id, kind, payload, run_at, priority, max_attempts, attempts, metadata)
        SELECT f.job, left(coalesce(nullif(f.kind, ''), '(none)'), 250), jsonb_build_object({key_name}::text, f.its_key),
               greatest(f.due_time, CASE WHEN _gap > '0' THEN {clock}() END) + _gap * (_made + row_number() OVER (ORDER BY f.job) - 1),
               f.job_priority, greatest(f.most, 1), least(greatest(f.tries, 0), greatest(f.most, 1) - 1),
               jsonb_build_object('adopted', jsonb_build_object('adoption', {adoption}, 'table', {table_name}::text, 'row', f.its_key))
        FROM found f JOIN entered n ON n.job = f.job
        RETURNING id
    )
    SELECT count(*) INTO _now FROM created;
    _made := _made + _now;
    END LOOP;
    RETURN _made;
END $redrive$

-- name: adopt_planned
-- As our own connections are set: each statement is planned once, and goes by its index whatever the statistics say.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off

-- name: adopt_blinded
blinded AS (
    UPDATE {table} AS r SET {sets} FROM entered n WHERE r.{key} = n.row_key::{key_type}
),

-- name: adopt_lock
FOR NO KEY UPDATE SKIP LOCKED

-- name: adopt_note
-- Rows that could not be made jobs now, or are not to be: the workers will.
CREATE FUNCTION {note}(_keys text[], _why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $redrive$
BEGIN
    INSERT INTO {adopted_rows} AS e (adoption, row_key, state, due_at, note)
    SELECT {adoption}, k, 'new', {clock}(), _why FROM unnest(_keys) AS k ORDER BY k
    ON CONFLICT (adoption, row_key) DO UPDATE SET state = 'new', due_at = EXCLUDED.due_at, note = EXCLUDED.note, job = NULL
        WHERE e.state IN ('held', 'ended');
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'redrive could not note rows of %: % (%)', {table_name}::text, SQLERRM, SQLSTATE;
END $redrive$

-- name: adopt_inserted
-- Once a statement, for all its rows. The application's INSERT never fails for us: what goes wrong is noted instead.
CREATE FUNCTION {inserted}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {home}, pg_temp {planned} AS $redrive$
#variable_conflict use_column
DECLARE
    _keys text[];
BEGIN
    _keys := ARRAY(SELECT {key}::text FROM fresh WHERE {runnable} AND {young});
    IF _keys <> '{{}}' THEN
        IF EXISTS (SELECT FROM {adoptions} a WHERE a.id = {adoption} AND a.paused_at IS NOT NULL) THEN
            PERFORM {note}(_keys, 'paused');
        ELSE
            PERFORM {take}(_keys, false, '0');
        END IF;
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    {noted}
END $redrive$

-- name: adopt_noted
-- Where a term of the map is the error, which of the rows wait is not known: the workers look at each by itself, and as
-- soon as that can be done. With the key gone there is nothing to note; the round says so, and a sweep would find them.
BEGIN
        PERFORM {note}(coalesce(_keys, ARRAY(SELECT {key}::text FROM fresh)), SQLSTATE || ': ' || SQLERRM);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'redrive could not note rows of %: % (%)', {table_name}::text, SQLERRM, SQLSTATE;
    END;
    RETURN NULL;

-- name: adopt_updated
-- Once a statement, for all its rows. Of business are those that wait and did not before, those that are due at another
-- time, and those that have another key; what our own writes do is none: they say which row they are about to write.
-- Both tables have the statement's rows in the order in which they were written, so the nth is the nth's past: where keys
-- were changed nothing else says whose it is. They are put together by GROUP BY, of which no plan is a bad one: a join is
-- planned once, for the number of rows of the first statement (measured: 20,000 rows after one of one row took 260 s).
CREATE FUNCTION {updated}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {home}, pg_temp {planned} SET lock_timeout = '1s' AS $redrive$
#variable_conflict use_column
DECLARE
    _own text := current_setting('redrive.row', true);
    _keys text[];
    _later text[];
    _dues timestamptz[];
    _old text[];
    _new text[];
    _jobs bigint[];
    _entries {adopted_rows}[];
BEGIN
    SELECT array_agg(its_key) FILTER (WHERE waits AND (NOT waited OR its_key IS DISTINCT FROM its_old)),
           array_agg(its_key) FILTER (WHERE waits AND waited AND its_key = its_old),
           array_agg(due_time) FILTER (WHERE waits AND waited AND its_key = its_old),
           array_agg(its_old) FILTER (WHERE its_key IS DISTINCT FROM its_old),
           array_agg(its_key) FILTER (WHERE its_key IS DISTINCT FROM its_old)
    INTO _keys, _later, _dues, _old, _new
    FROM (
        SELECT max(k) FILTER (WHERE new) AS its_key, max(k) FILTER (WHERE NOT new) AS its_old,
               bool_or(new AND waits) AS waits, bool_or(NOT new AND waits) AS waited, max(due_time) AS due_time,
               max(due) FILTER (WHERE new) IS DISTINCT FROM max(due) FILTER (WHERE NOT new) AS moved
        FROM (SELECT row_number() OVER () AS nth, true AS new, {key}::text AS k, ({runnable}) IS TRUE AS waits,
                     {due_column}::text AS due, {due} AS due_time FROM fresh
              UNION ALL
              SELECT row_number() OVER (), false, {key}::text, ({runnable}) IS TRUE, {due_column}::text, NULL FROM stale) AS each
        GROUP BY nth
    ) AS pair
    WHERE (waits AND (NOT waited OR moved) OR its_key IS DISTINCT FROM its_old)
      AND _own IS DISTINCT FROM {adoption} || ':' || its_key;

    IF _old IS NOT NULL THEN -- all are taken out before one is put back, since one's new key may be another's old one
        WITH gone AS (
            DELETE FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = ANY(_old) RETURNING e.*
        )
        SELECT array_agg(gone) INTO _entries FROM gone;
        INSERT INTO {adopted_rows} (adoption, row_key, job, state, owed, due_at, tries, note, since)
        SELECT {adoption}, _new[array_position(_old, e.row_key)], e.job, e.state, e.owed, e.due_at, e.tries, e.note, e.since
        FROM unnest(_entries) e
        ON CONFLICT (adoption, row_key) DO NOTHING;
        SELECT array_agg(e.job), array_agg(_new[array_position(_old, e.row_key)]) INTO _jobs, _new
        FROM unnest(_entries) e WHERE e.job IS NOT NULL;
        UPDATE {jobs} SET metadata = jsonb_set(metadata, '{{adopted,row}}', to_jsonb(_new[array_position(_jobs, id)]))
        WHERE id = ANY(_jobs) AND metadata @> {mark}::jsonb;
    END IF;
    IF _keys IS NULL THEN
        _keys := '{{}}';
    ELSIF EXISTS (SELECT FROM {adoptions} a WHERE a.id = {adoption} AND a.paused_at IS NOT NULL) THEN
        PERFORM {note}(_keys, 'paused');
    ELSE
        PERFORM {take}(_keys, true, '0');
    END IF;
    FOR _from IN 1 .. coalesce(cardinality(_later), 0) BY 200 LOOP -- in pieces, as in take
        _jobs := ARRAY(
            SELECT (SELECT e.job FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = k AND e.state = 'waiting')
            FROM unnest(_later[_from : _from + 199]) WITH ORDINALITY AS u (k, nth) ORDER BY nth
        );
        UPDATE {jobs} j SET run_at = _dues[_from - 1 + array_position(_jobs, j.id)], updated_at = {clock}()
        WHERE j.id = ANY(_jobs) AND j.status || '' = 'pending'
          AND j.run_at IS DISTINCT FROM _dues[_from - 1 + array_position(_jobs, j.id)];
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    {noted}
END $redrive$

-- name: adopt_write
-- Write to a row what became of its job; it is only written to while it is as we know it. Gives what came of that: written,
-- locked, gone, changed, refused, or later (it is not due after all); whether the row still waits by its own words; and
-- the payload.
CREATE FUNCTION {write}(_key text, _moment text, _tries int, _run_at timestamptz, _error text, _accept text[],
                        OUT _result text, OUT _waits boolean, OUT _payload jsonb, OUT _note text, OUT _due timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {home}, pg_temp {planned} SET lock_timeout = '100ms' AS $redrive$
#variable_conflict use_column
DECLARE
    _marks text[];
BEGIN
    LOCK TABLE {table} IN ROW EXCLUSIVE MODE NOWAIT;
    SELECT ARRAY[CASE WHEN {waits} THEN 'waiting' END, CASE WHEN {is_claimed} THEN 'claimed' END,
                 CASE WHEN {is_dead} THEN 'dead' END, 'any'],
           ({runnable}) IS TRUE, {due}, CASE WHEN _moment = 'claimed' THEN {payload} END
    INTO _marks, _waits, _due, _payload
    FROM {table} AS its_row WHERE {key} = _key::{key_type} FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM {table} WHERE {key} = _key::{key_type};
        _result := CASE WHEN FOUND THEN 'locked' ELSE 'gone' END;
        RETURN;
    END IF;
    IF NOT _marks && _accept THEN
        _result := 'changed';
        RETURN;
    END IF;
    IF 'due' = ANY(_accept) AND _due > {clock}() + interval '1 s' THEN
        _result := 'later';
        RETURN;
    END IF;
    PERFORM set_config('redrive.row', {adoption} || ':' || _key, true);
    CASE _moment
        WHEN 'claimed' THEN {claimed}
        WHEN 'waiting' THEN {waiting}
        WHEN 'returned' THEN {returned}
        WHEN 'succeeded' THEN {succeeded}
        WHEN 'dead' THEN {dead}
    END CASE;
    PERFORM set_config('redrive.row', '', true);
    _result := 'written';
EXCEPTION
    WHEN lock_not_available THEN
        _result := 'locked';
    WHEN OTHERS THEN
        _result := 'refused';
        _note := SQLSTATE || ': ' || left(SQLERRM, 500);
END $redrive$

-- name: adopt_write_update
UPDATE {table} AS r SET {sets} WHERE r.{key} = _key::{key_type};
            IF NOT FOUND THEN
                RAISE EXCEPTION 'a trigger of the table keeps the row as it is' USING ERRCODE = 'P0001';
            END IF;
            SELECT ({runnable}) IS TRUE, CASE WHEN _moment = 'claimed' THEN {payload} END INTO _waits, _payload FROM {table} AS its_row
            WHERE {key} = _key::{key_type};

-- name: adopt_write_delete
DELETE FROM {table} AS r WHERE r.{key} = _key::{key_type};
            _waits := false;

-- name: adopt_write_nothing
NULL;

-- name: adopt_set
{column} = {value}

-- name: adopt_value_error
left({error}, {width})

-- name: adopt_value_whole_error
-- What the old script would have written: the error, and not how it came to be, which stands with the job.
regexp_replace(_error, '^.*Traceback \(most recent call last\):\n([ \t][^\n]*\n)*', '')

-- name: adopt_value_tries
_tries

-- name: adopt_value_run_at
_run_at

-- name: adopt_value_null
NULL

-- name: adopt_value_clock
{clock}()

-- name: adopt_value_later
{clock}() + make_interval(secs => {seconds})

-- name: adopt_is
{column} = {value}

-- name: adopt_never
false

-- name: adopt_payload_row
to_jsonb(its_row)

-- name: adopt_payload_columns
jsonb_build_object({pairs})

-- name: adopt_payload_json
{column}::jsonb

-- name: adopt_payload_bytes
convert_from({column}, 'UTF8')::jsonb

-- name: adopt_due
coalesce({time}, {clock}())

-- name: adopt_priority_low
coalesce(least(9, greatest(0, 5 + ({column}::numeric - {normal}))), 5)::smallint

-- name: adopt_priority_high
coalesce(least(9, greatest(0, 5 - ({column}::numeric - {normal}))), 5)::smallint

-- name: adopt_priority_words
coalesce(({words}::jsonb ->> {column}::text)::smallint, 5::smallint)

-- name: adopt_priority_none
5::smallint

-- name: adopt_text
{column}::text

-- name: adopt_tries
coalesce({column}, 0)

-- name: adopt_young
({created} < {cutover}::timestamptz) IS NOT TRUE

-- name: adopt_since
{created} >= {cutover}::timestamptz

-- name: adopt_job
-- Begin and out. Of a job that is not its row's (a copy that somebody replays, or one that was forged) the row knows nothing.
CREATE FUNCTION {of_job}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {home}, pg_temp {planned} SET lock_timeout = '100ms' AS $redrive$
#variable_conflict use_column
DECLARE
    _key text := NEW.metadata #>> '{{adopted,row}}';
    _ends boolean := coalesce((SELECT a.ending_at IS NOT NULL FROM {adoptions} a WHERE a.id = {adoption}), true);
    _entry {adopted_rows}%ROWTYPE;
    _there boolean;
    _moment text;
    _accept text[];
    _w record;
    _why text;
BEGIN
    SELECT * INTO _entry FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = _key FOR UPDATE;
    _there := FOUND;

    IF NEW.status = 'running' THEN
        IF NOT _there OR _entry.job IS DISTINCT FROM NEW.id THEN
            RETURN NEW;
        END IF;
        _accept := CASE WHEN {beside} OR _entry.state = 'claimed' THEN '{{waiting,claimed}}'
                        WHEN _entry.owed IS NOT NULL THEN '{{waiting,claimed,dead}}' ELSE '{{waiting}}' END;
        IF NEW.claims <= 1 THEN -- later on the row has our own time
            _accept := _accept || '{{due}}';
        END IF;
        _w := {write}(_key, 'claimed', NEW.attempts, NEW.run_at, NULL, _accept);
        IF _w._result = 'written' AND _w._payload IS NOT NULL THEN
            UPDATE {adopted_rows} e SET state = 'claimed', owed = NULL, due_at = NULL, tries = 0, note = NULL
            WHERE e.adoption = {adoption} AND e.row_key = _key;
            NEW.payload := _w._payload;
            RETURN NEW;
        ELSIF _w._result IN ('locked', 'later') OR _w._result = 'refused' AND _w._note !~ '^(22|23|P0)' THEN
            -- It comes again: soon where the row is locked, and seldomer the longer that is so.
            UPDATE {jobs} j SET updated_at = {clock}(), run_at = CASE
                WHEN _w._result = 'later' THEN _w._due
                ELSE {clock}() + least(interval '1 min', interval '1 s' * power(2, least(_entry.tries, 6))) END
            WHERE j.id = NEW.id;
            UPDATE {adopted_rows} e SET tries = least(e.tries, 1000) + CASE WHEN _w._result = 'later' THEN 0 ELSE 1 END,
                                note = coalesce(_w._note, CASE WHEN _w._result = 'locked' THEN 'somebody has locked the row' END)
            WHERE e.adoption = {adoption} AND e.row_key = _key;
            RETURN NULL;
        ELSIF _w._result IN ('gone', 'changed') THEN
            DELETE FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = _key;
            UPDATE {jobs} j
            SET status = 'failed', key = NULL, alone = false, updated_at = {clock}(),
                last_error = 'cancelled: its row of ' || {table_name}::text || CASE _w._result
                    WHEN 'gone' THEN ' was deleted before it ran' ELSE ' was changed before it ran, by the application or another worker' END
            WHERE j.id = NEW.id;
            RETURN NULL;
        END IF;
        _why := 'redrive.adopt: the row of ' || {table_name}::text || ' can''t be worked: '
                || coalesce(_w._note, 'its payload is NULL');
        UPDATE {jobs} j
        SET status = 'dead', key = NULL, expires_at = NULL, locked_at = NULL, locked_by = NULL, crashes = 0, alone = false,
            last_error = _why, fingerprint = 'RowRefused', updated_at = {clock}()
        WHERE j.id = NEW.id;
        INSERT INTO {failures} (job_id, kind, claim, attempt, outcome, failed_at, worker, error_type, message, fingerprint)
        VALUES (NEW.id, NEW.kind, NEW.claims, NEW.attempts, 'dead', {clock}(), NEW.locked_by, 'RowRefused', _why, 'RowRefused');
        RETURN NULL;
    END IF;

    IF NEW.status = 'pending' AND OLD.status <> 'running' THEN -- somebody sends it back
        IF _ends OR _there AND _entry.job IS DISTINCT FROM NEW.id AND _entry.state IN ('new', 'waiting', 'claimed') THEN
            NEW.status := 'failed';
            NEW.last_error := CASE WHEN _ends THEN 'cancelled: ' || {table_name}::text || ' is no longer adopted'
                                   ELSE 'cancelled: job ' || coalesce(_entry.job::text, 'to be') || ' is of the same row' END;
            RETURN NEW;
        END IF;
        INSERT INTO {adopted_rows} AS e (adoption, row_key, job, state) VALUES ({adoption}, _key, NEW.id, 'waiting')
        ON CONFLICT (adoption, row_key) DO UPDATE SET job = EXCLUDED.job, state = EXCLUDED.state, owed = NULL, due_at = NULL;
        _accept := '{{waiting,claimed,dead}}';
    ELSIF NOT _there OR _entry.job IS DISTINCT FROM NEW.id THEN
        RETURN NEW;
    ELSE
        _accept := CASE WHEN _entry.state = 'claimed' OR _entry.owed IS NOT NULL OR {beside} THEN '{{waiting,claimed}}'
                        ELSE '{{waiting}}' END;
    END IF;

    IF NEW.status = 'pending' AND _ends THEN
        NEW.status := 'failed';
        NEW.last_error := concat_ws(E'\n', 'cancelled: ' || {table_name}::text || ' is no longer adopted', NEW.last_error);
    END IF;
    _moment := CASE WHEN NEW.status = 'pending' THEN 'waiting' WHEN NEW.status = 'succeeded' THEN 'succeeded'
                    WHEN NEW.status = 'failed' AND _ends THEN 'returned' ELSE 'dead' END;
    _w := {write}(_key, _moment, NEW.attempts, NEW.run_at, NEW.last_error, _accept);
    IF _w._result IN ('locked', 'refused') THEN
        UPDATE {adopted_rows} e
        SET state = CASE WHEN _moment = 'waiting' THEN 'waiting' ELSE 'claimed' END, owed = _moment, tries = 0,
            due_at = {clock}() + CASE WHEN _w._result = 'locked' THEN interval '1 s' ELSE interval '10 s' END,
            note = coalesce(_w._note, 'somebody has locked the row')
        WHERE e.adoption = {adoption} AND e.row_key = _key;
    ELSIF _moment = 'waiting' AND (_w._result = 'written' OR OLD.status = 'running') THEN
        UPDATE {adopted_rows} e SET state = 'waiting', owed = NULL, due_at = NULL, tries = 0, note = NULL -- changed: told at the begin
        WHERE e.adoption = {adoption} AND e.row_key = _key;
    ELSIF _w._result = 'written' AND _w._waits AND _moment <> 'returned' THEN
        UPDATE {adopted_rows} e SET state = 'ended', owed = NULL, due_at = NULL, tries = 0, note = NULL
        WHERE e.adoption = {adoption} AND e.row_key = _key;
    ELSE
        DELETE FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = _key;
    END IF;
    IF _w._result IN ('gone', 'changed') AND NOT (_w._result = 'gone' AND _moment = 'succeeded' AND {deletes}) THEN
        _why := 'its row was ' || CASE _w._result WHEN 'gone' THEN 'deleted' ELSE 'changed' END || ' meanwhile: nothing was written to it';
        NEW.metadata := jsonb_set(NEW.metadata, '{{adopted,note}}', to_jsonb(_why));
        IF NEW.status = 'pending' AND OLD.status <> 'running' THEN
            NEW.status := 'failed';
            NEW.last_error := 'cancelled: its row of ' || {table_name}::text || CASE _w._result
                WHEN 'gone' THEN ' is gone' ELSE ' has been changed since, by the application or another worker' END;
        END IF;
    END IF;
    RETURN NEW;
EXCEPTION WHEN OTHERS THEN -- never the claim's or the outcome's trouble; the next round finds what doesn't go together
    IF NEW.status = 'running' THEN
        UPDATE {jobs} j SET run_at = {clock}() + interval '10 s', updated_at = {clock}() WHERE j.id = NEW.id;
        RETURN NULL;
    END IF;
    RAISE WARNING 'redrive could not follow job % to its row: % (%)', NEW.id, SQLERRM, SQLSTATE;
    RETURN NEW;
END $redrive$

-- name: adopt_round
-- Said by the workers, of whom one at a time does it: what is owed, the sweep (a page of rows in the order of their keys, from
-- where the last one ended), and now and then a look at what is remembered of rows. Each stands by itself.
CREATE FUNCTION {round}(_page int, OUT _seconds float8, OUT _took int, OUT _wrote int, OUT _seen int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {home}, pg_temp {planned} SET lock_timeout = '100ms' AS $redrive$
#variable_conflict use_column
DECLARE
    _a {adoptions}%ROWTYPE;
    _entry record;
    _job record;
    _w record;
    _keys text[];
    _last text;
    _trouble text;
BEGIN
    SELECT * INTO _a FROM {adoptions} a WHERE a.id = {adoption} FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR _a.round_at > {clock}() AND _a.round_at < {clock}() + interval '1 min' THEN
        SELECT greatest(0.2, extract(epoch FROM a.round_at - {clock}())), 0, 0, 0 INTO _seconds, _took, _wrote, _seen
        FROM {adoptions} a WHERE a.id = {adoption};
        _seconds := least(60, coalesce(_seconds, 60));
        RETURN;
    END IF;
    _took := 0; _wrote := 0; _seen := 0; _seconds := 10;

    BEGIN -- what the triggers would trip over is said here: nobody sees their warnings
        PERFORM {key}, {due}, {payload} FROM {table} AS its_row WHERE {runnable} LIMIT 0;
    EXCEPTION WHEN OTHERS THEN
        _trouble := 'its rows can''t be read: ' || SQLSTATE || ': ' || left(SQLERRM, 500);
    END;

    FOR _entry IN
        SELECT e.* FROM {adopted_rows} e
        WHERE e.adoption = {adoption} AND e.due_at <= {clock}() AND (e.owed IS NOT NULL OR _a.paused_at IS NULL AND _a.ending_at IS NULL)
        ORDER BY e.due_at LIMIT 200 FOR UPDATE SKIP LOCKED
    LOOP
        IF _entry.state = 'new' THEN
            BEGIN
                _took := _took + {take}(ARRAY[_entry.row_key], true, '0');
                DELETE FROM {adopted_rows} e -- it waits no longer
                WHERE e.adoption = {adoption} AND e.row_key = _entry.row_key AND e.state = 'new';
            EXCEPTION WHEN OTHERS THEN
                UPDATE {adopted_rows} e SET note = SQLSTATE || ': ' || left(SQLERRM, 500), tries = least(e.tries, 1000) + 1,
                    due_at = {clock}() + least(interval '5 min', interval '5 s' * power(2, least(e.tries, 6)))
                WHERE e.adoption = {adoption} AND e.row_key = _entry.row_key;
            END;
        ELSE
            SELECT * INTO _job FROM {jobs} j WHERE j.id = _entry.job;
            _w := {write}(_entry.row_key, _entry.owed, coalesce(_job.attempts, 0), coalesce(_job.run_at, {clock}()), _job.last_error,
                          '{{waiting,claimed,dead}}');
            IF _w._result IN ('locked', 'refused') THEN
                UPDATE {adopted_rows} e SET note = coalesce(_w._note, 'somebody has locked the row'), tries = least(e.tries, 1000) + 1,
                    due_at = {clock}() + least(interval '5 min', interval '2 s' * power(2, least(e.tries, 8)))
                WHERE e.adoption = {adoption} AND e.row_key = _entry.row_key;
            ELSIF _entry.owed = 'waiting' THEN
                UPDATE {adopted_rows} e SET state = 'waiting', owed = NULL, due_at = NULL, tries = 0, note = NULL
                WHERE e.adoption = {adoption} AND e.row_key = _entry.row_key;
                _wrote := _wrote + 1;
            ELSIF _w._result = 'written' AND _w._waits AND _entry.owed <> 'returned' THEN
                UPDATE {adopted_rows} e SET state = 'ended', owed = NULL, due_at = NULL, tries = 0, note = NULL
                WHERE e.adoption = {adoption} AND e.row_key = _entry.row_key;
                _wrote := _wrote + 1;
            ELSE
                DELETE FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = _entry.row_key;
                _wrote := _wrote + 1;
            END IF;
        END IF;
    END LOOP;
    IF _took + _wrote > 0 THEN
        _seconds := 0.2;
    END IF;

    IF _a.by_sweep AND _a.ready AND _a.paused_at IS NULL AND _a.ending_at IS NULL AND _a.cutover <= {clock}() THEN
        BEGIN
            IF _a.swept IS NULL THEN
                _keys := ARRAY(SELECT {key}::text FROM {table} AS its_row WHERE {runnable} ORDER BY its_row.{key} LIMIT _page);
            ELSE
                _keys := ARRAY(SELECT {key}::text FROM {table} AS its_row WHERE {runnable} AND {key} > _a.swept::{key_type} ORDER BY its_row.{key} LIMIT _page);
            END IF;
            _seen := cardinality(_keys);
            _last := CASE WHEN _seen = _page THEN _keys[_page] END;
            _keys := ARRAY(
                SELECT k FROM unnest(_keys) AS k
                WHERE (SELECT e.adoption FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key = k) IS NULL
            );
            IF _keys <> '{{}}' THEN
                _took := _took + {take}(_keys, false, '0');
            END IF;
            _seconds := least(_seconds, CASE WHEN _last IS NULL THEN 1 WHEN _keys <> '{{}}' THEN 0.05 ELSE 0.2 END);
        EXCEPTION WHEN OTHERS THEN
            _last := _a.swept;
            _trouble := coalesce(_trouble, 'sweep: ' || SQLSTATE || ': ' || left(SQLERRM, 500));
        END;
    END IF;

    IF coalesce(_a.tidied_at < {clock}() - CASE WHEN _a.tidied IS NULL THEN interval '1 min' ELSE interval '1 s' END, true) THEN
        BEGIN
            _keys := ARRAY(
                SELECT e.row_key FROM {adopted_rows} e WHERE e.adoption = {adoption} AND e.row_key > coalesce(_a.tidied, '')
                ORDER BY e.row_key LIMIT _page
            );
            DELETE FROM {adopted_rows} WHERE ctid = ANY(ARRAY(
                SELECT e.ctid FROM {adopted_rows} e
                WHERE e.adoption = {adoption} AND e.row_key = ANY(_keys) AND e.state IN ('held', 'ended') AND e.owed IS NULL
                  AND (SELECT true FROM {table} AS its_row WHERE {key} = e.row_key::{key_type} AND {runnable}) IS NULL
                FOR UPDATE SKIP LOCKED
            ));
            UPDATE {adopted_rows} u
            SET state = CASE WHEN o.status IS NULL THEN 'held' ELSE u.state END,
                owed = CASE WHEN o.status IS NULL THEN NULL WHEN o.status = 'pending' THEN 'waiting'
                            WHEN o.status = 'succeeded' THEN 'succeeded' ELSE 'dead' END,
                due_at = CASE WHEN o.status IS NULL THEN NULL ELSE {clock}() END, tries = 0,
                note = CASE WHEN o.status IS NULL THEN 'its job was deleted' ELSE u.note END
            FROM (
                SELECT e.row_key, e.job, j.status || '' AS status
                FROM {adopted_rows} e LEFT JOIN LATERAL (SELECT id, status FROM {jobs} WHERE id = e.job LIMIT 1) j ON true
                WHERE e.adoption = {adoption} AND e.row_key = ANY(_keys) AND e.state IN ('waiting', 'claimed') AND e.owed IS NULL
                  AND (j.id IS NULL OR j.status || '' IN ('succeeded', 'failed', 'dead')
                       OR e.state = 'claimed' AND j.status || '' = 'pending')
                FOR UPDATE OF e SKIP LOCKED
            ) o
            WHERE u.adoption = {adoption} AND u.row_key = o.row_key;
            _a.tidied := CASE WHEN cardinality(_keys) = _page THEN _keys[_page] END;
        EXCEPTION WHEN OTHERS THEN
            _a.tidied := NULL;
            _trouble := coalesce(_trouble, 'look at what is remembered: ' || SQLSTATE || ': ' || left(SQLERRM, 500));
        END;
        _a.tidied_at := {clock}();
    END IF;

    UPDATE {adoptions} a
    SET round_at = {clock}() + make_interval(secs => _seconds), swept = _last, tidied = _a.tidied, tidied_at = _a.tidied_at,
        trouble = _trouble, trouble_at = CASE WHEN _trouble IS NOT NULL THEN {clock}() END
    WHERE a.id = {adoption};
END $redrive$

-- name: adopt_sequence
{name}::regclass

-- name: adopt_trigger_inserted
CREATE TRIGGER {trigger_inserted} AFTER INSERT ON {table} REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION {inserted}()

-- name: adopt_trigger_updated
CREATE TRIGGER {trigger_updated} AFTER UPDATE ON {table} REFERENCING OLD TABLE AS stale NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION {updated}()

-- name: adopt_trigger_of_job
CREATE TRIGGER {trigger_of_job} BEFORE UPDATE OF status ON {jobs} FOR EACH ROW
    WHEN (NEW.metadata @> {mark}::jsonb AND NEW.status IS DISTINCT FROM OLD.status) EXECUTE FUNCTION {of_job}()

-- name: adopt_index
CREATE INDEX CONCURRENTLY IF NOT EXISTS {index} ON {table} ({key}) WHERE {runnable}

-- name: adopt_rights
-- A function can be called by anyone unless somebody says otherwise, and these have its maker's rights. The round does
-- nothing but what is due anyway, so whoever may be a worker may say it.
REVOKE ALL ON FUNCTION {take}(text[], boolean, interval), {note}(text[], text), {inserted}(), {updated}(), {of_job}(),
    {write}(text, text, int, timestamptz, text, text[]) FROM PUBLIC

-- name: adopt_lock_timeout
SET LOCAL lock_timeout = '2s'

-- name: begin_adoption
-- Nobody else connects the same table at the same time: the second waits for the first, and finds it done.
INSERT INTO {adoptions} (name, table_oid, map, by_trigger, by_sweep, beside, cutover, by, index_made, since)
VALUES (%(name)s, %(table)s::oid, %(map)s::text::jsonb, %(by_trigger)s, %(by_sweep)s, %(beside)s, %(cutover)s::timestamptz, %(by)s::text,
        %(index_made)s::text, {clock}())
ON CONFLICT (table_oid) DO NOTHING
RETURNING id

-- name: adopt_deferred
-- What a write to the table would have checked at the commit: constraint triggers, and foreign keys to a row that is deleted.
SELECT t.tgname::text AS name, t.tgrelid::regclass::text AS of_table FROM pg_trigger t
WHERE t.tgrelid = %(table)s::oid AND NOT t.tgisinternal AND t.tginitdeferred
UNION ALL
SELECT k.conname::text, k.conrelid::regclass::text FROM pg_constraint k
WHERE %(deletes)s AND k.contype = 'f' AND k.confrelid = %(table)s::oid AND k.condeferred
LIMIT 1

-- name: ready_adoption
UPDATE {adoptions} SET ready = true, round_at = NULL WHERE id = %(id)s RETURNING id

-- name: adopt_hold
-- In one statement, hence of one moment: what comes to wait after it is not held. It locks nothing.
INSERT INTO {adopted_rows} (adoption, row_key, state)
SELECT {adoption}, {key}::text, 'held' FROM {table} AS its_row
WHERE {runnable} AND ({since}) IS NOT TRUE
ON CONFLICT (adoption, row_key) DO NOTHING

-- name: adopt_keys
-- Rows that could be made jobs, a batch in the order of their keys.
SELECT {key}::text AS row_key FROM {table} AS its_row
WHERE {which} AND {key} > {after}::{key_type}
  AND (
      SELECT e.adoption FROM {adopted_rows} e
      WHERE e.adoption = {adoption} AND e.row_key = its_row.{key}::text AND e.state IN ('waiting', 'claimed')
  ) IS NULL
ORDER BY its_row.{key} LIMIT {most}

-- name: adopt_first_keys
SELECT {key}::text AS row_key FROM {table} AS its_row
WHERE {which}
  AND (
      SELECT e.adoption FROM {adopted_rows} e
      WHERE e.adoption = {adoption} AND e.row_key = its_row.{key}::text AND e.state IN ('waiting', 'claimed')
  ) IS NULL
ORDER BY its_row.{key} LIMIT {most}

-- name: adopt_both
{runnable} AND {since}

-- name: adopt_count
SELECT count(*) AS rows, (array_agg({key}::text ORDER BY its_row.{key}))[1:5] AS examples FROM {table} AS its_row
WHERE {which}
  AND (
      SELECT e.adoption FROM {adopted_rows} e
      WHERE e.adoption = {adoption} AND e.row_key = its_row.{key}::text AND e.state IN ('waiting', 'claimed')
  ) IS NULL

-- name: adopt_readmit
-- Where a row doesn't wait, its words and its tries are put back first.
SELECT {take}(ARRAY(
    SELECT k FROM unnest({keys}::text[]) AS k
    WHERE CASE WHEN EXISTS (SELECT FROM {table} AS its_row WHERE {key} = k::{key_type} AND {runnable}) THEN true
               ELSE ({write}(k, 'returned', 0, {clock}(), NULL, '{{any}}'))._result = 'written' END
), true, {gap}::interval) AS taken

-- name: adopt_mark
-- For a human to run: what is done and was never marked as done.
UPDATE {table} SET {sets} WHERE {which}

-- name: adopt_risk
SELECT {key} FROM {table} WHERE {runnable}

-- name: take_rows
SELECT {take}({keys}::text[], {again}, {gap}::interval) AS taken

-- name: list_adoptions
SELECT a.id, a.name, a.table_oid::regclass::text AS place, a.table_oid::regclass::text = a.table_oid::text AS gone, a.map, a.by_trigger, a.by_sweep, a.beside, a.cutover,
       a.since, a.by, a.paused_at, a.paused_by, a.ending_at, a.ready, a.index_made, a.trouble, a.trouble_at,
       (SELECT count(*) FROM pg_trigger t WHERE t.tgenabled IN ('O', 'A')
          AND t.tgfoid IN (SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                           WHERE n.nspname = {schema_name} AND p.proname LIKE format('adoption\_%%s\_%%%%', a.id))) AS triggers,
       coalesce(c.held, 0) AS held, coalesce(c.fresh, 0) AS fresh, coalesce(c.waiting, 0) AS waiting,
       coalesce(c.claimed, 0) AS claimed, coalesce(c.ended, 0) AS ended, coalesce(c.owed, 0) AS owed
FROM {adoptions} a
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'held') AS held, count(*) FILTER (WHERE state = 'new') AS fresh,
           count(*) FILTER (WHERE state = 'waiting') AS waiting, count(*) FILTER (WHERE state = 'claimed') AS claimed,
           count(*) FILTER (WHERE state = 'ended') AS ended, count(*) FILTER (WHERE owed IS NOT NULL) AS owed
    FROM {adopted_rows} r WHERE r.adoption = a.id
) c ON true
WHERE %(name)s::text IS NULL OR a.name = %(name)s OR a.table_oid = to_regclass(%(name)s)::oid
ORDER BY a.name

-- name: adoption_notes
-- What stands in the way of rows, the most frequent first.
SELECT note, count(*) AS rows, min(row_key) AS example, min(since) AS since FROM {adopted_rows}
WHERE adoption = %(id)s AND note IS NOT NULL
GROUP BY note ORDER BY count(*) DESC, note LIMIT 10

-- name: pause_adoption
UPDATE {adoptions} SET paused_at = CASE WHEN %(paused)s THEN coalesce(paused_at, {clock}()) END,
    paused_by = CASE WHEN %(paused)s THEN coalesce(paused_by, %(by)s::text) END, round_at = NULL
WHERE id = %(id)s AND ending_at IS NULL AND (paused_at IS NULL) = %(paused)s
RETURNING id

-- name: end_adoption
-- From here on what waits is handed back, and so is what runs once it has ended.
UPDATE {adoptions} SET ending_at = coalesce(ending_at, {clock}()) WHERE id = %(id)s RETURNING id

-- name: adopt_drop_trigger_inserted
DROP TRIGGER IF EXISTS {trigger_inserted} ON {table}

-- name: adopt_drop_trigger_updated
DROP TRIGGER IF EXISTS {trigger_updated} ON {table}

-- name: adopt_drop_trigger_of_job
DROP TRIGGER IF EXISTS {trigger_of_job} ON {jobs}

-- name: adopt_drop_functions
DROP FUNCTION IF EXISTS {round}(int), {of_job}(), {write}(text, text, int, timestamptz, text, text[]), {updated}(),
    {inserted}(), {note}(text[], text), {take}(text[], boolean, interval)

-- name: adopt_drop_index
DROP INDEX CONCURRENTLY IF EXISTS {index}

-- name: forget_adoption
WITH forgotten AS (
    DELETE FROM {adopted_rows} WHERE adoption = %(id)s
)
DELETE FROM {adoptions} WHERE id = %(id)s RETURNING id

-- name: return_rows
-- Cancel a batch of an adoption's jobs that wait; the trigger on the jobs hands their rows back in the same commit.
WITH chosen AS MATERIALIZED (
    SELECT j.id
    FROM {adopted_rows} r
    CROSS JOIN LATERAL (SELECT id FROM {jobs} WHERE id = r.job AND status || '' = 'pending' FOR UPDATE SKIP LOCKED) j
    WHERE r.adoption = %(id)s AND r.state = 'waiting'
    LIMIT %(limit)s
)
UPDATE {jobs} j
SET status = 'failed', key = NULL, alone = false, cancel_requested_at = {clock}(), updated_at = {clock}(),
    last_error = 'cancelled: ' || %(name)s::text || ' is no longer adopted'
WHERE j.id = ANY(ARRAY(SELECT id FROM chosen))
RETURNING j.id

-- name: give_up_rows
-- Take the jobs that run out of their workers' hands: these may still do the work, and the old worker will do it again.
WITH chosen AS MATERIALIZED (
    SELECT j.id
    FROM {adopted_rows} r
    CROSS JOIN LATERAL (SELECT id FROM {jobs} WHERE id = r.job AND status || '' = 'running' FOR UPDATE SKIP LOCKED) j
    WHERE r.adoption = %(id)s AND r.state = 'claimed'
    LIMIT 1000
)
UPDATE {jobs} j
SET status = 'failed', key = NULL, alone = false, updated_at = {clock}(), locked_at = NULL, locked_by = NULL,
    last_error = 'cancelled: ' || %(name)s::text || ' is no longer adopted; it ran'
WHERE j.id = ANY(ARRAY(SELECT id FROM chosen))
RETURNING j.id

-- name: adoption_left
-- What is still to be waited for before an adoption can end.
SELECT count(*) FILTER (WHERE j.status || '' = 'running') AS running, count(*) FILTER (WHERE j.status || '' = 'pending') AS waiting,
       count(*) FILTER (WHERE r.owed IS NOT NULL) AS owed
FROM {adopted_rows} r LEFT JOIN LATERAL (SELECT status FROM {jobs} WHERE id = r.job LIMIT 1) j ON true
WHERE r.adoption = %(id)s AND (r.owed IS NOT NULL OR r.state IN ('waiting', 'claimed'))

-- name: settle_adoption
UPDATE {adopted_rows} SET due_at = {clock}() WHERE adoption = %(id)s AND owed IS NOT NULL

-- name: rush_adoption
UPDATE {adoptions} SET round_at = NULL WHERE id = %(id)s

-- name: adoption_round
SELECT _seconds AS seconds, _took AS took, _wrote AS wrote, _seen AS seen FROM {round}({page})

-- name: active_adoptions
SELECT id, greatest(0, least(60, coalesce(extract(epoch FROM round_at - {clock}()), 0)))::float8 AS due_in, name FROM {adoptions} ORDER BY id


------------------------------------------------------------------------------------------------ the way over a broker

-- name: routed_kinds
SELECT kind FROM {kinds} WHERE kind <> '*' AND route = {route} ORDER BY kind

-- name: come_home
-- Jobs come back from the broker, as running here: what became of them is written next, in the same transaction. What was
-- decided already, by another delivery of the same message, is not decided again. The worker may be quicker than the
-- relay, whose transaction is open until all it has sent is confirmed: the row is then still pending, with one claim less.
-- It is waited for; and where the relay has rolled back, that row is the job's, and is taken home. What this worker has
-- brought home already, by a try whose answer was lost, has come home.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)s::bigint[], %(kinds)s::text[], %(payloads)s::text[], %(attempts)s::int[], %(max_attempts)s::int[],
        %(claims)s::int[], %(crashes)s::int[], %(priorities)s::smallint[], %(lanes)s::text[], %(due)s::timestamptz[],
        %(created)s::timestamptz[], %(metadata)s::text[], %(expires)s::timestamptz[], %(kept)s::boolean[],
        %(alone)s::boolean[]
    ) AS g(id, kind, payload, attempt, max_attempts, claim, crashes, priority, lane, due, created, metadata, expires, kept, alone)
), stayed AS (
    UPDATE {jobs} j
    SET status = 'running', attempts = g.attempt, claims = g.claim, counted = true, locked_by = %(worker)s,
        locked_at = {clock}(), updated_at = {clock}(), alone = g.alone
    FROM given g
    WHERE g.kept AND j.id = g.id AND j.id = ANY(ARRAY(SELECT id FROM given WHERE kept))
      AND CASE WHEN j.claims = g.claim THEN j.status || '' = 'running' AND j.locked_by IN ({broker}, %(worker)s)
               ELSE j.claims = g.claim - 1 AND j.status || '' = 'pending' END
    RETURNING j.id
), arrived AS (
    INSERT INTO {jobs} AS j (id, kind, payload, status, attempts, max_attempts, run_at, locked_at, locked_by, created_at,
                             updated_at, priority, lane, claims, crashes, alone, expires_at, metadata)
    SELECT id, kind, payload::jsonb, 'running', attempt, max_attempts, due, {clock}(), %(worker)s, created, {clock}(),
           priority, lane, claim, crashes, alone, expires, metadata::jsonb
    FROM given g
    WHERE NOT kept AND NOT EXISTS (SELECT FROM {failures} f WHERE f.job_id = g.id AND f.claim >= g.claim)
    ORDER BY id
    ON CONFLICT (id) DO UPDATE
    SET status = 'running', attempts = EXCLUDED.attempts, claims = EXCLUDED.claims, locked_by = EXCLUDED.locked_by,
        locked_at = EXCLUDED.locked_at, updated_at = EXCLUDED.updated_at, alone = EXCLUDED.alone
    WHERE CASE WHEN j.claims = EXCLUDED.claims THEN j.status || '' = 'running' AND j.locked_by = EXCLUDED.locked_by
               ELSE j.claims = EXCLUDED.claims - 1 AND j.status || '' = 'pending' END
    RETURNING id
)
SELECT id FROM stayed UNION ALL SELECT id FROM arrived

-- name: settled_at_home
-- Of messages that were delivered before: those about which everything is said. A job may have two, of an earlier claim and
-- of a later one: what is said of the one is not said of the other.
SELECT g.id, g.claim
FROM unnest(%(ids)s::bigint[], %(claims)s::int[], %(kept)s::boolean[]) AS g(id, claim, kept)
LEFT JOIN LATERAL (SELECT id, claims, status, locked_by FROM {jobs} WHERE id = g.id) j ON true
WHERE CASE WHEN g.kept THEN j.id IS NULL OR j.claims > g.claim
                OR j.claims = g.claim AND (j.status || '' = 'running' AND j.locked_by = {broker}) IS NOT TRUE
           ELSE coalesce(j.claims >= g.claim, false) END
   OR EXISTS (SELECT FROM {failures} f WHERE f.job_id = g.id AND f.claim >= g.claim)
