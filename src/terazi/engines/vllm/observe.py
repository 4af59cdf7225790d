"""Reading the log of a starting vLLM (build 0.32.0): what it measured, what its KV cache holds, why it gave up.

Lines come from ``v1/core/kv_cache_utils.py``, ``v1/worker/gpu_worker.py``, ``v1/worker/cpu_worker.py``,
``v1/worker/gpu_model_runner.py`` and ``config/model.py``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from terazi.units import GIB

#: A line longer than this is cut: backtraces and configs.
MAX_LINE: Final = 4096

_RANK: Final = r"\((?:VLLM::)?Worker(?:_(?:PP\d+_)?TP(?P<rank>\d+))?[^)]*\)"
_TOKENS: Final = re.compile(
    r"KV cache size: ([\d,]+) tokens(?:, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x)?"
)
_AVAILABLE: Final = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_CPU_SPACE: Final = re.compile(r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\)? GiB")
_CONSUMED: Final = re.compile(r"([\d.]+) GiB memory was consumed by non-kv usages")
_LOADED: Final = re.compile(r"Model loading took ([\d.]+) GiB")
_GRAPHS: Final = re.compile(
    r"(?:CUDA graph pool memory: ([\d.]+) GiB \(actual\)|Graph capturing finished .* took ([\d.]+) GiB)"
)
_LENGTH: Final = re.compile(r"Using max model len (\d+)")
_FITTED: Final = re.compile(r"Auto-fit max_model_len: reduced from \d+ to (\d+)")
_BLOCK: Final = re.compile(r"Setting (?:kv cache|attention) block size to (\d+)")
_READY: Final = "Application startup complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """Why vLLM gave up.

    Args:
        code: ``heads``, ``length``, ``cache``, ``blocks``, ``free``, ``dtype``, ``memory`` or ``flags``.
        evidence: the line that says so.
        longest: the sequence that would fit, where vLLM says it.
    """

    code: str
    evidence: str
    longest: int | None = None


#: (kind, the line), the most telling first; a symptom such as a dead engine is in none of them.
_FAILURES: Final = (
    ("cache", re.compile(r"To serve at least one request with the model's max seq len")),
    ("blocks", re.compile(r"No available memory for the cache blocks|Cannot auto-fit max_model_len")),
    ("heads", re.compile(r"attention heads \(\d+\) must be divisible by tensor parallel size")),
    ("length", re.compile(r"User-specified max_model_len \(\d+\) is greater than the derived")),
    ("free", re.compile(r"Free memory on device .* is less than|Available memory on node .* is less than")),
    ("dtype", re.compile(r"Bfloat16 is only supported on|does not support float16")),
    ("memory", re.compile(r"OutOfMemoryError: CUDA out of memory")),
    ("flags", re.compile(r"error: unrecognized arguments:")),
)
_LONGEST: Final = re.compile(r"estimated maximum model length is (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What the engine says it did. None where it didn't say. Sizes are printed in hundredths of a GiB.

    Args:
        kv_tokens: tokens of the KV cache.
        max_model_len: after fitting.
        concurrency: sequences of that length at once.
        available_bytes: for the KV cache, by rank.
        weights_bytes: of the loaded model, by rank.
        graphs_bytes: of captured graphs, of the first rank that says it.
        consumed_bytes: what a CPU worker holds beside the cache.
        block_size: tokens of a block, if the engine changed it.
        ready: it answers requests.
        failure: why it gave up.
    """

    kv_tokens: int | None = None
    max_model_len: int | None = None
    concurrency: float | None = None
    available_bytes: tuple[tuple[int, int], ...] = ()
    weights_bytes: tuple[tuple[int, int], ...] = ()
    graphs_bytes: int | None = None
    consumed_bytes: int | None = None
    block_size: int | None = None
    ready: bool = False
    failure: StartFailure | None = None
    schema: str = "terazi.vllm-load-report/1"


@dataclass(slots=True)
class _Reading:
    tokens: int | None = None
    length: int | None = None
    concurrency: float | None = None
    available: dict[int, int] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)
    graphs: int | None = None
    consumed: int | None = None
    block: int | None = None
    ready: bool = False
    failure: tuple[int, StartFailure] | None = None


def read_log(lines: Iterable[str]) -> LoadReport:
    """The report of a whole log, or of as much of it as there is."""
    reading = _Reading()
    for line in lines:
        _take(reading, line[:MAX_LINE])
    return LoadReport(
        kv_tokens=reading.tokens,
        max_model_len=reading.length,
        concurrency=reading.concurrency,
        available_bytes=tuple(sorted(reading.available.items())),
        weights_bytes=tuple(sorted(reading.weights.items())),
        graphs_bytes=reading.graphs,
        consumed_bytes=reading.consumed,
        block_size=reading.block,
        ready=reading.ready,
        failure=reading.failure[1] if reading.failure is not None else None,
    )


def _take(reading: _Reading, line: str) -> None:
    worker = re.search(_RANK, line)
    rank = int(worker["rank"] or 0) if worker else 0
    if found := _TOKENS.search(line):
        reading.tokens = _whole(found[1])
        if found[2]:
            reading.length, reading.concurrency = _whole(found[2]), float(found[3])
    elif found := _AVAILABLE.search(line) or _CPU_SPACE.search(line):
        reading.available[rank] = _bytes(found[1])
        if consumed := _CONSUMED.search(line):
            reading.consumed = _bytes(consumed[1])
    elif found := _LOADED.search(line):
        reading.weights[rank] = _bytes(found[1])
    elif (found := _GRAPHS.search(line)) and reading.graphs is None:
        reading.graphs = _bytes(found[1] or found[2])
    elif found := _FITTED.search(line) or _LENGTH.search(line):
        reading.length = int(found[1])
    elif found := _BLOCK.search(line):
        reading.block = int(found[1])
    elif _READY in line:
        reading.ready = True
    else:
        _look_for_failure(reading, line)


def _look_for_failure(reading: _Reading, line: str) -> None:
    for place, (code, pattern) in enumerate(_FAILURES):
        if pattern.search(line) and (reading.failure is None or place < reading.failure[0]):
            longest = _LONGEST.search(line)
            failure = StartFailure(
                code=code, evidence=line.strip(), longest=int(longest[1]) if longest is not None else None
            )
            reading.failure = (place, failure)
            return


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _bytes(gib: str) -> int:
    return round(float(gib) * GIB)
