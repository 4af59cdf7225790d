"""The forecast: speed, latency, watts and cost as intervals, from bytes, operations and links.

In: ``ModelSpec``, ``Plan``, ``Machine``, ``Workload``. Out: ``Forecast``, which says what it rests on.
"""
