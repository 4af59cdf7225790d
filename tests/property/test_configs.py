"""Any config makes a model or a ``ModelFileError``, in bounded time, whatever stands under its keys."""

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from safetensors_writer import TINY_CONFIG
from terazi.errors import ModelFileError
from terazi.models.from_config import build_config_spec
from terazi.models.hf_config import parse_config
from terazi.models.hf_families import families

KEYS = [
    *TINY_CONFIG, "head_dim", "layer_types", "sliding_window", "num_experts", "n_routed_experts", "kv_lora_rank",
    "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "first_k_dense_replace", "moe_layer_freq",
    "decoder_sparse_step", "num_nextn_predict_layers", "full_attention_interval", "sliding_window_pattern",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "mamba_n_heads", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "conv_L_cache",
    "state_size", "expand", "attn_layer_period", "hybrid_override_pattern", "text_config", "quantization_config",
    "shared_expert_intermediate_size", "n_shared_experts", "index_n_heads", "index_head_dim", "layers_block_type",
]  # fmt: skip
NUMBERS = st.integers(-2, 70) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*KEYS, "bits", "quant_method"]), inner)
    ),
    max_leaves=8,
)
STORAGE = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["fp8", "gptq", "awq", "compressed-tensors", "mxfp4", "?"])},
    optional={
        "bits": NUMBERS, "group_size": NUMBERS,
        "format": st.sampled_from(["pack-quantized", "float-quantized", "nvfp4-pack-quantized", "?"]),
        "weight_block_size": st.lists(NUMBERS, max_size=3), "ignore": st.lists(st.text(max_size=10), max_size=3),
    },
)  # fmt: skip


@given(
    family=st.sampled_from(families()),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    numbers=st.dictionaries(st.sampled_from(KEYS), st.integers(0, 8), max_size=12),
    storage=st.none() | STORAGE,
)
def test_any_config_is_a_model_or_an_error(
    family: str, changes: dict[str, object], numbers: dict[str, int], storage: dict[str, object] | None
) -> None:
    config = {**TINY_CONFIG, "model_type": family, **numbers, "quantization_config": storage, **changes}
    with suppress(ModelFileError):
        spec = build_config_spec(parse_config(json.dumps(config).encode(), "config.json"), name="m")
        assert spec.weights_bytes == sum(t.n_bytes for t in spec.tensors)
        assert all(t.n_bytes >= 0 and min(t.shape, default=0) >= 0 for t in spec.tensors)
        assert len(spec.head_count_kv) == spec.block_count
