"""Command lines, read as the engine reads them."""

from dataclasses import replace

import pytest

from terazi.engines.llama_cpp.arguments import settings_argv
from terazi.engines.llama_cpp.commands import Command, parse_command
from terazi.engines.llama_cpp.extra_files import as_typed
from terazi.errors import UsageError
from terazi.memory.llama_cpp.layers import ALL_LAYERS
from terazi.memory.llama_cpp.settings import LlamaCppSettings


def read(text: str, **environment: str) -> Command:
    return parse_command(text.split(), environment)


def settings(text: str, **environment: str) -> LlamaCppSettings:
    return read("llama-server " + text, **environment).settings


def test_nothing_given_is_the_defaults() -> None:
    assert settings("") == LlamaCppSettings()
    assert read("llama-fit-params").settings.tool == "llama-fit-params"


@pytest.mark.parametrize(
    ("spellings", "field", "value"),
    [
        ("-c 4096|--ctx-size 4096|--ctx_size 4096", "n_ctx", 4096),
        ("-np 3|--parallel 3", "n_parallel", 3),
        ("-np -1", "n_parallel", None),
        ("-kvu|--kv-unified", "kv_unified", True),
        ("-no-kvu|--no-kv-unified", "kv_unified", False),
        ("-b 256|--batch-size 256", "n_batch", 256),
        ("-ub 128|--ubatch-size 128", "n_ubatch", 128),
        ("-fa on|-fa 1|--flash-attn enabled|-fa true", "flash_attn", "on"),
        ("-fa off|-fa 0|--flash-attn disabled", "flash_attn", "off"),
        ("-fa auto|-fa -1", "flash_attn", "auto"),
        ("-ctk q8_0|--cache-type-k q8_0", "type_k", "q8_0"),
        ("-ctv iq4_nl|--cache-type-v iq4_nl", "type_v", "iq4_nl"),
        ("--swa-full", "swa_full", True),
        ("-ngl 12|--gpu-layers 12|--n-gpu-layers 12", "n_gpu_layers", 12),
        ("-ngl auto|-ngl -1", "n_gpu_layers", None),
        ("-ngl all", "n_gpu_layers", ALL_LAYERS),
        ("-ts 3,1|-ts 3/1|--tensor-split 3,1", "tensor_split", (3.0, 1.0)),
        ("-sm none|--split-mode none", "split_mode", "none"),
        ("-mg 1|--main-gpu 1", "main_gpu", 1),
        ("-dev CUDA1,CUDA0|--device CUDA1,CUDA0", "devices", ("CUDA1", "CUDA0")),
        ("--rpc a:1,b:2|--rpc a:1 --rpc b:2", "rpc", ("a:1", "b:2")),
        ("-nkvo|--no-kv-offload|--no-kv_offload", "kv_offload", False),
        ("-nkvo -kvo", "kv_offload", True),
        ("-lm none|--load-mode none|--load-mode dio|-lm mlock", "mmap", False),
        ("-lm mlock|-lm mmap+mlock", "mlock", True),
        ("-lm dio|--load-mode dio|-lm none --load-mode dio", "load_mode", "dio"),
        ("-lzm on|--lazy-mode on", "lazy_mode", "on"),
        ("--check-tensors", "check_tensors", True),
        ("-nr|--no-repack", "repack", False),
        ("--no-op-offload", "op_offload", False),
        ("--no-host", "no_host", True),
        ("-ot a=CPU,b=RPC0[h:1]|-ot a=CPU -ot b=RPC0[h:1]", "override_tensor", (("a", "CPU"), ("b", "RPC0[h:1]"))),
        ("-cmoe|--cpu-moe", "cpu_moe", True),
        ("-ncmoe 7|--n-cpu-moe 7", "n_cpu_moe", 7),
        ("-cram 100|--cache-ram 100", "cache_ram_mib", 100),
        ("-ctxcp 4|--ctx-checkpoints 4|--swa-checkpoints 4", "ctx_checkpoints", 4),
        ("--embedding|--embeddings|--rerank|--reranking", "embedding", True),
        ("-fit off|--fit off", "fit", False),
    ],
)
def test_every_spelling(spellings: str, field: str, value: object) -> None:
    for spelling in spellings.split("|"):
        command = read("llama-server " + spelling)
        assert getattr(command.settings, field) == value, spelling
        assert command.unknown_flags == (), spelling


@pytest.mark.parametrize("pattern", ["(((((.*)*)*)*)*)*X", r"(a+\.)+", "(x|(yz*))+", "((ab)+c){3}"])
def test_a_pattern_that_may_never_end_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(f"-ot {pattern}=CPU")
    assert "repeat" in (caught.value.hint or "")


@pytest.mark.parametrize("pattern", [r"blk\.(1|2)\.ffn_.*_exps", r"\(a+\)+", "[(*]+", "(ffn|attn)+.*", "(a.*)b"])
def test_patterns_that_end_are_taken(pattern: str) -> None:
    assert settings(f"-ot {pattern}=CPU").override_tensor == ((pattern, "CPU"),)


def test_dense_layers_on_the_cpu_become_overrides() -> None:
    (first, second) = settings("-ncffn 2").override_tensor
    assert first == (r"blk\.0\.ffn_(up|down|gate)\.", "CPU")
    assert second[0].startswith(r"blk\.1\.")


def test_the_rest_is_harmless_and_takes_its_values() -> None:
    command = read(
        "llama-server -m x.gguf --port 8080 --api-key -c --temp 0.7 --jinja -t 8 "
        "--control-vector-layer-range 1 2 -c 512"
    )
    # "-c" after --api-key is the key, not the context
    assert command.settings.n_ctx == 512
    assert command.model_path == "x.gguf"
    assert command.unknown_flags == ()


def test_models_can_be_named_in_other_ways() -> None:
    command = read("llama-server -hf org/repo:Q4_K_M -hff file.gguf")
    assert (command.model_path, command.hf_repo, command.hf_file) == (None, "org/repo:Q4_K_M", "file.gguf")


def test_unknown_flags_are_named_and_their_values_are_not_read_as_flags() -> None:
    command = read("llama-server --frobnicate 3 -c 512 --ctx-size=4096 stray")
    assert command.unknown_flags == ("--frobnicate", "--ctx-size=4096")
    assert command.settings.n_ctx == 512
    assert read("llama-server stray").unknown_flags == ("stray",)


def test_flags_of_another_tool_are_unknown() -> None:
    assert read("llama-fit-params -kvu").unknown_flags == ("-kvu",)
    assert read("llama-fit-params --fit-print on").unknown_flags == ()
    assert read("llama-server --fit-print on").unknown_flags == ("--fit-print",)


def test_spellings_of_other_builds_are_weighed_and_said() -> None:
    command = read("llama-server --no-mmap")
    assert not command.settings.mmap
    assert command.unknown_flags == ()
    assert "--load-mode none" in command.notes[0]
    assert read("llama-server --mlock").settings.mlock


def test_environment_counts_below_the_command_line() -> None:
    got = settings("-c 512", LLAMA_ARG_CTX_SIZE="4096", LLAMA_ARG_UBATCH="64", LLAMA_ARG_FLASH_ATTN="off")
    assert (got.n_ctx, got.n_ubatch, got.flash_attn) == (512, 64, "off")
    assert not settings("", LLAMA_ARG_NO_KV_OFFLOAD="anything").kv_offload
    assert not settings("", LLAMA_ARG_KV_OFFLOAD="0").kv_offload
    assert settings("", LLAMA_ARG_SWA_FULL="1").swa_full
    assert not settings("", LLAMA_ARG_SWA_FULL="0").swa_full
    assert settings("", PATH="x", LLAMA_ARG_HOST="y") == LlamaCppSettings()
    with pytest.raises(UsageError, match="LLAMA_ARG_CTX_SIZE"):
        settings("", LLAMA_ARG_CTX_SIZE="big")


def test_a_number_with_a_suffix_is_read_as_the_engine_reads_it() -> None:
    command = read("llama-server -c 4k")
    assert command.settings.n_ctx == 4
    assert "-c 4k as 4" in command.notes[0]


def test_context_a_slot_sizes_the_pool_when_no_context_is_given() -> None:
    assert settings("--kv-unified-per-slot 1024").n_ctx == 4096
    assert settings("--kv-unified-per-slot 1024 -np 2").n_ctx == 2048
    assert settings("--kv-unified-per-slot 1024 -c 512").n_ctx == 512
    assert settings("--kv-unified-per-slot 1024 -c 0").n_ctx == 0


def test_what_is_not_weighed_is_said() -> None:
    notes = read("llama-server -m a.gguf --mmproj-url http://b -lcs c.bin --pooling mean").notes
    assert len(notes) == 3
    assert all(note.startswith("Not in the bill") for note in notes)


@pytest.mark.parametrize(
    "text",
    [
        "-c abc", "-c", "-c -5", "-c 99999999999", "-np 0", "-b 0", "-fa maybe", "-ctk q9", "-ctv Q8_0",
        "-ngl some", "-ts a,b", "-ts", "-ts ,", "-ts 1,-1", "-ts nan", "-ts inf,1",
        "-ts 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "-sm diagonal", "-mg first",
        "-dev ,", "--rpc ,", "-lm fast", "-ot exps", "-ot exps=", "-ncmoe -1", "-ncffn 100000",
        "-fit perhaps", "--kv-unified-per-slot x",
        "-ctv q8_0 -fa off", "--control-vector-layer-range 1",
    ],
)  # fmt: skip
def test_bad_values_are_usage_errors_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(text)
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("argv", "tool"),
    [
        (["/usr/bin/llama-server"], "llama-server"),
        (["C:\\llama\\llama-cli.exe"], "llama-cli"),
        (["./llama-fit-params"], "llama-fit-params"),
        (["llama", "serve"], "llama-server"),
        (["llama", "cli"], "llama-cli"),
    ],
)
def test_tools_by_any_path(argv: list[str], tool: str) -> None:
    assert parse_command(argv).tool == tool


@pytest.mark.parametrize("argv", [[], ["vllm", "serve"], ["llama"], ["llama", "download"], ["llama-quantize"]])
def test_other_programs_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_command(argv)


def test_a_file_beside_the_model_is_named_with_its_part() -> None:
    spellings = ("-md", "--model-draft", "--spec-draft-model", "--spec_draft_model")
    for spelt in spellings:
        command = read(f"llama-server -m a.gguf {spelt} first.gguf {spelt} b.gguf")
        assert [(file.part, file.path) for file in command.extra_files] == [("draft", "b.gguf")]
    by_variable = read("llama-server -m a.gguf", LLAMA_ARG_SPEC_DRAFT_MODEL="c.gguf")
    assert [file.path for file in by_variable.extra_files] == ["c.gguf"]


def test_every_spelling_of_a_draft_setting_does_the_same() -> None:
    spellings = {
        "n_gpu_layers": ("-ngld 7", "--spec-draft-ngl 7", "--gpu-layers-draft 7", "--n_gpu_layers_draft 7"),
        "devices": ("-devd A,B", "--device-draft A,B", "--spec-draft-device A,B"),
        "type_k": ("-ctkd q8_0", "--cache-type-k-draft q8_0", "--spec-draft-type-k q8_0"),
        "type_v": ("-ctvd q4_0", "--cache-type-v-draft q4_0", "--spec-draft-type-v q4_0"),
        "override_tensor": ("-otd a=CPU,b=CPU", "--override-tensor-draft a=CPU,b=CPU"),
        "cpu_moe": ("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"),
        "n_cpu_moe": ("-ncmoed 3", "--n-cpu-moe-draft 3", "--spec-draft-ncmoe 3", "--spec-draft-n-cpu-moe 3"),
    }
    for field, texts in spellings.items():
        found = {getattr(settings(text).speculation, field) for text in texts}
        assert len(found) == 1, field
        assert found != {getattr(LlamaCppSettings().speculation, field)}, field
        assert settings(texts[0]) == replace(LlamaCppSettings(), speculation=settings(texts[0]).speculation)


def test_kinds_of_speculation_add_up_and_unknown_ones_are_named() -> None:
    assert settings("").speculation.kinds is None
    assert settings("--spec-type none").speculation.kinds == ()
    assert settings("--spec-type ngram-mod,none").speculation.kinds == ()
    both = settings("--spec-type draft-simple --spec-type ngram-cache,ngram-simple --spec-default").speculation
    assert both.kinds == ("draft-simple", "ngram-cache", "ngram-simple", "ngram-mod")
    with pytest.raises(UsageError, match="draft-medusa") as refused:
        settings("--spec-type ngram-mod,draft-medusa")
    assert "draft-eagle3" in (refused.value.hint or "")


def test_sizes_that_the_engine_takes() -> None:
    assert settings("--spec-ngram-simple-size-m 1024").speculation.ngram_simple_m == 1024
    for text in ("--spec-ngram-map-k-size-m 0", "--spec-ngram-mod-n-max 1025", "--spec-draft-n-max -1"):
        with pytest.raises(UsageError):
            settings(text)
    # no build-b11434 tool has a context size for drafts any more
    assert read("llama-server -m a.gguf -cd 4096").unknown_flags == ("-cd",)


def test_a_draft_from_a_repository_is_named_as_one() -> None:
    (alone,) = read("llama-server -m a.gguf -hfd org/small:Q8_0").extra_files
    (chosen,) = read("llama-server -m a.gguf --hf-repo-draft org/small -md draft.gguf").extra_files
    assert (alone.part, alone.path) == ("draft", "hf:org/small:Q8_0")
    assert chosen.path == "hf:org/small:draft.gguf"
    # a repository may have a draft beside the model
    text = "llama-server -hf org/model --no-mmproj --spec-type draft-mtp"
    (note,) = read(text).notes
    assert "draft-mtp" in note
    assert not read(f"{text} -md head.gguf").notes


def test_projectors_and_adapters_are_named_with_their_parts() -> None:
    command = read(
        "llama-server -m a.gguf -mm old.gguf --mmproj p.gguf --lora x.gguf,y.gguf --lora-scaled z.gguf:0 "
        "--control-vector v.gguf --control-vector-scaled w.gguf:-0.5 --control-vector-layer-range 3 9 "
        "--no-mmproj-offload --image-max-tokens 512 --no-warmup"
    )
    assert [(file.part, file.path, file.scale) for file in command.extra_files] == [
        ("mmproj", "p.gguf", 1.0),
        ("lora", "x.gguf", 1.0),
        ("lora", "y.gguf", 1.0),
        ("lora", "z.gguf", 0.0),
        ("control-vector", "v.gguf", 1.0),
        ("control-vector", "w.gguf", -0.5),
    ]
    settings = command.settings
    assert (settings.vector_range, settings.image_max_tokens, settings.warmup) == ((3, 9), 512, False)
    assert not settings.mmproj_offload
    assert command.notes == ()


def test_a_device_for_the_projector_switches_its_offloading() -> None:
    assert read("llama-server -m a -mm p -mmdev none").settings.mmproj_offload is False
    assert read("llama-server -m a -mm p --no-mmproj-offload -mmdev CUDA1").settings.mmproj_offload is True
    by_variable = read("llama-server -m a -mm p", MTMD_BACKEND_DEVICE="CUDA1").settings
    assert by_variable.mmproj_device == "CUDA1"
    assert read("llama-server -m a", LLAMA_ARG_MMPROJ="p.gguf").extra_files[0].path == "p.gguf"


@pytest.mark.parametrize("value", ["x.gguf", "x.gguf:", "x.gguf:a", ":1", "x:y:1", "x.gguf:nan"])
def test_a_scaled_adapter_needs_its_factor(value: str) -> None:
    with pytest.raises(UsageError):
        read(f"llama-server -m a.gguf --lora-scaled {value}")


def test_what_is_typed_back_is_read_alike() -> None:
    command = read(
        "llama-server -m a.gguf --mmproj p.gguf --lora-scaled z.gguf:0.25 --control-vector-layer-range 3 9 "
        "--control-vector v.gguf --rpc h:1 -mmdev RPC0 --image-max-tokens 99 --mtmd-batch-max-tokens 5 --no-warmup"
    )
    argv = settings_argv(command.settings, "a.gguf", [as_typed(file) for file in command.extra_files])
    again = parse_command(argv)
    assert again.extra_files == command.extra_files
    assert replace(again.settings, fit=True) == command.settings


@pytest.mark.parametrize("flag", ["-dev", "-mmdev", "-devd"])
def test_a_servers_device_is_named_behind_the_server(flag: str) -> None:
    # the engine looks devices up while it reads
    assert read(f"llama-server -m a.gguf --rpc h:1 {flag} RPC0").settings.rpc == ("h:1",)
    with pytest.raises(UsageError, match="--rpc"):
        read(f"llama-server -m a.gguf {flag} RPC0 --rpc h:1")


def test_what_a_projector_switches_off_is_said() -> None:
    flags = "--context-shift --cache-reuse 256"
    assert len(read(f"llama-server -m a.gguf --mmproj p.gguf {flags}").notes) == 2
    assert read(f"llama-server -m a.gguf {flags}").notes == ()
    assert read("llama-server -m a.gguf --mmproj p.gguf --no-context-shift").notes == ()
