"""llama.cpp's own rules (build b11434): layer placement, weights, KV cache, compute buffers.

In: ``ModelSpec``, ``LlamaCppSettings``, devices. Out: ``Bill`` (``weigh``), ``Resolved`` (``resolve``).
Every formula cites the function of llama.cpp that it redoes; a rule that isn't known here becomes a
labelled upper bound, never a wrong "exact".

Reading order: settings, resolve, layers; weights (with repack, buffers), kv; then for the compute buffers graph,
sketch, attention, feed_forward, decoder (what is drawn), scheduler, allocator (what happens to it), compute; bill.
What stays inside the core is a NamedTuple: a dataclass takes several times as long to define, and weighing
starts with every command.
"""
