"""Chooses the function that draws a family's graph."""

from terazi.memory.llama_cpp.decoder import draw_decoder
from terazi.memory.llama_cpp.graph import Graph
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.sketch import Sketch


def draw(sketch: Sketch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]) -> Graph:
    """The graph of *sketch*'s model, ready for the scheduler. Rare drawings are imported when they are needed."""
    if sketch.batch.draft_head:
        from terazi.memory.llama_cpp.draft_head import draw_draft_head

        return draw_draft_head(sketch, caches)
    if sketch.family.drawing == "eagle3":
        from terazi.memory.llama_cpp.eagle3 import draw_eagle3

        return draw_eagle3(sketch, caches)
    if sketch.family.drawing == "rwkv":
        from terazi.memory.llama_cpp.rwkv import draw_rwkv

        return draw_rwkv(sketch, states)
    if sketch.family.drawing == "deci":
        from terazi.memory.llama_cpp.deci import draw_deci

        return draw_deci(sketch, caches)
    if sketch.family.drawing == "lightning":
        from terazi.memory.llama_cpp.lightning_attention import draw_lightning

        return draw_lightning(sketch, caches, states)
    if sketch.family.recurrent:
        from terazi.memory.llama_cpp.hybrid import draw_hybrid

        return draw_hybrid(sketch, caches, states)
    if sketch.family.drawing == "gemma4":
        from terazi.memory.llama_cpp.gemma4 import draw_gemma4

        return draw_gemma4(sketch, caches)
    if sketch.family.drawing == "gemma3n":
        from terazi.memory.llama_cpp.gemma3n import draw_gemma3n

        return draw_gemma3n(sketch, caches)
    if sketch.family.drawing in {"encoder", "diffusion"}:
        from terazi.memory.llama_cpp.encoder import draw_encoder

        return draw_encoder(sketch)
    return draw_decoder(sketch, caches)
