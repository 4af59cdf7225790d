"""Decisions without I/O: pure state machines, past-tense events in, imperative commands out.

``step(state, event, now) -> state', [command]``. The supervisor executes them live; a simulator may under its
own clock.
"""
