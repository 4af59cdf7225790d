"""Runs engine processes: spawn, health, progress, logs, draining, reaping, the orphan sweep.

In: ``LaunchSpec`` and the commands of ``policy.lifecycle``. Out: events and a running engine.
"""
