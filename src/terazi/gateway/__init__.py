"""One endpoint for OpenAI- and Ollama-speaking clients, in front of supervised engines.

In: HTTP. Out: HTTP. ``gateway.wire`` is pure: shapes and translation; ``proxy`` and ``app`` move the bytes.
"""
