"""Headers that are well-formed and lie: counts, shapes, types, names that no model has. An answer, soon, always."""

import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_writer import TensorRow, Typed, header
from terazi.errors import TeraziError
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.scale import Scale
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.from_gguf import build_spec
from terazi.models.gguf import header_from_bytes
from terazi.models.spec import ModelSpec
from tiny_models import device

DEVICES = (device("CUDA0", backend="cuda"), device("RPC0"))
ISA = frozenset({"avx2"})
KEYS = (
    "block_count",
    "embedding_length",
    "context_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "expert_count",
    "expert_used_count",
    "expert_group_count",
    "expert_group_used_count",
    "nextn_predict_layers",
    "rope.dimension_count",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.group_count",
    "shortconv.l_cache",
    "full_attention_interval",
)
ARCHITECTURES = ("llama", "gemma3", "deepseek2", "qwen3moe", "qwen3next", "mamba2", "lfm2", "gpt-oss", "nobody")
#: GGUF's numbers of UINT32 and INT32.
UNSIGNED, SIGNED = 4, 5
values = st.one_of(
    st.sampled_from([0, 1, 2, 3, 64, 255, 65536, 2**31 - 1, 2**32 - 1]).map(lambda n: Typed(UNSIGNED, n)),
    st.integers(-3, 3).map(lambda n: Typed(SIGNED, n)),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.booleans(),
    st.just("text"),
)
_PARTS = """
    attn_norm attn_q attn_k attn_v attn_qkv attn_output ffn_norm ffn_up ffn_down ffn_gate ffn_gate_inp ffn_up_exps
    ffn_down_exps ssm_in
"""
PARTS = _PARTS.split()
NAMES = [
    *("token_embd.weight", "output.weight", "output_norm.weight"),
    *(f"blk.{block}.{part}.weight" for block in (0, 1, 2, 900) for part in PARTS),
]
lengths = st.sampled_from([1, 2, 32, 256, 512, 4096, 2**20])
rows = st.tuples(
    st.sampled_from(NAMES),
    st.lists(lengths, max_size=3).map(lambda rest: (256, *rest)),
    st.sampled_from(["f32", "f16", "q4_K", "q8_0"]),
)


@settings(max_examples=300, deadline=None)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    keys=st.dictionaries(st.sampled_from(KEYS), values, max_size=8),
    tensors=st.lists(rows, min_size=1, max_size=24, unique_by=lambda row: row[0]),
)
def test_lies_are_answered_soon(architecture: str, keys: dict[str, object], tensors: Sequence[TensorRow]) -> None:
    sound: dict[str, object] = {"block_count": 3, "embedding_length": 256, "context_length": 4096}
    sound |= {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 512}
    metadata = {f"{architecture}.{key}": value for key, value in (sound | keys).items()}
    raw, data = header({"general.architecture": architecture, **metadata}, tensors)
    start = time.process_time()
    try:
        spec = build_spec([header_from_bytes(raw, "m.gguf", len(raw) + data)])
    except TeraziError:
        return
    for asked in (LlamaCppSettings(n_ctx=4096), LlamaCppSettings(n_gpu_layers=2, n_parallel=3, kv_unified=False)):
        assert bill(spec, asked, keeps=False) == bill(spec, asked, keeps=True)
    assert time.process_time() - start < 20


def bill(spec: ModelSpec, asked: LlamaCppSettings, *, keeps: bool) -> object:
    try:
        if keeps:
            return Scale(spec, DEVICES, ISA, patience=0).weigh(asked)
        return weigh(spec, asked, DEVICES, ISA)
    except TeraziError as error:
        return error.message
