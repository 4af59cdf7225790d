"""llama.cpp's own rules (build b11434): layer placement, weights, KV cache, compute buffers.

In: ``ModelSpec``, ``LlamaCppSettings``, devices. Out: ``Bill``.
Every formula cites the function of llama.cpp that it redoes; a rule that isn't known here becomes a
labelled upper bound, never a wrong "exact".
"""
