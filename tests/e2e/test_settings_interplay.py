"""Settings that meet: what the engine makes of them, and what it refuses, is what the bill says."""

from collections.abc import Generator

import pytest

import llama_engine
from demo_files import smollm2
from terazi.engines.llama_cpp.commands import parse_command
from terazi.errors import UsageError
from terazi.memory.bill import Bill
from terazi.memory.llama_cpp.bill import weigh
from terazi.models.sources import load_model
from tiny_models import device

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def endpoints() -> Generator[str, None, None]:
    with llama_engine.rpc_servers(2) as servers:
        yield ",".join(servers)


def command_of(text: str, endpoints: str) -> list[str]:
    context = [] if "-c " in text else ["-c", "1024"]
    return ["llama-server", "-m", str(smollm2()), "-fit", "off", *text.format(endpoints).split(), *context]


def bill_of(command: list[str]) -> Bill:
    parsed = parse_command(command)
    assert parsed.unknown_flags == ()
    assert parsed.model_path is not None
    devices = tuple(device(f"RPC{index}") for index in range(len(parsed.settings.rpc)))
    return weigh(load_model(parsed.model_path), parsed.settings, devices, llama_engine.isa())


@pytest.mark.parametrize(
    "text",
    [
        "-c 0 -np 1",
        "-c 100 -np 4",
        "-c 300 -np 3 --no-kv-unified",
        "-ub 1024 -b 256",
        "-sm none -mg -1 --rpc {}",
        "-mg 7 --rpc {}",
        "--numa distribute --check-tensors",
        "--load-mode dio --rpc {} -ngl 10",
        "-ngl 99 --rpc {} --no-host --no-op-offload -nkvo",
        "-ctk q4_0 -fa off",
    ],
)
def test_total_equals_the_load_log(text: str, endpoints: str) -> None:
    command = command_of(text, endpoints)
    bill, log = bill_of(command), llama_engine.run_server(command[1:], endpoints=endpoints.split(","))
    mapped = bill.total_bytes + sum(line.bytes for line in bill.page_cache)
    assert mapped / MIB == pytest.approx(log.total_mib, abs=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "-np 257",
        "-sm none -mg 2 --rpc {}",
        "-b 3 -np 4",
        "-ctv q4_0 -fa off",
        "-sm row --rpc {}",
        "-sm tensor -fa off --rpc {}",
    ],
)
def test_both_refuse(text: str, endpoints: str) -> None:
    command = command_of(text, endpoints)
    with pytest.raises(UsageError):
        bill_of(command)
    _, loaded = llama_engine.load_lines(command[1:])
    assert not loaded
