"""Pressure on a service with engines that pretend: the gate closes, idle ones go, the largest starts smaller."""

import asyncio
import sys
from pathlib import Path

import aiohttp

from deadline import until_async
from demo_files import smollm2
from fake_root import Box
from model_zoo import llama8b, llama70b
from terazi.engines.llama_cpp.binary import Binary
from terazi.gateway.app import create_app
from terazi.gateway.seats import Seats
from terazi.gateway.server import Gateway
from terazi.hardware.machine import Machine
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe import load_catalogue, read_machine
from terazi.memory.workload import Workload
from terazi.policy.guard_messages import Stage
from terazi.service.config import Config
from terazi.service.config_guard import GuardTable
from terazi.service.fleet import Fleet
from terazi.service.guard import Guard
from terazi.service.planning import Planned, plan_one
from terazi.service.relief import FleetRelief
from terazi.service.room import needs_of
from terazi.service.smaller import smaller
from terazi.service.wish import Wish
from terazi.service.yard import Yard
from terazi.supervisor.find_engine import find_llama_server

FAKE = Path(__file__).parents[1] / "fakes" / "engine.py"
GIB = 1 << 30
MIB = 1 << 20


def planned(context: int, **pins: object) -> Planned:
    """The demo model on this machine."""
    workload = Workload(context=context, prompt=256, output=128)
    return plan_one(Wish(source=str(smollm2()), workload=workload, pins=pins), "demo", read_machine())


def test_a_shorter_context_comes_first() -> None:
    full = planned(8192)
    held = needs_of(full.plan.devices, full.weighing.machine)
    found = smaller(full, read_machine(), {"Host": 40 * MIB})
    assert found is not None
    after, change = found
    now = needs_of(after.plan.devices, after.weighing.machine)
    assert held["Host"] - now["Host"] >= 40 * MIB
    assert after.plan.workload.context == 6144
    assert change == "a context of 6144 tokens"
    assert after.wish is full.wish, "what was wished for is still wished for"


def test_more_need_makes_it_shorter_still() -> None:
    full = planned(8192)
    found = smaller(full, read_machine(), {"Host": 80 * MIB})
    assert found is not None
    assert found[0].plan.workload.context == 4096


def test_what_can_not_become_smaller_stays() -> None:
    assert smaller(planned(1024), read_machine(), {"Host": 500 * MIB}) is None
    assert smaller(planned(8192), read_machine(), {}) is None
    assert smaller(planned(8192), read_machine(), {"CUDA9": 500 * MIB}) is None


def on_card(folder: Path, context: int, quant: str = "Q8_0") -> tuple[Planned, Machine]:
    """An 8B model on a 24 GiB card, with another file of it beside."""
    file = llama8b(folder / "model-Q8_0.gguf", "Q8_0")
    llama8b(folder / "model-Q4_0.gguf", "Q4_0")
    machine = parse_machine("RTX 3090 + 64GiB", load_catalogue())
    workload = Workload(context=context, prompt=256, output=128)
    return plan_one(Wish(source=str(file), workload=workload), "m", machine), machine


def test_a_card_gets_a_shorter_context_before_it_loses_layers(tmp_path: Path) -> None:
    full, machine = on_card(tmp_path, 32768)
    held = needs_of(full.plan.devices, machine)
    found = smaller(full, machine, {"CUDA0": 900 * MIB})
    assert found is not None
    assert found[1] == "a context of 24576 tokens"
    assert held["CUDA0"] - needs_of(found[0].plan.devices, machine)["CUDA0"] >= 900 * MIB


def test_layers_leave_a_card_when_the_context_alone_is_not_enough(tmp_path: Path) -> None:
    full, machine = on_card(tmp_path, 2048)
    found = smaller(full, machine, {"CUDA0": 3 * GIB})
    assert found is not None
    assert found[1].startswith("fewer layers on the card")
    assert (
        needs_of(found[0].plan.devices, machine)["CUDA0"] <= needs_of(full.plan.devices, machine)["CUDA0"] - 3 * GIB
    )


def test_a_smaller_file_of_the_same_model_is_the_last_resort(tmp_path: Path) -> None:
    file = llama8b(tmp_path / "model-Q8_0.gguf", "Q8_0")
    llama8b(tmp_path / "model-Q4_0.gguf", "Q4_0")
    llama70b(tmp_path / "another-Q4_0.gguf", "Q4_0")
    machine = parse_machine("64GiB", load_catalogue())
    workload = Workload(context=1024, prompt=256, output=128)
    full = plan_one(Wish(source=str(file), workload=workload), "m", machine)
    found = smaller(full, machine, {"Host": 2 * GIB})
    assert found is not None
    assert found[0].plan.workload.context == 1024
    assert found[0].weighing.spec.quantisation == "Q4_0"
    assert "smaller file" in found[1]


# --- a whole service ------------------------------------------------------------------------------------


def engine_binary(folder: Path, *flags: str) -> Binary:
    """The fake engine as llama-server."""
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@" {" ".join(flags)}\n')
    program.chmod(0o755)
    return find_llama_server(None, {"TERAZI_LLAMA_SERVER": str(program)}, cache_dir=str(folder / "cache"))


async def ask(session: aiohttp.ClientSession, model: str) -> tuple[int, str, str | None]:
    """Status, body and ``Retry-After`` of a short request."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    async with session.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.text(), answer.headers.get("Retry-After")


async def stream(session: aiohttp.ClientSession, model: str, n: int) -> str:
    """The whole of a streamed answer."""
    body = {"model": model, "messages": [{"role": "user", "content": "count"}], "max_tokens": n, "stream": True}
    async with session.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        return (await answer.read()).decode()


async def test_pressure_turns_away_unloads_and_shrinks_and_all_is_well_after_it(tmp_path: Path) -> None:
    binary = engine_binary(tmp_path, "--fake-tokens", "100000", "--fake-token-delay-s", "0.02")
    yard = Yard(binary=binary, look=read_machine, run_dir=tmp_path, config=Config())
    fleet = Fleet(yard)
    seats = fleet.seats = Seats(fleet, keeper=fleet)
    for name in ("busy", "idle"):
        (tmp_path / f"{name}.gguf").symlink_to(smollm2())
        wish = Wish(source=str(tmp_path / f"{name}.gguf"), workload=Workload(context=4096, prompt=256, output=128))
        fleet.ask(fleet.add(plan_one(wish, name, read_machine())))
    busy, idle = fleet.models["busy"], fleet.models["idle"]
    box = Box(tmp_path / "root")
    relief = FleetRelief(fleet, seats, yard)
    table = GuardTable(every_s=0.05, settle_s=1.0)
    guard = Guard(table, relief, state_dir=tmp_path, root=str(box.folder), cards=dict, moving=lambda: fleet.moving)
    gateway = Gateway(create_app(fleet, seats=seats), "127.0.0.1", 0)
    await gateway.start()
    guarding = asyncio.create_task(guard.run())
    try:
        await until_async(lambda: busy.state == idle.state == "ready", 30)
        full, first = busy.planned, busy.slots[0].deployment
        assert first is not None
        async with aiohttp.ClientSession(base_url=gateway.address) as session:
            running = asyncio.create_task(stream(session, "busy", 120))
            await until_async(lambda: first.in_flight == 1, 30)
            box.set(available=650)  # 4.1 % of 16 GiB: only paused
            await until_async(lambda: guard.stage is Stage.PAUSED, 30)
            status, text, retry = await ask(session, "busy")
            assert (status, retry is not None and int(retry) >= 1) == (503, True), text
            assert "RAM is available" in text
            assert idle.state == "ready"
            box.set(available=200)
            await until_async(lambda: guard.stage is Stage.SHRINKING, 30)
            await until_async(lambda: idle.state == "cold", 30)
            await until_async(lambda: busy.planned is not full, 30)
            box.set(available=8000)  # or what is idle after it has become smaller would go as well
            assert "[DONE]" in await running, "what runs is finished"
            await until_async(lambda: busy.slots[0].deployment not in {None, first} and busy.state == "ready", 30)
            assert busy.planned.plan.workload.context is not None
            assert busy.planned.plan.workload.context < 4096
            await until_async(lambda: guard.stage is Stage.OPEN, 30)
            assert (await ask(session, "busy"))[0] == 200
            assert (await ask(session, "idle"))[0] == 200, "it comes back when it is asked for"
            fleet.let_go(busy, "test")
            await until_async(lambda: busy.planned.plan.workload.context == 4096, 30)
    finally:
        guarding.cancel()
        await asyncio.gather(guarding, return_exceptions=True)
        await relief.close()
        await gateway.stop()
        await fleet.stop(0)
        seats.close()
