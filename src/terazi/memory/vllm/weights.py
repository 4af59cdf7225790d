"""Bytes of weights on one rank: each tensor of the checkpoint, as vLLM cuts and stores it.

In: tensors, the model, how many ranks. Out: bytes by kind. A tensor that isn't quantised is stored in the model's
own type whatever the file says, but for a few that stay in 32 bits. Sources: ``model_executor/layers/linear.py``,
``vocab_parallel_embedding.py``, ``fused_moe/``, ``quantization/``, vLLM 0.32.0.
"""

from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

from terazi.memory.vllm.model import CacheKind, VllmModel
from terazi.memory.vllm.roles import Cut, Part, part_of, pattern_of
from terazi.memory.vllm.target import Platform, Target
from terazi.models.safetensors import DTYPE_BITS
from terazi.models.spec import ModelSpec, Tensor
from terazi.units import pad

#: ``DEFAULT_VOCAB_PADDING_SIZE``.
VOCAB_PADDING: Final = 64
#: Floating-point types of files that vLLM casts to the model's own.
_CAST: Final = frozenset({"F64", "F32", "F16", "BF16"})
#: Parameters that vLLM keeps in 32 bits: of Mamba and of the delta net, of some routers.
_FULL_PRECISION: Final = frozenset({"A_log", "A", "e_score_correction_bias", "weight_scale_inv"})
#: Families whose router is computed in 32 bits (``params_dtype=torch.float32`` of their gate).
_ROUTER_FLOAT32: Final = frozenset({"glm4_moe", "glm4_moe_lite"})
#: Parameters of a quantised layer whose first dimension is the output, like a plain weight's.
_OUTPUT_FIRST: Final = frozenset({
    "weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point", "bias",
    "weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale",
})  # fmt: skip
#: Layers that vLLM joins with a sibling.
_MERGED: Final = (".k_proj.weight_shape", ".v_proj.weight_shape", ".up_proj.weight_shape")
#: Methods that quantise while loading → bytes of a weight.
ONLINE: Final = {
    "fp8": 1, "fp8_per_tensor": 1, "fp8_per_block": 1, "fp8_per_channel": 1, "int8_per_channel_weight_only": 1,
    "mxfp8": 1, "experts_int8": 1,
}  # fmt: skip


#: Families whose every pipeline stage holds embeddings, last norm and head (no ``PPMissingLayer`` in their model).
_ENDS_EVERYWHERE: Final = frozenset({
    "mixtral", "qwen3_moe", "gpt_oss", "jamba", "nemotron_h", "qwen3_next",
})  # fmt: skip
#: Families whose every stage holds the last norm.
_NORM_EVERYWHERE: Final = frozenset({
    "gemma2", "gemma3", "gemma3_text", "cohere2", "mamba", "granitemoehybrid",
})  # fmt: skip


class IndivisibleError(ValueError):
    """A dimension that can't be divided among the ranks; vLLM stops with an assertion."""


class Ranks(NamedTuple):
    """How many ranks there are, and which of them is meant.

    Args:
        tensor: tensor-parallel size.
        experts: over how many ranks whole experts are shared out; 1 if each rank has a slice of all.
        layers: of this pipeline stage.
        first, last: whether the stage is the first, the last.
    """

    tensor: int
    experts: int
    layers: range
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Bytes of weights on one rank. ``guessed`` names tensors of no known kind, counted whole."""

    plain_bytes: int
    quantised_bytes: int
    expert_bytes: int
    embedding_bytes: int
    tower_bytes: int
    guessed: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.plain_bytes + self.quantised_bytes + self.expert_bytes + self.embedding_bytes + self.tower_bytes


class Rounding(NamedTuple):
    """To what multiples an MXFP4 kernel pads hidden and inner size (``fused_moe/oracle/mxfp4.py``)."""

    hidden: int = 1
    inner: int = 1


#: The checkpoint's own sizes.
NO_ROUNDING: Final = Rounding()


def rounding_of(target: Target) -> Rounding:
    """By the kernel that vLLM would pick: Triton's on Hopper, else Marlin or TensorRT-LLM's."""
    if target.platform is not Platform.CUDA or target.capability is None:
        return NO_ROUNDING
    return Rounding(inner=64) if target.capability == 90 else Rounding(hidden=256, inner=128)


def rank_weights(
    spec: ModelSpec,
    model: VllmModel,
    ranks: Ranks,
    *,
    model_bytes: int,
    online: str | None = None,
    rounding: Rounding = NO_ROUNDING,
) -> RankWeights:
    """What one rank of *ranks* holds of *spec*.

    Args:
        spec: with the checkpoint's tensors.
        model: what vLLM makes of it.
        ranks: which rank.
        model_bytes: of an element of the model's type.
        online: a method that quantises while loading.
        rounding: what MXFP4 experts are padded to.

    Raises:
        IndivisibleError: a dimension doesn't divide.
    """
    cutter = _Cutter(model, ranks, model_bytes, online, rounding)
    sums = dict.fromkeys(("plain", "quantised", "expert", "embedding", "tower"), 0)
    guessed: list[str] = []
    head = False
    mamba2 = model.config.text_type not in {"mamba", "falcon_mamba", "jamba"}
    for tensor in spec.tensors:
        pattern = pattern_of(tensor.name)
        part = part_of(pattern, mamba2=mamba2)
        is_head = _is_head(tensor.name)
        head = head or is_head
        if not cutter.holds(tensor, part, is_head=is_head):
            continue
        n = cutter.rank_bytes(tensor, part, pattern)
        if part.tower:
            sums["tower"] += n
        elif part.cut is Cut.VOCAB:
            sums["embedding"] += n
        elif part.expert:
            sums["expert"] += n
        elif tensor.dtype in _CAST and part.parameter in {"weight", "bias"}:
            sums["plain"] += n
        else:
            sums["quantised" if tensor.dtype not in _CAST else "plain"] += n
        if not part.known and not part.tower:
            guessed.append(tensor.name)
    ends = ranks.last or model.model_type in _ENDS_EVERYWHERE
    sums["quantised"] += cutter.attention_scales()
    if ends and spec.tensors and not head and not model.tied and not model.attention_free:
        sums["embedding"] += cutter.vocab_rows(model.vocab_size) * model.hidden_size * model_bytes
    return RankWeights(
        plain_bytes=sums["plain"],
        quantised_bytes=sums["quantised"],
        expert_bytes=sums["expert"],
        embedding_bytes=sums["embedding"],
        tower_bytes=sums["tower"],
        guessed=tuple(guessed),
    )


def _is_head(name: str) -> bool:
    return name.endswith(("lm_head.weight", "embed_out.weight")) or name == "output.weight"


class _Cutter:
    """Cuts tensors for one rank."""

    def __init__(
        self, model: VllmModel, ranks: Ranks, model_bytes: int, online: str | None, rounding: Rounding
    ) -> None:
        self._model = model
        self._ranks = ranks
        self._bytes = model_bytes
        self._online = ONLINE.get(online or "")
        self._tied = model.tied
        self._rounding = rounding
        form = model.config.value("quantization_config.format", "quantization_config.quant_method")
        self._float8 = form in {"float-quantized", "fp8"}
        self._own_experts = -(-max(1, model.config.number("experts", 1)) // ranks.experts)
        self._sorted = model.config.flag("quantization_config.desc_act")
        self._sizes: dict[tuple[str, tuple[int, ...], str], int] = {}

    def holds(self, tensor: Tensor, part: Part, *, is_head: bool) -> bool:
        """Whether this rank's stage has *tensor*, and loads it at all."""
        if part.parameter == "g_idx" and not self._sorted:
            return False
        if part.parameter == "weight_shape" and tensor.name.endswith(_MERGED):
            return False  # vLLM joins these layers with the one before, and keeps one shape
        if tensor.block is not None:
            return (
                tensor.block in self._ranks.layers
            )  # blocks beyond the last one guess ahead, and stay in the file
        if tensor.name.startswith("mtp."):
            return False
        everywhere = self._model.model_type in _ENDS_EVERYWHERE
        if is_head:
            return (self._ranks.last or everywhere) and not self._tied
        if part.cut is Cut.VOCAB:
            return self._ranks.first or everywhere or (self._ranks.last and self._tied)
        if part.tower:
            return self._ranks.first
        norm = self._model.model_type
        return self._ranks.last or norm in _NORM_EVERYWHERE or (everywhere and norm != "qwen3_next")

    def rank_bytes(self, tensor: Tensor, part: Part, pattern: str) -> int:
        """Bytes of *tensor* on this rank, as vLLM stores it; reckoned once for all of a *pattern* and shape."""
        if part.expert and not part.stacked and self._ranks.experts > 1 and not self._own_expert(tensor):
            return 0
        key = (pattern, tensor.shape, tensor.dtype)
        if key not in self._sizes:
            elements, bits = self._elements(tensor, part), self._bits(tensor, part)
            self._sizes[key] = -(-elements * bits // 8)
        return self._sizes[key]

    def attention_scales(self) -> int:
        """Scales that the attention modules of a quantised model have besides (``quantization/kv_cache.py``)."""
        config, size = self._model.config, self._bytes
        method = config.value("quantization_config.quant_method")
        each = {"fp8": 4 * size, "compressed-tensors": 3 * 4 + 3 * size}.get(
            method if isinstance(method, str) else ""
        )
        attention = (c for c in self._model.caches if c.kind is not CacheKind.STATE)
        return (each or 0) * sum(c.layer in self._ranks.layers for c in attention)

    def vocab_rows(self, vocab: int) -> int:
        """Rows of an embedding on one rank."""
        return self._divided(pad(vocab, VOCAB_PADDING), "the padded vocabulary")

    def _bits(self, tensor: Tensor, part: Part) -> int:
        stored = DTYPE_BITS.get(tensor.dtype, 8)
        if tensor.dtype not in _CAST:
            return stored
        router = part.cut is Cut.WHOLE and tensor.name.endswith(("mlp.gate.weight",))
        if part.parameter in _FULL_PRECISION or (router and self._model.model_type in _ROUTER_FLOAT32):
            return 32
        if part.parameter == "weight_scale" and self._float8:
            return 32
        if part.parameter in {"weight_scale", "input_scale", "weight_scale_2", "weight_global_scale",
                              "input_global_scale", "k_scale", "v_scale"}:  # fmt: skip
            return stored
        if self._online is not None and part.linear and part.parameter == "weight" and len(tensor.shape) > 1:
            return self._online * 8
        return self._bytes * 8

    def _elements(self, tensor: Tensor, part: Part) -> int:
        shape = tensor.shape
        if part.tower:
            return prod(shape)
        if part.expert:
            return self._expert_elements(tensor, part)
        if part.cut is Cut.VOCAB:
            return self.vocab_rows(shape[0]) * prod(shape[1:])
        if part.cut is Cut.WHOLE or self._ranks.tensor == 1 or not shape or prod(shape) == 1:
            return prod(shape)
        axis = self._axis(part, shape)
        if axis is None:
            return prod(shape)
        return prod(shape) // shape[axis] * self._share(part, shape[axis], tensor.name)

    def _axis(self, part: Part, shape: tuple[int, ...]) -> int | None:
        """Which dimension is divided; None if all ranks have everything."""
        by_input = part.cut is Cut.INPUT
        if part.parameter in {"bias", "g_idx", "perm", "weight_g_idx"}:
            return (
                (None if part.parameter == "bias" else 0) if by_input else (0 if part.parameter == "bias" else None)
            )
        if part.parameter == "weight_shape" or (len(shape) == 1 and part.parameter.endswith("scale")):
            return None
        if part.parameter in _OUTPUT_FIRST or part.cut is Cut.HEADS or part.parameter in {"A_log", "D", "dt_bias"}:
            if by_input:
                return 1 if len(shape) > 1 and shape[1] > 1 else None
            return 0
        # AWQ and GPTQ: the input comes first; a single group of scales isn't divided
        if by_input:
            return 0 if shape[0] > 1 else None
        return 1 if len(shape) > 1 else 0

    def _share(self, part: Part, extent: int, name: str) -> int:
        """What one rank has of a dimension of *extent*."""
        ranks = self._ranks.tensor
        if part.cut is Cut.KEYS:
            heads = max(1, self._model.kv_heads)
            return extent // heads * max(1, heads // ranks) if extent % heads == 0 else self._divided(extent, name)
        if part.cut is Cut.QUERIES_KEYS:
            queries, heads = self._model.attention_heads, max(1, self._model.kv_heads)
            unit = extent // (queries + 2 * heads)
            return unit * (queries // ranks + 2 * max(1, heads // ranks))
        if part.cut is Cut.STATE_INPUT:
            return self._state_input(extent)
        return self._divided(extent, name)

    def _state_input(self, extent: int) -> int:
        """Mamba 2: the gate, the inputs and the time steps are divided; B and C come by group."""
        ranks = self._ranks.tensor
        shape = next((c.state for c in self._model.caches if c.state is not None and c.state.groups), None)
        if shape is None or shape.groups % ranks == 0:
            return self._divided(extent, "the state's input")
        copies = (shape.groups + ranks - shape.groups) * (shape.grouped_width // shape.groups)
        return self._divided(extent - shape.grouped_width + copies, "the state's input")

    def _expert_elements(self, tensor: Tensor, part: Part) -> int:
        """A routed expert: whole ones on some ranks, or a slice of each on every rank."""
        shape = tensor.shape
        if part.stacked and part.parameter in {"blocks", "scales"}:
            return self._packed_experts(part, shape)
        if self._ranks.experts > 1:
            count = prod(shape)
            if part.stacked:
                return count // shape[0] * -(-shape[0] // self._ranks.experts)
            return count
        if self._ranks.tensor == 1 or not shape or prod(shape) == 1:
            return prod(shape)
        axis = self._expert_axis(part, shape)
        return prod(shape) if axis is None else prod(shape) // shape[axis] * self._divided(shape[axis], tensor.name)

    def _expert_axis(self, part: Part, shape: tuple[int, ...]) -> int | None:
        if not part.stacked:
            return self._axis(part, shape)
        by_input = part.cut is Cut.INPUT
        if part.parameter == "bias":
            return None if by_input else 1
        if part.parameter in {"blocks", "scales"}:  # MXFP4: output rows first, then blocks of inputs
            return 2 if by_input else 1
        rows, columns = shape[1], shape[2]
        transposed = rows == self._model.hidden_size and (columns != rows or self._model.model_type == "gpt_oss")
        if by_input:  # [expert, hidden, inner], or transposed
            return 1 if columns == self._model.hidden_size and not (rows == columns and not transposed) else 2
        return 2 if transposed else 1

    def _packed_experts(self, part: Part, shape: tuple[int, ...]) -> int:
        """MXFP4: [expert, output, input / 32(, 16 bytes)], padded to what the kernel wants."""
        experts, outputs, groups = shape[0], shape[1], shape[2]
        whole = self._ranks.experts
        own, ranks = (-(-experts // whole), 1) if whole > 1 else (experts, self._ranks.tensor)
        rest = prod(shape[3:])
        if part.cut is Cut.INPUT:
            inner = pad(-(-groups * 32 // ranks), self._rounding.inner)
            return own * pad(outputs, self._rounding.hidden) * -(-inner // 32) * rest
        inner = pad(-(-outputs // 2 // ranks), self._rounding.inner)
        return own * 2 * inner * -(-pad(groups * 32, self._rounding.hidden) // 32) * rest

    def _own_expert(self, tensor: Tensor) -> bool:
        """Whole experts: the first rank has the most, as ``determine_expert_map`` gives it the remainder."""
        index = int(tensor.name.split("experts.")[1].split(".")[0])
        return index < self._own_experts

    def _divided(self, extent: int, name: str) -> int:
        if extent % self._ranks.tensor:
            raise IndivisibleError(f"{extent} of {name} can't be divided among {self._ranks.tensor} ranks")
        return extent // self._ranks.tensor
