"""Names of element types, as command lines, configs and safetensors files spell them, and their sizes in bytes."""

from typing import Final

#: Command-line and config spellings → the plain name.
_ALIASES: Final = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: Bytes of an element.
_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
#: ``STR_DTYPE_TO_TORCH_DTYPE`` in ``vllm/utils/torch_utils.py``: KV caches of one byte an element.
_BYTE_CACHES: Final = frozenset({
    "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
})  # fmt: skip
#: ``CacheConfig.cache_dtype``.
CACHE_DTYPES: Final = frozenset({
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
})  # fmt: skip
#: Packed latent caches: bytes of a token (``MLAAttention.get_kv_cache_spec``).
PACKED_LATENT: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}


def plain_name(dtype: str) -> str:
    """``half`` → ``float16``, ``torch.bfloat16`` → ``bfloat16``."""
    name = dtype.lower().removeprefix("torch.")
    return _ALIASES.get(name, name)


def element_bytes(dtype: str) -> int | None:
    """Bytes of an element of a floating-point type; None for a type that vLLM doesn't compute in."""
    return _BYTES.get(plain_name(dtype))


def cache_bytes(dtype: str, model_bytes: int) -> int | None:
    """Bytes of an element of a KV cache of type *dtype*; None if its layout isn't known here."""
    if dtype == "auto":
        return model_bytes
    if dtype in _BYTE_CACHES:
        return 1
    return element_bytes(dtype)
