"""Tables as applications have made them by hand: their DDL, by the name that their shape goes by."""

from __future__ import annotations

UUIDS = """
DO $$ BEGIN
  IF current_setting('server_version_num')::int < 130000 THEN
    CREATE FUNCTION gen_random_uuid() RETURNS uuid LANGUAGE sql
      AS 'SELECT md5(random()::text || clock_timestamp())::uuid';
  END IF;
END $$;
"""
"""What PostgreSQL 12 has not of its own."""

MAIL_JOBS = """
CREATE TABLE mail_jobs (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), rcpt varchar(255) NOT NULL,
  subject text, body_html text,
  status varchar(20) DEFAULT 'pending' CHECK (status IN ('pending','processing','sent','failed','deferred')),
  retry_count int DEFAULT 0, next_retry_at timestamp NULL, last_error text,
  created_at timestamp DEFAULT current_timestamp, processed_at timestamp NULL);
"""
MAIL_FLAG = """
CREATE TABLE mail_flag (id serial PRIMARY KEY, rcpt text, body text, send_after timestamp, sent boolean DEFAULT false,
  attempts int DEFAULT 0, created_at timestamp);
"""
MAIL_NULL = """
CREATE TABLE users (id uuid PRIMARY KEY DEFAULT gen_random_uuid());
CREATE TABLE mail_null (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id uuid REFERENCES users ON DELETE CASCADE,
  template text, scheduled_at timestamptz DEFAULT now(), sent_at timestamptz, created_at timestamptz DEFAULT now());
CREATE INDEX ON mail_null (scheduled_at) WHERE sent_at IS NULL;
ALTER TABLE mail_null ENABLE ROW LEVEL SECURITY;
"""
MAIL_SIMPLE = """
CREATE TABLE mail_simple (id serial PRIMARY KEY, rcpt text, subject text, body text, attachments jsonb,
  status text DEFAULT 'queued', attempts int DEFAULT 0, last_attempt_at timestamptz, last_error text,
  created_at timestamp DEFAULT now(), sent_at timestamp);
"""
HOOK_DELIVERY = """
CREATE TABLE hooks (id bigint PRIMARY KEY);
CREATE TYPE hook_status AS ENUM ('pending', 'delivered', 'failed', 'abandoned');
CREATE TABLE hook_delivery (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  hook_id bigint REFERENCES hooks ON DELETE CASCADE,
  event text NOT NULL, payload jsonb NOT NULL, status hook_status NOT NULL DEFAULT 'pending',
  attempts int NOT NULL DEFAULT 0, next_attempt_at timestamptz, last_http_code smallint, last_error text,
  delivered_at timestamptz, created_at timestamptz DEFAULT now());
"""
BG_JOBS = """
CREATE TABLE bg_jobs (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), job_type text NOT NULL,
  payload jsonb NOT NULL DEFAULT '{}',
  status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending','processing','completed','failed','retrying')),
  priority int DEFAULT 0, attempts int DEFAULT 0, max_attempts int DEFAULT 3, scheduled_at timestamptz DEFAULT now(),
  started_at timestamptz, completed_at timestamptz, failed_at timestamptz, error_message text, result jsonb,
  locked_by text, locked_at timestamptz, updated_at timestamptz);
"""
OUTBOX = """
CREATE TABLE outbox (id bigserial PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload text,
  status varchar(20) NOT NULL CHECK (status IN ('PENDING','PUBLISHED','FAILED')), created_at timestamp NOT NULL,
  published_at timestamp);
"""
MAIL_DELETE = """
CREATE TABLE mail_delete (id serial PRIMARY KEY, rcpt text, subject text, html text, kind text, priority int DEFAULT 0,
  created_at bigint, attempts int DEFAULT 0);
"""

SHAPES = {
    "mail_jobs": MAIL_JOBS,
    "mail_flag": MAIL_FLAG,
    "mail_null": MAIL_NULL,
    "mail_simple": MAIL_SIMPLE,
    "hook_delivery": HOOK_DELIVERY,
    "bg_jobs": BG_JOBS,
    "outbox": OUTBOX,
    "mail_delete": MAIL_DELETE,
}
"""Section 15's S1, S2, S3, S5, S6, S8, S10 and S13, by the name of their table."""

MAIL_JOBS_MAP = {
    "table": "public.mail_jobs",
    "key": "id",
    "kind": "mail_jobs",
    "created": "created_at",
    "cutover": "2026-01-01T00:00:00+00:00",
    "due": "next_retry_at",
    "runnable": {"column": "status", "values": ["pending", "deferred"], "null": True},
    "times": {
        "next_retry_at": {"form": "timestamp", "zone": "UTC"},
        "created_at": {"form": "timestamp", "zone": "UTC"},
        "processed_at": {"form": "timestamp", "zone": "UTC"},
    },
    "payload": {"form": "columns", "columns": ["rcpt", "subject", "body_html"]},
    "attempts": {"column": "retry_count", "max": 5},
    "error": {"column": "last_error"},
    "claimed": {"set": {"status": "processing"}},
    "waiting": {"set": {"status": "deferred"}, "run_at": ["next_retry_at"]},
    "succeeded": {"set": {"status": "sent"}, "now": ["processed_at"]},
    "dead": {"set": {"status": "failed"}},
}
"""A whole map of mail_jobs, as its document."""

PEERS = {
    "background_task": """
CREATE TABLE background_task (id bigserial PRIMARY KEY, task_name varchar(190) NOT NULL, task_params text NOT NULL,
  task_hash varchar(40) NOT NULL, verbose_name varchar(255), priority int NOT NULL, run_at timestamptz NOT NULL,
  repeat bigint NOT NULL, repeat_until timestamptz, queue varchar(190), attempts int NOT NULL, failed_at timestamptz,
  last_error text NOT NULL, locked_by varchar(64), locked_at timestamptz, creator_object_id int,
  creator_content_type_id int);
""",
    "django_q_ormq": """
CREATE TABLE django_q_ormq (id serial PRIMARY KEY, key varchar(100) NOT NULL, payload text NOT NULL, lock timestamptz);
CREATE TABLE django_q_task (id varchar(32) PRIMARY KEY, name varchar(100) NOT NULL, func varchar(256) NOT NULL,
  hook varchar(256), args text, kwargs text, result text, "group" varchar(100), started timestamptz NOT NULL,
  stopped timestamptz NOT NULL, success boolean NOT NULL, attempt_count int NOT NULL);
""",
    "procrastinate_jobs": """
CREATE TYPE procrastinate_job_status AS ENUM ('todo', 'doing', 'succeeded',
  'failed', 'cancelled', 'aborting', 'aborted');
CREATE TABLE procrastinate_jobs (id bigserial PRIMARY KEY, queue_name varchar(128) NOT NULL,
  task_name varchar(128) NOT NULL,
  priority int DEFAULT 0 NOT NULL, lock text, queueing_lock text, args jsonb DEFAULT '{}' NOT NULL,
  status procrastinate_job_status DEFAULT 'todo' NOT NULL, scheduled_at timestamptz, attempts int DEFAULT 0 NOT NULL,
  abort_requested boolean DEFAULT false NOT NULL, worker_id bigint,
  CONSTRAINT check_not_todo_abort_requested CHECK (NOT (status = 'todo' AND abort_requested = true)));
""",
    "delayed_jobs": """
CREATE TABLE delayed_jobs (id bigserial PRIMARY KEY, priority int DEFAULT 0 NOT NULL, attempts int DEFAULT 0 NOT NULL,
  handler text NOT NULL, last_error text, run_at timestamp, locked_at timestamp, failed_at timestamp, locked_by varchar,
  queue varchar, created_at timestamp, updated_at timestamp);
""",
    "pgboss.job": """
CREATE SCHEMA pgboss;
CREATE TYPE pgboss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
CREATE TABLE pgboss.job (id uuid NOT NULL DEFAULT gen_random_uuid(), name text NOT NULL,
  priority int NOT NULL DEFAULT 0, data jsonb, state pgboss.job_state NOT NULL DEFAULT 'created',
  retry_limit int NOT NULL DEFAULT 2,
  retry_count int NOT NULL DEFAULT 0, retry_delay int NOT NULL DEFAULT 0,
  start_after timestamptz NOT NULL DEFAULT now(),
  started_on timestamptz, singleton_on timestamp, created_on timestamptz NOT NULL DEFAULT now(),
  completed_on timestamptz,
  keep_until timestamptz NOT NULL DEFAULT now(), output jsonb, PRIMARY KEY (name, id)) PARTITION BY LIST (name);
""",
    "pgboss9.job": """
CREATE SCHEMA pgboss9;
CREATE TYPE pgboss9.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'expired', 'cancelled', 'failed');
CREATE TABLE pgboss9.job (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name text NOT NULL,
  priority int NOT NULL DEFAULT 0, data jsonb, state pgboss9.job_state NOT NULL DEFAULT 'created',
  retrylimit int NOT NULL DEFAULT 0,
  retrycount int NOT NULL DEFAULT 0, startafter timestamptz NOT NULL DEFAULT now(), startedon timestamptz,
  createdon timestamptz NOT NULL DEFAULT now(), completedon timestamptz, output jsonb);
""",
    "graphile_worker._private_jobs": """
CREATE SCHEMA graphile_worker;
CREATE TABLE graphile_worker._private_jobs (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, job_queue_id int,
  task_id int NOT NULL, payload json DEFAULT '{}' NOT NULL, priority smallint DEFAULT 0 NOT NULL,
  run_at timestamptz DEFAULT now() NOT NULL, attempts smallint DEFAULT 0 NOT NULL,
  max_attempts smallint DEFAULT 25 NOT NULL CHECK (max_attempts >= 1), last_error text,
  created_at timestamptz DEFAULT now() NOT NULL, updated_at timestamptz DEFAULT now() NOT NULL, key text UNIQUE,
  locked_at timestamptz, locked_by text, revision int DEFAULT 0 NOT NULL, flags jsonb,
  is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED NOT NULL);
""",
}
"""The tables of other job queues, by name; columns that say nothing of a job's fate are left out."""
