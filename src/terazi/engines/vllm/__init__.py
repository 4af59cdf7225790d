"""vLLM's command line and log: words to ``VllmSettings`` and back, log text to a load report.

In: argv and environment, or log lines. Out: ``Command``, ``LoadReport``. Reads no files and starts nothing.
"""
