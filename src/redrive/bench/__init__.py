"""What redrive does in a second on a given database: the scenarios behind ``redrive bench`` and ``make bench``.

Workers under measure are real worker processes. It works in schemas of its own making and touches no other; it compares
redrive with nothing but itself.
"""
