"""Refits the constants of ``terazi.performance.vllm_cards`` and ``queueing`` from the measured vLLM tables.

    PYTHONPATH=src python benchmarks/fit_serving.py            # the shipped constants' errors (a second)
    PYTHONPATH=src python benchmarks/fit_serving.py --refit    # and a fit, and each model held out (minutes)

Prints TPOT, TTFT, ITL and throughput errors by model and by card, residual quantiles and what the shipped intervals
cover, and the all-reduce model against its table. Every vLLM constant in the package is a figure of this print-out,
rounded.
"""

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping

from serving_rows import SHIPPED, Run, predict, serving_runs, table, throughput_runs
from terazi.performance.collectives import EAGER_S, Fabric, Wire
from terazi.performance.efficiency import Ground
from terazi.performance.fit import descend, quantile
from terazi.performance.vllm_cards import FIRST_SPREAD, TOKEN_SPREAD

#: Devices of the all-reduce table and the one-way bytes per second between two of them.
LINKS = {
    "NVIDIA H100 80GB HBM3": Fabric(Wire.NVLINK, 450e9),
    "NVIDIA A100-SXM4-80GB": Fabric(Wire.NVLINK, 300e9),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": Fabric(Wire.PCIE_P2P, 63e9),
    "NVIDIA L40S": Fabric(Wire.PCIE_P2P, 31.5e9),
}
_MOVED = ("memory", "kv_memory", "layer_s", "expert_s", "token_s", "answer")
_MOST = {"memory": 1.0, "kv_memory": 1.0, "compute": 1.3}


def logs(run: Run, constants: Mapping[str, float] = SHIPPED) -> dict[str, float]:
    """ln(measured rate / predicted rate) of what the row measured: positive when it was faster than said."""
    said = predict(run, constants)
    found = {}
    if run.ttft_s is not None:
        found["ttft"] = math.log(said.ttft_s / run.ttft_s)
    if run.tpot_s is not None:
        # ML.ENERGY tells the median gap, which no prompt falls into
        seconds = said.tpot_s if run.table == "serving" else said.step_s
        found["tpot" if run.table == "serving" else "itl"] = math.log(seconds / run.tpot_s)
    if run.tok_s is not None:
        found["tok_s"] = math.log(run.tok_s / said.throughput_tok_s)
    return found


def errors(runs: Iterable[Run], constants: Mapping[str, float] = SHIPPED) -> dict[str, list[float]]:
    """All log errors by what was measured."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, value in logs(run, constants).items():
            found[name].append(value)
    return found


def median_error(values: list[float]) -> float:
    """Median of \\|predicted / measured - 1\\| of what was measured."""
    return statistics.median(abs(math.exp(-e) - 1) for e in values)


def fit(runs: list[Run]) -> dict[str, float]:
    """The constants with the least mean absolute log error; an error counts up to a factor of e.

    The rates of 16, 8 and 4 bits move together: the rows of one width are those of one or two models.
    """

    def all_of(constants: Mapping[str, float]) -> dict[str, float]:
        scaled = {name: value * constants["compute"] for name, value in SHIPPED.items() if "compute" in name}
        return {**SHIPPED, **{name: v for name, v in constants.items() if name != "compute"}, **scaled}

    def loss(constants: Mapping[str, float]) -> float:
        return sum(min(abs(e), 1.0) for values in errors(runs, all_of(constants)).values() for e in values)

    start = {name: value for name, value in SHIPPED.items() if name in _MOVED} | {"compute": 1.0}
    return all_of(descend(loss, start, at_most=_MOST))


def unseen_models(runs: list[Run]) -> dict[str, list[float]]:
    """Log errors of every model under constants that were fitted without it."""
    found: dict[str, list[float]] = defaultdict(list)
    for model in dict.fromkeys(r.model for r in runs):
        constants = fit([r for r in runs if r.model != model])
        for name, values in errors([r for r in runs if r.model == model], constants).items():
            found[name] += values
    return found


def all_reduces() -> list[tuple[str, int, int, float, float]]:
    """(device, ranks, bytes, measured seconds, predicted) of vLLM's own all-reduce, and NCCL's beyond 8 MB."""
    rows = []
    for row in table("allreduce.csv"):
        fabric, kernel = LINKS.get(row["device"]), row["kernel"]
        size = int(row["bytes"])
        if fabric is None or kernel not in {"vllm_graph", "vllm_eager"}:
            continue
        graph = kernel == "vllm_graph"
        said = fabric.all_reduce_s(size, int(row["num_gpus"]), graph=graph)
        rows.append((row["device"], int(row["num_gpus"]), size, float(row["latency_us"]) / 1e6, said))
    return rows


def _show(name: str, found: Mapping[str, list[float]]) -> None:
    figures = ", ".join(f"{kind} {median_error(v):.1%} of {len(v)}" for kind, v in found.items())
    print(f"  {name:<52} {figures}")


def main() -> int:
    """Print everything."""
    runs = [*serving_runs(), *throughput_runs()]
    measured = [r for r in runs if r.card.startswith("H100")]
    print("shipped constants: median error")
    _show("H100 SXM", errors(measured))
    for card in dict.fromkeys(r.card for r in runs if not r.card.startswith("H100")):
        _show(f"{card} (constants of H100)", errors(r for r in runs if r.card == card))
    for model, precision, cards in dict.fromkeys((r.model, r.precision, r.cards) for r in measured):
        own = [r for r in measured if (r.model, r.precision, r.cards) == (model, precision, cards)]
        _show(f"{cards} x {model} {precision}", errors(own))
    for kind, spread in (
        ("tpot", TOKEN_SPREAD),
        ("itl", TOKEN_SPREAD),
        ("tok_s", TOKEN_SPREAD),
        ("ttft", FIRST_SPREAD),
    ):
        values = errors(measured)[kind]
        low, high = spread[Ground.SAME_CARD]
        inside = sum(low <= math.exp(e) <= high for e in values) / len(values)
        middle = f"{math.exp(quantile(values, 0.1)):.2f}..{math.exp(quantile(values, 0.9)):.2f}"
        print(f"  {kind}: 10-90 % {middle}; shipped {low}..{high} covers {inside:.0%}")
    print(
        f"all-reduce: predicted / measured, median by device and ranks (no graph: at least {EAGER_S * 1e6:.0f} us)"
    )
    groups: dict[tuple[str, int, bool], list[float]] = defaultdict(list)
    for device, ranks, size, seconds, said in all_reduces():
        groups[device, ranks, size >= 1 << 20].append(said / seconds)
    for (device, ranks, large), ratios in groups.items():
        print(f"  {device:<46} {ranks} {'>= 1 MB' if large else '< 1 MB '} {statistics.median(ratios):.2f}")
    if "--refit" in sys.argv:
        print("refit:", {k: float(f"{v:.3g}") for k, v in fit(measured).items()})
        print("each model held out of the fit")
        _show("H100 SXM", unseen_models(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
