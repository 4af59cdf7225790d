"""Ollama as an engine: its environment, Modelfiles and commands, and the llama-server command that it makes.

In: texts. Out: ``OllamaSettings``, ``Modelfile``, argv. Runs nothing, opens nothing.
"""
