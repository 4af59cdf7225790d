"""The bill of a command line against what the real engine prints for exactly that command, family by family.

``test_verified_bills.py`` goes through the settings, by way of ``terazi weigh --verify``.
"""

import subprocess
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

import family_twins
import llama_engine
import model_zoo
import published_twins
import recurrent_twins
from bill_log import buffers, mib, stand_ins
from terazi.engines.llama_cpp.commands import parse_command
from terazi.engines.llama_cpp.oracle import compare_table
from terazi.errors import UsageError
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.estimate import DeviceEstimate, estimate
from terazi.models.sources import load_model
from terazi.telemetry.reconciliation import Verdict

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024


@pytest.fixture(scope="session")
def endpoints() -> Generator[tuple[str, ...], None, None]:
    with llama_engine.rpc_servers(3) as servers:
        yield servers


def command_of(tool: str, model: Path, text: str, endpoints: tuple[str, ...]) -> list[str]:
    for count in (1, 2, 3):
        text = text.replace(f"{{{count}}}", ",".join(endpoints[:count]))
    return [tool, "-m", str(model), *text.split()]


def bill_of(command: list[str]) -> Bill:
    parsed = parse_command(command)
    assert parsed.unknown_flags == ()
    assert parsed.model_path is not None
    return weigh(
        load_model(parsed.model_path), parsed.settings, stand_ins(len(parsed.settings.rpc)), llama_engine.isa()
    )


def estimate_of(command: list[str]) -> dict[str, DeviceEstimate]:
    """What the engine's own estimate is foreseen to print, as against what a real load ends up with."""
    parsed = parse_command(command)
    assert parsed.model_path is not None
    devices = stand_ins(len(parsed.settings.rpc))
    return estimate(load_model(parsed.model_path), parsed.settings, devices, llama_engine.isa())


def logged_bytes(bill: Bill) -> int:
    """The total that the log adds up to: it counts all that a mapping spans."""
    return bill.total_bytes + sum(line.bytes for line in bill.page_cache)


def test_bill_of_default_command_with_fit(models: dict[str, Path]) -> None:
    """Nothing given but the model: the engine fits first, finds room, and changes nothing."""
    command = command_of("llama-server", models["smollm2"], "", ())
    log = llama_engine.run_server(command[1:])
    assert bill_of(command).total_bytes == pytest.approx(log.total_mib * MIB, rel=0.001)


def test_bill_of_the_command_line_client(models: dict[str, Path]) -> None:
    command = command_of("llama-cli", models["gemma3"], "-c 4096", ())
    bill, log = bill_of(command), llama_engine.run_cli(command[1:])
    assert buffers(bill, HOST, Term.COMPUTE) == log.compute[HOST]
    assert buffers(bill, HOST, Term.KV) == sorted(log.kv[HOST])
    assert logged_bytes(bill) == pytest.approx(log.total_mib * MIB, rel=0.001)


def test_fit_gives_each_stream_a_whole_context(models: dict[str, Path]) -> None:
    command = command_of("llama-server", models["smollm2"], "-np 2", ())
    log = llama_engine.run_server(command[1:])
    assert mib(bill_of(command).on(HOST).kv_bytes) == sum(log.kv[HOST])


FIT_SETTINGS = {
    "host": "-c 16384",
    "four streams": "-c 16384 -np 4",
    "q4_0 cache, ubatch 1024": "-c 8192 -ctk q4_0 -ctv q4_0 -fa on -ub 1024",
    "one device": "-c 16384 --rpc {1} -ngl 999",
    "two devices, partly": "-c 16384 --rpc {2} -ngl 20 -ts 2,1",
    "two devices, all": "-c 16384 --rpc {2} -ngl 999 -ts 2,1",
    "three devices, no flash attention": "-c 4096 --rpc {3} -ngl 999 -ts 3,2,1 -fa off",
}


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("twins")
    return {
        "llama-70b": model_zoo.llama70b(folder / "llama70b.gguf"),
        "llama-8b": model_zoo.llama8b(folder / "llama8b.gguf", "Q8_0"),
        "gemma3-27b": model_zoo.gemma3_27b(folder / "gemma3.gguf", "Q4_0"),
        "mixtral": model_zoo.mixtral_8x7b(folder / "mixtral.gguf"),
    }


def assert_equals_fit_params(command: list[str]) -> None:
    """On several devices the tool's compute estimate forgets where the norms were pinned, so a real load takes
    less; the replay can forget it as well.
    """
    bill, foreseen = bill_of(command), estimate_of(command)
    rows = compare_table(foreseen, llama_engine.run_fit_params(command[1:]))
    assert bill.exact
    assert [row for row in rows if row.verdict is not Verdict.HELD] == []
    assert {row.device for row in rows} == set(bill.devices()) | {HOST}
    if any("nanbeige" in word for word in command):
        return  # its blocks run again, pinned to devices that don't hold their weights: a real load takes more
    for device, figures in foreseen.items():
        assert bill.on(device).compute_bytes <= sum(n for _, n in figures.compute)


@pytest.mark.parametrize("setting", FIT_SETTINGS)
@pytest.mark.parametrize("twin", ["llama-70b", "llama-8b", "gemma3-27b", "mixtral"])
def test_bill_of_sparse_twin(twin: str, setting: str, twins: dict[str, Path], endpoints: tuple[str, ...]) -> None:
    assert_equals_fit_params(command_of("llama-fit-params", twins[twin], FIT_SETTINGS[setting], endpoints))


@pytest.mark.parametrize("setting", ["host", "four streams", "q4_0 cache, ubatch 1024", "two devices, all"])
@pytest.mark.parametrize("architecture", family_twins.TWINS)
def test_bill_of_family_twin(architecture: str, setting: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    twin = family_twins.write_twin(tmp_path, architecture)
    assert_equals_fit_params(command_of("llama-fit-params", twin, FIT_SETTINGS[setting] + " -ub 2048", endpoints))


@pytest.mark.parametrize("setting", ["four streams", "two devices, all"])
@pytest.mark.parametrize("name", recurrent_twins.TWINS)
def test_bill_of_recurrent_twin(name: str, setting: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    twin = recurrent_twins.write_recurrent_twin(tmp_path, name)
    assert_equals_fit_params(command_of("llama-fit-params", twin, FIT_SETTINGS[setting] + " -ub 2048", endpoints))


#: Families that have no small twin are proved by published models; a new build must agree on them too.
MODELS = published_twins.load()
PUBLISHED = [
    name
    for name, model in MODELS.items()
    if model.spec.architecture not in {twin.architecture or name for name, twin in family_twins.TWINS.items()}
    and model.spec.architecture not in {row[0] for row in recurrent_twins.TWINS.values()}
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_bill_of_published_model(name: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    twin = published_twins.write_published(tmp_path, MODELS[name].spec)
    setting = FIT_SETTINGS["three devices, no flash attention"]
    assert_equals_fit_params(command_of("llama-fit-params", twin, setting, endpoints))


#: Encoders give out embeddings; caches that are shared, narrow or sparse; a device that reads another's cache.
LOADS = {
    "bert": "-c 4096 --embedding",
    "nomic-bert": "-c 4096 --embedding -np 2 -b 1024 -ub 1024",
    "modern-bert": "--rpc {1} -c 4096 -ngl 99 --reranking",
    "gemma-embedding": "-c 2048 --embedding",
    "qwen3": "-c 4096 --embedding -np 2",
    "gemma4": "--rpc {2} -c 4096 -ngl 99 -ts 3,1 -np 2",
    "gemma3n": "--rpc {1} -c 4096 -ngl 20",
    "deepseek2-old": "-c 4096 -np 2 --no-kv-unified",
    "deepseek32": "--rpc {2} -c 4096 -ngl 99 -ts 1,1",
    "glm-dsa": "-c 4096 -fa off",
    "mimo2": "-c 4096",
    "qwen3vlmoe": "-c 4096",
}


@pytest.mark.parametrize("name", LOADS)
def test_bill_of_loaded_twin(name: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    twin = family_twins.write_twin(tmp_path, name)
    command = command_of("llama-server", twin, LOADS[name] + " -fit off", endpoints)
    bill, log = bill_of(command), llama_engine.run_server(command[1:], endpoints=endpoints)
    assert bill.exact
    for device in sorted({HOST, *log.weights, *log.kv, *log.compute, *bill.devices()}):
        assert buffers(bill, device, Term.WEIGHTS) == sorted(log.weights.get(device, []))
        assert sum(buffers(bill, device, Term.KV)) == pytest.approx(sum(log.kv.get(device, [])), abs=0.011)
        assert buffers(bill, device, Term.COMPUTE) == sorted(log.compute.get(device, []))
    assert logged_bytes(bill) == pytest.approx(log.total_mib * MIB, rel=0.001)


#: Where recurrent models differ from others: many slots, states on another device than their block, and the
#: engine's own choice about flash attention beside them.
RECURRENT_SETTINGS = {
    "defaults": "-c 4096",
    "tiny micro-batch": "-c 2048 -np 4 -ub 8 -b 16",
    "cache on the host": "--rpc {1} -c 4096 -np 2 -ngl 99 --no-kv-offload",
    "two devices, partly": "--rpc {2} -c 4096 -ngl 5 -ts 2,1",
}


@pytest.mark.parametrize("setting", RECURRENT_SETTINGS)
@pytest.mark.parametrize("name", ["mamba", "lfm2", "granitehybrid-moe", "falcon-h1", "nemotron_h", "qwen35-draft"])
def test_recurrent_bill_equals_load_log(
    name: str, setting: str, tmp_path: Path, endpoints: tuple[str, ...]
) -> None:
    twin = recurrent_twins.write_recurrent_twin(tmp_path, name)
    command = command_of("llama-server", twin, RECURRENT_SETTINGS[setting] + " -fit off", endpoints)
    bill, log = bill_of(command), llama_engine.run_server(command[1:], endpoints=endpoints)
    assert bill.exact
    for device in sorted({HOST, *log.weights, *log.state, *log.compute, *bill.devices()}):
        assert buffers(bill, device, Term.WEIGHTS) == sorted(log.weights.get(device, []))
        assert buffers(bill, device, Term.KV) == sorted(log.kv.get(device, []))
        assert buffers(bill, device, Term.STATE) == sorted(log.state.get(device, []))
        assert buffers(bill, device, Term.COMPUTE) == sorted(log.compute.get(device, []))
    assert logged_bytes(bill) == pytest.approx(log.total_mib * MIB, rel=0.001)


@pytest.mark.parametrize("name", ["bert", "nomic-bert"])
def test_encoder_whose_attention_runs_beside_its_layer(
    name: str, tmp_path: Path, endpoints: tuple[str, ...]
) -> None:
    """Weights moved to the host take fused attention with them; the engine then fuses none."""
    twin = family_twins.write_twin(tmp_path, name)
    text = "--rpc {2} -ngl 99 -ts 1,1 -ot blk\\.[0-3]\\.(ffn|attn).*=CPU"
    assert_equals_fit_params(command_of("llama-fit-params", twin, text, endpoints))


def test_kimi_is_refused_where_the_engine_aborts(tmp_path: Path) -> None:
    """One sequence is reserved over three caches, and 512 tokens aren't divisible."""
    twin = recurrent_twins.write_recurrent_twin(tmp_path, "kimi-linear")
    command = command_of("llama-fit-params", twin, "-c 4096 -np 3", ())
    with pytest.raises(UsageError, match="abort"):
        bill_of(command)
    with pytest.raises(subprocess.CalledProcessError):
        llama_engine.run_fit_params(command[1:])


def test_more_slots_cost_the_server_only_their_logits(models: dict[str, Path]) -> None:
    """llama-fit-params reserves logits for a whole micro-batch, llama-server for its slots."""
    spec = load_model(str(models["gemma3"]))
    settings = parse_command(["llama-server", "-c", "4096", "-np", "1"]).settings
    server = weigh(spec, settings, (), llama_engine.isa())
    tool = weigh(spec, replace(settings, tool="llama-fit-params"), (), llama_engine.isa())
    compute = [sum(line.bytes for line in bill.lines if line.term is Term.COMPUTE) for bill in (server, tool)]
    assert compute[0] < compute[1] / 10
