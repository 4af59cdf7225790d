"""Chooses the function that draws an encoder's graph."""

from collections.abc import Callable, Mapping

from terazi.memory.llama_cpp import audio_towers as audio
from terazi.memory.llama_cpp import merger_towers as merger
from terazi.memory.llama_cpp import qwen_towers as qwen
from terazi.memory.llama_cpp import vision_towers as vision
from terazi.memory.llama_cpp.conformer import draw_conformer
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.mobilenet import draw_mobilenet
from terazi.memory.llama_cpp.tower import Tower

#: Type of projector → what draws its graph and returns the last node (``clip_get_graph_builder``).
DRAWINGS: Mapping[str, Callable[[Tower], Node]] = {
    "gemma3": vision.draw_gemma3,
    "gemma3nv": draw_mobilenet,
    "gemma4v": vision.draw_gemma4,
    "gemma4uv": vision.draw_gemma4_unified,
    "gemma4a": draw_conformer,
    "gemma4ua": audio.draw_gemma4_unified_audio,
    "idefics3": vision.draw_idefics3,
    "lfm2": vision.draw_lfm2,
    "phi4": vision.draw_phi4,
    "janus_pro": vision.draw_janus,
    "pixtral": vision.draw_pixtral,
    "lightonocr": vision.draw_pixtral,
    "internvl": vision.draw_internvl,
    "llama4": vision.draw_llama4,
    "mlp": vision.draw_llava,
    "resampler": vision.draw_minicpmv,
    "qwen2vl_merger": qwen.draw_qwen2,
    "qwen2.5vl_merger": qwen.draw_qwen2,
    "qwen3vl_merger": qwen.draw_qwen3,
    "glm4v": merger.draw_glm4,
    "glm5v": merger.draw_glm4,
    "kimivl": merger.draw_kimi,
    "kimik25": merger.draw_kimi,
    "dots_ocr": merger.draw_dots,
    "paddleocr": merger.draw_paddle,
    "nemotron_v2_vl": merger.draw_nemotron,
    "minicpmv4_6": merger.draw_minicpmv_merged,
    "ultravox": audio.draw_whisper,
    "qwen2a": audio.draw_whisper,
    "voxtral": audio.draw_whisper,
    "musicflamingo": audio.draw_whisper,
    "meralion": audio.draw_whisper,
    "glma": audio.draw_whisper,
    "qwen3a": audio.draw_qwen3_audio,
}
