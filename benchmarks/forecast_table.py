"""Writes the tables of errors in ``docs/guides/forecast.md``.

    PYTHONPATH=src python benchmarks/forecast_table.py            # writes
    PYTHONPATH=src python benchmarks/forecast_table.py --check    # fails if the page isn't what would be written

Per card: the error of a forecast for a card that the fit never saw, beside the rule "55 % of the bandwidth" and
llmfit's; per model and per ground: vLLM's tables and what the intervals cover.
"""

import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import fit_serving
import fit_speed
from serving_rows import serving_runs, throughput_runs
from speed_rows import by_card, is_decode, is_prompt, llmfit_tok_s, load, observation
from terazi.performance.efficiency import DECODE_SPREAD, PREFILL_SPREAD, Ground
from terazi.performance.fit import log_error
from terazi.performance.vllm_cards import FIRST_SPREAD, TOKEN_SPREAD

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "forecast.md"
BEGIN, END = "<!-- tables: written by benchmarks/forecast_table.py -->\n", "<!-- end of tables -->\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def _off(logs: list[float] | tuple[float, ...]) -> float:
    return math.exp(-statistics.median(logs)) - 1


def cards() -> Iterator[str]:
    """One line a card: median of predicted / measured - 1 over its runs."""
    rows = load()
    decode, prompts = [r for r in rows if is_decode(r)], [r for r in rows if is_prompt(r)]
    held, held_prompts = fit_speed.held_out_decode(decode), fit_speed.held_out_prompts(prompts)
    yield "| card held out of the fit | runs | decode | 55 % rule | llmfit's | prompt runs | prompt |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    totals: list[tuple[float, float, float]] = []
    of_card = by_card(decode)
    for card in sorted({*held, *held_prompts}):
        own = [r for r in of_card.get(card, []) if r["count"] == "1"]
        ours = constant = llmfit = None
        if card in held:
            ours = _off(held[card])
        if own:
            constant = _off([log_error(observation(r), 0.55, 0.0) for r in own])
            llmfit = statistics.median(llmfit_tok_s(r) / float(r["tok_s"]) for r in own) - 1
        if ours is not None and constant is not None and llmfit is not None:
            totals.append((abs(ours), abs(constant), abs(llmfit)))
        prompt = _off(held_prompts[card]) if card in held_prompts else None
        yield (
            f"| {card} | {len(held.get(card, ())) or ''} | {_percent(ours)} | {_percent(constant)} |"
            f" {_percent(llmfit)} | {len(held_prompts.get(card, ())) or ''} | {_percent(prompt)} |"
        )
    medians = [statistics.median(column) for column in zip(*totals, strict=True)]
    prompt = statistics.median(abs(_off(logs)) for logs in held_prompts.values())
    ours_, constant_, llmfit_ = (f"{m:.0%}" for m in medians)
    yield f"| **median of the cards, unsigned** | | **{ours_}** | {constant_} | {llmfit_} | | **{prompt:.0%}** |"
    yield ""
    yield "| llama.cpp, card held out | runs | median error |"
    yield "|---|--:|--:|"
    for name, table, residuals in (("decode", decode, held), ("prompt", prompts, held_prompts)):
        for several, logs in sorted(fit_speed.split_by_count(table, residuals).items()):
            kind = "layer splits" if several else "single cards"
            yield f"| {name}, {kind} | {len(logs)} | {fit_speed.median_error(logs):.1%} |"
    yield ""
    yield "| interval rests on | decode covers | prompt covers |"
    yield "|---|--:|--:|"
    decode_grounds, prompt_grounds = fit_speed.grounds(held, decode), fit_speed.grounds(held_prompts, prompts)
    single = [r for r in decode if r["count"] == "1"]
    single_prompts = [r for r in prompts if r["count"] == "1"]
    decode_grounds[Ground.SAME_CARD] = fit_speed.within_card(single, fit_speed.shipped_decode_log)
    prompt_grounds[Ground.SAME_CARD] = fit_speed.within_card(single_prompts, fit_speed.shipped_prompt_log)
    for ground in (Ground.SAME_CARD, Ground.UNSEEN_CARD, Ground.THIN_CLASS):
        ours = fit_speed.coverage(decode_grounds[ground], DECODE_SPREAD[ground])
        prompt = fit_speed.coverage(prompt_grounds[ground], PREFILL_SPREAD[ground])
        yield f"| {ground.replace('-', ' ')} | {ours:.0%} | {prompt:.0%} |"


def models() -> Iterator[str]:
    """One line a model that vLLM served: median errors with the shipped constants."""
    runs = [*serving_runs(), *throughput_runs()]
    yield "| vLLM | rows | time per token | first token | median gap | throughput |"
    yield "|---|--:|--:|--:|--:|--:|"
    for card, model in dict.fromkeys((r.card, r.model) for r in runs):
        own = [r for r in runs if (r.card, r.model) == (card, model)]
        found = fit_serving.errors(own)
        figures = [
            fit_serving.median_error(found[k]) if k in found else None for k in ("tpot", "ttft", "itl", "tok_s")
        ]
        cells = " | ".join("" if f is None else f"{f:.0%}" for f in figures)
        yield f"| {card}, {model.rpartition('/')[2]} | {len(own)} | {cells} |"
    found = fit_serving.errors(r for r in runs if r.card.startswith("H100"))
    cells = " | ".join(f"**{fit_serving.median_error(found[k]):.0%}**" for k in ("tpot", "ttft", "itl", "tok_s"))
    yield f"| **all of H100** | | {cells} |"
    tokens = [*found["tpot"], *found["itl"], *found["tok_s"]]
    inside = fit_speed.coverage(tokens, TOKEN_SPREAD[Ground.SAME_CARD])
    first = fit_speed.coverage(found["ttft"], FIRST_SPREAD[Ground.SAME_CARD])
    yield ""
    yield f"The intervals of the same card cover {inside:.0%} of the rows per token, {first:.0%} of first tokens."


def written(page: str) -> str:
    """*page* with the tables as they are now."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    tables = "\n".join((*cards(), "", *models())) + "\n"
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> int:
    """Write the tables into the page, or check them."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = written(page)
    if "--check" in sys.argv:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
