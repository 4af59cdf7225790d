"""How many different experts a batch touches in one layer of a mixture of experts.

In: experts, experts a token uses, tokens. Out: a count. Uniform routing, E(1-(1-k/E)^B), is an upper bound that
real models stay far below: gpt-oss-120b at 32 streams on a GB10 leaves room for at most 55 of 128 experts a layer
where that formula says 82 (llama.cpp ``benches/dgx-spark.md``, November 2025). So experts get popularities that
fall off as a power of their rank, as aiconfigurator does (``docs/POWER_LAW_DISTRIBUTION.md``).
"""

import math
from functools import lru_cache
from typing import Final

#: Exponent of the popularity, rank^-s, from the batches of three models on a GB10 (``benchmarks/fit_speed.py``,
#: "batches"); vLLM's rows on H100 fit as well with it. 0 is uniform routing.
SKEW: Final = 1.2


@lru_cache(maxsize=1024)
def distinct_experts(experts: int, used: int, tokens: int, skew: float = SKEW) -> float:
    """How many of *experts* are touched when each of *tokens* tokens draws *used* of them.

    An expert of popularity *w* is in a token's choice with the probability 1-exp(-x·w), where *x* is such that the
    probabilities add up to *used*; then the expected count over the batch follows expert by expert.
    """
    if experts <= 0 or used <= 0:
        return 0.0
    if used >= experts:
        return float(experts)
    batch = max(1, tokens)
    return sum(1 - (1 - p) ** batch for p in _chances(experts, used, skew))


@lru_cache(maxsize=64)
def _chances(experts: int, used: int, skew: float) -> tuple[float, ...]:
    weights = [rank**-skew for rank in range(1, experts + 1)]
    low, high = 0.0, 1.0
    while sum(1 - math.exp(-high * w) for w in weights) < used:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        if sum(1 - math.exp(-middle * w) for w in weights) < used:
            low = middle
        else:
            high = middle
    return tuple(1 - math.exp(-high * w) for w in weights)
