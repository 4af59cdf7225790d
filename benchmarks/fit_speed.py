"""Refits the speed constants of ``terazi.performance.efficiency`` from ``data/measured_speed.csv``.

    PYTHONPATH=src python benchmarks/fit_speed.py

Prints, for llama.cpp on single cards: the constants of each class, the error per card when the card itself is held
out, the same for the constant-55 % rule, each card's own factor, the residual quantiles that the intervals are made
of and what share of the rows they cover, prefill fractions, batches and layer splits. Every constant in the package
is a figure of this print-out.

What is left out of the decode fit, and why: tg4096 and tg8192 of May 2024, because those builds read the cache
without flash attention, which has been the default since; ``batch > 1`` and several cards, which are checked below.
Rows on hosts of the single-board kind are not in the table at all: there the host sets the pace, not the card.
"""

import csv
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from terazi.performance import efficiency
from terazi.performance.fit import Observation, fit_decode, leave_one_card_out, log_error, predict_tok_s, quantile
from terazi.performance.links import BOUNDARY_S
from terazi.performance.roofline import distinct_experts

TABLE = Path(__file__).parent / "data" / "measured_speed.csv"
Row = dict[str, str]


def load() -> list[Row]:
    """All rows of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def is_single_decode(row: Row) -> bool:
    """One stream on one card, on a build (or at a depth) where flash attention makes no difference."""
    old_and_deep = row["build"] == "2024-05" and int(row["tokens"]) > 1024
    return row["kind"] == "decode" and row["batch"] == "1" and row["count"] == "1" and not old_and_deep


def read_bytes(row: Row) -> float:
    """Bytes that one step reads: dense weights, the experts that the batch touches, every stream's cache."""
    batch, experts, used = int(row["batch"]), int(row["experts"]), int(row["experts_used"])
    routed = float(row["expert_read_gb"]) * 1e9
    growth = distinct_experts(experts, used, batch) / used if used else 1.0
    cache = batch * float(row["kv_bytes_per_token"]) * float(row["depth"])
    return float(row["read_gb"]) * 1e9 - routed + routed * growth + cache


def observation(row: Row) -> Observation:
    """The row as the fit wants it."""
    return Observation(
        card=row["card"],
        bandwidth=float(row["bandwidth_gb_s"]) * 1e9,
        layers=int(row["layers"]),
        read_bytes=read_bytes(row),
        tok_s=float(row["tok_s"]),
    )


def held_out(rows: list[Row]) -> dict[str, tuple[float, ...]]:
    """Log errors per card, each under constants of its pool fitted without that card."""
    pools: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        pools[efficiency.DECODE_POOL[efficiency.CardClass(row["card_class"])]].append(row)
    everything = [observation(r) for r in rows]
    residuals: dict[str, tuple[float, ...]] = {}
    for pool in pools.values():
        own = [observation(r) for r in pool]
        left = leave_one_card_out(own)
        for card in dict.fromkeys(o.card for o in own):
            if card not in left:  # the only card of its pool: judged by all the others
                eta, c = fit_decode([o for o in everything if o.card != card])
                left[card] = tuple(log_error(o, eta, c) for o in own)
        residuals |= left
    return residuals


def median_abs_error(residuals: list[float]) -> float:
    """Median of \\|predicted / measured - 1\\|."""
    return statistics.median(abs(math.exp(-e) - 1) for e in residuals)


def card_weighted(residuals: dict[str, tuple[float, ...]]) -> list[float]:
    """Residuals repeated so that every card weighs about the same in a quantile."""
    most = max(len(v) for v in residuals.values())
    return [e for v in residuals.values() for e in v for _ in range(round(most / len(v)))]


def within_card(rows: list[Row]) -> list[float]:
    """Log errors of each row when the card's factor is known from its *other* rows (cards with at least 3)."""
    errors: list[float] = []
    by_card: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        e = efficiency.CLASSES[efficiency.CardClass(row["card_class"])]
        by_card[row["card"]].append(log_error(observation(row), e.memory, e.layer_s))
    for logs in by_card.values():
        if len(logs) >= 3:
            for i, own in enumerate(logs):
                errors.append(own - statistics.median(logs[:i] + logs[i + 1 :]))
    return errors


def report_decode(rows: list[Row]) -> None:
    """Constants, hold-out errors, factors, quantiles and coverage."""
    pools: dict[str, list[Observation]] = defaultdict(list)
    for row in rows:
        pools[efficiency.DECODE_POOL[efficiency.CardClass(row["card_class"])]].append(observation(row))
    print("decode constants (eta, c)")
    for name, pool in pools.items():
        eta, c = fit_decode(pool)
        cards = len({o.card for o in pool})
        print(f"  {name:<8} eta {eta:.2f}  c {c * 1e6:3.0f} us/layer  {cards} cards, {len(pool)} runs")
    eta, c = fit_decode([observation(r) for r in rows])
    print(f"  {'all':<8} eta {eta:.2f}  c {c * 1e6:3.0f} us/layer")

    residuals = held_out(rows)
    flat = [e for v in residuals.values() for e in v]
    constant = [log_error(observation(r), 0.55, 0.0) for r in rows]
    print("leave one card out: predicted / measured - 1, median per card")
    for card, logs in sorted(residuals.items(), key=lambda kv: abs(statistics.median(kv[1]))):
        print(f"  {card:<28} {math.exp(-statistics.median(logs)) - 1:+6.1%}   {len(logs)} runs")
    per_card = [abs(math.exp(-statistics.median(v)) - 1) for v in residuals.values()]
    print(f"  median error: rows {median_abs_error(flat):.1%}, cards {statistics.median(per_card):.1%}")
    print(f"  constant 55 % of bandwidth: rows {median_abs_error(constant):.1%}")

    print("card factors (measured / class, median)")
    by_card: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        e = efficiency.CLASSES[efficiency.CardClass(row["card_class"])]
        by_card[row["card"]].append(log_error(observation(row), e.memory, e.layer_s))
    for card, ratios in by_card.items():
        print(f'    "{card}": {math.exp(statistics.median(ratios)):.2f},')

    known = within_card(rows)
    unseen = card_weighted(residuals)
    for name, values, spread in (
        ("same card", known, efficiency.DECODE_SPREAD[efficiency.Ground.SAME_CARD]),
        ("unseen card", unseen, efficiency.DECODE_SPREAD[efficiency.Ground.UNSEEN_CARD]),
    ):
        low, high = math.exp(quantile(values, 0.1)), math.exp(quantile(values, 0.9))
        inside = sum(spread[0] <= math.exp(e) <= spread[1] for e in values) / len(values)
        print(f"  {name}: 10-90 % quantiles {low:.2f}..{high:.2f}; shipped {spread} covers {inside:.0%}")


def report_prefill(rows: list[Row]) -> None:
    """Fraction of the data sheet's FP16 rate (FP32 accumulate), per class, prompts of at most 2048 tokens."""
    fractions: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["kind"] == "prefill" and row["count"] == "1" and row["fp16_tflops"] and int(row["depth"]) == 0:
            if int(row["tokens"]) > 2048 or row["experts"] != "0":
                continue  # routed experts prefill at another fraction, and one card alone has such rows
            flops = 2e9 * float(row["active_params_b"]) * float(row["tok_s"])
            fractions[row["card_class"]][row["card"]].append(flops / (float(row["fp16_tflops"]) * 1e12))
    print("prefill fraction of peak, median over cards (and range)")
    pooled: list[float] = []
    for name, cards in fractions.items():
        medians = {card: statistics.median(v) for card, v in cards.items()}
        middle = statistics.median(medians.values())
        pooled += [v / middle for v in medians.values()] if len(medians) > 1 else []
        print(f"  {name:<8} {middle:.2f}  ({min(medians.values()):.2f}..{max(medians.values()):.2f})")
    print(f"  card / class: 10-90 % {quantile(pooled, 0.1):.2f}..{quantile(pooled, 0.9):.2f}")


def report_batches(rows: list[Row]) -> None:
    """Many streams on one card: predicted against measured total."""
    print("batches: predicted / measured - 1 (total tokens per second)")
    errors = []
    for row in rows:
        batch = int(row["batch"])
        if row["kind"] != "decode" or batch == 1:
            continue
        e = efficiency.CLASSES[efficiency.CardClass(row["card_class"])]
        e = efficiency.with_factor(e, efficiency.CARD_FACTOR.get(row["card"], 1.0))
        step = read_bytes(row) / (e.memory * float(row["bandwidth_gb_s"]) * 1e9)
        step += int(row["layers"]) * e.layer_s
        flops = 2e9 * float(row["active_params_b"])
        step += (batch - 1) * flops / (e.compute * float(row["fp16_tflops"]) * 1e12)
        ratio = batch / step / float(row["tok_s"])
        errors.append(math.log(ratio))
        print(f"  {row['card']:<18} {row['model']:<24} B={batch:<3} depth {row['depth']:>6} {ratio - 1:+6.1%}")
    print(
        f"  median error {statistics.median(abs(math.exp(e) - 1) for e in errors):.1%}; "
        f"10-90 % of measured / predicted {math.exp(quantile([-e for e in errors], 0.1)):.2f}"
        f"..{math.exp(quantile([-e for e in errors], 0.9)):.2f}"
    )


def report_splits(rows: list[Row]) -> None:
    """Layer splits over equal cards: decode against the same bytes on one card's constants, and prefill gain."""
    print("layer split, decode: predicted / measured - 1 (median per card and count)")
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    prefill: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["kind"] == "prefill" and row["build"] == "2024-05":
            prefill[row["card"], row["model"] + row["quant"], row["tokens"]][row["count"]] = float(row["tok_s"])
        if row["kind"] == "decode" and row["count"] != "1" and int(row["tokens"]) <= 1024:
            e = efficiency.CLASSES[efficiency.CardClass(row["card_class"])]
            e = efficiency.with_factor(e, efficiency.CARD_FACTOR.get(row["card"], 1.0))
            o = observation(row)
            step = 1 / predict_tok_s(o, e.memory, e.layer_s) + (int(row["count"]) - 1) * BOUNDARY_S
            groups[row["card"], row["count"]].append(math.log(o.tok_s * step))
    for (card, count), logs in groups.items():
        print(f"  {count}x {card:<28} {math.exp(-statistics.median(logs)) - 1:+6.1%}")
    print("layer split, decode: seconds per boundary (step on n cards less the step on one, same model)")
    one = {
        (r["card"], r["model"], r["quant"], r["tokens"]): 1 / float(r["tok_s"])
        for r in rows
        if r["kind"] == "decode" and r["count"] == "1" and r["build"] == "2024-05"
    }
    costs = [
        (1 / float(r["tok_s"]) - one[key]) / (int(r["count"]) - 1)
        for r in rows
        if r["kind"] == "decode"
        and int(r["count"]) > 1
        and int(r["tokens"]) <= 1024
        and (key := (r["card"], r["model"], r["quant"], r["tokens"])) in one
    ]
    print(
        f"  median {statistics.median(costs) * 1e3:.2f} ms of {len(costs)}, "
        f"10-90 % {quantile(costs, 0.1) * 1e3:.2f}..{quantile(costs, 0.9) * 1e3:.2f}"
    )
    print("layer split, prefill of 4096 tokens: share of the ideal overlap that is reached")
    shares = []
    for (card, model, tokens), counts in prefill.items():
        if tokens != "4096" or "1" not in counts:
            continue
        for count, value in counts.items():
            n, micro_batches = int(count), 8
            if n > 1:
                ideal = (micro_batches + n - 1) / (micro_batches * n)
                share = (1 - counts["1"] / value) / (1 - ideal)
                shares.append(share)
                print(f"  {n}x {card:<28} {model:<22} {share:.2f}")
    print(f"  median {statistics.median(shares):.2f}")


def main() -> int:
    """Print everything."""
    rows = load()
    single = [r for r in rows if is_single_decode(r)]
    report_decode(single)
    deep = [
        r for r in rows if r["kind"] == "decode" and r["count"] == "1" and r["batch"] == "1" and r not in single
    ]
    deep_errors = []
    for row in deep:
        e = efficiency.CLASSES[efficiency.CardClass(row["card_class"])]
        e = efficiency.with_factor(e, efficiency.CARD_FACTOR.get(row["card"], 1.0))
        deep_errors.append(log_error(observation(row), e.memory, e.layer_s))
    print(f"builds without flash attention, tg4096 and tg8192: median error {median_abs_error(deep_errors):.1%}")
    report_prefill(rows)
    report_batches(rows)
    report_splits(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
