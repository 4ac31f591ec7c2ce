"""Ready handlers for what nearly every application sends: `webhook` to its customers' systems, `email` to people.

Each is imported by its own name and needs nothing but the standard library. Nothing here is imported by the rest.
"""
