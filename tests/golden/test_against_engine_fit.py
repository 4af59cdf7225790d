"""The solver against llama.cpp's own ``--fit``, which ``engine_fit`` redoes (held against the binary in e2e).

Both get the same room on two or three unequal cards. Ours must hold no less on them, and be at least as fast.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specs import card, llama_spec, machine, read
from terazi.hardware.machine import Device
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.appraiser import Appraiser
from terazi.placement.capacity import capacity_of, device_reserve
from terazi.placement.engine_fit import fit_layers
from terazi.placement.judge import judge
from terazi.placement.plan import Plan, Verdict
from terazi.placement.solve import base_settings, solve, with_context

MODELS = {
    "1b": llama_spec(layers=16, embedding=2048, feed_forward=8192, heads=32, head_width=64, tied=True),
    "3b": llama_spec(layers=28, embedding=3072, feed_forward=8192, heads=24, tied=True),
    "7b": llama_spec(kv_heads=32, feed_forward=11008, vocab=32000),
    "8b": llama_spec(),
    "8b-q8": llama_spec(dtype="Q8_0"),
    "8b-f16": llama_spec(dtype="F16"),
    "13b": llama_spec(layers=40, embedding=5120, feed_forward=13824, heads=40, kv_heads=40, vocab=32000),
    "34b": llama_spec(layers=48, embedding=8192, feed_forward=22016, heads=64, vocab=32000),
    "70b": llama_spec(layers=80, embedding=8192, feed_forward=28672, heads=64),
    "nemo": llama_spec(layers=40, embedding=5120, heads=32, vocab=131072),
    "mixtral": llama_spec(vocab=32000, experts=8, experts_used=2),
    "a3b": llama_spec(layers=48, embedding=2048, feed_forward=768, kv_heads=4, experts=128, experts_used=8),
}
#: Shares of what the model needs in all that each card has, and its bandwidth.
CARDS: dict[str, Sequence[tuple[float, float]]] = {
    "two, all fits": ((0.9, 360e9), (0.5, 936e9)),
    "two, a part": ((0.5, 936e9), (0.25, 360e9)),
    "three, a part": ((0.2, 448e9), (0.4, 936e9), (0.1, 360e9)),
}
#: The driver's pool, for which a plan leaves room and the engine knows no line.
POOL = 96 * 2**20
PINS = {"type_k": "f16", "type_v": "f16", "n_ubatch": 512}
WORK = Workload(context=4096, prompt=512, output=256)


def _cards(spec: ModelSpec, shares: Sequence[tuple[float, float]]) -> tuple[Device, ...]:
    size = spec.weights_bytes * 1.1
    cards = []
    for i, (share, bandwidth) in enumerate(shares):
        total = round(share * size) + 2**30
        device = card(i, bandwidth=bandwidth, name=f"card {i}")
        cards.append(replace(device, memory_total_bytes=total, memory_free_bytes=total, context_bytes=read(0.0)))
    return tuple(cards)


@pytest.mark.parametrize("cards", CARDS)
@pytest.mark.parametrize("name", MODELS)
def test_never_holds_less_and_is_at_least_as_fast(name: str, cards: str) -> None:
    spec = MODELS[name]
    devices = _cards(spec, CARDS[cards])
    on = machine(*devices, host_gib=256)
    base = replace(with_context(base_settings(WORK, PINS), 4096), fit=True)
    fitted = fit_layers(
        spec, devices, base, on.host.isa, target_bytes=tuple(device_reserve(d) + POOL for d in devices)
    )
    theirs = judge(spec, on, replace(fitted, fit=False), capacity_of(on))
    appraiser = Appraiser(spec, on, WORK)
    ours = solve(spec, on, WORK, PINS, score=appraiser)
    assert isinstance(ours, Plan)
    assert not theirs.shortfall, "with the same budget there must be something to compare"
    if theirs.verdict is Verdict.FITS:
        assert ours.verdict is Verdict.FITS
    plan = replace(ours, id="theirs", settings=theirs.settings, bill=theirs.bill, devices=theirs.shares)
    assert appraiser.score(ours) >= appraiser.score(plan) * (1 - 1e-9)
    assert llama_cpp_settings(ours.settings).n_ctx == theirs.settings.n_ctx
