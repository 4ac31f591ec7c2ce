"""Take a table that an application already has into redrive's care: look at it, map it, then connect it.

Nothing here is needed by, or imported from, the rest of the library.
"""
