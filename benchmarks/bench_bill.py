"""How long bills take: 10,000 settings of one model, a plan over eight cards, and a trillion-parameter header.

    PYTHONPATH=src:tests python benchmarks/bench_bill.py [--rounds N]

1. *fixed*: contexts, slots, cache types, micro-batches and flash attention on two cards, every layer offloaded.
2. *cards*: the same on 1, 2 and 3 cards with several ``-ts``, every layer offloaded.
3. *mixed*: with layers left in RAM too (``-ngl``), where host weights are staged on the cards.

Each sweep goes over about 10,000 settings with ``Scale.lines`` from nothing, and is held against ``bill.weigh`` of
a sample. Times are CPU time of this process. The header is that of Kimi K2 (1096 tensors, 163,840 tokens), whole
and in 24 parts; the whole command is compared with ``python -c pass``, alternating. The aims: 1 s for 10,000
settings, 200 ms for a plan, 150 ms beyond an empty process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import bill_cases
import model_zoo
from terazi.errors import TeraziError
from terazi.hardware.machine import Machine
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe import load_catalogue
from terazi.memory.bill import BillLine
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.scale import Scale
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.sources import load_model
from terazi.models.spec import ModelSpec
from terazi.placement.solve import solve
from tiny_models import llama

REPO = Path(__file__).parents[1]
SLOTS = ((1, False), (2, False), (2, True), (4, False), (4, True), (8, False), (8, True))
#: flash attention, K and V
KEPT = (("on", "f16", "f16"), ("on", "q8_0", "q8_0"), ("on", "q4_0", "q4_0"), ("off", "f16", "f16"))
BATCHES = (512, 1024, 2048)
CARDS = "3x RTX 3090 + 512GiB"
EIGHT = "8x H100 SXM nvlink + 2TiB"
#: Every so many settings one is weighed plainly.
SAMPLE = 500
Layout = tuple[int, int, tuple[int, ...]]


def main() -> None:
    """Run all three and print."""
    parser = argparse.ArgumentParser(description="How long bills take.")
    parser.add_argument("--rounds", type=int, default=15, help="of the process comparison")
    options = parser.parse_args()
    measured = bill_cases.load(REPO / "tests" / "golden" / "bill_cases.json")
    with tempfile.TemporaryDirectory() as folder:
        whole = str(model_zoo.kimi_k2(Path(folder) / "kimi.gguf"))
        parts = str(model_zoo.kimi_k2(Path(folder) / "kimi", parts=24))
        specs = {
            "dense, Llama 3.3 70B": measured["llama-3.3-70b"].spec,
            "MoE with MLA, Kimi K2 1T": load_model(whole),
            "window, Gemma 3 27B": measured["gemma-3-27b"].spec,
            "hybrid, Qwen3-Next 80B": measured["qwen3-next-80b-a3b"].spec,
        }
        for name, spec in specs.items():
            sweeps(name, spec)
        plans(specs)
        processes({"one file": whole, "24 parts": parts}, options.rounds)


def sweeps(name: str, spec: ModelSpec) -> None:
    """Time the sweeps of one model."""
    total = spec.block_count + 1
    layouts: dict[str, list[Layout]] = {
        "fixed": [(2, total, (1, 1))],
        "cards": list(whole_layouts(total)),
        "mixed": list(all_layouts(total)),
    }
    machine = parse_machine(CARDS, load_catalogue())
    ids = tuple(device.id for device in machine.devices)
    for kind, chosen in layouts.items():
        settings = list(settings_of(chosen, ids))
        scale = Scale(spec, machine.devices, machine.host.isa)
        start = time.process_time()
        kept = [_answer(scale.lines, one) for one in settings]
        seconds = time.process_time() - start
        sample = range(0, len(settings), SAMPLE)
        start = time.process_time()
        plain = [_answer(partial(_plainly, spec, machine), settings[i]) for i in sample]
        plain_seconds = (time.process_time() - start) / len(sample)
        same = plain == [kept[i] for i in sample]
        print(
            f"{name:<26} {kind:<6} {len(settings):>6} settings, {len(chosen):>2} layouts {seconds:>7.2f} s "
            f"{seconds / len(settings) * 1e6:>6.0f} us each, plain {plain_seconds * 1e3:>5.1f} ms each, "
            f"{'same' if same else 'DIFFERENT'}",
            flush=True,
        )


def whole_layouts(total: int) -> Iterator[Layout]:
    """Cards, layers on them, and their shares: everything offloaded."""
    yield 1, total, ()
    for shares in ((1, 1), (2, 1), (3, 1), (3, 2), (1, 1, 1), (2, 1, 1), (1, 1, 2), (3, 2, 1), (4, 3, 2)):
        yield len(shares), total, shares


def all_layouts(total: int) -> Iterator[Layout]:
    """The same, and layouts that leave layers in RAM."""
    yield from whole_layouts(total)
    for quarters in (3, 2, 1, 0):
        yield 1, total * quarters // 4, ()
    for quarters, shares in product((3, 2), ((1, 1), (2, 1), (1, 1, 1))):
        yield len(shares), total * quarters // 4, shares


def settings_of(layouts: list[Layout], ids: tuple[str, ...]) -> Iterator[LlamaCppSettings]:
    """About 10,000 settings over *layouts*, with as many contexts as that takes."""
    count = 10_000 // (len(layouts) * len(SLOTS) * len(KEPT) * len(BATCHES))
    contexts = [4096 + (131072 - 4096) * n // max(1, count - 1) for n in range(count)]
    for (cards, layers, shares), context, (slots, unified), (flash, k, v), batch in product(
        layouts, contexts, SLOTS, KEPT, BATCHES
    ):
        yield LlamaCppSettings(
            n_ctx=context,
            n_parallel=slots,
            kv_unified=unified,
            flash_attn=flash,
            type_k=k,
            type_v=v,
            n_ubatch=batch,
            n_gpu_layers=layers,
            tensor_split=tuple(map(float, shares)),
            devices=ids[:cards],
            fit=False,
        )


def plans(specs: dict[str, ModelSpec]) -> None:
    """Time plans for eight cards."""
    large = replace(
        llama(blocks=126, width=16384, heads=128, kv_heads=8, inner=53248, vocab=128256), context_length=131072
    )
    kimi = specs["MoE with MLA, Kimi K2 1T"]
    for name, spec, text in (
        ("126 layers (405B), 8 cards that hold all", large, EIGHT),
        ("126 layers (405B), 8 cards and RAM", large, "8x RTX 3090 + 512GiB"),
        ("Kimi K2, 8 cards that hold all", kimi, EIGHT),
        ("Kimi K2, 8 cards and RAM", kimi, "8x RTX 3090 + 1TiB"),
    ):
        machine = parse_machine(text, load_catalogue())
        times = []
        for _ in range(3):
            start = time.process_time()
            outcome = solve(spec, machine, Workload(), {})
            times.append(time.process_time() - start)
        print(f"plan of {name:<42} {min(times) * 1e3:>6.1f} ms ({type(outcome).__name__})", flush=True)


def processes(paths: dict[str, str], rounds: int) -> None:
    """Compare the whole command with an empty process, alternating."""
    environment = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    # compiled modules are part of an installation
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {"python -c pass": [sys.executable, "-c", "pass"]}
    for name, path in paths.items():
        commands[f"Kimi K2, {name}"] = [sys.executable, "-m", "terazi", "weigh", path, "--on", EIGHT]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    base = medians["python -c pass"]
    for name, seconds in medians.items():
        print(f"{name:<20} {seconds * 1e3:>7.1f} ms, {(seconds - base) * 1e3:>7.1f} ms beyond an empty process")


def _plainly(spec: ModelSpec, machine: Machine, settings: LlamaCppSettings) -> tuple[BillLine, ...]:
    return weigh(spec, settings, machine.devices, machine.host.isa).lines


def _answer(
    ask: Callable[[LlamaCppSettings], tuple[BillLine, ...]], settings: LlamaCppSettings
) -> tuple[BillLine, ...] | str:
    try:
        return ask(settings)
    except TeraziError as error:
        return error.message


if __name__ == "__main__":
    main()
