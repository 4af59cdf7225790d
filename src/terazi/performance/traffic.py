"""What one token makes each device read and compute, from the tensors and caches that the engine puts there.

In: ``ModelSpec``, settings, the engine's own layer map. Out: bytes and operations per device. Placement of tensors
and cache rows come from ``memory.llama_cpp``, so the forecast can't disagree with the bill.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.kv import cache_layers
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.models.spec import ModelSpec, Tensor

#: Tables of which a token reads one row only (llama.cpp ``get_rows``), unless the table is tied to the output.
_LOOKUPS = frozenset(
    {"token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"}
)
_TIED = "token_embd.weight"


class CacheRows(NamedTuple):
    """The cache of one block: bytes of one token's row, and how many rows are ever read (None: all)."""

    row_bytes: float
    window: int | None


class DeviceTraffic(NamedTuple):
    """One device's share of a token.

    Args:
        layers: repeating layers here.
        dense_bytes: weights that every step reads.
        expert_bytes: weights of all routed experts here; a step reads those that it touches.
        flops_per_token: two per weight element that a token multiplies with.
        expert_flops: those of them that are with routed experts.
        packed_weights: quantised weights that one token multiplies with.
        packed_experts: all quantised weights of routed experts here.
        caches: the cache rows here.
        state_bytes: recurrent state of one stream, read and written each step.
    """

    device: str
    layers: int
    dense_bytes: float
    expert_bytes: float
    flops_per_token: float
    caches: tuple[CacheRows, ...]
    state_bytes: float
    expert_flops: float = 0.0
    packed_weights: float = 0.0
    packed_experts: float = 0.0

    def kv_bytes(self, depth: float) -> float:
        """Bytes that one stream's next token reads here when its context holds *depth* tokens."""
        rows = sum(c.row_bytes * (depth if c.window is None else min(depth, c.window)) for c in self.caches)
        return rows + 2 * self.state_bytes

    def pairs(self, tokens: int) -> float:
        """Pairs of a token and one that it attends to, over a prompt of *tokens* tokens and all caches here."""
        return sum(
            tokens * tokens / 2 if c.window is None or tokens <= c.window else tokens * c.window - c.window**2 / 2
            for c in self.caches
        )

    def cut(self, device: str, share: float) -> "DeviceTraffic":
        """The *share* of it that lies on *device* when every layer is cut over several (``-sm tensor``)."""
        return DeviceTraffic(
            device=device,
            layers=self.layers,
            dense_bytes=self.dense_bytes * share,
            expert_bytes=self.expert_bytes * share,
            flops_per_token=self.flops_per_token * share,
            caches=tuple(CacheRows(c.row_bytes * share, c.window) for c in self.caches),
            state_bytes=self.state_bytes * share,
            expert_flops=self.expert_flops * share,
            packed_weights=self.packed_weights * share,
            packed_experts=self.packed_experts * share,
        )

    @property
    def packed_dense(self) -> float:
        """Quantised weights here that aren't routed experts'."""
        used = self.expert_flops / 2
        return max(0.0, self.packed_weights - (used if self.packed_experts else 0.0))


def traffic(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, bill: Bill, isa: frozenset[str]
) -> Mapping[str, DeviceTraffic]:
    """One entry for each device that has something to do, ``Host`` included."""
    dense: dict[str, float] = {}
    expert: dict[str, float] = {}
    flops: dict[str, float] = {}
    routed_flops: dict[str, float] = {}
    packed: dict[str, float] = {}
    packed_experts: dict[str, float] = {}
    tied = not any(t.name == "output.weight" for t in spec.tensors)
    used_share = spec.expert_used_count / spec.expert_count if spec.expert_count else 1.0
    last_block = spec.block_count - skipped_blocks(spec)
    for placement in place_tensors(spec, settings, resolved, isa):
        tensor, device = placement.tensor, placement.device
        if tensor.name in _LOOKUPS or (tensor.block is not None and tensor.block >= last_block):
            continue
        routed = is_expert(tensor)
        into = expert if routed else dense
        into[device] = into.get(device, 0.0) + tensor.n_bytes
        if len(tensor.shape) > 1:
            share = used_share if routed else 1.0
            elements = math.prod(tensor.shape)
            flops[device] = flops.get(device, 0.0) + 2 * share * elements
            if routed:
                routed_flops[device] = routed_flops.get(device, 0.0) + 2 * share * elements
            if tensor.n_bytes < elements:  # less than eight bits a weight
                packed[device] = packed.get(device, 0.0) + share * elements
                if routed:
                    packed_experts[device] = packed_experts.get(device, 0.0) + elements
    if tied:
        output = resolved.layer_devices[-1]
        for tensor in spec.tensors:
            if tensor.name == _TIED:
                dense[output] = dense.get(output, 0.0) + tensor.n_bytes
                flops[output] = flops.get(output, 0.0) + 2 * math.prod(tensor.shape)
    caches: dict[str, list[CacheRows]] = {}
    for layer in cache_layers(spec, family_of(spec), settings, resolved):
        cells = layer.cells * resolved.n_stream
        row = CacheRows((layer.k_bytes + layer.v_bytes) / cells, spec.sliding_window if layer.window else None)
        caches.setdefault(layer.device, []).append(row)
    state: dict[str, float] = {}
    for line in bill.lines:
        if line.term is Term.STATE:
            state[line.device] = state.get(line.device, 0.0) + line.bytes / resolved.n_seq_max
    names = dict.fromkeys((*resolved.layer_devices, *dense, *expert, *caches, *state))
    return {
        name: DeviceTraffic(
            device=name,
            layers=sum(1 for d in resolved.layer_devices[:last_block] if d == name),
            dense_bytes=dense.get(name, 0.0),
            expert_bytes=expert.get(name, 0.0),
            flops_per_token=flops.get(name, 0.0),
            caches=tuple(caches.get(name, ())),
            state_bytes=state.get(name, 0.0),
            expert_flops=routed_flops.get(name, 0.0),
            packed_weights=packed.get(name, 0.0),
            packed_experts=packed_experts.get(name, 0.0),
        )
        for name in names
    }


def is_expert(tensor: Tensor) -> bool:
    """A tensor that stacks all routed experts of a block (``blk.N.ffn_up_exps.weight``)."""
    return "_exps" in tensor.name or "_chexps" in tensor.name


def skipped_blocks(spec: ModelSpec) -> int:
    """Next-token-prediction blocks at the end that an ordinary decode leaves alone."""
    value = spec.metadata.get(f"{spec.architecture}.nextn_predict_layers", 0)
    return int(value) if isinstance(value, int) and 0 <= value < spec.block_count else 0


def boundaries(resolved: Resolved) -> tuple[tuple[str, str], ...]:
    """The pairs of devices between which the hidden state is handed over, in the order of the layers.

    The input embedding is looked up on the host, so the first device after it is a boundary as well.
    """
    path = (HOST, *resolved.layer_devices)
    return tuple((a, b) for a, b in pairwise(path) if a != b)
