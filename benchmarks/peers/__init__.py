"""redrive and its peers side by side, on one server and in turn: ``make bench-peers``; see README.md.

It measures and reports; it judges nobody, and no figure in its report is typed in.
"""
