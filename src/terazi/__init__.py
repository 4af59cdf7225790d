"""Terazi weighs a language model against a machine, runs it, and keeps the promise it made."""

__version__ = "0.1.0"
