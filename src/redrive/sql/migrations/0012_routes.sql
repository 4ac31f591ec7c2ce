-- Routes: where the jobs of a kind go to be run. In the table, or over a broker, to which a relay hands them.

ALTER TABLE {kinds} ADD COLUMN route text NOT NULL DEFAULT 'postgres';
ALTER TABLE {kinds}
    ADD CONSTRAINT kinds_route_is_postgres_or_amqp CHECK (route IN ('postgres', 'amqp')),
    ADD CONSTRAINT kinds_all_have_no_route_together CHECK (kind <> '*' OR route = 'postgres');
COMMENT ON COLUMN {kinds}.route IS 'postgres: workers claim its jobs; amqp: redrive relay hands them to a broker';

CREATE TRIGGER kinds_tell_of_route AFTER UPDATE OF route ON {kinds} FOR EACH ROW
    WHEN (OLD.route <> NEW.route) EXECUTE FUNCTION {schema}.tell_of_kind();
