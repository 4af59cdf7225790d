"""The llama-server command that Ollama makes of its choices (``startLlamaServer`` in ``llm/llama_server.go``).

In: ``Launch`` and paths. Out: argv, without what moves no memory (ports, logging, templates).
"""

from collections.abc import Sequence

from terazi.memory.ollama.launch import Launch


def llama_server_argv(
    launch: Launch,
    model: str,
    *,
    projectors: Sequence[str] = (),
    adapters: Sequence[str] = (),
    draft: str | None = None,
    draft_kind: str = "draft-mtp",
) -> tuple[str, ...]:
    """The words that Ollama (commit fb30760) starts llama-server with."""
    words = ["llama-server", "--model", model]
    words += ["-c", str(launch.n_ctx_seq * launch.slots), "-np", str(launch.slots)]
    if projectors:
        words += ["--mmproj", projectors[0]]
        words += [] if launch.projector_offload else ["--no-mmproj-offload"]
    if draft is not None and launch.draft_tokens:
        words += ["--spec-type", draft_kind, "--spec-draft-n-max", str(launch.draft_tokens)]
        words += ["--spec-draft-backend-sampling"] if draft_kind == "draft-mtp" else []
        words += ["--spec-draft-model", draft]
    for adapter in adapters:
        words += ["--lora", adapter]
    if launch.load_mode is not None:
        words += ["--load-mode", launch.load_mode]
    if launch.cache_type:
        words += ["--cache-type-k", launch.cache_type, "--cache-type-v", launch.cache_type]
    words += ["--flash-attn", launch.flash_attention]
    words += ["--embedding"] if launch.embedding else []
    words += ["-b", str(launch.batch), "-ub", str(launch.batch)]
    if launch.gpu_layers is not None:
        words += ["-ngl", str(launch.gpu_layers)]
    if launch.main_gpu is not None:
        words += ["--split-mode", "none", "--main-gpu", str(launch.main_gpu)]
    return tuple(words)
