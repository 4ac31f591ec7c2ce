"""The proof over a broker: the same handlers and witnesses, jobs by way of a relay and RabbitMQ, and its own faults."""
