"""The questions that are put to llama.cpp, and the table that its estimator prints."""

from pathlib import Path

import pytest

from specs import llama_spec
from terazi.engines.llama_cpp import oracle
from terazi.engines.llama_cpp.binary import Binary, parse_flags
from terazi.engines.llama_cpp.commands import parse_command
from terazi.errors import EngineError
from terazi.memory.llama_cpp.estimate import DeviceEstimate
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.telemetry.reconciliation import Verdict

MIB = 1024 * 1024
HELP = (Path(__file__).parents[3] / "golden" / "llama_cpp" / "help.txt").read_text()
BINARY = Binary(path="/x/llama-server", build=11434, version="b11434", flags=parse_flags(HELP))
SPEC = llama_spec()


def settings_of(text: str) -> LlamaCppSettings:
    return parse_command(["llama-server", "-m", "m.gguf", *text.split()]).settings


@pytest.mark.parametrize(
    "text",
    [
        "-c 4096 -np 3 --no-kv-unified -b 1024 -ub 256 -fa on -ctk q8_0 -ctv q5_1",
        "-c 4096 -np 8 --kv-unified --swa-full -fa off --load-mode none --no-repack -fit off",
        "-c 8192 -ngl 20 -ts 2,1 -sm none -mg 1 -nkvo --no-op-offload -ncmoe 3 -fit off",
    ],
)
def test_the_server_is_asked_with_just_these_settings(text: str) -> None:
    wanted = settings_of(text)
    launch = oracle.server_launch(BINARY, wanted, "/t/twin.gguf", port=1234)
    said = parse_command(["llama-server", *launch.argv[1:]])
    assert said.unknown_flags == ()
    assert said.model_path == "/t/twin.gguf"
    again = oracle.server_launch(BINARY, said.settings, "/t/twin.gguf", port=1234)
    assert again.argv == launch.argv
    assert resolve(SPEC, said.settings, ()) == resolve(SPEC, wanted, ())
    assert "--no-warmup" in launch.argv


def test_the_estimator_is_asked_without_what_only_a_server_has() -> None:
    wanted = settings_of("-c 4096 -np 4 --kv-unified --cache-ram 100 --ctx-checkpoints 3 -ctk q8_0")
    asked = oracle.estimator_settings(wanted, resolve(SPEC, wanted, ()))
    said = parse_command(list(oracle.estimator_launch("llama-fit-params", asked, "m.gguf").argv))
    assert said.unknown_flags == ()
    assert said.settings.tool == "llama-fit-params"
    # one cache for all is one stream; its -np would mean four
    assert resolve(SPEC, said.settings, ()).n_stream == 1
    assert resolve(SPEC, said.settings, ()).n_ctx == 4096
    assert said.settings.type_k == "q8_0"


def test_a_command_line_client_is_asked_as_the_server_that_it_runs() -> None:
    wanted = parse_command(["llama-cli", "-m", "m.gguf", "-c", "4096"]).settings
    asked = oracle.server_settings(wanted, resolve(SPEC, wanted, ()))
    assert asked.tool == "llama-server"
    assert resolve(SPEC, asked, ()).n_seq_max == 1


def test_a_binary_without_a_needed_flag_is_named() -> None:
    older = Binary(path="/x/llama-server", build=9000, version="b9000", flags=BINARY.flags - {"--no-repack", "-nr"})
    with pytest.raises(EngineError, match="--no-repack"):
        oracle.server_launch(older, settings_of("-c 512 --no-repack"), "m.gguf", port=1)


#: The tool ends its rows with a blank.
TABLE = (
    "0.00.016.322 I llama_fit_params: printing estimated memory in MiB to stdout (device, model, context, ...\n"
    "RPC0 68 57 97 \n"
    "Host 51 33 16 \n"
)


def test_the_table_is_read_from_among_the_log() -> None:
    assert oracle.read_table(TABLE) == {"RPC0": (68, 57, 97), "Host": (51, 33, 16)}
    assert oracle.read_table("error: no such file\n") == {}


def estimate_of(model: int, context: int, compute: int, *, bound: bool = False) -> DeviceEstimate:
    return DeviceEstimate(
        (("weights.device", model),), (("kv.full", context),), (("compute.replay", compute),), bound
    )


def test_the_tool_cuts_off_below_a_mebibyte() -> None:
    planned = {
        "RPC0": estimate_of(69 * MIB - 1, 57 * MIB, 98 * MIB),
        "Host": estimate_of(51 * MIB, 33 * MIB, 16 * MIB),
    }
    rows = oracle.compare_table(planned, oracle.read_table(TABLE))
    verdicts = {(row.device, row.term): row.verdict for row in rows}
    assert verdicts.pop(("RPC0", "compute")) is Verdict.DIFFERS
    assert set(verdicts.values()) == {Verdict.HELD}


def test_a_device_that_only_one_of_them_names_differs() -> None:
    rows = oracle.compare_table({"RPC1": estimate_of(MIB, 0, 0)}, {"RPC0": (1, 0, 0)})
    assert [(row.device, row.verdict) for row in rows] == [("RPC1", Verdict.DIFFERS), ("RPC0", Verdict.DIFFERS)]


def test_a_bound_is_no_promise_of_equality() -> None:
    rows = oracle.compare_table(
        {"RPC0": estimate_of(70 * MIB, 60 * MIB, 97 * MIB, bound=True)}, {"RPC0": (68, 57, 97)}
    )
    assert [row.verdict for row in rows] == [Verdict.WITHIN, Verdict.WITHIN, Verdict.HELD]
