"""Refits the speed constants of ``terazi.performance`` for llama.cpp from ``data/measured_speed.csv``.

    PYTHONPATH=src python benchmarks/fit_speed.py

Prints, for decode and for prompts: the constants of each pool, the error per card when the card itself is held out,
each card's own factor, the residual quantiles that the intervals are made of and what share of the rows they cover,
then batches, experts and layer splits. Every constant in ``efficiency.py``, ``card_factors.py`` and ``routing.py``
is a figure of this print-out; a change of the table shows here first.
"""

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping

from speed_rows import (
    Row,
    by_card,
    card_class,
    hops_s,
    is_decode,
    is_prompt,
    is_single_decode,
    load,
    observation,
    prompt_seconds,
    prompt_work,
    rates,
    read_bytes,
)
from terazi.performance import card_factors, efficiency
from terazi.performance.efficiency import CLASSES, CardClass, Ground
from terazi.performance.fit import descend, fit_decode, predict_tok_s, quantile
from terazi.performance.roofline import Efficiency
from terazi.performance.routing import SKEW

Residuals = dict[str, tuple[float, ...]]
#: Constants of a prompt that a pool of cards fits; the others have no use for the last two.
_PROMPT_START = {"nvidia": ("compute", "passes", "width_s"), "apple": ("compute",), "amd": ("compute",)}
_PROMPT_MOST = {"compute": 1.0, "passes": 1.5}


def decode_log(row: Row, eta: float, layer_s: float) -> float:
    """ln(measured / predicted) of a decode run, on one card or on several by layer split."""
    o = observation(row)
    return math.log(o.tok_s * (1 / predict_tok_s(o, eta, layer_s) + hops_s(row)))


def pool_of(row: Row, pools: Mapping[CardClass, str]) -> str:
    """The pool whose constants the row's card takes."""
    return pools.get(card_class(row), "none")


def held_out_decode(rows: list[Row]) -> Residuals:
    """Log errors per card, under constants of its pool that were fitted on single cards without it."""
    found: Residuals = {}
    for card, own in by_card(rows).items():
        pool = pool_of(own[0], efficiency.DECODE_POOL)
        others = [observation(r) for r in rows if r["card"] != card and r["count"] == "1"]
        near = [
            observation(r)
            for r in rows
            if r["card"] != card and r["count"] == "1" and pool_of(r, efficiency.DECODE_POOL) == pool
        ]
        eta, layer_s = fit_decode(near or others)
        found[card] = tuple(decode_log(r, eta, layer_s) for r in own)
    return found


def fit_prompts(rows: list[Row], pool: str) -> Efficiency:
    """The constants of *pool* with the least mean absolute log error, every card counting the same."""
    base = next(CLASSES[kind] for kind, name in efficiency.PROMPT_POOL.items() if name == pool)
    cards = by_card(rows)
    if pool not in _PROMPT_START:
        return base

    def loss(constants: Mapping[str, float]) -> float:
        e = base._replace(**constants)
        return sum(
            sum(abs(math.log(prompt_seconds(r, e) * float(r["tok_s"]) / int(r["tokens"]))) for r in own) / len(own)
            for own in cards.values()
        )

    start = {name: float(getattr(base, name)) for name in _PROMPT_START[pool]}
    return base._replace(**descend(loss, start, at_most=_PROMPT_MOST))


def prompt_log(row: Row, e: Efficiency) -> float:
    """ln(measured / predicted) of a prompt run."""
    return math.log(prompt_seconds(row, e) * float(row["tok_s"]) / int(row["tokens"]))


def held_out_prompts(rows: list[Row]) -> Residuals:
    """Log errors per card, under constants of its pool that were fitted on single cards without it."""
    found: Residuals = {}
    for card, own in by_card(rows).items():
        pool = pool_of(own[0], efficiency.PROMPT_POOL)
        near = [
            r
            for r in rows
            if r["card"] != card
            and r["count"] == "1"
            and r["experts"] == "0"
            and pool_of(r, efficiency.PROMPT_POOL) == pool
        ]
        e = fit_prompts(near, pool) if near else _of_all(rows, card)
        found[card] = tuple(prompt_log(r, e) for r in own)
    return found


def _of_all(rows: list[Row], card: str) -> Efficiency:
    """For the only card of its pool: the constants of NVIDIA's cards, at the median of all cards' rates."""
    nvidia = CLASSES[CardClass.PRO]
    logs = [
        statistics.median(prompt_log(r, nvidia) for r in own) for name, own in by_card(rows).items() if name != card
    ]
    return nvidia._replace(compute=nvidia.compute * math.exp(statistics.median(logs)))


def median_error(logs: list[float]) -> float:
    """Median of \\|predicted / measured - 1\\|."""
    return statistics.median(abs(math.exp(-e) - 1) for e in logs)


def flat(residuals: Residuals) -> list[float]:
    """All residuals, row by row."""
    return [e for logs in residuals.values() for e in logs]


def within_card(rows: list[Row], log: Callable[[Row], float]) -> list[float]:
    """Log errors of each row when the card's factor is known from its *other* rows (cards with at least 3)."""
    errors: list[float] = []
    for own in by_card(rows).values():
        logs = [log(row) for row in own]
        if len(logs) >= 3:
            errors += [e - statistics.median(logs[:i] + logs[i + 1 :]) for i, e in enumerate(logs)]
    return errors


def shipped_decode_log(row: Row) -> float:
    """The same under the shipped constants of its class."""
    e = CLASSES[card_class(row)]
    return decode_log(row, e.memory, e.layer_s)


def shipped_prompt_log(row: Row) -> float:
    """The same of a prompt."""
    return prompt_log(row, CLASSES[card_class(row)])


def factors(rows: list[Row], log: Callable[[Row], float]) -> dict[str, float]:
    """Each card's own factor: measured over predicted, the median of its runs."""
    return {card: math.exp(statistics.median(log(r) for r in own)) for card, own in by_card(rows).items()}


def grounds(residuals: Residuals, rows: list[Row]) -> dict[Ground, list[float]]:
    """Held-out residuals by what a forecast for that card would rest on, every card weighing about the same."""
    most = max(len(v) for v in residuals.values())
    found: dict[Ground, list[float]] = defaultdict(list)
    classes = {row["card"]: card_class(row) for row in rows}
    for card, logs in residuals.items():
        thin = classes[card] in efficiency.THIN_CLASSES
        found[Ground.THIN_CLASS if thin else Ground.UNSEEN_CARD] += [
            e for e in logs for _ in range(max(1, round(most / len(logs))))
        ]
    return found


def coverage(logs: list[float], spread: tuple[float, float]) -> float:
    """The share of *logs* that lies inside *spread*."""
    return sum(spread[0] <= math.exp(e) <= spread[1] for e in logs) / len(logs)


def _report(
    name: str,
    rows: list[Row],
    residuals: Residuals,
    log: Callable[[Row], float],
    spreads: Mapping[Ground, tuple[float, float]],
) -> None:
    print(f"{name}: card held out, predicted / measured - 1, median of its runs")
    for card, logs in sorted(residuals.items(), key=lambda kv: abs(statistics.median(kv[1]))):
        print(f"  {card:<28} {math.exp(-statistics.median(logs)) - 1:+6.1%}   {len(logs)} runs")
    cards = [abs(math.exp(-statistics.median(v)) - 1) for v in residuals.values()]
    print(f"  median error: rows {median_error(flat(residuals)):.1%}, cards {statistics.median(cards):.1%}")
    print(f"{name}: card factors")
    for card, factor in factors(rows, log).items():
        print(f'    "{card}": {factor:.2f},')
    for ground, errors in (*grounds(residuals, rows).items(), (Ground.SAME_CARD, within_card(rows, log))):
        low, high = math.exp(quantile(errors, 0.1)), math.exp(quantile(errors, 0.9))
        inside = coverage(errors, spreads[ground])
        print(f"  {ground}: 10-90 % {low:.2f}..{high:.2f}; shipped {spreads[ground]} covers {inside:.0%}")


def report_batches(rows: list[Row]) -> None:
    """Many streams on one card: predicted against measured total, dense and of experts."""
    print("batches: predicted / measured - 1 (total tokens per second)")
    errors: dict[bool, list[float]] = defaultdict(list)
    for row in rows:
        batch = int(row["batch"])
        if row["kind"] != "decode" or batch == 1:
            continue
        e = efficiency.with_factor(CLASSES[card_class(row)], card_factors.DECODE_FACTOR.get(row["card"], 1.0))
        step = read_bytes(row) / (e.memory * float(row["bandwidth_gb_s"]) * 1e9) + int(row["layers"]) * e.layer_s
        flops = 2e9 * float(row["active_params_b"])
        hidden = prompt_work(row).hidden
        step += (batch - 1) * (flops / (e.compute * rates(row, e).flops) + int(row["layers"]) * hidden * e.width_s)
        ratio = batch / step / float(row["tok_s"])
        errors[row["experts"] != "0"].append(-math.log(ratio))
        print(f"  {row['card']:<18} {row['model']:<24} B={batch:<3} depth {row['depth']:>6} {ratio - 1:+6.1%}")
    for experts, logs in errors.items():
        low, high = math.exp(quantile(logs, 0.1)), math.exp(quantile(logs, 0.9))
        print(
            f"  {'experts' if experts else 'dense'}: median {median_error(logs):.1%}; 10-90 % {low:.2f}..{high:.2f}"
        )
    print(f"experts that a batch touches: popularity falls as rank^-{SKEW}")


def split_by_count(rows: list[Row], residuals: Residuals) -> dict[bool, list[float]]:
    """Held-out residuals of single cards (False) and of layer splits over several (True)."""
    found: dict[bool, list[float]] = defaultdict(list)
    for card, own in by_card(rows).items():
        for row, log in zip(own, residuals[card], strict=True):
            found[row["count"] != "1"].append(log)
    return found


def by_count(rows: list[Row], residuals: Residuals, name: str) -> None:
    """Print the error of single cards and of layer splits."""
    for several, logs in sorted(split_by_count(rows, residuals).items()):
        kind = "layer splits" if several else "single cards"
        print(f"{name}, {kind}: {median_error(logs):.1%} of {len(logs)} runs")


def main() -> int:
    """Print everything."""
    rows = load()
    decode = [r for r in rows if is_decode(r)]
    prompts = [r for r in rows if is_prompt(r)]
    print("decode constants (eta, c), single cards")
    for pool in dict.fromkeys(efficiency.DECODE_POOL.values()):
        own = [r for r in decode if is_single_decode(r) and pool_of(r, efficiency.DECODE_POOL) == pool]
        eta, layer_s = fit_decode(observation(r) for r in own)
        print(f"  {pool:<8} eta {eta:.2f}  c {layer_s * 1e6:3.0f} us/layer  {len(by_card(own))} cards")
    print("prompt constants, single cards")
    for pool in dict.fromkeys(efficiency.PROMPT_POOL.values()):
        own = [
            r
            for r in prompts
            if r["count"] == "1" and r["experts"] == "0" and pool_of(r, efficiency.PROMPT_POOL) == pool
        ]
        e = fit_prompts(own, pool)
        print(f"  {pool:<8} phi {e.compute:.2f}  passes {e.passes:.2f}  width {e.width_s * 1e10:.2f}e-10")
    singles = [r for r in decode if is_single_decode(r)]
    _report("decode", singles, held_out_decode(decode), shipped_decode_log, efficiency.DECODE_SPREAD)
    single_prompts = [r for r in prompts if r["count"] == "1"]
    _report("prompt", single_prompts, held_out_prompts(prompts), shipped_prompt_log, efficiency.PREFILL_SPREAD)
    by_count(decode, held_out_decode(decode), "decode")
    by_count(prompts, held_out_prompts(prompts), "prompt")
    report_batches(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
