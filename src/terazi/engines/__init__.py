"""How each engine is started, asked and read. One sub-package per engine.

In: a ``Plan``; the engine's texts. Out: ``LaunchSpec``; facts read from logs and endpoints.
Adapters say what to launch, what to ask and how to read the answer; the supervisor runs and asks.
"""
