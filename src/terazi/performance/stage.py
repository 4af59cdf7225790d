"""The ``Stage`` noun: what one pipeline stage makes each of its ranks read and compute, and how long a step takes.

In: bytes, operations, rates, the fabric between the ranks. Out: seconds of one step with some streams that decode
and some prompt tokens beside them. Written for engines that batch continuously and keep ranks in lock-step (vLLM).

A step of *b* decoding streams and *p* prompt tokens takes, on each rank,

    max(weights/(eta·bw), (b+p)·flops/(phi·F)) smoothed + caches/(eta_kv·bw) + attention/(phi·F)
      + layers·(c + 2 all-reduces) + step + b·token

Weights and operations of one GEMM overlap, so the larger counts, with a smooth corner (a p-norm); attention reads
its cache afterwards. (Williams et al., "Roofline", CACM 2009; the fixed terms are those of a step that is bound by
launches and by the scheduler's Python.)
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from terazi.performance.collectives import Fabric
from terazi.performance.routing import SKEW, distinct_experts
from terazi.performance.traffic import CacheRows

#: Whole experts on ranks: tokens are sent to them and back in every layer, which costs this many times what
#: experts cost that every rank has a slice of.
EXCHANGE: Final = 3.0
#: How sharp the corner between memory-bound and compute-bound is: 1 adds, infinity takes the larger.
CORNER: Final = 2.0


class Rank(NamedTuple):
    """What one card delivers under the engine.

    Args:
        bandwidth: bytes per second, the data sheet's.
        memory: share of it that reading weights reaches (eta).
        kv_memory: share of it that reading caches reaches.
        flops: operations per second of the type that the weights are multiplied in, the data sheet's.
        attention_flops: those of attention (16 bits).
        compute: share of them that a large GEMM reaches (phi).
        layer_s: seconds of fixed cost a layer (c).
        expert_s: seconds of fixed cost a layer of routed experts adds.
        step_s: seconds of fixed cost a step: scheduler, sampling, hand-over between processes.
        token_s: seconds that each decoding stream adds to that.
    """

    bandwidth: float
    memory: float
    kv_memory: float
    flops: float
    attention_flops: float
    compute: float
    layer_s: float
    expert_s: float
    step_s: float
    token_s: float

    def slowed(self, by: float) -> "Rank":
        """The same card at the share *by* of its clocks."""
        return self._replace(
            bandwidth=self.bandwidth * by, flops=self.flops * by, attention_flops=self.attention_flops * by
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One rank's share of one pipeline stage, of a model that is cut over *tensor* ranks.

    Args:
        layers: of the stage.
        expert_layers: those of them that have routed experts.
        hidden: elements of a token's hidden state.
        dense_bytes, dense_flops: weights that every step reads here, and operations of a token with them.
        expert_bytes, expert_flops: all routed experts' weights here; operations of a token with those it uses.
        experts, experts_used: of the whole model.
        expert_ranks: over how many ranks whole experts are shared out; 1 if each rank has a slice of all.
        pair_flops: operations of attention between one token and one cached token, all layers here.
        caches: the cache rows here, one rank's part.
        state_bytes: recurrent state of one stream here, read and written each step.
        tensor: ranks that work on each layer together.
        fabric: between them.
        streamed_bytes: weights that stay in host memory and cross the slot each step.
        slot_bytes_per_s: that slot.
        graph: steps that only decode run from a CUDA graph.
    """

    layers: int
    hidden: int
    dense_bytes: float
    dense_flops: float
    expert_layers: int = 0
    expert_bytes: float = 0.0
    expert_flops: float = 0.0
    experts: int = 0
    experts_used: int = 0
    expert_ranks: int = 1
    pair_flops: float = 0.0
    caches: tuple[CacheRows, ...] = ()
    state_bytes: float = 0.0
    tensor: int = 1
    fabric: Fabric
    streamed_bytes: float = 0.0
    slot_bytes_per_s: float = 8e9
    graph: bool = True

    def kv_bytes(self, depth: float) -> float:
        """Bytes that one stream's next token reads here when its context holds *depth* tokens."""
        rows = sum(c.row_bytes * (depth if c.window is None else min(depth, c.window)) for c in self.caches)
        return rows + 2 * self.state_bytes

    def share_touched(self, tokens: int, skew: float = SKEW) -> float:
        """The share of the routed experts that *tokens* tokens touch."""
        if not self.experts:
            return 0.0
        return distinct_experts(self.experts, self.experts_used, tokens, skew) / self.experts

    def step_s(
        self,
        rank: Rank,
        *,
        streams: int,
        depth: float,
        prompt_tokens: float = 0.0,
        prompt_depth: float = 0.0,
        skew: float = SKEW,
    ) -> float:
        """Seconds of one step here.

        Args:
            streams: that decode, a token each.
            depth: tokens in each one's cache, on average.
            prompt_tokens: of prompts, beside them.
            prompt_depth: tokens that each of those attends to, on average.
        """
        tokens = streams + prompt_tokens
        touched = self.share_touched(max(1, round(tokens)), skew)
        weights = self.dense_bytes + touched * self.expert_bytes
        read_s = weights / (rank.memory * rank.bandwidth)
        # whole experts on a rank: the busiest rank sets the pace
        uneven = 1.0 if self.expert_ranks == 1 else 1.0 + 0.15 * min(3.0, self.expert_ranks / 4)
        flops = tokens * (self.dense_flops + uneven * self.expert_flops)
        work_s = flops / (rank.compute * rank.flops)
        gemm_s = float((read_s**CORNER + work_s**CORNER) ** (1 / CORNER))
        if self.streamed_bytes:
            gemm_s = max(gemm_s, self.streamed_bytes / self.slot_bytes_per_s)
        cache_s = streams * self.kv_bytes(depth) / (rank.kv_memory * rank.bandwidth)
        attention_s = prompt_tokens * prompt_depth * self.pair_flops / (rank.compute * rank.attention_flops)
        graph = self.graph and prompt_tokens == 0
        reduce_s = self.fabric.all_reduce_s(tokens * self.hidden * 2, self.tensor, graph=graph)
        expert_s = rank.expert_s * (EXCHANGE if self.expert_ranks > 1 else 1.0)
        fixed_s = self.layers * (rank.layer_s + 2 * reduce_s) + self.expert_layers * expert_s
        return gemm_s + cache_s + attention_s + fixed_s + rank.step_s + streams * rank.token_s
