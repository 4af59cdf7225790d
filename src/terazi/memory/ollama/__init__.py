"""Ollama's own choices on top of llama.cpp's rules: slots, context, batch, card, load mode.

In: ``ModelSpec``, ``OllamaSettings``, cards and memory. Out: ``Launch``: the llama-server that Ollama starts, and
what it thought. May not guess silently: what isn't known is a reason.
"""
