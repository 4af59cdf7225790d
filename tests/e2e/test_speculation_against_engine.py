"""The bill of a command that speculates against what the real engine prints when it loads with that command."""

from collections.abc import Generator
from pathlib import Path

import pytest

import bill_log
import draft_twins
import family_twins
import llama_engine
import published_twins
from terazi.engines.llama_cpp.commands import parse_command
from terazi.errors import UsageError
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.models.sources import load_model

pytestmark = pytest.mark.e2e

#: A draft model of its own: slots, caches, cache types, batches, and where its layers go.
DRAFTS = {
    "host": "-c 4096",
    "four caches": "-c 8192 -np 4 --no-kv-unified",
    "cache types of its own": "-c 4096 -np 1 -fa on -ctkd q8_0 -ctvd q4_0",
    "many tokens at once": "-c 4096 -np 2 -ub 64 --spec-draft-n-max 16",
    "one device": "--rpc {1} -c 4096 -ngl 99",
    "half of it on a device": "--rpc {1} -c 4096 -ngl 99 -ngld 12",
    "the model on the host, the draft on a device": "--rpc {1} -c 4096 -ngl 0 -ngld 99",
    "the draft on the host": "--rpc {1} -c 4096 -ngl 99 -devd none",
    "one device each": "--rpc {2} -c 4096 -ngl 99 -dev RPC0 -devd RPC1",
    "two devices": "--rpc {2} -c 4096 -ngl 99 -ts 2,1",
    "two devices, by free memory": "--rpc {2} -c 4096 -np 2 -ngld 20",
    "overridden tensors": "--rpc {2} -c 4096 -np 1 -ts 1,1 -otd blk\\.[0-9]\\.ffn_.*=CPU",
    "caches on the host": "--rpc {1} -c 4096 -np 1 -ngl 99 --no-kv-offload",
    "nothing mapped or repacked": "-c 4096 -np 1 --load-mode none --no-repack",
}
#: Draft heads on the model's own weights.
HEADS = {
    "host": "-c 4096",
    "two slots, odd batch": "-c 3000 -np 2 -ub 96 --no-kv-unified",
    "cache types of their own": "-c 4096 -np 1 -fa on -ctkd q8_0 -ctvd q8_0",
    "two devices": "--rpc {2} -c 4096 -ngl 99 -ts 1,1",
    "some layers on a device": "--rpc {1} -c 4096 -np 1 -ngl 3",
}


@pytest.fixture(scope="session")
def endpoints() -> Generator[tuple[str, ...], None, None]:
    with llama_engine.rpc_servers(2) as servers:
        yield servers


def command_of(model: Path, text: str, endpoints: tuple[str, ...]) -> list[str]:
    for count in (1, 2):
        text = text.replace(f"{{{count}}}", ",".join(endpoints[:count]))
    return ["llama-server", "-m", str(model), *text.split(), "-fit", "off"]


def bill_of(command: list[str]) -> Bill:
    parsed = parse_command(command)
    assert parsed.unknown_flags == ()
    assert parsed.model_path is not None
    beside = tuple(Companion(file.part, file.flag, load_model(file.path)) for file in parsed.extra_files)
    devices = bill_log.stand_ins(len(parsed.settings.rpc))
    return weigh(load_model(parsed.model_path), parsed.settings, devices, llama_engine.isa(), beside)


def assert_equal(bill: Bill, part: str, log: llama_engine.LoadLog) -> None:
    """Every buffer of the log, to the last printed digit."""
    for device in sorted({HOST, *log.weights, *log.kv, *log.state, *log.compute, *bill.devices()}):
        for term, printed in (
            (Term.WEIGHTS, log.weights),
            (Term.KV, log.kv),
            (Term.STATE, log.state),
            (Term.COMPUTE, log.compute),
        ):
            found, said = bill_log.buffers(bill, device, term, part), sorted(printed.get(device, []))
            if term is Term.KV:  # an indexer's keys are one line here, and a buffer of their own there
                assert sum(found) == pytest.approx(sum(said), abs=0.011), (device, term)
            else:
                assert found == said, (device, term)
    output = sum(line.bytes for line in bill.of(part) if line.formula == "output-buffer")
    assert bill_log.mib(output) == sum(log.output[HOST])


#: The rest says nothing that depends on the family.
WITH_GEMMA = ("host", "four caches", "two devices", "overridden tensors")


@pytest.mark.parametrize(
    ("model", "setting"), [*(("smollm2", name) for name in DRAFTS), *(("gemma3", name) for name in WITH_GEMMA)]
)
def test_draft_model(model: str, setting: str, models: dict[str, Path], endpoints: tuple[str, ...]) -> None:
    text = f"-md {models[model]} --spec-type draft-simple {DRAFTS[setting]}"
    command = command_of(models[model], text, endpoints)
    bill = bill_of(command)
    log, draft_log = llama_engine.run_drafting_server(command[1:], endpoints=endpoints)
    assert bill.exact
    assert_equal(bill, "", log)
    assert_equal(bill, "draft", draft_log)


@pytest.mark.parametrize(
    ("draft", "kind", "why"),
    [
        ("smollm2", "", "no implementations specified"),
        ("gemma3", "--spec-type draft-simple", "vocab type must match"),
    ],
)
def test_draft_that_comes_to_nothing(draft: str, kind: str, why: str, models: dict[str, Path]) -> None:
    command = command_of(models["smollm2"], f"-md {models[draft]} {kind} -c 4096", ())
    bill = bill_of(command)
    lines, loaded = llama_engine.load_lines([*command[1:], "-lv", "4"])
    assert loaded
    assert any(why in line for line in lines)
    assert bill.of("draft") == ()
    assert not any("draft" in line.formula for line in bill.growth)
    log = llama_engine.read_load_log(lines)
    for term, printed in ((Term.KV, log.kv), (Term.COMPUTE, log.compute)):
        assert sorted(bill_log.mib(line.bytes) for line in bill.loading if line.term is term) == sorted(
            printed[HOST]
        )


def test_ngram_tables(models: dict[str, Path]) -> None:
    text = "-c 4096 -np 3 --spec-type ngram-simple,ngram-map-k,ngram-mod,ngram-cache --spec-ngram-simple-size-m 100"
    command = command_of(models["smollm2"], text, ())
    bill = bill_of(command)
    lines, _ = llama_engine.load_lines(command[1:])
    log = llama_engine.read_load_log(lines)
    assert bill_log.buffers(bill, HOST, Term.COMPUTE, "") == log.compute[HOST], "logits for 3 slots of 101 tokens"
    table = sum(line.bytes for line in bill.of("ngram") if line.formula == "ngram-mod.table")
    assert any(f"({table / bill_log.MIB:.3f} MB)" in line for line in lines if "mod size" in line)


#: Every family of heads alone and on two devices; one of each kind of attention in the other layouts.
LAYOUTS = [
    *((name, setting) for name in draft_twins.TWINS for setting in ("host", "two devices")),
    *((name, setting) for name in ("glm4moe", "deepseek32", "qwen35") for setting in HEADS),
    ("mimo2", "some layers on a device"),
    ("nemotron_h_moe", "some layers on a device"),
]


@pytest.mark.parametrize(("name", "setting"), dict.fromkeys(LAYOUTS))
def test_draft_head(name: str, setting: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    twin = draft_twins.write_draft_twin(tmp_path, name)
    command = command_of(twin, f"--spec-type draft-mtp --no-repack {HEADS[setting]}", endpoints)
    bill = bill_of(command)
    log, head_log = llama_engine.run_drafting_server(command[1:], endpoints=endpoints)
    assert bill.exact
    assert_equal(bill, "", log)
    assert_equal(bill, "draft", head_log)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("own", "-c 4096"),
        ("borrowed", "-c 4096 -np 2 --no-kv-unified -ctkd q8_0"),
        ("mapped", "-c 4096 -np 1 --no-spec-draft-backend-sampling"),
        ("mapped", "--rpc {2} -c 4096 -ngl 99 -ts 1,1"),
        ("borrowed", "--rpc {1} -c 4096 -ngl 99"),
        ("own", "--rpc {1} -c 4096 -ngl 99 -devd none"),
    ],
)
def test_eagle3(name: str, setting: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    model, draft = family_twins.write_twin(tmp_path, "qwen3"), draft_twins.write_eagle3(tmp_path, name)
    text = f"-md {draft} --spec-type draft-eagle3 --no-repack {setting}"
    command = command_of(model, text, endpoints)
    bill = bill_of(command)
    log, draft_log = llama_engine.run_drafting_server(command[1:], endpoints=endpoints)
    assert bill.exact
    assert_equal(bill, "", log)
    assert_equal(bill, "draft", draft_log)


@pytest.mark.parametrize(
    "setting",
    [
        "-c 4096",
        "-c 4096 -np 2 --no-kv-unified -fa on -ctk q8_0 -ctv q8_0 -ub 64",
        "--rpc {2} -c 4096 -ngl 99 -ts 1,1",
        "--rpc {1} -c 4096 -ngl 99 --no-spec-draft-backend-sampling",
    ],
)
def test_assistant_of_gemma4(setting: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    model, draft = family_twins.write_twin(tmp_path, "gemma4"), draft_twins.write_assistant(tmp_path)
    text = f"-md {draft} --spec-type draft-mtp --no-repack {setting}"
    command = command_of(model, text, endpoints)
    bill = bill_of(command)
    log, draft_log = llama_engine.run_drafting_server(command[1:], endpoints=endpoints)
    assert bill.exact
    assert_equal(bill, "", log)
    assert_equal(bill, "draft", draft_log)


def test_draft_that_cant_reach_the_models_output_is_refused(tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    model, draft = family_twins.write_twin(tmp_path, "qwen3"), draft_twins.write_eagle3(tmp_path, "borrowed")
    text = f"-md {draft} --spec-type draft-eagle3 --no-repack -c 4096 --rpc {{1}} -devd none"
    command = command_of(model, text, endpoints)
    with pytest.raises(UsageError, match="isn't one of its devices"):
        bill_of(command)
    assert not llama_engine.load_lines(command[1:])[1]


@pytest.mark.parametrize("name", ["ling3-flash", "qwen3.5-4b-mtp"])
def test_draft_head_of_a_published_model(name: str, tmp_path: Path) -> None:
    """The true shapes, with a small vocabulary."""
    model = published_twins.write_published(tmp_path, published_twins.load()[name].spec)
    command = command_of(model, "--spec-type draft-mtp --no-repack -c 4096 -np 1", ())
    bill = bill_of(command)
    log, head_log = llama_engine.run_drafting_server(command[1:])
    assert bill.exact
    assert_equal(bill, "", log)
    assert_equal(bill, "draft", head_log)


@pytest.mark.parametrize("setting", ["-c 4096", "--rpc {2} -c 4096 -ngl 99 -ts 1,1"])
def test_draft_head_in_a_file_of_its_own(setting: str, tmp_path: Path, endpoints: tuple[str, ...]) -> None:
    """The file itself says that it drafts, so that --spec-type isn't needed."""
    model, head = (
        draft_twins.write_draft_twin(tmp_path, "glm4moe"),
        draft_twins.write_head_alone(tmp_path, "glm4moe"),
    )
    command = command_of(model, f"-md {head} --no-repack {setting}", endpoints)
    bill = bill_of(command)
    log, head_log = llama_engine.run_drafting_server(command[1:], endpoints=endpoints)
    assert bill.exact
    assert_equal(bill, "", log)
    assert_equal(bill, "draft", head_log)


def test_model_without_a_draft_head_is_refused(models: dict[str, Path]) -> None:
    command = command_of(models["smollm2"], "--spec-type draft-mtp -c 4096", ())
    with pytest.raises(UsageError, match="no draft head"):
        bill_of(command)
    lines, loaded = llama_engine.load_lines(command[1:])
    assert not loaded
    assert any("failed to create MTP context" in line for line in lines)


def test_head_that_this_build_cant_run_is_refused(tmp_path: Path) -> None:
    """GLM-4 files may have the block, but there is no graph for it; the model alone loads."""
    command = command_of(draft_twins.write_draft_twin(tmp_path, "glm4"), "-c 2048 --no-repack", ())
    assert llama_engine.load_lines(command[1:])[1]
    with pytest.raises(UsageError, match="can't run the draft head"):
        bill_of([*command, "--spec-type", "draft-mtp"])
    lines, loaded = llama_engine.load_lines([*command[1:], "--spec-type", "draft-mtp"])
    assert not loaded
    assert any("failed to create MTP context" in line for line in lines)
