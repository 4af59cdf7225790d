"""Models from their config alone: totals that publishers state, quantised storage, what is refused."""

import json

import pytest

from safetensors_writer import TINY_CONFIG, tiny_rows
from terazi.errors import ModelFileError
from terazi.models.from_config import build_config_spec
from terazi.models.hf_config import parse_config
from terazi.models.spec import ModelSpec


def spec(**keys: object) -> ModelSpec:
    data = json.dumps({**TINY_CONFIG, **keys}).encode()
    return build_config_spec(parse_config(data, "config.json"), name="m")


def bare(**keys: object) -> ModelSpec:
    return build_config_spec(parse_config(json.dumps(keys).encode(), "config.json"), name="m")


def rows(model: ModelSpec, layer: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {t.name.removeprefix(f"{layer}."): (t.dtype, t.shape) for t in model.tensors if t.name.startswith(layer)}


def test_equals_the_file_of_the_same_model() -> None:
    model = spec()
    assert {t.name: (t.dtype, t.shape) for t in model.tensors} == tiny_rows()
    assert model.format == "config"
    assert model.reasons == ()
    assert model.files == ()


# ``metadata.total_size`` or the parameter count of the published index or header of each model
PUBLISHED = {
    # meta-llama/Llama-3.1-8B-Instruct, model.safetensors.index.json: 16,060,522,496 bytes
    "llama": (
        {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "torch_dtype": "bfloat16",
        },
        16_060_522_496,
    ),
    # Qwen/Qwen2.5-7B-Instruct: 15,231,233,024 bytes
    "qwen2": (
        {
            "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064, "torch_dtype": "bfloat16",
        },
        15_231_233_024,
    ),
    # mistralai/Mixtral-8x7B-Instruct-v0.1: 93,405,585,408 bytes
    "mixtral": (
        {
            "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000, "num_local_experts": 8,
            "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
        },
        93_405_585_408,
    ),
    # Qwen/Qwen3-30B-A3B: 61,064,245,248 bytes
    "qwen3_moe": (
        {
            "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151_936,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "torch_dtype": "bfloat16",
        },
        61_064_245_248,
    ),
    # deepseek-ai/DeepSeek-V3, as its page counts it: 680,571,043,840 F8_E4M3, 3,918,786,560 BF16, 41,555,600 F32
    "deepseek_v3": (
        {
            "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
            "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
            "moe_layer_freq": 1, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "vocab_size": 129_280,
            "torch_dtype": "bfloat16", "num_experts_per_tok": 8,
            "quantization_config": {
                "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            },
        },
        680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "total_bytes"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_totals(config: dict[str, object], total_bytes: int) -> None:
    assert bare(**config).weights_bytes == total_bytes


def test_gptq_storage() -> None:
    # the names and shapes of Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4, scaled down
    model = spec(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False})
    assert rows(model, "model.layers.0.mlp.gate_proj") == {
        "qweight": ("I32", (8, 128)), "g_idx": ("I32", (64,)), "qzeros": ("I32", (2, 16)),
        "scales": ("F16", (2, 128)),
    }  # fmt: skip
    assert rows(model, "lm_head")["weight"] == ("BF16", (100, 64))
    assert model.parameter_count == spec().parameter_count


def test_awq_storage() -> None:
    model = spec(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True})
    assert rows(model, "model.layers.0.mlp.gate_proj") == {
        "qweight": ("I32", (64, 16)), "qzeros": ("I32", (1, 16)), "scales": ("F16", (1, 128)),
    }  # fmt: skip


def test_compressed_tensors_storage() -> None:
    group = {"weights": {"num_bits": 4, "group_size": 32, "symmetric": True, "strategy": "group"}}
    said = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    model = spec(quantization_config={**said, "ignore": ["lm_head", "re:.*down_proj"]})
    assert rows(model, "model.layers.1.mlp.up_proj") == {
        "weight_packed": ("I32", (128, 8)), "weight_scale": ("BF16", (128, 2)), "weight_shape": ("I64", (2,)),
    }  # fmt: skip
    assert rows(model, "model.layers.1.mlp.down_proj") == {"weight": ("BF16", (64, 128))}


def test_intricate_patterns_are_not_run() -> None:
    said = {"quant_method": "fp8", "ignored_layers": ["re:(a+)+$", "re:" + ".*a" * 30]}
    assert "intricate" in spec(quantization_config=said).reasons[0]


def test_storage_that_is_not_known_is_a_labelled_bound() -> None:
    model = spec(quantization_config={"quant_method": "quarks"})
    assert "upper bound" in model.reasons[0]
    assert model.weights_bytes == spec().weights_bytes


def test_parts_besides_the_language_model_are_said() -> None:
    text = {**TINY_CONFIG, "model_type": "qwen3"}
    model = bare(model_type="qwen3_vl", text_config=text, vision_config={"hidden_size": 8})
    assert model.architecture == "qwen3_vl"
    assert "Only the language model" in model.reasons[0]


def test_unknown_families_are_refused_with_a_way_out() -> None:
    with pytest.raises(ModelFileError, match="novelty") as caught:
        spec(model_type="novelty")
    assert "hf:" in caught.value.hint


@pytest.mark.parametrize(
    "keys",
    [
        {"num_hidden_layers": 1000, "num_local_experts": 10**9, "model_type": "mixtral"},
        {"vocab_size": 2**31, "hidden_size": 2**31},
        {"vocab_size": 0},
        {"intermediate_size": 0},
        {"model_type": "qwen3_moe", "num_attention_heads": None},
    ],
)
def test_lying_counts_make_nothing(keys: dict[str, object]) -> None:
    with pytest.raises(ModelFileError):
        spec(**keys)


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(ModelFileError, match="surrogates"):
        parse_config(b'{"model_type": "llama", "num_hidden_layers": "\\ud800"}', "config.json")
    whole = parse_config(b'{"model_type": "\\ud83d\\ude00"}', "config.json")
    assert whole.model_type == "\N{GRINNING FACE}"
