"""Where models come from: a local GGUF file (single or split) and the packaged demo model.

In: a MODEL argument. Out: ``ModelSpec``, through ``models.gguf``.
Does I/O; imported only by ``service`` and ``cli``. Reads headers, never weights.
"""
