"""Which engine is taken for a model that names none, and why not the others, from what is known at once.

``compare`` weighs them all; this costs nothing.
"""

from terazi.models.spec import ModelSpec
from terazi.placement.plan import Rejected


def usual_engine(spec: ModelSpec) -> str:
    """The engine that reads such files as they are."""
    return "llama.cpp" if spec.format == "gguf" else "vllm"


def engines_not_taken(spec: ModelSpec, taken: str, users: int) -> tuple[Rejected, ...]:
    """The engines besides *taken*, each with what decided against it."""
    if taken == "vllm":
        what = "safetensors" if spec.format == "safetensors" else "a config"
        why = f"it loads GGUF files only, and this is {what}: convert it to use it"
        return tuple(Rejected(option=name, why=why) for name in ("llama.cpp", "Ollama"))
    from terazi.memory.vllm.build import BUILD

    more = f"; for {users} users at once its paged cache may be worth the original weights" if users > 1 else ""
    paged = Rejected(option="vLLM", why=f"{BUILD} reads no GGUF file without a plug-in{more}")
    if taken == "ollama":
        return (Rejected(option="llama.cpp", why="Ollama was asked for, which starts llama.cpp itself"), paged)
    same = Rejected(
        option="Ollama", why="it would start this same engine and leave fewer of its settings to choose"
    )
    return (same, paged)
