"""Pooling in the graph: from the embeddings of tokens to one of each sequence.

Source, b11434: ``llm_graph_context::build_pooling``. Only contexts that give out embeddings have it.
"""

from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.sketch import Sketch

#: ``llama_pooling_type``, as ``<architecture>.pooling_type`` gives it.
_NONE, _MEAN, _CLS, _LAST, _RANK = range(5)
#: These pool by the mean before they rank (unless their file says otherwise, which none does).
_MEAN_RANK = frozenset({"modern-bert"})
#: These rerank by the softmax of their head.
_SOFT_RANK = frozenset({"qwen3", "qwen3vl"})


def draw_pooling(sketch: Sketch, embeddings: Node) -> None:
    """Add what the file's pooling makes of *embeddings* (width, tokens)."""
    if not sketch.settings.embedding:
        return
    kind = sketch.spec.metadata.get(f"{sketch.spec.architecture}.pooling_type", _NONE)
    x = embeddings
    if kind == _MEAN or (kind == _RANK and sketch.spec.architecture in _MEAN_RANK):
        share = sketch.input(g.F32, sketch.batch.tokens, sketch.batch.slots)
        x = g.mul_mat(g.contiguous(g.transpose(x)), share)
    elif kind in {_CLS, _LAST, _RANK}:
        x = g.get_rows(x, sketch.input(g.I32, sketch.batch.slots))
    if kind == _RANK:
        x = _rank(sketch, x)
    sketch.graph.expand(x)
    # dense layers behind it, where the file has them (``build_dense_out``)
    for name in ("dense_2", "dense_3"):
        if sketch.weight(f"{name}.weight"):
            x = sketch.linear(x, name)
    x.is_output = True
    sketch.graph.expand(x)


def _rank(sketch: Sketch, x: Node) -> Node:
    """The classification head of a reranker."""
    if sketch.weight("cls.weight"):
        x = g.like("unary", sketch.linear(x, "cls"))
        if sketch.weight("cls.norm.weight"):
            x = sketch.norm(x, "cls.norm", None)
    if sketch.weight("cls.output.weight"):
        x = sketch.linear(x, "cls.output")
    return g.like("soft_max", x) if sketch.spec.architecture in _SOFT_RANK else x
