"""Refits the power constants of ``terazi.performance.power`` from ``data/measured_power.csv``.

    PYTHONPATH=src python benchmarks/fit_power.py

Prints the error in joules a token, per model and per card, when that model or card was held out of the fit: with
the measured tokens a second (so that the watts alone are judged), and end to end with our own speed.
Every GeForce row is judged by constants of the *other* GeForce cards. The table has a single HBM card, the H100, so
there each model is held out instead: how well that carries over to another HBM card, the table can't say.
"""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import serving_rows
from terazi.hardware.cards import bandwidth_figure, flops_figure, idle_figure, tdp_figure
from terazi.hardware.catalogue import GpuRecord
from terazi.hardware.machine import Device
from terazi.hardware.probe.catalogue import load_catalogue
from terazi.performance import power
from terazi.performance.efficiency import CardClass, speed_of_device
from terazi.performance.fit import quantile
from terazi.performance.power import CONCAVITY, Draw, Load, Shape, slowed
from terazi.performance.roofline import decode_step_s
from terazi.performance.routing import distinct_experts

TABLE = Path(__file__).parent / "data" / "measured_power.csv"
#: Tokens in the cache of a chat stream, on average; the source doesn't say (assumed).
CHAT_DEPTH: Final = 800
Row = dict[str, str]


class Case(NamedTuple):
    """One row with what the model makes of it."""

    row: Row
    draw: Draw
    load: Load  # with the measured speed


def load() -> list[Row]:
    """All rows of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights_bytes(row: Row, streams: float) -> float:
    """Bytes of weights that a step of *streams* reads, on all cards together."""
    routed, experts = float(row["expert_params_b"]), int(row["experts"])
    share = distinct_experts(experts, int(row["experts_used"]), round(streams)) / experts if experts else 1.0
    return (float(row["params_b"]) - routed + routed * share) * 1e9 * float(row["bytes_per_param"])


def peak_flops(row: Row, record: GpuRecord) -> float:
    """The card's dense rate for the row's weights: FP8 runs at twice the FP16 rate."""
    assert record.flops_fp16 is not None
    return record.flops_fp16 * (2 if row["phase"] == "serving" and float(row["bytes_per_param"]) == 1 else 1)


def case_of(row: Row, records: dict[str, GpuRecord], tok_s: float | None = None) -> Case:
    """The row's draw and load; without the model's facts, an ordinary load of its phase."""
    record = records[row["card"]]
    tdp = record.tdp_w or 0.0
    cap = float(row["cap_w"]) if row["cap_w"] else tdp
    shape = power.SHAPES[CardClass.HBM if row["card"].startswith("H100") else CardClass.GEFORCE]
    idle = idle_figure(record).value or 0.0
    draw = Draw(idle_w=idle, tdp_w=max(tdp, min(cap, 1.3 * tdp)), limit_w=cap, shape=shape)
    if row["phase"] == "prefill" or not row["params_b"]:
        return Case(row, draw, power.PREFILL if row["phase"] == "prefill" else power.DECODE)
    speed, streams, cards = tok_s or float(row["tok_s"]), float(row["streams"]), int(row["count"])
    depth = CHAT_DEPTH if row["phase"] == "serving" else 0
    moved = weights_bytes(row, streams) + streams * depth * float(row["kv_bytes_per_token"])
    memory = moved * speed / streams / cards / record.bandwidth_bytes_per_s
    compute = 2 * float(row["active_params_b"]) * 1e9 * speed / cards / peak_flops(row, record)
    return Case(row, draw, Load(memory=min(1.0, memory), compute=min(1.0, compute)))


def watts(case: Case, shape: Shape) -> float:
    """Of the cards that the row's watts count."""
    cards = 1 if case.row["watts_of"] == "one card" else int(case.row["count"])
    return cards * case.draw._replace(shape=shape).drawn_w(case.load)


def fit_hbm(cases: Sequence[Case], memory: float) -> Shape:
    """Base and compute of the share of the dynamic power, *memory* given, every row counting alike."""
    xs, ys = [], []
    for case in cases:
        per_card = float(case.row["power_w"]) / int(case.row["count"])
        share = (per_card - case.draw.idle_w) / (case.draw.tdp_w - case.draw.idle_w)
        xs.append(case.load.compute**CONCAVITY)
        ys.append(share - memory * case.load.memory)
    slope, base = least_absolute(xs, ys)
    return Shape(waiting=0.15, base=base, memory=memory, compute=slope)


def least_absolute(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept with the least absolute error, so that one odd kernel doesn't bend the line.

    Iteratively reweighted least squares (Schlossmacher, JASA 1973); 60 rounds, which settle the third decimal.
    """
    weights = [1.0] * len(xs)
    slope = base = 0.0
    for _ in range(60):
        total = sum(weights)
        mean_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
        mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
        spread = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
        slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True)) / spread
        base = mean_y - slope * mean_x
        weights = [1 / max(1e-4, abs(y - base - slope * x)) for x, y in zip(xs, ys, strict=True)]
    return slope, base


def fit_geforce(cases: Iterable[Case]) -> Shape:
    """The median share that an uncapped decode draws; a cap that doesn't bind counts as none."""
    shares = [
        (float(c.row["power_w"]) - c.draw.idle_w) / (c.draw.tdp_w - c.draw.idle_w)
        for c in cases
        if c.row["phase"] == "decode" and float(c.row["power_w"]) < 0.985 * c.draw.limit_w
    ]
    return Shape(waiting=0.20, base=min(1.0, statistics.median(shares)), memory=0.0, compute=0.10)


def held_out(
    cases: Sequence[Case], key: str, fit: Callable[[Sequence[Case]], Shape]
) -> dict[str, list[tuple[Case, float]]]:
    """Watts predicted for each case by a fit without its own group."""
    found: dict[str, list[tuple[Case, float]]] = {}
    for group in dict.fromkeys(c.row[key] for c in cases):
        shape = fit([c for c in cases if c.row[key] != group])
        found[group] = [(c, watts(c, shape)) for c in cases if c.row[key] == group]
    return found


def energy_error(case: Case, predicted_w: float, tok_s: float | None = None) -> float:
    """|predicted/measured - 1| of the joules a token."""
    speed = float(case.row["tok_s"])
    return abs(predicted_w / (tok_s or speed) / (float(case.row["power_w"]) / speed) - 1)


def forecast_tok_s(row: Row, record: GpuRecord) -> float | None:
    """Our own speed for the row, all streams together; None where the source doesn't name the model's facts."""
    if not row["params_b"] or row["phase"] == "prefill":
        return None
    if row["engine"] == "vLLM":
        return next(
            (said for measured, said in _vllm_speeds() if abs(measured / float(row["tok_s"]) - 1) < 1e-4), None
        )
    device = Device(
        id="CUDA0",
        name=record.name,
        vendor=record.vendor,
        backend="cuda",
        memory_total_bytes=record.memory_min_bytes,
        memory_free_bytes=record.memory_min_bytes,
        memory_bandwidth=bandwidth_figure(record),
        flops_fp16=flops_figure(record),
        tdp_w=tdp_figure(record),
    )
    streams = float(row["streams"])
    step = decode_step_s(
        speed_of_device(device).rates,
        read_bytes=weights_bytes(row, streams),
        kv_bytes=0.0,
        layers=int(row["layers"]),
        flops_per_token=2 * float(row["active_params_b"]) * 1e9,
        batch=round(streams),
        packed_weights=float(row["active_params_b"]) * 1e9,
    )
    return streams / step


@cache
def _vllm_speeds() -> tuple[tuple[float, float], ...]:
    """Measured and predicted tokens a second of the same runs, as the serving table has them."""
    found = []
    for run, row in zip(serving_rows.throughput_runs(), serving_rows.table("measured_vllm.csv"), strict=True):
        if run.tok_s is not None:
            copies = float(row["tok_s"]) / run.tok_s
            found.append((float(row["tok_s"]), serving_rows.predict(run).throughput_tok_s * copies))
    return tuple(found)


def cap_speeds(rows: Sequence[Row]) -> list[tuple[Row, float, float]]:
    """Each capped row beside the same run at its card's stock cap: (row, share of the dynamic power, speed)."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["cap_w"] and row["watts_of"] != "one card":
            groups[row["card"], row["engine"], row["model"], row["phase"], row["streams"]].append(row)
    found = []
    for group in groups.values():
        full = max(group, key=lambda r: float(r["power_w"]))
        # 388 and 390 W were other cards' own limits: the stock run is the one to compare with
        stock = [r for r in group if "stock" in r["note"] and "388" not in r["cap_w"]]
        full = stock[0] if stock else full
        for row in group:
            if float(row["power_w"]) < 0.97 * float(full["power_w"]):
                idle = 0.06 * float(full["power_w"])
                share = (float(row["power_w"]) - idle) / (float(full["power_w"]) - idle)
                found.append((row, share, float(row["tok_s"]) / float(full["tok_s"])))
    return found


def report() -> dict[str, float]:
    """Print all tables; the medians that the golden test holds."""
    records = {r.name: r for r in load_catalogue().records}
    cases = [case_of(row, records) for row in load()]
    hbm = [c for c in cases if c.row["card"].startswith("H100")]
    geforce = [c for c in cases if not c.row["card"].startswith("H100")]
    medians: dict[str, float] = {}
    memory = power.SHAPES[CardClass.HBM].memory
    print("fitted HBM    ", fit_hbm(hbm, memory))
    print("fitted GeForce", fit_geforce(geforce))
    tables = {
        "HBM (H100, vLLM): each model held out": held_out(hbm, "model", lambda cs: fit_hbm(cs, memory)),
        "GeForce: each card held out": held_out(geforce, "card", fit_geforce),
    }
    logs: list[float] = []
    whole: list[float] = []
    for title, table in tables.items():
        print(f"\n{title}\n  {'':<52} rows  error of J/token (median), measured speed | our speed")
        ours: list[float] = []
        own: list[float] = []
        for name, pairs in table.items():
            errors = [energy_error(c, w) for c, w in pairs]
            logs += [math.log(float(c.row["power_w"]) / w) for c, w in pairs]
            speeds = [(c, forecast_tok_s(c.row, records[c.row["card"]])) for c, _ in pairs]
            shape = _without(cases, pairs[0][0], memory)
            full = [
                energy_error(c, watts(case_of(c.row, records, s), shape), _capped_speed(c, s, shape))
                for c, s in speeds
                if s is not None
            ]
            ours += errors
            own += full
            shown = f"{statistics.median(full):6.1%}" if full else "     -"
            print(f"  {name:<52} {len(pairs):>4}  {statistics.median(errors):6.1%}{'':>35}| {shown}")
        whole += own
        key = title.split(" ", 1)[0].strip(":")
        medians[key], medians[f"{key} end to end"] = statistics.median(ours), statistics.median(own)
        print(f"  {'all':<52} {len(ours):>4}  {medians[key]:6.1%}{'':>35}| {medians[f'{key} end to end']:6.1%}")
    everything = [energy_error(c, w) for table in tables.values() for pairs in table.values() for c, w in pairs]
    medians["all"] = statistics.median(everything)
    medians["end to end"] = statistics.median(whole)
    print(f"\nall rows: {medians['all']:.1%}, end to end {medians['end to end']:.1%} of {len(whole)};", end=" ")
    print("80 % of measured/predicted lie in", end=" ")
    print(f"{math.exp(quantile(logs, 0.1)):.2f} to {math.exp(quantile(logs, 0.9)):.2f}")
    print("\nspeed under a cap      cap  phase    of the dynamic power  measured  predicted")
    misses = []
    for row, share, speed in cap_speeds(load()):
        core = 1.0 if row["phase"] == "prefill" else power.DECODE_CORE_SHARE
        said = slowed(share, core)
        misses.append(abs(said / speed - 1))
        print(
            f"  {row['card'][8:]:<18} {row['cap_w']:>5}  {row['phase']:<8} {share:18.2f} {speed:11.2f} {said:10.2f}"
        )
    medians["speed under a cap"] = statistics.median(misses)
    print(f"  median error {medians['speed under a cap']:.1%}")
    return medians


def _without(cases: Sequence[Case], case: Case, memory: float) -> Shape:
    """The shape fitted without this case's model (H100) or card (GeForce)."""
    if case.row["card"].startswith("H100"):
        rest = [c for c in cases if c.row["card"] == case.row["card"] and c.row["model"] != case.row["model"]]
        return fit_hbm(rest, memory)
    rest = [c for c in cases if not c.row["card"].startswith("H100") and c.row["card"] != case.row["card"]]
    return fit_geforce(rest)


def _capped_speed(case: Case, tok_s: float, shape: Shape) -> float:
    return tok_s * case.draw._replace(shape=shape).speed_at(case.load, power.DECODE_CORE_SHARE)


if __name__ == "__main__":
    report()
