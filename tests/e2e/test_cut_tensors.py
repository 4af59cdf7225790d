"""``-sm tensor`` against the real engine, whose log shows one device: of each buffer the largest share."""

from collections.abc import Generator
from pathlib import Path

import pytest

import family_twins
import llama_engine
import recurrent_twins
from demo_files import gemma3, smollm2
from terazi.engines.llama_cpp.commands import parse_command
from terazi.errors import UsageError
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.llama_cpp.bill import weigh
from terazi.models.sources import load_model
from tiny_models import device

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
META = "Meta()"


@pytest.fixture(scope="module")
def endpoints() -> Generator[tuple[str, ...], None, None]:
    with llama_engine.rpc_servers(3) as servers:
        yield servers


def model_of(name: str, folder: Path) -> Path:
    if name == "smollm2":
        return smollm2()
    if name == "gemma3":
        return gemma3(folder)
    if name in recurrent_twins.TWINS:
        return recurrent_twins.write_recurrent_twin(folder, name)
    return family_twins.write_twin(folder, name)


def command_of(model: Path, text: str, endpoints: tuple[str, ...]) -> list[str]:
    options = ["-np", "1", "-c", "4096", "-fit", "off", "-sm", "tensor", "--rpc", ",".join(endpoints)]
    return ["llama-server", "-m", str(model), *options, *text.split()]


def bill_of(command: list[str]) -> Bill:
    parsed = parse_command(command)
    assert parsed.model_path is not None
    devices = tuple(device(f"RPC{index}") for index in range(len(parsed.settings.rpc)))
    return weigh(load_model(parsed.model_path), parsed.settings, devices, llama_engine.isa())


def largest(bill: Bill, term: Term) -> list[float]:
    """The largest share of each kind of buffer, as the log prints it."""
    shares: dict[str, int] = {}
    for line in bill.lines:
        if line.term is term and line.device != HOST:
            shares[line.formula] = max(shares.get(line.formula, 0), line.bytes)
    return sorted(float(f"{size / MIB:.2f}") for size in shares.values())


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        ("smollm2", 2, "-ngl 99 -ts 3,1"),
        ("smollm2", 3, "-ngl 99"),
        ("smollm2", 2, "-ngl 12"),
        ("gemma3", 2, "-ngl 99"),
        ("gemma3", 3, "-ngl 99 -ts 1,2,3"),
        ("gemma4", 2, "-ngl 99"),
        ("hunyuan-moe", 2, "-ngl 99"),
        ("phi2", 2, "-ngl 99 -ctk q8_0 -ctv q8_0"),
    ],
)
def test_shares_equal_the_load_log(
    name: str, count: int, text: str, tmp_path: Path, endpoints: tuple[str, ...]
) -> None:
    command = command_of(model_of(name, tmp_path), text, endpoints[:count])
    bill, log = bill_of(command), llama_engine.run_server(command[1:], endpoints=endpoints)
    assert bill.exact
    assert {*bill.devices(), HOST} == {HOST, *(f"RPC{index}" for index in range(count))}
    for term, logged in ((Term.WEIGHTS, log.weights), (Term.KV, log.kv), (Term.COMPUTE, log.compute)):
        assert largest(bill, term) == sorted(logged[META])
    assert sum(line.bytes for line in bill.lines if line.term is Term.COMPUTE and line.device == HOST) / MIB == (
        pytest.approx(sum(log.compute[HOST]), abs=0.005)
    )


def test_a_hybrid_model_is_a_labelled_bound(tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    command = command_of(model_of("lfm2", tmp_path), "-ngl 99", endpoints[:2])
    bill, log = bill_of(command), llama_engine.run_server(command[1:], endpoints=endpoints)
    assert not bill.exact
    for term, logged in ((Term.WEIGHTS, log.weights), (Term.KV, log.kv), (Term.STATE, log.state)):
        assert sum(largest(bill, term)) >= sum(logged[META]) - 0.01


@pytest.mark.parametrize("name", ["mimo2", "qwen2moe", "olmoe", "mamba"])
def test_what_the_engine_refuses_is_refused(name: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    """Slices that aren't whole blocks, experts without a slice, and two architectures on the engine's list."""
    command = command_of(model_of(name, tmp_path), "-ngl 99", endpoints[:2])
    with pytest.raises(UsageError):
        bill_of(command)
    _, loaded = llama_engine.load_lines(command[1:])
    assert not loaded
