"""The map: which layer sits where, and what would fit instead when it doesn't.

In: ``ModelSpec``, ``Machine``, ``Workload``, pinned settings, a score. Out: ``Plan | Refusal``.
Never plans into swap. Knows no speed: plans are ranked by a ``score(plan)`` argument.
"""
