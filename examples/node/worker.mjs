// A worker for redrive's jobs in plain Node: leases kept alive by a heartbeat, every outcome fenced by the lease.
// docs/polyglot.md has its statements, one by one, and says why each is as it is. Beside it at least one worker of
// redrive's own has to run: that one takes back what a dead worker left, and tells of what died.

import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'

export const SQL = {
  beat: `
    INSERT INTO redrive.workers (name, host, pid, version, kinds, concurrency, in_flight, lease, heartbeat_at)
    VALUES ($1, $2, $3, 'node', $4, $5, $6, make_interval(secs => $7), clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET heartbeat_at = clock_timestamp(), in_flight = excluded.in_flight`,

  claim: `
    WITH due AS MATERIALIZED (
        SELECT j.id
        FROM unnest($2::text[]) AS wanted(kind)
        CROSS JOIN LATERAL (
            SELECT id FROM redrive.jobs
            WHERE status = 'pending' AND kind = wanted.kind AND run_at <= now() AND NOT alone
              AND attempts < max_attempts AND (expires_at IS NULL OR expires_at > now())
              AND NOT EXISTS (SELECT FROM redrive.kinds k WHERE k.kind IN (wanted.kind, '*')
                              AND (k.limited OR k.paused_at IS NOT NULL AND coalesce(k.paused_until > now(), true)))
            ORDER BY priority, lane, run_at, id
            FOR UPDATE SKIP LOCKED
            LIMIT $3
        ) j
        LIMIT $3
    )
    UPDATE redrive.jobs
    SET status = 'running', attempts = attempts + 1, claims = claims + 1, counted = false,
        locked_by = $1, locked_at = now(), updated_at = now()
    WHERE id = ANY(ARRAY(SELECT id FROM due))
    RETURNING id, kind, payload, attempts, max_attempts, claims`,

  look: `
    SELECT id, claims, cancel_requested_at IS NOT NULL AS cancelled
    FROM redrive.jobs
    WHERE id = ANY($2::bigint[]) AND locked_by = $1 AND status || '' = 'running'`,

  succeed: `
    UPDATE redrive.jobs
    SET status = 'succeeded', result = $4::text::jsonb, updated_at = now()
    WHERE id = $1 AND claims = $2 AND locked_by = $3 AND status || '' = 'running'`,

  fail: `
    WITH held AS MATERIALIZED (
        SELECT id, kind, attempts, claims, key, expires_at,
               CASE WHEN attempts >= max_attempts THEN 'dead'
                    WHEN cancel_requested_at IS NOT NULL OR superseded THEN 'failed'
                    ELSE 'pending' END AS verdict
        FROM redrive.jobs
        WHERE id = $1 AND claims = $2 AND locked_by = $3 AND status || '' = 'running'
        FOR NO KEY UPDATE
    ), ended AS (
        UPDATE redrive.jobs AS j
        SET status = h.verdict,
            run_at = CASE h.verdict WHEN 'pending' THEN clock_timestamp() + make_interval(secs => $7) ELSE j.run_at END,
            last_error = CASE h.verdict WHEN 'failed' THEN 'cancelled while it ran' ELSE $4 || ': ' || $5 END,
            fingerprint = $4, locked_by = NULL, locked_at = NULL, updated_at = now(),
            key = CASE h.verdict WHEN 'pending' THEN j.key END,
            expires_at = CASE h.verdict WHEN 'pending' THEN j.expires_at END,
            cancel_requested_at = CASE h.verdict WHEN 'failed' THEN j.cancel_requested_at END,
            superseded = j.superseded AND h.verdict = 'failed',
            crashes = CASE h.verdict WHEN 'dead' THEN 0 ELSE j.crashes END
        FROM held h
        WHERE j.id = h.id
    )
    INSERT INTO redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, worker,
                                  error_type, message, traceback, fingerprint, key, expires_at)
    SELECT id, kind, claims, attempts, CASE verdict WHEN 'pending' THEN 'retried' ELSE verdict END, clock_timestamp(), $3,
           $4, $5, $6, $4, key, expires_at
    FROM held
    RETURNING outcome`,

  handBack: `
    UPDATE redrive.jobs
    SET status = CASE WHEN cancel_requested_at IS NOT NULL OR superseded THEN 'failed' ELSE 'pending' END,
        last_error = CASE WHEN cancel_requested_at IS NOT NULL OR superseded THEN 'cancelled while it ran' ELSE last_error END,
        key = CASE WHEN cancel_requested_at IS NULL THEN key END,
        attempts = greatest(attempts, 1) - 1, run_at = clock_timestamp(), locked_by = NULL, locked_at = NULL, updated_at = now()
    WHERE id = $1 AND claims = $2 AND locked_by = $3 AND status || '' = 'running'`,

  leave: `
    DELETE FROM redrive.workers WHERE name = $1`,
}

const sleep = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms)
    signal?.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true })
  })

// NUL and lone surrogates can't be stored: what came of a job must never fail for its content.
const storable = (text) => String(text).toWellFormed().replaceAll('\u0000', '\ufffd').slice(0, 10_000)

export class Worker {
  // pool: a pg.Pool; handlers: { kind: async (payload, { job, signal }) => result }
  constructor(pool, handlers, { concurrency = 4, lease = 30, poll = 1, grace = 25, log = console.error } = {}) {
    Object.assign(this, { pool, handlers, concurrency, lease, poll, grace, log })
    this.name = `node-${hostname().slice(0, 16)}-${process.pid}-${randomBytes(4).toString('hex')}`
    this.kinds = Object.keys(handlers)
    this.running = new Map() // id -> { job, abort }
    this.stopping = new AbortController()
    this.beaten = 0 // when a beat was last answered
  }

  stop() {
    this.stopping.abort()
  }

  // Works until stop(); then lets what runs finish within the grace, and hands the rest back.
  async run() {
    const heart = new AbortController()
    const beating = this.beatUntil(heart.signal)
    while (!this.stopping.signal.aborted) {
      const free = this.concurrency - this.running.size
      // Who has not been heard for a while takes on nothing: others may be about to take what is here.
      const fresh = Date.now() - this.beaten < (this.lease * 1000 * 2) / 3
      const jobs = fresh && free > 0 ? await this.ask('claim', [this.name, this.kinds, free]) : []
      for (const job of jobs) this.begin(job)
      if (jobs.length < free || free === 0) await sleep(this.poll * 1000, this.stopping.signal)
    }
    const end = Date.now() + this.grace * 1000
    while (this.running.size && Date.now() < end) await sleep(20)
    for (const entry of this.running.values()) {
      entry.back = true // before its handler hears of it: what that says now is not the job's end
      entry.abort.abort(new Error('the worker stops'))
      await this.ask('handBack', [entry.job.id, entry.job.claims, this.name])
    }
    heart.abort()
    await beating // no beat may come after, and bring the row back
    await this.ask('leave', [this.name])
  }

  begin(job) {
    const entry = { job, abort: new AbortController(), back: false }
    this.running.set(job.id, entry)
    this.work(entry).finally(() => this.running.delete(job.id))
  }

  async work(entry) {
    const { job, abort } = entry
    let statement, params
    try {
      const result = await this.handlers[job.kind](job.payload, { job, signal: abort.signal })
      statement = 'succeed'
      params = [JSON.stringify(result ?? null)]
    } catch (error) {
      const delay = 10 * job.attempts ** 2 + 5 * Math.random()
      statement = 'fail'
      params = [...[error?.name ?? 'Error', error?.message ?? error, error?.stack ?? ''].map(storable), delay]
    }
    if (entry.back) return
    if (!(await this.settle(statement, [job.id, job.claims, this.name, ...params])))
      this.log(`job ${job.id} is not this worker's any more: what became of it here does not count`)
  }

  // An outcome is said until the database has heard it: as long as the heart beats, the job is ours.
  async settle(statement, params) {
    for (let pause = 100; ; pause = Math.min(5000, pause * 2)) {
      try {
        return (await this.pool.query(SQL[statement], params)).rowCount > 0
      } catch (error) {
        this.log(`${statement}: ${error.message}`)
        if (/^2[23]/.test(error.code ?? '')) // of its content, such as a result with NUL: said again it would fail again
          return this.settle('fail', [...params.slice(0, 3), 'NotStorable', storable(error.message), '', 0])
        await sleep(pause)
      }
    }
  }

  async ask(statement, params) {
    try {
      return (await this.pool.query(SQL[statement], params)).rows
    } catch (error) {
      this.log(`${statement}: ${error.message}`)
      return []
    }
  }

  async beatUntil(signal) {
    while (!signal.aborted) {
      try {
        const facts = [this.name, hostname(), process.pid, this.kinds, this.concurrency, this.running.size, this.lease]
        await this.pool.query(SQL.beat, facts)
        this.beaten = Date.now()
        await this.lookAfter()
      } catch (error) {
        this.log(`beat: ${error.message}`)
      }
      await sleep((this.lease * 1000) / 6, signal)
    }
  }

  // Tells handlers whose job was cancelled, or taken from this worker.
  async lookAfter() {
    if (!this.running.size) return
    const before = [...this.running.values()]
    const { rows } = await this.pool.query(SQL.look, [this.name, before.map(({ job }) => job.id)])
    const found = new Map(rows.map((row) => [row.id, row]))
    for (const { job, abort } of before) {
      const row = found.get(job.id)
      if (this.running.has(job.id) && (row?.claims !== job.claims || row.cancelled))
        abort.abort(new Error(row?.cancelled ? 'the job was cancelled' : 'the lease is lost'))
    }
  }
}
