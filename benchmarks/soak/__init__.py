"""A steady load for as long as one likes, under transactions that never let Postgres clean up: does anything creep?

The load is the published one under which a queue's claims grow slower until its backlog explodes: 800 jobs a second and
three overlapping transactions of two minutes. To it come retries, three priorities, and rows that are committed long
after they were inserted. It refuses to touch a database that has tables of ours, and it judges nothing it has not seen.
"""
