"""Where records are kept: an SQLite file that several processes may write, bounded in size and age.

In: records of ``telemetry``. Out: the same, by plan. Does I/O; imported only by ``service`` and ``cli``.
A store that is broken or of a newer Terazi costs the records, never the command that wanted to keep one.
"""
