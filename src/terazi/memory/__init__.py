"""The bill: how many bytes each device will hold under an engine's own rules, line by line.

In: ``ModelSpec``, engine settings, the devices. Out: ``Bill``. One sub-package per engine.
Totals are sums of lines and nothing else; every line names its formula and its basis.
"""
