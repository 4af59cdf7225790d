"""What vLLM refuses to start with, before it has measured any memory.

In: ``ModelSpec``, ``VllmModel``, ``VllmSettings``, ``Resolved``. Out: ``Objection``s in vLLM's own order of checks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from terazi.memory.vllm.model import VllmModel
from terazi.memory.vllm.resolve import NO_FLOAT16, Resolved
from terazi.memory.vllm.settings import AUTO_LENGTH, VllmSettings
from terazi.memory.vllm.target import Platform, Target
from terazi.models.spec import ModelSpec

#: ``get_min_capability`` of each method's class: compute capability × 10.
_LEAST_CAPABILITY: Final = {
    "awq": 75, "gptq": 75, "fp8": 75, "compressed-tensors": 70, "modelopt": 80, "modelopt_fp4": 75, "mxfp4": 80,
    "fbgemm_fp8": 80, "experts_int8": 80, "moe_wna16": 70, "torchao": 75, "online": 75, "bitsandbytes": 70,
    "fp_quant": 100, "quark": 70, "inc": 60,
}  # fmt: skip
#: Spellings that mean the same method to the command line.
_SAME_METHOD: Final = {
    "auto_awq": "awq", "awq_marlin": "awq", "auto_gptq": "gptq", "gptq_marlin": "gptq", "gpt_oss_mxfp4": "mxfp4",
}  # fmt: skip
#: ``--quantization`` of build 0.32.0.
METHODS: Final = frozenset({
    "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8",
    "modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors",
    "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online",
    "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token",
    "mxfp8",
})  # fmt: skip
#: Families whose vLLM class has no pipeline support.
_NO_PIPELINE: Final = frozenset({"mamba2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why vLLM would not start. ``code`` names the kind; ``hint`` says what to change."""

    code: str
    message: str
    hint: str


def objections(
    spec: ModelSpec, model: VllmModel, settings: VllmSettings, resolved: Resolved, *, cards: int
) -> tuple[Objection, ...]:
    """All that stands against these settings, whatever the memory."""
    return tuple(
        found
        for check in (_parallel(model, settings, resolved, cards), _values(model, settings, resolved),
                      _types(spec, model, settings, resolved))
        for found in check
    )  # fmt: skip


def _parallel(model: VllmModel, settings: VllmSettings, resolved: Resolved, cards: int) -> Iterator[Objection]:
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    if model.attention_heads % tensor:
        yield Objection(
            code="heads",
            message=f"{model.attention_heads} attention heads can't be divided among {tensor} ranks",
            hint=f"use -tp {largest_tensor_parallel(model, tensor)}",
        )
    elif not model.latent and model.kv_heads and tensor % model.kv_heads and model.kv_heads % tensor:
        yield Objection(
            code="heads",
            message=f"{model.kv_heads} key-value heads can't be divided among {tensor} ranks, nor copied alike",
            hint=f"use -tp {largest_tensor_parallel(model, tensor)}",
        )
    if pipeline > model.layers:
        yield Objection(
            code="layers",
            message=f"{model.layers} layers can't fill {pipeline} pipeline stages",
            hint=f"use -pp {model.layers} or less",
        )
    if pipeline > 1 and model.model_type in _NO_PIPELINE:
        yield Objection(
            code="pipeline",
            message=f"vLLM's {model.model_type} model has no pipeline parallelism",
            hint="use -pp 1, and -tp instead",
        )
    if resolved.target.platform is Platform.CPU:
        if pipeline > 1:
            yield Objection(
                code="pipeline",
                message="with pipeline stages vLLM's CPU build starts, looks healthy and dies at the first request",
                hint="use -pp 1",
            )
        return
    needed = settings.world_size * settings.data_parallel
    if needed > cards:
        yield Objection(
            code="cards",
            message=f"{needed} ranks need {needed} cards; there {'is' if cards == 1 else 'are'} {cards}",
            hint="lower -tp, -pp or -dp",
        )


def _values(model: VllmModel, settings: VllmSettings, resolved: Resolved) -> Iterator[Objection]:
    length = settings.max_model_len or AUTO_LENGTH
    if length > model.max_length and not settings.enable_long_length:
        yield Objection(
            code="length",
            message=f"--max-model-len {length} is more than the {model.max_length} tokens of the model"
            f" ({model.length_key or 'vLLM assumes it'})",
            hint=f"use --max-model-len {model.max_length}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 at your own risk",
        )
    tokens, seqs = resolved.max_num_batched_tokens, resolved.max_num_seqs
    if tokens < seqs:
        yield Objection(
            code="batch",
            message=f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {seqs}",
            hint=f"use --max-num-seqs {tokens} or less",
        )
    if settings.chunked_prefill is False and tokens < resolved.max_model_len:
        yield Objection(
            code="batch",
            message=f"without chunked prefill, --max-num-batched-tokens {tokens} is less than a sequence of"
            f" {resolved.max_model_len} tokens",
            hint=f"use --max-num-batched-tokens {resolved.max_model_len}, or leave chunked prefill on",
        )


def _types(spec: ModelSpec, model: VllmModel, settings: VllmSettings, resolved: Resolved) -> Iterator[Objection]:
    target = resolved.target
    if spec.format == "gguf":
        yield Objection(
            code="format",
            message="vLLM 0.32.0 reads no GGUF file without a plug-in",
            hint="give the safetensors model, or serve this file with llama.cpp",
        )
    if resolved.dtype == "float16" and model.model_type in NO_FLOAT16:
        yield Objection(
            code="dtype",
            message=f"{model.model_type} computes wrongly in float16, so vLLM refuses it",
            hint="use --dtype bfloat16",
        )
    if resolved.dtype == "bfloat16" and target.capability is not None and target.capability < 80:
        yield Objection(
            code="dtype",
            message=f"bfloat16 needs compute capability 8.0, and {target.name} has {_dotted(target.capability)}",
            hint="use --dtype half",
        )
    asked = settings.quantization
    if asked is not None and asked not in METHODS:
        yield Objection(
            code="quantization",
            message=f"--quantization {asked} is no method of vLLM 0.32.0",
            hint="leave it out: vLLM reads the method from the checkpoint",
        )
    has = resolved.quantization
    if asked is not None and has is not None and _SAME_METHOD.get(asked, asked) != _SAME_METHOD.get(has, has):
        yield Objection(
            code="quantization",
            message=f"the checkpoint is quantised with {has}, not with {asked}",
            hint="leave --quantization out",
        )
    method = has or asked
    yield from _capability(_SAME_METHOD.get(method or "", method or ""), target)


def _capability(method: str, target: Target) -> Iterator[Objection]:
    least = _LEAST_CAPABILITY.get(method)
    if least is not None and target.capability is not None and target.capability < least:
        yield Objection(
            code="quantization",
            message=f"{method} needs compute capability {_dotted(least)}, and {target.name} has"
            f" {_dotted(target.capability)}",
            hint="use another quantisation of this model",
        )


def largest_tensor_parallel(model: VllmModel, most: int) -> int:
    """The largest tensor-parallel size up to *most* that divides the heads; 1 always does."""
    for size in range(most, 0, -1):
        if divides_heads(model, size):
            return size
    return 1


def divides_heads(model: VllmModel, size: int) -> bool:
    """Whether *size* ranks can share the heads of *model*."""
    if model.attention_heads % size:
        return False
    return model.latent or not model.kv_heads or not (size % model.kv_heads and model.kv_heads % size)


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"
