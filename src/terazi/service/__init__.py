"""The composition root: the only place where objects meet.

In: a command's arguments and ``terazi.toml``. Out: a weighing, or the running service.
"""
