"""From a plan to a command line and back."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from terazi.engines.llama_cpp.arguments import settings_argv
from terazi.engines.llama_cpp.binary import Binary, read_binary
from terazi.engines.llama_cpp.commands import parse_command
from terazi.engines.llama_cpp.launch import launch_spec
from terazi.errors import EngineError
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.cache_types import CACHE_TYPES, is_quantised_cache
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import KINDS, Speculation
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.plan import Plan, Verdict

HELP = (Path(__file__).parents[3] / "golden" / "llama_cpp" / "help.txt").read_text()
BINARY = read_binary("/e/llama-server", version="version: 11434 (x)", help_text=HELP)
SPEC = ModelSpec(
    name="m", architecture="llama", block_count=1, context_length=8192, embedding_length=8, vocab_size=8,
    head_count=(1,), head_count_kv=(1,), feed_forward_length=(8,), key_length=8, value_length=8, chat_template=True,
)  # fmt: skip


def line(term: Term, device: str, n: int, formula: str = "f") -> BillLine:
    """A line of a bill."""
    return BillLine(term=term, device=device, bytes=n, formula=formula, basis=LineBasis.EXACT, memory=Memory.DEVICE)


def plan(settings: LlamaCppSettings, *lines: BillLine) -> Plan:
    """A plan with *settings*."""
    bill = Bill(engine="llama.cpp", build="b11434", lines=lines)
    return Plan(
        id="p1",
        engine="llama.cpp",
        settings=settings,
        workload=Workload(),
        verdict=Verdict.FITS,
        devices=(),
        bill=bill,
    )


def launched(
    settings: LlamaCppSettings, *, binary: Binary = BINARY, name: str = "m", port: int = 4321
) -> list[str]:
    """The argv of a launch."""
    spec = launch_spec(
        plan(settings),
        SPEC,
        binary,
        port=port,
        api_key="s3cret-key",
        model_path="/m.gguf",
        model_name=name,
        threads=3,
    )
    assert "s3cret-key" not in " ".join(spec.argv)
    assert ("LLAMA_API_KEY", "s3cret-key") in spec.env
    assert "s3cret-key" not in repr(spec)
    return list(spec.argv)


speculation_strategy = st.builds(
    Speculation,
    kinds=st.none() | st.lists(st.sampled_from(sorted(KINDS)), max_size=3).map(tuple),
    n_max=st.integers(0, 64),
    backend_sampling=st.booleans(),
    n_gpu_layers=st.none() | st.integers(0, 200),
    devices=st.lists(st.sampled_from(["CUDA0", "CUDA1", "none"]), max_size=2, unique=True).map(tuple),
    type_k=st.sampled_from(sorted(CACHE_TYPES)),
    type_v=st.sampled_from(sorted(CACHE_TYPES)),
    override_tensor=st.lists(st.just(("exps", "CPU")), max_size=2).map(tuple),
    cpu_moe=st.booleans(),
    n_cpu_moe=st.integers(0, 9),
    ngram_simple_m=st.integers(1, 1024),
    ngram_map_k_m=st.integers(1, 1024),
    ngram_map_k4v_m=st.integers(1, 1024),
    ngram_mod_n_max=st.integers(0, 1024),
)

settings_strategy = st.builds(
    LlamaCppSettings,
    speculation=speculation_strategy,
    n_ctx=st.integers(0, 10**6),
    n_parallel=st.none() | st.integers(1, 64),
    kv_unified=st.none() | st.booleans(),
    n_batch=st.integers(1, 8192),
    n_ubatch=st.integers(1, 4096),
    flash_attn=st.sampled_from(["on", "off", "auto"]),
    type_k=st.sampled_from(sorted(CACHE_TYPES)),
    type_v=st.sampled_from(sorted(CACHE_TYPES)),
    swa_full=st.booleans(),
    n_gpu_layers=st.none() | st.integers(0, 200),
    split_mode=st.sampled_from(["none", "layer", "row", "tensor"]),
    tensor_split=st.lists(st.floats(0, 1000).map(lambda x: float(f"{x:.6g}")), max_size=4).map(tuple),
    main_gpu=st.integers(0, 7),
    rpc=st.lists(st.sampled_from(["127.0.0.1:50052", "10.0.0.2:50052"]), max_size=2, unique=True).map(tuple),
    kv_offload=st.booleans(),
    repack=st.booleans(),
    op_offload=st.booleans(),
    no_host=st.booleans(),
    check_tensors=st.booleans(),
    load_mode=st.sampled_from(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
    lazy_mode=st.sampled_from(["auto", "on", "off"]),
    override_tensor=st.lists(
        st.tuples(st.sampled_from([r"blk\.(1|2)\.ffn", "exps"]), st.sampled_from(["CPU", "CUDA0"])), max_size=2
    ).map(tuple),
    n_cpu_moe=st.integers(0, 9),
    cache_ram_mib=st.none() | st.integers(-1, 9999),
    ctx_checkpoints=st.none() | st.integers(0, 99),
    embedding=st.booleans(),
)


@given(settings_strategy)
def test_command_line_says_the_whole_plan(settings: LlamaCppSettings) -> None:
    """What is launched, read as the engine reads it, is what was planned (and fitting is off)."""
    assume(not (settings.flash_attn == "off" and is_quantised_cache(settings.type_v)))  # refused by the engine
    expected = replace(settings, fit=False)
    for argv in (settings_argv(settings, "/m.gguf"), launched(settings)):
        command = parse_command(argv)
        assert command.unknown_flags == ()
        assert command.model_path == "/m.gguf"
        assert command.settings == expected


def test_every_flag_of_a_launch_is_in_the_help() -> None:
    argv = launched(
        LlamaCppSettings(n_ctx=4096, n_parallel=2, kv_unified=True, n_gpu_layers=10, tensor_split=(2, 1))
    )
    listed = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", HELP))
    assert {word for word in argv if re.fullmatch(r"--?[a-z][\w-]*", word)} <= listed
    for flag, value in (
        ("--host", "127.0.0.1"),
        ("--port", "4321"),
        ("--fit", "off"),
        ("-ts", "2,1"),
        ("--threads", "3"),
    ):
        assert argv[argv.index(flag) + 1] == value
    assert {"--metrics", "--slots", "--jinja", "--no-ui", "--offline"} <= set(argv)


def test_name_with_commas_stays_one_name() -> None:
    argv = launched(LlamaCppSettings(), name="a,b c")
    assert argv[argv.index("--alias") + 1] == "a-b-c"


def test_flag_that_the_plan_needs_and_the_binary_lacks_is_an_error() -> None:
    without = replace(BINARY, flags=BINARY.flags - {"--no-repack", "-nr"})
    with pytest.raises(EngineError, match=r"has no --no-repack, which this plan needs"):
        launched(LlamaCppSettings(repack=False), binary=without)
    assert launched(LlamaCppSettings(), binary=without), "a plan that doesn't need it is fine"


def test_flag_that_is_only_nice_is_left_out_with_a_reason() -> None:
    without = replace(BINARY, flags=BINARY.flags - {"--no-ui", "--no-webui", "--metrics"})
    spec = launch_spec(
        plan(LlamaCppSettings()), SPEC, without, port=1, api_key="k", model_path="/m", model_name="m"
    )
    assert not {"--no-ui", "--metrics"} & set(spec.argv)
    assert any("--metrics" in note and "no engine metrics" in note for note in spec.notes)
    older = replace(without, flags=without.flags | {"--no-webui"})
    assert "--no-webui" in launched(LlamaCppSettings(), binary=older)


def test_a_projector_is_named_and_its_weights_are_not_expected_in_the_log() -> None:
    eyes = plan(
        LlamaCppSettings(),
        line(Term.WEIGHTS, "CUDA0", 5, "weights.plain"),
        line(Term.WEIGHTS, "CUDA0", 900, "weights.projector"),
    )
    spec = launch_spec(
        eyes, SPEC, BINARY, port=1, api_key="k", model_path="/m", model_name="m", projector_path="/mmproj-m.gguf"
    )
    argv = list(spec.argv)
    assert argv[argv.index("--mmproj") + 1] == "/mmproj-m.gguf"
    # llama-server prints no size of them (b11434): else a good engine would look as if a card were missing
    assert [(entry.device, entry.bytes) for entry in spec.expectations] == [("CUDA0", 5)]
    blind = replace(BINARY, flags=BINARY.flags - {"--mmproj", "-mm"})
    with pytest.raises(EngineError, match="--mmproj"):
        launch_spec(eyes, SPEC, blind, port=1, api_key="k", model_path="/m", model_name="m", projector_path="/p")


def test_embedding_model_is_probed_for_a_vector() -> None:
    spec = launch_spec(
        plan(LlamaCppSettings(embedding=True)), SPEC, BINARY, port=1, api_key="k", model_path="/m", model_name="m"
    )
    assert spec.probe_path == "/embedding"


def test_expectations_are_the_bill_summed_without_the_drivers_share() -> None:
    spec = launch_spec(
        plan(
            LlamaCppSettings(),
            line(Term.WEIGHTS, HOST, 5),
            line(Term.WEIGHTS, HOST, 6),
            line(Term.KV, "CUDA0", 7),
            line(Term.OVERHEAD, "CUDA0", 400, "cuda-context"),
            line(Term.OVERHEAD, HOST, 3, "output-buffer"),
        ),
        SPEC, BINARY, port=1, api_key="k", model_path="/m", model_name="m",
    )  # fmt: skip
    found = {(e.term, e.device): e.bytes for e in spec.expectations}
    assert found == {("weights", HOST): 11, ("kv", "CUDA0"): 7, ("output", HOST): 3}
