"""Which of an engine's metrics show that it moves: read from Prometheus text, of llama-server or vLLM.

In: the body of ``GET /metrics``. Out: ``Counters`` for ``policy.progress``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from terazi.engines.llama_cpp.endpoints import MAX_BODY, MAX_METRIC_LINES, METRICS

#: Terazi's names for vLLM's metrics (``vllm/v1/metrics/loggers.py``, 0.32.0).
VLLM_METRICS: Mapping[str, str] = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "output_tokens",
    "vllm:iteration_tokens_total_count": "decodes",
    "vllm:num_requests_running": "requests_running",
    "vllm:num_requests_waiting": "requests_waiting",
}
_KNOWN = {**METRICS, **VLLM_METRICS}
#: llama-server adds output tokens when an answer is finished and prompt tokens when a batch is; ``n_decode_total``
#: grows with every step of either (``server-context.cpp:metrics_post_decode``, b11434).
_MOVING = ("prompt_tokens", "output_tokens", "decodes", "draft_tokens")
_WORKING = ("requests_running", "requests_waiting")
#: A rate over fewer prompt tokens than these says more about starting up.
_MEASURABLE_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What one look has found.

    Args:
        moving: counters that only change when something was done; None if it has none that are known.
        working: requests that it works on or lets wait; None if it doesn't tell.
        prefill_tok_s: prompt tokens per second since it started; None if there were too few.
    """

    moving: tuple[float, ...] | None = None
    working: int | None = None
    prefill_tok_s: float | None = None


def read_counters(text: str) -> Counters:
    """Read a metrics body; of replicas that are counted apart, the sums. What isn't metrics has no counters."""
    sums: dict[str, float] = {}
    for line in text[:MAX_BODY].split("\n", MAX_METRIC_LINES)[:MAX_METRIC_LINES]:
        name, _, value = line.rpartition(" ")
        known = _KNOWN.get(name.partition("{")[0])
        if known is not None:
            try:
                sums[known] = sums.get(known, 0.0) + float(value)
            except ValueError:
                continue
    moving = tuple(sums[name] for name in _MOVING if name in sums)
    working = [sums[name] for name in _WORKING if name in sums]
    tokens, seconds = sums.get("prompt_tokens", 0.0), sums.get("prompt_s", 0.0)
    return Counters(
        moving=moving or None,
        working=int(sum(working)) if working else None,
        prefill_tok_s=tokens / seconds if tokens >= _MEASURABLE_TOKENS and seconds > 0 else None,
    )
