"""llama.cpp: its command line, its log, its endpoints. Strings here are those of build b11434.

In: ``Plan``, ``--help`` text, log lines. Out: argv, ``LlamaCppSettings``, load reports.
"""
