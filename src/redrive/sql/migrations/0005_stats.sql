-- What workers counted, by the minute; when which version of the application came; views for people's own dashboards.

-- One row a minute, kind and worker, which only that worker writes: no row is hot. Later the workers' upkeep sums them up:
-- after half an hour those of all workers, whose name is '' then, after two hours those of ten minutes, after a day those
-- of an hour.
CREATE TABLE {stats} (
    minute       timestamptz NOT NULL,
    kind         text NOT NULL,
    worker       text NOT NULL,
    minutes      int NOT NULL DEFAULT 1,
    succeeded    int NOT NULL DEFAULT 0,
    retried      int NOT NULL DEFAULT 0,
    failed       int NOT NULL DEFAULT 0,
    died         int NOT NULL DEFAULT 0,
    snoozed      int NOT NULL DEFAULT 0,
    handed_back  int NOT NULL DEFAULT 0,
    reclaimed    int NOT NULL DEFAULT 0,
    ran          int NOT NULL DEFAULT 0,
    wait_seconds double precision NOT NULL DEFAULT 0,
    run_seconds  double precision NOT NULL DEFAULT 0,
    waits        int[] NOT NULL DEFAULT '{{}}',
    runs         int[] NOT NULL DEFAULT '{{}}',
    PRIMARY KEY (minute, kind, worker, minutes)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
COMMENT ON COLUMN {stats}.minute IS 'when it begins; what ended in it is counted in it';
COMMENT ON COLUMN {stats}.minutes IS 'how many it stands for: 1, 10 or 60';
COMMENT ON COLUMN {stats}.worker IS 'who counted; '''' where it is a sum';
COMMENT ON COLUMN {stats}.failed IS 'cancelled while they ran, and discarded';
COMMENT ON COLUMN {stats}.reclaimed IS 'taken back by this worker from others that were lost';
COMMENT ON COLUMN {stats}.ran IS 'runs of the handler that ended, whatever came of them: what the seconds are sums of';
COMMENT ON COLUMN {stats}.wait_seconds IS 'from the time at which each was due to its start';
COMMENT ON COLUMN {stats}.waits IS
    'histogram of the waits: how many took up to 0.0001 s is waits[1], and each further place reaches 2^(1/4) times as far; the zeros at both ends are left out, so it may begin at [30]. So it is with runs';

CREATE INDEX stats_to_sum_up_idx ON {stats} (minutes, minute);

-- When a version of the application first was there, or again after it had been gone.
CREATE TABLE {deploys} (
    version text NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (at, version)
);

ALTER TABLE {workers} ADD COLUMN clock_skew double precision;
COMMENT ON COLUMN {workers}.clock_skew IS 'seconds by which its machine''s clock is ahead of the database''s';

-- Histograms of any rows, added up: SELECT redrive.quantile(redrive.merged(runs), 0.95) FROM redrive.stats WHERE ...
CREATE FUNCTION {schema}.add_histogram(sum bigint[], histogram int[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(coalesce(sum[place], 0) + coalesce(histogram[place], 0) ORDER BY place), '{{}}')
    FROM generate_series(1, greatest(array_upper(sum, 1), array_upper(histogram, 1))) AS place
$$;
CREATE AGGREGATE {schema}.merged(int[]) (SFUNC = {schema}.add_histogram, STYPE = bigint[], INITCOND = '{{}}');

-- The middle of the place in which the share of all is reached: off by a factor of 2^(1/8), 9 %, at the most.
CREATE FUNCTION {schema}.quantile(histogram bigint[], share double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN place = 1 THEN 0.0001 ELSE 0.0001 * 2 ^ ((place - 1.5) / 4.0)::double precision END
    FROM (
        SELECT place, sum(jobs) OVER (ORDER BY place) AS upto, sum(jobs) OVER () AS total
        FROM unnest(histogram) WITH ORDINALITY AS u(jobs, place)
    ) h
    WHERE total > 0 AND upto >= greatest(share, 0) * total AND upto > 0
    ORDER BY place
    LIMIT 1
$$;

CREATE VIEW {schema}.throughput AS
SELECT minute, kind, minutes,
       sum(succeeded) AS succeeded, sum(retried) AS retried, sum(failed) AS failed, sum(died) AS died,
       sum(snoozed) AS snoozed, sum(handed_back) AS handed_back, sum(reclaimed) AS reclaimed, sum(ran) AS ran,
       sum(wait_seconds) / nullif(sum(ran), 0) AS wait_mean,
       {schema}.quantile({schema}.merged(waits), 0.5) AS wait_p50,
       {schema}.quantile({schema}.merged(waits), 0.95) AS wait_p95,
       sum(run_seconds) / nullif(sum(ran), 0) AS run_mean,
       {schema}.quantile({schema}.merged(runs), 0.5) AS run_p50,
       {schema}.quantile({schema}.merged(runs), 0.95) AS run_p95
FROM {stats}
GROUP BY minute, kind, minutes;
COMMENT ON VIEW {schema}.throughput IS 'what became of jobs, by minute (ten after two hours, an hour after a day) and kind; times in seconds';

-- A `failed` that gives none of our reasons was written by a stranger and counts as dead.
CREATE VIEW {schema}.dead_letters AS
SELECT id, kind, lane, updated_at AS died_at, created_at, attempts, status,
       coalesce(nullif(substring(rtrim(last_error, E'\n ') FROM '([^\n]*)$'), ''), '(no error text)') AS error,
       last_error, payload, metadata
FROM {jobs}
WHERE status IN ('failed', 'dead')
  AND (status = 'dead' OR last_error IS NULL OR last_error !~ '^(cancelled|discarded)');
COMMENT ON VIEW {schema}.dead_letters IS 'jobs at which a human must look; error is the last line of last_error';

CREATE VIEW {schema}.queue_depth AS
SELECT kind, count(*) FILTER (WHERE status = 'pending') AS pending,
       count(*) FILTER (WHERE status = 'pending' AND run_at <= {clock}()) AS due,
       count(*) FILTER (WHERE status = 'pending' AND attempts > 0) AS retrying,
       count(*) FILTER (WHERE status = 'running') AS running,
       extract(epoch FROM {clock}() - min(greatest(run_at, '1970-01-01 00:00+00'))
                                          FILTER (WHERE status = 'pending' AND run_at <= {clock}()))::double precision
           AS oldest_due
FROM (
    SELECT kind, status, run_at, attempts FROM {jobs} WHERE status = 'pending'
    UNION ALL
    SELECT kind, status, run_at, attempts FROM {jobs} WHERE status = 'running'
) live
GROUP BY kind;
COMMENT ON VIEW {schema}.queue_depth IS 'what waits and what runs, by kind: all of it is counted; oldest_due in seconds';

CREATE VIEW {schema}.workers_alive AS
SELECT name, host, pid, version, app_version, kinds, concurrency, in_flight, started_at, heartbeat_at,
       extract(epoch FROM {clock}() - heartbeat_at)::double precision AS silent_for,
       heartbeat_at > {clock}() - lease AS alive, clock_skew, problem
FROM {workers};
COMMENT ON VIEW {schema}.workers_alive IS 'worker processes of the last day, and whether each has been heard within its lease';
