"""The measured llama.cpp runs as work for the speed model: what each run read, computed and waited for.

In: ``data/measured_speed.csv``. Out: rows, decode observations, prompt works; nothing is fitted here. Used by
``fit_speed.py``, ``forecast_table.py`` and ``tests/golden/test_speed_table.py``.

What is left out of the decode fit, and why: tg4096 and tg8192 of May 2024, because those builds read the cache
without flash attention, which has been the default since. Rows on hosts of the single-board kind are not in the
table at all: there the host sets the pace, not the card.
"""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from terazi.performance import efficiency
from terazi.performance.efficiency import CardClass
from terazi.performance.fit import Observation
from terazi.performance.links import BOUNDARY_S
from terazi.performance.roofline import SCORE_BYTES, Efficiency, PromptWork, Rates, prompt_s
from terazi.performance.routing import SKEW, distinct_experts
from terazi.performance.timing import OVERLAP

DATA = Path(__file__).parent / "data"
Row = dict[str, str]
#: llama.cpp's micro-batch, and the benchmark's own on the GB10 (``-ub 2048``).
_MICRO, _MICRO_GB10 = 512, 2048
#: Elements of a hidden state, by what the model's name holds (their config.json).
_HIDDEN = (
    ("70B", 8192), ("27B", 5120), ("14b", 5120), ("13B", 5120), ("20B", 2880), ("120B", 2880), ("30B", 2048),
    ("4B", 2560), ("3b", 3072), ("qwen2 7B", 3584), ("Qwen2.5", 3584),
)  # fmt: skip
#: Bytes a weight in llmfit's rule, by the start of the quant's name.
_LLMFIT_BYTES = (("F16", 2.0), ("Q8", 1.0), ("Q6", 0.75), ("Q5", 0.625), ("Q3", 0.4375))


def load() -> list[Row]:
    """All rows of the table."""
    with (DATA / "measured_speed.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def card_class(row: Row) -> CardClass:
    """The class of the row's card."""
    return CardClass.OTHER if row["card_class"] == "intel" else CardClass(row["card_class"])


def is_decode(row: Row) -> bool:
    """One stream, on a build (or at a depth) where flash attention makes no difference."""
    old_and_deep = row["build"] == "2024-05" and int(row["tokens"]) > 1024
    return row["kind"] == "decode" and row["batch"] == "1" and not old_and_deep


def is_single_decode(row: Row) -> bool:
    """The same, on one card."""
    return is_decode(row) and row["count"] == "1"


def is_prompt(row: Row) -> bool:
    """A prompt on a card whose FP16 rate is listed."""
    return row["kind"] == "prefill" and bool(row["fp16_tflops"]) and row["card_class"] != "cpu"


def read_bytes(row: Row, skew: float = SKEW) -> float:
    """Bytes that one step reads: dense weights, the experts that the batch touches, every stream's cache."""
    batch, experts, used = int(row["batch"]), int(row["experts"]), int(row["experts_used"])
    routed = float(row["expert_read_gb"]) * 1e9
    growth = distinct_experts(experts, used, batch, skew) / used if used else 1.0
    cache = batch * float(row["kv_bytes_per_token"]) * float(row["depth"])
    return float(row["read_gb"]) * 1e9 - routed + routed * growth + cache


def observation(row: Row) -> Observation:
    """A decode run as the fit wants it."""
    kind = card_class(row)
    unpack = efficiency.CLASSES[kind].unpack
    weights = float(row["active_params_b"]) * 1e9 if _packed(row) else 0.0
    return Observation(
        card=row["card"],
        bandwidth=float(row["bandwidth_gb_s"]) * 1e9,
        layers=int(row["layers"]),
        read_bytes=read_bytes(row),
        tok_s=float(row["tok_s"]),
        unpack_s=unpack * weights / (float(row["fp16_tflops"]) * 1e12) if unpack else 0.0,
    )


def hops_s(row: Row) -> float:
    """Seconds that a layer split over several cards adds to a step."""
    return (int(row["count"]) - 1) * BOUNDARY_S


def rates(row: Row, e: Efficiency) -> Rates:
    """The row's card under the constants *e*."""
    bandwidth = float(row["bandwidth_gb_s"]) * 1e9
    listed = float(row["fp16_tflops"]) * 1e12
    return Rates(
        bandwidth=bandwidth, flops=efficiency.prompt_flops(card_class(row), listed, bandwidth), efficiency=e
    )


def prompt_work(row: Row) -> PromptWork:
    """What a prompt run makes one card do that holds the whole model."""
    tokens, depth, layers = int(row["tokens"]), int(row["depth"]), int(row["layers"])
    hidden = next((h for key, h in _HIDDEN if key in row["model"]), 4096)
    weights, routed = float(row["active_params_b"]) * 1e9, 0.0
    read = float(row["read_gb"]) * 1e9
    packed = weights if _packed(row) else 0.0
    if int(row["experts_used"]):
        share = float(row["expert_read_gb"]) / float(row["read_gb"])
        routed = weights * share
        read += float(row["expert_read_gb"]) * 1e9 * (int(row["experts"]) / int(row["experts_used"]) - 1)
        packed = 0.0  # experts multiply without being unpacked first
    pairs = layers * tokens * (tokens / 2 + depth)
    old = row["build"].startswith(("2024", "2023")) and row["card_class"] != "apple"
    return PromptWork(
        tokens=tokens,
        batches=math.ceil(tokens / _micro(row)),
        layers=layers,
        hidden=hidden,
        flops=2 * (weights - routed) * tokens + 4 * hidden * pairs,
        expert_flops=2 * routed * tokens,
        read_bytes=read,
        packed_weights=packed,
        score_bytes=SCORE_BYTES * hidden / 128 * pairs if old else 0.0,
    )


def prompt_seconds(row: Row, e: Efficiency) -> float:
    """Seconds of a prompt run under the constants *e*; several cards work on micro-batches one behind another."""
    alone, batches, cards = prompt_s(rates(row, e), prompt_work(row)), prompt_work(row).batches, int(row["count"])
    hops = hops_s(row)
    serial = alone + batches * hops
    if cards == 1 or batches == 1:
        return serial
    ideal = (batches + cards - 1) / (batches * cards) * alone + hops
    return min(serial, OVERLAP * ideal + (1 - OVERLAP) * serial)


def llmfit_tok_s(row: Row) -> float:
    """llmfit's rule: bandwidth/(active weights·bytes)·0.55, of experts times an overhead by their number.

    Source: github.com/AlexsJones/llmfit, ``llmfit-core/src/fit.rs:estimate_tps`` and ``models.rs``
    (``quant_bytes_per_param``, ``quant_bpp`` for routed experts), 2026. It knows no cache, no depth, no layers.
    """
    quant, experts = row["quant"], int(row["experts"])
    if quant == "as named":
        quant = row["model"].rsplit(" ", 1)[-1] if not experts else row["model"]
    per_weight = next((b for start, b in _LLMFIT_BYTES if start in quant), 0.58 if experts else 0.5)
    overhead = 1.0
    if experts:
        overhead = next((o for most, o in ((8, 0.90), (16, 0.85), (32, 0.80), (64, 0.70)) if experts <= most), 0.40)
    return float(row["bandwidth_gb_s"]) / (float(row["active_params_b"]) * per_weight) * 0.55 * overhead


def _packed(row: Row) -> bool:
    return row["quant"] != "F16" and "Q8_0" not in row["quant"] + row["model"]


def _micro(row: Row) -> int:
    most = _MICRO_GB10 if row["card"].startswith("DGX") else _MICRO
    return max(1, min(most, int(row["tokens"])))


def by_card(rows: list[Row]) -> Mapping[str, list[Row]]:
    """Rows under their card's name."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["card"], []).append(row)
    return found
