"""Reads this machine: /proc, /sys, cgroups, and the NVIDIA driver in a child process with a deadline.

In: a ``root`` folder that holds ``proc`` and ``sys``. Out: ``Machine``.
Does I/O; imported only by ``service`` and ``cli``.
"""
