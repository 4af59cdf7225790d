"""vLLM's own arithmetic: what each rank holds, how many tokens its KV cache takes, and what vLLM refuses.

In: ``ModelSpec`` of a safetensors model or a config, ``VllmSettings``, devices. Out: ``Bill``, ``KvPool``,
``Objection``. Rules are those of vLLM 0.32.0. Knows no machine beyond its devices; decides nothing.
"""
