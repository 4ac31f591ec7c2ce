"""Jobs over RabbitMQ: a relay hands the due jobs of routed kinds to a broker, and workers take them from there.

Postgres stays the ledger. What is enqueued stands in the table until the broker has confirmed it; what fails, snoozes,
dies or has a result comes home, as a row, before its message is acknowledged. Only a success with nothing more to be
said of it is an acknowledgement alone. Sending and taking need the extra ``redrive[amqp]``, looking does not.
"""
