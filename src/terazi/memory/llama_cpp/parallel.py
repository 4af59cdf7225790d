"""Blocks whose feed-forward half works beside attention instead of after it.

Sources, b11434: ``src/models/`` ``command-r.cpp``, ``cohere2.cpp``, ``falcon.cpp``, ``gptneox.cpp``, ``phi2.cpp``,
``plamo.cpp``, ``stablelm.cpp``.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.attention import CacheInputs, Position, attend
from terazi.memory.llama_cpp.feed_forward import feed_forward
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.sketch import Sketch


def runs_parallel(sketch: Sketch, block: int) -> bool:
    """Whether this file's blocks do: StableLM's don't if they have a norm between the halves."""
    spec = sketch.spec
    if spec.architecture == "stablelm":
        return sketch.weight(f"blk.{block}.ffn_norm.weight") is None
    return bool(spec.metadata.get(f"{spec.architecture}.use_parallel_residual", True))


def draw_parallel(
    sketch: Sketch, x: Node, position: Position, cache: CacheLayer, inputs: tuple[CacheInputs, Node | None]
) -> Node:
    """One whole block. The second of *inputs* are the rows that go on after the last attention."""
    name, (cache_inputs, wanted) = f"blk.{cache.block}", inputs
    residual = x
    normed = sketch.norm(x, f"{name}.attn_norm", cache.block)
    own = sketch.weight(f"{name}.attn_norm_2.weight")
    asking = sketch.norm(x, f"{name}.attn_norm_2", cache.block) if own else normed
    x = attend(sketch, asking, position, cache, cache_inputs)
    if wanted:
        x, residual, normed = (g.get_rows(part, wanted) for part in (x, residual, normed))
    if sketch.weight(f"{name}.ffn_norm.weight"):
        normed = sketch.norm(residual, f"{name}.ffn_norm", cache.block)
    if sketch.spec.architecture == "stablelm":
        x = g.like("add", x, residual)
        return g.like("add", feed_forward(sketch, normed, cache.block), x)
    parts = {"f": feed_forward(sketch, normed, cache.block), "a": x, "r": residual}
    first, second, third = (parts[part] for part in sketch.family.parallel or "")
    return g.like("add", g.like("add", first, second), third)
