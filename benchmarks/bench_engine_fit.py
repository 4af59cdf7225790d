"""The solver against the engine's ``llama-fit-params``: unequal stand-in cards, sparse twins of published models.

    PYTHONPATH=tests python benchmarks/bench_engine_fit.py [MODEL …]

Both get the same bytes on each card; printed is what either is forecast to do, and what ours gains.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import model_zoo
import published_twins
from fit_rivals import CARDS, compare
from llama_engine import rpc_servers
from terazi.models.sources import load_model
from terazi.placement.plan import Plan

#: From the zoo, and of the published models; dense ones, mixtures, windows, recurrent ones.
ZOO: dict[str, Callable[[Path], Path]] = {
    "llama-8b": model_zoo.llama8b,
    "gemma-3-27b": model_zoo.gemma3_27b,
    "mixtral-8x7b": model_zoo.mixtral_8x7b,
}
PUBLISHED = (
    "baichuan2-13b", "nemotron-super-49b", "smallthinker-21b", "trinity-mini", "laguna-xs", "mellum2-12b",
    "rnd1-30b", "granite-4.0-h-small", "lfm2-8b-a1b", "glm-4.5-air", "minicpm3-4b", "cohere2-moe-30b",
)  # fmt: skip


def written(folder: Path, name: str) -> str:
    """The path of one twin, made in *folder*."""
    path = folder / f"{name}.gguf"
    if name in ZOO:
        ZOO[name](path)
        return str(path)
    return str(published_twins.write_published(folder, published_twins.load()[name].spec))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*ZOO, *PUBLISHED])
    args = parser.parse_args()
    gains: list[float] = []
    refused = over = 0
    print(f"{'model':<22}{'cards':<18}{'ours tok/s':>11}{'theirs':>9}{'gain':>8}")
    with tempfile.TemporaryDirectory() as folder, rpc_servers(3) as endpoints:
        for name in args.models:
            path = written(Path(folder), name)
            spec = load_model(path)
            for cards, shares in CARDS.items():
                found = compare(path, spec, endpoints, shares)
                if not isinstance(found.ours, Plan):
                    refused += 1
                    print(f"{name:<22}{cards:<18}  refused: {found.ours.reason}")
                    continue
                lacks = "".join(f"  theirs lacks {s.missing_bytes >> 20} MiB on {s.device}" for s in found.over)
                if found.over:
                    over += 1
                else:
                    gains.append(found.gain)
                print(
                    f"{name:<22}{cards:<18}{found.ours_tok_s:>11.2f}{found.theirs_tok_s:>9.2f}{found.gain:>8.1%}{lacks}",
                    flush=True,
                )
    print(
        f"{len(gains) + over} comparisons, {refused} refused; the engine's choice has no room for what it takes"
        f" while it loads in {over}; gain in the others: least {min(gains):.1%},"
        f" median {statistics.median(gains):.1%}, most {max(gains):.1%}"
    )


if __name__ == "__main__":
    main()
