"""One model on unequal stand-in cards twice: as the engine's ``llama-fit-params`` puts it, and as our solver does.

The stand-ins are RPC servers, each of which says that all of the RAM is free; a margin for each makes unequal cards
of them. Both sides get the same bytes on each.
"""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from llama_engine import FIT_PARAMS, isa
from specs import card, machine
from terazi.hardware.machine import Device, Machine
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.appraiser import Appraiser
from terazi.placement.capacity import capacity_of, device_capacity
from terazi.placement.judge import judge
from terazi.placement.plan import Plan, Refusal, Shortfall
from terazi.placement.solve import base_settings, solve, with_context
from terazi.units import MIB

#: An RPC server on a CPU says that all of the RAM is free.
FREE_MIB = psutil.virtual_memory().total // MIB
#: Shares of the model that each card holds, and its bandwidth.
CARDS: dict[str, Sequence[tuple[float, float]]] = {
    "two, a part": ((0.5, 936e9), (0.25, 360e9)),
    "two, slow first": ((0.3, 360e9), (0.45, 936e9)),
    "three, a part": ((0.2, 448e9), (0.4, 936e9), (0.1, 360e9)),
    "three, all fits": ((0.5, 936e9), (0.3, 360e9), (0.4, 448e9)),
}
PINS = {"type_k": "f16", "type_v": "f16", "n_ubatch": 512}
WORK = Workload(context=4096, prompt=512, output=256)


@dataclass(frozen=True)
class Rivals:
    """What came of it; ``over`` is what the engine's choice lacks by our bill."""

    ours: Plan | Refusal
    theirs: Plan | None
    ours_tok_s: float
    theirs_tok_s: float
    said: str
    over: tuple[Shortfall, ...]

    @property
    def gain(self) -> float:
        """How much faster ours is forecast to be."""
        return self.ours_tok_s / self.theirs_tok_s - 1 if self.theirs_tok_s else 0.0


def compare(path: str, spec: ModelSpec, endpoints: Sequence[str], cards: Sequence[tuple[float, float]]) -> Rivals:
    """Both plans for *spec*, whose file is *path*, on a stand-in for each of *cards*."""
    on = _machine(spec, cards, endpoints)
    budgets = [device_capacity(d) for d in on.devices]
    used = tuple(endpoints[: len(cards)])
    said = _ask_engine(path, used, [FREE_MIB - budget // MIB for budget in budgets])
    pins = {**PINS, "rpc": used}
    base = with_context(base_settings(WORK, pins), 4096)
    fitted = replace(
        base,
        n_gpu_layers=None if said["-ngl"] == "-1" else int(said["-ngl"]),
        tensor_split=tuple(float(n) for n in said["-ts"].split(",")) if "-ts" in said else (),
        override_tensor=tuple(
            (pattern, where)
            for pattern, _, where in (o.rpartition("=") for o in said.get("-ot", "").split(",") if o)
        ),
    )
    theirs = judge(spec, on, fitted, capacity_of(on))
    appraiser = Appraiser(spec, on, WORK)
    ours = solve(spec, on, WORK, pins, score=appraiser)
    words = " ".join(f"{k} {v}" for k, v in said.items())
    if not isinstance(ours, Plan):
        return Rivals(ours, None, 0.0, 0.0, words, ())
    plan = replace(
        ours, id="theirs", settings=fitted, bill=theirs.bill, devices=theirs.shares, verdict=theirs.verdict
    )
    return Rivals(
        ours,
        None if theirs.shortfall else plan,
        appraiser.score(ours),
        appraiser.score(plan),
        words,
        theirs.shortfall,
    )


def _machine(spec: ModelSpec, cards: Sequence[tuple[float, float]], endpoints: Sequence[str]) -> Machine:
    devices: list[Device] = []
    for i, (share, bandwidth) in enumerate(cards):
        # whole MiB for a plan, beside the reserve that none touches
        room = round(share * spec.weights_bytes * 1.1) // MIB + 320
        total = max(room + 256, -(-room * 100 // 97) + 1)
        device = replace(card(i, bandwidth=bandwidth, name=f"card {i}"), id=f"RPC{i}", backend="rpc")
        held = total * MIB
        devices.append(replace(device, memory_total_bytes=held, memory_free_bytes=held, pcie=None))
    found = machine(*devices, host_gib=512)
    return replace(found, host=replace(found.host, isa=isa()))


def _ask_engine(path: str, endpoints: Sequence[str], margins_mib: Sequence[int]) -> dict[str, str]:
    done = subprocess.run(
        [str(FIT_PARAMS), "-m", path, "-c", "4096", "-np", "1", "--rpc", ",".join(endpoints),
         "-fitt", ",".join(map(str, margins_mib))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )  # fmt: skip
    words = shlex.split(done.stdout)
    said = dict(zip(words[::2], words[1::2], strict=True))
    # the engine names a stand-in's memory by its address
    for i, endpoint in enumerate(endpoints):
        if "-ot" in said:
            said["-ot"] = said["-ot"].replace(f"RPC0[{endpoint}]", f"RPC{i}")
    return said
