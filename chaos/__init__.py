"""The promise, put to the proof: faults by the hundred while jobs run, and a ledger that shows whether any was lost.

Workers are real processes, started as a user starts them; so are the servers, the pooler and the standby. What happened
is judged by witnesses outside of redrive: what producers and handlers wrote down themselves, and a trigger's record of
every change of state. It believes nothing that redrive says of itself.
"""
