"""Tables as applications have made them by hand: their DDL, by the name that their shape goes by."""

from __future__ import annotations

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
