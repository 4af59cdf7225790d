"""Chooses the function that draws a family's graph."""

from terazi.memory.llama_cpp.decoder import draw_decoder
from terazi.memory.llama_cpp.graph import Graph
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.sketch import Sketch


def draw(sketch: Sketch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]) -> Graph:
    """The graph of *sketch*'s model, ready for the scheduler. Rare drawings are imported when they are needed."""
    if sketch.batch.draft_head:
        return _draw_draft(sketch, caches)
    if sketch.family.drawing in {"rwkv", "lightning", "glm5-next"} or sketch.family.recurrent:
        return _draw_remembering(sketch, caches, states)
    return _draw_attending(sketch, caches)


def _draw_remembering(sketch: Sketch, caches: tuple[CacheLayer, ...], states: tuple[StateLayer, ...]) -> Graph:
    """The graph of a model with recurrent states."""
    match sketch.family.drawing:
        case "rwkv":
            from terazi.memory.llama_cpp.rwkv import draw_rwkv

            return draw_rwkv(sketch, states)
        case "lightning":
            from terazi.memory.llama_cpp.lightning_attention import draw_lightning

            return draw_lightning(sketch, caches, states)
        case "glm5-next":
            from terazi.memory.llama_cpp.pooled_indexer import draw_glm5_next

            return draw_glm5_next(sketch, caches, states)
        case _:
            from terazi.memory.llama_cpp.hybrid import draw_hybrid

            return draw_hybrid(sketch, caches, states)


def _draw_attending(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    """The graph of a model without states."""
    match sketch.family.drawing:
        case "eagle3":
            from terazi.memory.llama_cpp.eagle3 import draw_eagle3

            return draw_eagle3(sketch, caches)
        case "deepseek4":
            from terazi.memory.llama_cpp.deepseek4 import draw_deepseek4

            return draw_deepseek4(sketch, caches)
        case "deci":
            from terazi.memory.llama_cpp.deci import draw_deci

            return draw_deci(sketch, caches)
        case "gemma4":
            from terazi.memory.llama_cpp.gemma4 import draw_gemma4

            return draw_gemma4(sketch, caches)
        case "gemma3n":
            from terazi.memory.llama_cpp.gemma3n import draw_gemma3n

            return draw_gemma3n(sketch, caches)
        case "encoder" | "diffusion":
            from terazi.memory.llama_cpp.encoder import draw_encoder

            return draw_encoder(sketch)
        case _:
            return draw_decoder(sketch, caches)


def _draw_draft(sketch: Sketch, caches: tuple[CacheLayer, ...]) -> Graph:
    if sketch.family.drawing == "gemma4-assistant":
        from terazi.memory.llama_cpp.gemma4_assistant import draw_gemma4_assistant

        return draw_gemma4_assistant(sketch, caches)
    from terazi.memory.llama_cpp.draft_head import draw_draft_head

    return draw_draft_head(sketch, caches)
