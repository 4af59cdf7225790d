"""What vLLM measures while it starts and Terazi can only model: activations, sampler, graphs, libraries.

vLLM runs one forward pass of ``max_num_batched_tokens`` and one sampling step of ``max_num_seqs`` rows, and takes
what that needed off the KV cache (``v1/worker/gpu_worker.py:determine_available_memory``, 0.32.0). Every figure
here is a model, with its error in the line's note.
"""

from typing import Final, NamedTuple

from terazi.memory.vllm.model import VllmModel
from terazi.memory.vllm.resolve import Resolved
from terazi.memory.vllm.settings import VllmSettings
from terazi.units import GIB, MIB

#: Device memory of libraries inside the budget: 0.13 to 0.15 GiB were measured on an H100 alone, 0.55 GiB with two.
_LIBRARIES_ALONE: Final = round(0.14 * GIB)
_LIBRARIES_TOGETHER: Final = round(0.55 * GIB)
#: CUDA graphs: a pool of some 8 MiB a layer and a base. vLLM's own estimate was off by -0.9 to +2 GiB.
_GRAPHS_BASE: Final = 256 * MIB
_GRAPHS_LAYER: Final = 8 * MIB
#: Resident memory of one CPU worker beside weights and cache, and of the API server with the engine's own process,
#: as seen with a model of 135 M parameters.
CPU_WORKER_BYTES: Final = round(0.84 * GIB)
FRONT_BYTES: Final = round(1.36 * GIB)
#: Half-precision copies that routed experts keep of each token: input, both halves of the product, output.
_EXPERT_COPIES: Final = 3


class Profile(NamedTuple):
    """Bytes on one rank of a card.

    Args:
        forward: peak of the forward pass.
        sampler: what a sampling step needs beyond that; 0 but on the last stage.
        graphs: captured CUDA graphs.
        libraries: communication and mathematics libraries, inside the budget.
        rope: tables of rotary positions, part of the model.
    """

    forward: int
    sampler: int
    graphs: int
    libraries: int
    rope: int


def profile_of(model: VllmModel, settings: VllmSettings, resolved: Resolved, *, last: bool) -> Profile:
    """What a rank of a stage needs; *last* if the stage has the head."""
    forward = forward_bytes(model, settings, resolved)
    sampler = 0
    if last:
        kept = resolved.max_num_batched_tokens * model.hidden_size * resolved.element_bytes
        rows = resolved.max_num_seqs * model.vocab_size
        sampler = max(0, kept + rows * (resolved.element_bytes + 4) - forward)
    graphs = 0 if settings.enforce_eager else _GRAPHS_BASE + _GRAPHS_LAYER * len(resolved.stages[0])
    return Profile(
        forward=forward,
        sampler=sampler,
        graphs=graphs,
        libraries=_LIBRARIES_ALONE if settings.tensor_parallel == 1 else _LIBRARIES_TOGETHER,
        rope=rope_bytes(model, resolved),
    )


def forward_bytes(model: VllmModel, settings: VllmSettings, resolved: Resolved) -> int:
    """Hidden state and residual, and the widest point of a layer: both halves of a gated product and its result."""
    ranks, config = settings.tensor_parallel, model.config
    inner = config.number("intermediate_size", 4 * model.hidden_size)
    widest = 3 * inner / ranks
    used = config.number("experts_used", 0)
    if used:
        expert = config.number("expert_intermediate_size", inner) / (1 if settings.expert_parallel else ranks)
        widest = max(widest, used * (model.hidden_size + _EXPERT_COPIES * expert))
    per_token = (2 * model.hidden_size + widest) * resolved.element_bytes
    return round(resolved.max_num_batched_tokens * per_token)


def rope_bytes(model: VllmModel, resolved: Resolved) -> int:
    """Sines and cosines of every position (``layers/rotary_embedding``), one table for all layers alike."""
    config = model.config
    share = config.value("partial_rotary_factor")
    width = config.number("qk_rope_head_dim", 0) or round(
        model.head_size * (share if isinstance(share, float) else 1.0)
    )
    size = 4 if model.model_type == "gpt_oss" else resolved.element_bytes
    if model.attention_free or config.value("position_embedding_type") == "nope":
        return 0
    positions = config.number("context", 0)
    factor = config.value("rope_scaling.factor", "rope_parameters.factor")
    kind = config.value("rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type")
    if isinstance(factor, int | float) and kind == "linear":
        positions = round(positions * factor)
    tables = 2 if model.model_type.startswith("gemma3") else 1
    return tables * positions * width * size
