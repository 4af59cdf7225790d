"""The measured vLLM runs as work for the serving model: stages, cards and loads; nothing is fitted here.

In: ``data/measured_serving.csv`` (TTFT and TPOT of H100 SXM, from aiconfigurator), ``data/measured_vllm.csv``
(throughput and ITL), ``data/models.csv`` (published configurations). Out: ``Run``s. Used by ``fit_serving.py``,
``forecast_table.py`` and ``tests/golden/test_serving_table.py``.

What is taken for granted: ML.ENERGY's chats are not tabulated, so prompts of 250 tokens and answers of 350 are
assumed for them (the second is fitted); "saturated" rows keep every place of the KV cache busy. Left out, and why:
rows of 512 users, whose time per token is that of a handful of streams, so they ran with fewer places than stated.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from terazi.performance.collectives import Fabric, Wire
from terazi.performance.queueing import Load, Served, serve
from terazi.performance.stage import Rank, Stage
from terazi.performance.traffic import CacheRows
from terazi.performance.vllm_cards import COMPUTE, EXPERT_S, KV_MEMORY, LAYER_S, MEMORY, STEP_S, TOKEN_S, bits_class

DATA = Path(__file__).parent / "data"
Row = dict[str, str]
#: Bits of a weight, scales included.
BITS = {"bf16": 16.0, "fp8": 8.0, "mxfp4": 4.25, "nvfp4": 4.5, "int4": 4.25}
#: Shipped constants, under the names that the fit moves.
SHIPPED = {
    "memory": MEMORY,
    "kv_memory": KV_MEMORY,
    "compute_16": COMPUTE["16"],
    "compute_8": COMPUTE["8"],
    "compute_4": COMPUTE["4"],
    "layer_s": LAYER_S,
    "expert_s": EXPERT_S,
    "step_s": STEP_S,
    "token_s": TOKEN_S,
    "answer": 350.0,
}
_CHAT_PROMPT = 250
_CHUNK = 8192
#: Share of a card that vLLM takes, and what graphs and activations need of it.
#: (LLMServingSim: 1.24 GB on an RTX 4090 beside weights and cache; an H100's larger batches take more).
_SHARE, _WORKING_SHARE = 0.90, 0.045
_VOCABULARY_BYTES = 2 * 150_000


@dataclass(frozen=True, slots=True)
class CardSheet:
    """A card's data sheet: bytes per second, FP16 rate with FP32 accumulation, memory, the link between two."""

    bandwidth: float
    flops: float
    memory_bytes: float
    fabric: Fabric
    float8: float  # how many times the FP16 rate it multiplies 8-bit floats at; 0 if it can't
    unpacking: str  # the constant of its kernels that unpack weights on the way


CARDS = {
    "H100 SXM5 80 GB": CardSheet(3350e9, 989e12, 80e9, Fabric(Wire.NVLINK, 450e9), 2.0, "compute_4"),
    "DGX Spark (GB10)": CardSheet(273.2e9, 125e12, 120e9, Fabric(Wire.HOST, 8e9), 2.0, "compute_4"),
    "GeForce RTX 3090": CardSheet(936.2e9, 71.2e12, 24e9, Fabric(Wire.HOST, 7.9e9), 0.0, "compute_16"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured row. ``prompt`` and ``output`` are 0 where they weren't told; seconds, tokens per second."""

    table: str
    card: str
    model: str
    precision: str
    cards: int
    users: int
    slots: int
    prompt: int
    output: int
    stage: Stage
    ttft_s: float | None = None
    tpot_s: float | None = None
    tok_s: float | None = None


def table(name: str) -> list[Row]:
    """All rows of one of the tables."""
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def stage_of(model: Row, precision: str, card: str, tensor: int, expert_ranks: int) -> Stage:
    """What one rank of *tensor* reads and computes of *model*."""
    dense, routed = float(model["dense_params_b"]) * 1e9, float(model["expert_params_b"]) * 1e9
    stored = BITS[precision] / 8
    dense_stored = 2.0 if model["model"].startswith("openai/") else stored  # MXFP4 is for the experts alone
    experts, used, layers = int(model["experts"]), int(model["experts_used"]), int(model["layers"])
    full, window = float(model["kv_row_elements_full"]), float(model["kv_row_elements_window"])
    caches = [CacheRows(2 * full / tensor, None)]
    if window:
        caches.append(CacheRows(2 * window / tensor, int(model["window"])))
    state = float(model["state_mb"]) * 1e6
    growing = layers * full / (full + window) if not state else 5.0
    return Stage(
        layers=layers,
        hidden=int(model["hidden"]),
        dense_bytes=dense * dense_stored / tensor,
        dense_flops=2 * dense / tensor,
        expert_layers=int(model["expert_layers"]),
        expert_bytes=routed * stored / tensor,
        expert_flops=2 * routed * used / experts / tensor if experts else 0.0,
        experts=experts,
        experts_used=used,
        expert_ranks=expert_ranks,
        pair_flops=4.0 * int(model["heads"]) * int(model["head_dim"]) * growing / tensor,
        caches=tuple(caches),
        state_bytes=state / tensor,
        tensor=tensor,
        fabric=CARDS[card].fabric,
    )


def rank_of(card: str, precision: str, constants: Mapping[str, float]) -> Rank:
    """The card under *constants*."""
    sheet, kind = CARDS[card], bits_class(BITS[precision])
    double = kind == "8" and sheet.float8 > 0
    whole = kind == "16" or double
    compute = constants[f"compute_{kind}" if whole else sheet.unpacking]
    return Rank(
        bandwidth=sheet.bandwidth,
        memory=constants["memory"],
        kv_memory=constants["kv_memory"],
        flops=sheet.flops * (sheet.float8 if double else 1.0),
        attention_flops=sheet.flops,
        compute=compute,
        layer_s=constants["layer_s"],
        expert_s=constants["expert_s"],
        step_s=constants["step_s"],
        token_s=constants["token_s"],
    )


def predict(run: Run, constants: Mapping[str, float] = SHIPPED) -> Served:
    """What the model says of *run*."""
    rank = rank_of(run.card, run.precision, constants)
    prompt, output = run.prompt or _CHAT_PROMPT, run.output or round(constants["answer"])

    def step(*, streams: int, depth: float, prompt_tokens: float = 0.0, prompt_depth: float = 0.0) -> float:
        return run.stage.step_s(
            rank, streams=streams, depth=depth, prompt_tokens=prompt_tokens, prompt_depth=prompt_depth
        )

    slots = min(run.slots, _places(run, prompt + output))
    return serve(step, Load(users=run.users, prompt=prompt, output=output), slots=slots, chunk=_CHUNK)


def _places(run: Run, length: int) -> int:
    """Sequences of *length* tokens that the KV cache of one rank holds."""
    stage = run.stage
    held = stage.dense_bytes + stage.expert_bytes + _VOCABULARY_BYTES * stage.hidden / stage.tensor
    left = _SHARE * CARDS[run.card].memory_bytes - _WORKING_SHARE * CARDS[run.card].memory_bytes - held
    return max(1, int(left / (stage.kv_bytes(length) - stage.state_bytes)))


def serving_runs() -> list[Run]:
    """aiconfigurator's rows, each once, without those of 512 users."""
    models = {m["model"]: m for m in table("models.csv")}
    found: dict[tuple[str, ...], Run] = {}
    for row in table("measured_serving.csv"):
        if int(row["concurrency_or_batch"]) >= 512:
            continue
        name = {"meta-llama/Llama-3.1-70B": "meta-llama/Llama-3.1-70B-Instruct"}.get(row["model"], row["model"])
        precision = {"bf16?": "bf16", "fp8": "fp8", "fp4": "mxfp4"}[row["precision"]]
        tensor = int(row["tp"])
        ranks = tensor if int(row["moe_ep"] or 0) > 1 else 1
        card = "H100 SXM5 80 GB"
        key = (name, precision, *(row[k] for k in ("tp", "isl", "osl", "concurrency_or_batch", "ttft_ms")))
        found[key] = Run(
            table="serving",
            card=card,
            model=name,
            precision=precision,
            cards=tensor,
            users=int(row["concurrency_or_batch"]),
            slots=256,
            prompt=int(row["isl"]),
            output=int(row["osl"]),
            stage=stage_of(models[name], precision, card, tensor, ranks),
            ttft_s=float(row["ttft_ms"]) / 1e3,
            tpot_s=float(row["tpot_ms"]) / 1e3,
        )
    return list(found.values())


def throughput_runs() -> list[Run]:
    """Throughput and ITL rows; of copies that run side by side one copy's share."""
    models = {m["model"]: m for m in table("models.csv")}
    runs = []
    for row in table("measured_vllm.csv"):
        name = row["model"].replace("Llama-3.3", "Llama-3.1").replace("Instruct-2507-FP8", "Instruct-2507")
        tensor = max(int(row["tp"]), int(row["ep"]))
        copies = int(row["count"]) // tensor
        run = Run(
            table="throughput",
            card=row["card"],
            model=name,
            precision=row["precision"],
            cards=tensor,
            users=round(float(row["batch"])) if row["batch"] else int(row["max_num_seqs"]),
            slots=int(row["max_num_seqs"]),
            prompt=int(row["isl"] or 0),
            output=int(row["osl"] or 0),
            stage=stage_of(models[name], row["precision"], row["card"], tensor, max(1, int(row["ep"]))),
            tpot_s=float(row["itl_ms"]) / 1e3 if row["itl_ms"] else None,
            tok_s=float(row["tok_s"]) / max(1, copies),
        )
        # a single stream's figure is its time per token, without its prompt
        runs.append(replace(run, tok_s=None) if run.slots == 1 else run)
    return runs
