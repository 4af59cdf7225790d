"""What a machine is: host, devices and the links between them, each figure with where it came from.

In: probe text, catalogue rows, preset strings. Out: ``Machine``.
Nothing here reads a file or asks a driver; that is ``hardware.probe``, which only ``service`` and ``cli`` import.
"""
