"""The tables of the witness in the database under test, and the trigger that notes every change of a job.

The trigger writes in the transaction of the change, so that what was rolled back leaves no trace and what was committed
always does; row locks order the changes of one job. Nothing in redrive knows of it.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

TABLES = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    by text DEFAULT current_setting('application_name', true),
    job bigint NOT NULL, n bigint, kind text,
    was text, now text,
    claims_was int, claims int, attempts_was int, attempts int, crashes_was int, crashes int,
    holder_was text, holder text, key_was text, key text, reason text
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos.changes (job, n, kind, now, claims, attempts, crashes, holder, key)
        VALUES (NEW.id, (NEW.payload->>'n')::bigint, NEW.kind, NEW.status, NEW.claims, NEW.attempts, NEW.crashes,
                NEW.locked_by, NEW.key);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO chaos.changes (job, n, kind, was, claims_was, attempts_was, crashes_was, holder_was, key_was)
        VALUES (OLD.id, (OLD.payload->>'n')::bigint, OLD.kind, OLD.status, OLD.claims, OLD.attempts, OLD.crashes,
                OLD.locked_by, OLD.key);
    ELSE
        INSERT INTO chaos.changes (job, n, kind, was, now, claims_was, claims, attempts_was, attempts, crashes_was,
                                   crashes, holder_was, holder, key_was, key, reason)
        VALUES (NEW.id, (NEW.payload->>'n')::bigint, NEW.kind, OLD.status, NEW.status, OLD.claims, NEW.claims,
                OLD.attempts, NEW.attempts, OLD.crashes, NEW.crashes, OLD.locked_by, NEW.locked_by, OLD.key, NEW.key,
                CASE WHEN NEW.status <> 'succeeded' THEN left(NEW.last_error, 200) END);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_insert_delete AFTER INSERT OR DELETE ON redrive.jobs FOR EACH ROW EXECUTE FUNCTION chaos.note();
CREATE TRIGGER chaos_update AFTER UPDATE ON redrive.jobs FOR EACH ROW
    WHEN ((OLD.status, OLD.claims, OLD.attempts, OLD.crashes, OLD.locked_by, OLD.key)
          IS DISTINCT FROM (NEW.status, NEW.claims, NEW.attempts, NEW.crashes, NEW.locked_by, NEW.key))
    EXECUTE FUNCTION chaos.note();
CREATE TABLE chaos.effects (job bigint NOT NULL, claim int NOT NULL, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE chaos.orders (n bigint PRIMARY KEY);
CREATE TABLE chaos.probes (at timestamptz DEFAULT clock_timestamp());
"""


def install(dsn: str, role: str) -> None:
    """Make the tables and the trigger, and let *role* write effects and orders, as an application would."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TABLES)
        conn.execute(
            sql.SQL(
                "GRANT USAGE ON SCHEMA chaos TO {0}; GRANT SELECT, INSERT ON chaos.effects, chaos.orders TO {0}"
            ).format(sql.Identifier(role))
        )
