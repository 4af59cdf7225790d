"""Our arithmetic against the installed vLLM's own functions: some thirty models, cut in several ways."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import vllm_engine
from terazi.engines.vllm.flags import LISTS, SWITCHES, VALUES
from terazi.hardware.probe import read_machine
from terazi.memory.vllm.architectures import ARCHITECTURES
from terazi.memory.vllm.model import read_model
from terazi.memory.vllm.objections import objections
from terazi.memory.vllm.pool import KvPool, plan_pool
from terazi.memory.vllm.resolve import Resolved, resolve
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.vllm.target import Platform, Target, target_of
from terazi.memory.vllm.weights import Ranks, rank_weights
from terazi.models.spec import ModelSpec
from terazi.units import GIB, MIB
from vllm_engine import CONFIGS, Rows

#: Fewer tokens than sequences in a step.
_TOO_FEW = {"max_num_batched_tokens": 8, "max_num_seqs": 9}

pytestmark = [pytest.mark.e2e, vllm_engine.needs_vllm, pytest.mark.timeout(600)]

Question = dict[str, Any]
#: What the CPU's kernels can't do, whatever the bytes.
_NOT_HERE = {("gpt-oss", 8), ("starcoder2-7b", 8), ("smollm2-135m", 2), ("smollm2-135m", 8), ("falcon-h1-7b", 8),
             ("qwen2.5-7b", 8), ("gemma-3-270m", 8)}  # fmt: skip

#: Families that differ in what each stage holds.
_IN_STAGES = {"smollm2-135m", "llama-3.1-8b", "mixtral-8x7b", "gemma-3-270m", "deepseek-v3", "granite-4-h-small",
              "qwen3-next-80b", "gpt-oss", "jamba-mini", "command-r7b", "glm-4.5-air"}  # fmt: skip

#: Families whose cache on cards isn't just smaller blocks.
_ON_CARDS = ("llama-3.1-8b", "gemma-3-270m", "gpt-oss", "mistral-7b-v0.1", "llama4-scout-text", "qwen3-next-80b",
             "jamba-mini", "granite-4-h-small", "falcon-h1-7b", "lfm2-1.2b", "nemotron-nano-9b-v2")  # fmt: skip
#: A card that has the defaults of the smaller ones.
_CARD = Target(platform=Platform.CUDA, capability=86, memory_bytes=24 * GIB, name="NVIDIA GeForce RTX 3090")


def _questions() -> Iterator[tuple[Question, VllmSettings]]:
    """Each model whole, in two or in eight, some in stages; some in many settings."""
    room = [8 * GIB, 256 * MIB, 4 * MIB]
    for place, (name, config) in enumerate(CONFIGS.items()):
        yield {"id": f"{name}/1", "config": config, "available": room}, VllmSettings()
        tp = 2 if place % 2 else 8
        if (name, tp) in _NOT_HERE:
            tp = 3 if name == "smollm2-135m" else 2 if name == "gpt-oss" else 4
        yield (
            {"id": f"{name}/tp{tp}", "config": config, "tp": tp, "available": room},
            VllmSettings(tensor_parallel=tp),
        )
        if name in _IN_STAGES:
            yield (
                {"id": f"{name}/pp2", "config": config, "pp": 2, "available": [2 * GIB]},
                VllmSettings(pipeline_parallel=2),
            )
    for name in _ON_CARDS:
        limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "block_size": 16}
        asked = {
            "id": f"{name}/card",
            "config": CONFIGS[name],
            "args": limits,
            "available": [8 * GIB, GIB, 64 * MIB],
        }
        yield {**asked, "card": True}, VllmSettings()
    for name, tp in (("mixtral-8x7b", 4), ("qwen3-30b-a3b", 8), ("deepseek-v2-lite", 8)):
        whole = {"enable_expert_parallel": True, "max_model_len": 8192}
        yield (
            {"id": f"{name}/experts", "config": CONFIGS[name], "tp": tp, "args": whole, "available": [GIB]},
            VllmSettings(tensor_parallel=tp, expert_parallel=True, max_model_len=8192),
        )
    for name in ("llama-3.1-8b", "gemma-3-270m", "qwen3-next-80b", "deepseek-v2-lite", "granite-4-h-small"):
        for label, args, settings in _variations():
            if "hybrid" in label and name not in {"llama-3.1-8b", "gemma-3-270m"}:
                continue  # a state can't become full attention
            yield (
                {"id": f"{name}/{label}", "config": CONFIGS[name], "args": args, "available": [4 * GIB, 512 * MIB]},
                settings,
            )


def _variations() -> Iterator[tuple[str, Question, VllmSettings]]:
    yield "short", {"max_model_len": 4096}, VllmSettings(max_model_len=4096)
    yield "auto", {"max_model_len": -1}, VllmSettings(max_model_len=-1)
    yield (
        "batch",
        {"max_num_batched_tokens": 512, "max_num_seqs": 16},
        VllmSettings(max_num_batched_tokens=512, max_num_seqs=16),
    )
    yield "block", {"block_size": 64}, VllmSettings(block_size=64)
    yield "no-prefixes", {"enable_prefix_caching": False}, VllmSettings(prefix_caching=False)
    yield "no-hybrid", {"disable_hybrid_kv_cache_manager": True}, VllmSettings(hybrid_kv_cache=False)
    yield "half", {"dtype": "float32"}, VllmSettings(dtype="float32")
    yield "override", {"num_gpu_blocks_override": 500}, VllmSettings(num_gpu_blocks_override=500)


ASKED = {question["id"]: (question, settings) for question, settings in _questions()}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    extra: list[Question] = [
        {"id": "flags", "flags": True},
        {"id": "heads", "config": CONFIGS["smollm2-135m"], "tp": 2},
        {"id": "length", "config": CONFIGS["smollm2-135m"], "args": {"max_model_len": 9000}},
        {
            "id": "batch",
            "config": CONFIGS["smollm2-135m"],
            "args": {"max_num_batched_tokens": 8, "max_num_seqs": 9},
        },
        {"id": "float16", "config": CONFIGS["gemma-3-270m"], "args": {"dtype": "float16"}},
    ]
    extra += [
        {"id": f"{name}/checkpoint", "config": _unquantised(config), "checkpoint": True}
        for name, config in CONFIGS.items()
    ]
    return vllm_engine.ask([*(question for question, _ in ASKED.values()), *extra])


def _unquantised(config: Question) -> Question:
    return {key: value for key, value in config.items() if key != "quantization_config"}


def _spec(answers: dict[str, dict[str, Any]], name: str) -> ModelSpec:
    config = CONFIGS[name]
    rows: Rows = {n: ("BF16", tuple(s)) for n, s in answers[f"{name}/checkpoint"]["checkpoint"].items()}
    if "quantization_config" in config:
        rows = quantised(rows, config["quantization_config"])
    return vllm_engine.spec_from(name, config, rows)


def quantised(rows: Rows, how: dict[str, Any]) -> Rows:
    """The linear layers of *rows* as such a checkpoint stores them."""
    stored: Rows = {}
    for name, (dtype, shape) in rows.items():
        if not name.endswith("_proj.weight"):
            stored[name] = (dtype, shape)
            continue
        outputs, inputs = shape
        base = name.removesuffix("weight")
        method, form = how["quant_method"], how.get("format")
        if method in {"awq", "gptq"}:
            packed = (inputs, outputs // 8) if method == "awq" else (inputs // 8, outputs)
            stored[f"{base}qweight"] = ("I32", packed)
            stored[f"{base}qzeros"] = ("I32", (inputs // 128, outputs // 8))
            stored[f"{base}scales"] = ("F16", (inputs // 128, outputs))
            if method == "gptq":
                stored[f"{base}g_idx"] = ("I32", (inputs,))
        elif form == "pack-quantized":
            stored[f"{base}weight_packed"] = ("I32", (outputs, inputs // 8))
            stored[f"{base}weight_scale"] = ("BF16", (outputs, inputs // 128))
            stored[f"{base}weight_shape"] = ("I64", (2,))
        else:
            stored[name] = ("F8_E4M3", shape)
            stored[f"{base}weight_scale"] = ("BF16", (outputs, 1)) if form else ("F32", (1,))
            if not form:
                stored[f"{base}input_scale"] = ("F32", (1,))
    return stored


def _resolved(spec: ModelSpec, settings: VllmSettings, *, card: bool = False) -> Resolved:
    return resolve(read_model(spec), settings, _CARD if card else target_of((), read_machine().host.isa))


@pytest.mark.parametrize("asked", ASKED)
def test_defaults_weights_and_cache_are_vllms(answers: dict[str, dict[str, Any]], asked: str) -> None:
    question, settings = ASKED[asked]
    told = answers[asked]
    assert "weights" in told, told
    spec = _spec(answers, asked.split("/", maxsplit=1)[0])
    model, resolved = read_model(spec), _resolved(spec, settings, card=question.get("card", False))
    assert (resolved.dtype, resolved.max_model_len) == (told["dtype"], told["max_model_len"])
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (
        told["max_num_seqs"],
        told["max_num_batched_tokens"],
    )
    assert (resolved.limits.in_flight_tokens, resolved.block_size) == (told["in_flight_tokens"], told["block_size"])
    experts = settings.tensor_parallel if settings.expert_parallel else 1
    held = [
        rank_weights(
            spec,
            model,
            Ranks(settings.tensor_parallel, experts, layers, stage == 0, stage == len(resolved.stages) - 1),
            model_bytes=resolved.element_bytes,
        )
        for stage, layers in enumerate(resolved.stages)
    ]
    assert [h.total_bytes for h in held] == told["weights"]
    assert not any(h.guessed for h in held)
    for available, cache in zip(question["available"], told["caches"], strict=True):
        _same_pool(_pool(resolved, settings, available), cache)


def _pool(resolved: Resolved, settings: VllmSettings, available: int) -> KvPool:
    return plan_pool(
        resolved.caches,
        resolved.stages,
        [available] * len(resolved.stages),
        resolved.limits,
        one_table=resolved.one_table,
        override_blocks=settings.num_gpu_blocks_override,
        fit_length=resolved.fit_length,
    )


def _same_pool(pool: KvPool, cache: dict[str, Any]) -> None:
    if "error" not in cache:
        assert pool.fits
        assert (pool.blocks, pool.tokens, pool.max_model_len, len(pool.groups)) == (
            cache["blocks"],
            cache["tokens"],
            cache["max_model_len"],
            cache["groups"],
        )
        return
    said = re.search(r"estimated maximum model length is (\d+)", cache["error"])
    assert (pool.fits, pool.longest) == (False, int(said[1]) if said else 0), cache["error"]


@pytest.mark.parametrize(
    ("asked", "name", "settings", "code"),
    [
        ("heads", "smollm2-135m", VllmSettings(tensor_parallel=2), "heads"),
        ("length", "smollm2-135m", VllmSettings(max_model_len=9000), "length"),
        ("batch", "smollm2-135m", VllmSettings(max_num_batched_tokens=8, max_num_seqs=9), "batch"),
        ("float16", "gemma-3-270m", VllmSettings(dtype="float16"), "dtype"),
    ],
)
def test_what_vllm_refuses_is_refused(
    answers: dict[str, dict[str, Any]], asked: str, name: str, settings: VllmSettings, code: str
) -> None:
    assert "error" in answers[asked]
    spec = _spec(answers, name)
    found = objections(spec, read_model(spec), settings, _resolved(spec, settings), cards=0)
    assert [o.code for o in found] == [code]


def test_the_flags_are_vllms(answers: dict[str, dict[str, Any]]) -> None:
    told = answers["flags"]["flags"]
    assert {flag for flag, values in told.items() if values == 0} == SWITCHES
    assert {flag for flag, values in told.items() if values in {1, "?"}} == VALUES
    assert {flag for flag, values in told.items() if values == "+"} == LISTS


def test_the_architectures_are_vllms(answers: dict[str, dict[str, Any]]) -> None:
    assert set(answers["flags"]["architectures"]) == ARCHITECTURES


def test_the_configs_are_told_apart() -> None:
    assert len({json.dumps(config, sort_keys=True) for config in CONFIGS.values()}) == len(CONFIGS)
