"""Reads this machine: /proc, /sys, cgroups, and the NVIDIA driver in a child process with a deadline.

In: a ``root`` folder that holds ``proc`` and ``sys``. Out: ``Machine``.
Does I/O; imported only by ``service`` and ``cli``.
"""

from terazi.hardware.probe.catalogue import load_catalogue
from terazi.hardware.probe.machine import read_machine
from terazi.hardware.probe.nvml import read_cards, read_process_memory
from terazi.hardware.probe.pressure import Pressure, read_pressure

__all__ = ["Pressure", "load_catalogue", "read_cards", "read_machine", "read_pressure", "read_process_memory"]
