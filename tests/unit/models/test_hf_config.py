"""Configs of published models, cut down to the keys that shape them."""

import json

import pytest

from safetensors_writer import TINY_CONFIG
from terazi.errors import ModelFileError
from terazi.models.hf_config import CONFIG_LIMIT_BYTES, HfConfig, HfShape, parse_config, quantisation_of, shape_of
from terazi.models.spec import ArrayInfo


def config(**keys: object) -> HfConfig:
    return parse_config(json.dumps(keys).encode(), "config.json")


def shape(**keys: object) -> HfShape:
    return shape_of(config(**{**TINY_CONFIG, **keys}))


def test_flattens_every_key_and_drops_null() -> None:
    read = config(a={"b": {"c": 1}}, d=[1, 2], e=[{"f": "x"}, {"f": "y"}], g=None, h=[], i=True, j=0.5)
    assert read.metadata == {
        "a.b.c": 1, "d": (1, 2), "e.0.f": "x", "e.1.f": "y", "h": (), "i": True, "j": 0.5,
    }  # fmt: skip


def test_long_lists_are_described() -> None:
    assert config(a=[0] * 70_000).metadata["a"] == ArrayInfo(element_type="int", length=70_000)


def test_plain_llama() -> None:
    read = shape()
    assert (read.block_count, read.embedding_length, read.vocab_size, read.context_length) == (2, 64, 100, 256)
    assert read.head_count == (4, 4)
    assert read.head_count_kv == (2, 2)
    assert (read.key_length, read.value_length) == (16, 16)
    assert read.sliding_window is None


def test_gemma3_leaves_most_to_its_class() -> None:
    # google/gemma-3-4b-it/config.json: the text part says no more than this
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    read = config(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", text_config=text)
    assert read.prefix == "text_config."
    made = shape_of(read)
    assert (made.head_count[0], made.head_count_kv[0], made.key_length, made.vocab_size) == (8, 4, 256, 262_208)
    assert made.sliding_window == 1024
    kinds = read.layer_kinds(34)
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == [5, 11, 17, 23, 29]


def test_latent_attention() -> None:
    # deepseek-ai/DeepSeek-V3: 128 heads that see 128+64 of a key and 128 of a value
    made = shape(
        model_type="deepseek_v3", num_attention_heads=128, num_key_value_heads=128, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256, num_experts_per_tok=8,
    )  # fmt: skip
    assert (made.key_length, made.value_length, made.expert_count, made.expert_used_count) == (192, 128, 256, 8)


@pytest.mark.parametrize(
    ("keys", "attention"),
    [
        (
            {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2},
            [3, 7],
        ),
        ({"model_type": "qwen3_next"}, [3, 7]),
        ({"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4}, [4]),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M*E"}, [3, 6]),
        ({"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [4, 8]}}, [3, 7]),
        ({"model_type": "lfm2", "full_attn_idxs": [2, 5]}, [2, 5]),
        ({"model_type": "bamba", "attn_layer_indices": [1]}, [1]),
        ({"model_type": "minimax", "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1]}, [7]),
        ({"model_type": "mamba2"}, []),
        ({"model_type": "llama"}, list(range(8))),
    ],
)
def test_layers_that_own_a_cache(keys: dict[str, object], attention: list[int]) -> None:
    made = shape(num_hidden_layers=8, **keys)
    assert [i for i, heads in enumerate(made.head_count_kv) if heads] == attention


def test_per_layer_lists() -> None:
    made = shape(num_key_value_heads=[1, 2], intermediate_size=[10, 20])
    assert made.head_count_kv == (1, 2)
    assert made.feed_forward_length == (10, 20)
    with pytest.raises(ModelFileError, match="3 entries under num_key_value_heads for its 4"):
        shape(num_hidden_layers=4, num_key_value_heads=[1, 2, 3])


def test_a_window_that_is_switched_off() -> None:
    # Qwen/Qwen2.5-7B-Instruct: sliding_window 131072, use_sliding_window false
    assert shape(sliding_window=131_072, use_sliding_window=False).sliding_window is None
    assert shape(sliding_window=4096).sliding_window == 4096
    assert shape(sliding_window=4096, layer_types=["full_attention"] * 2).sliding_window is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "GPTQ 4-bit"),
        ({"quant_method": "mxfp4"}, "MXFP4"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            "pack-quantized 4-bit",
        ),
    ],
)
def test_how_weights_are_stored(given: dict[str, object], name: str) -> None:
    assert quantisation_of(config(quantization_config=given)) == name


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"num_hidden_layers": None}, "does not say num_hidden_layers"),
        ({"num_hidden_layers": 10**6}, "senseless value 1,000,000 under num_hidden_layers"),
        ({"hidden_size": -1}, "senseless value -1 under hidden_size"),
        ({"hidden_size": "big"}, "senseless value big under hidden_size"),
    ],
)
def test_senseless_configs_name_the_key(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        shape_of(config(**{**TINY_CONFIG, "model_type": "x", **keys}))


def test_adapters_name_their_base() -> None:
    with pytest.raises(ModelFileError, match="adapter") as caught:
        config(peft_type="LORA", base_model_name_or_path="org/base")
    assert "org/base" in caught.value.hint


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"<html>", b"[" * 10**6, b'{"a":' * 10**5, b'{"a":' + b"9" * 5000 + b"}"]
)
def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(ModelFileError):
        parse_config(data, "config.json")
    with pytest.raises(ModelFileError, match="larger"):
        parse_config(b" " * (CONFIG_LIMIT_BYTES + 1), "config.json")
