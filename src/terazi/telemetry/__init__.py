"""What was measured, as records: a launch's figures beside the plan's.

In: rows of planned and printed figures. Out: ``Reconciliation``, and its JSON.
Does no I/O and holds no rules of an engine; what is kept lies in ``telemetry.store``.
"""
