"""A scale that keeps what it can gives the very bills that are worked out anew each time."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import bill_cases
from terazi.errors import TeraziError
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.scale import Scale
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from tiny_models import device

MODELS = bill_cases.load(Path(__file__).parents[1] / "golden" / "bill_cases.json")
CARDS = (device("CUDA0", backend="cuda"), device("CUDA1", backend="cuda"), device("CUDA2", backend="cuda"))
SERVERS = (device("RPC0"), device("RPC1"), device("RPC2"))
#: Runs of equal blocks, windows, experts, latent attention, mixers, shared kinds of caches, an encoder.
NAMES = (
    "llama-3.1-8b",
    "deepseek-v2-lite",
    "gpt-oss-20b",
    "gemma-4-26b-a4b",
    "lfm2-1.2b",
    "falcon-h1-7b",
    "nemotron-nano-9b-v2",
    "bge-m3",
)
SCALES = {
    (name, kind): Scale(MODELS[name].spec, devices, MODELS[name].isa, patience=0)
    for name in NAMES
    for kind, devices in (("cuda", CARDS), ("rpc", SERVERS), ("none", ()))
}

settings = st.builds(
    LlamaCppSettings,
    n_ctx=st.sampled_from([300, 4096, 10000, 65536]),
    n_parallel=st.sampled_from([None, 1, 2, 3, 8]),
    kv_unified=st.sampled_from([None, False, True]),
    n_ubatch=st.sampled_from([1, 24, 100, 512, 2048]),
    flash_attn=st.sampled_from(["on", "off", "auto"]),
    type_k=st.sampled_from(["f16", "f32", "q8_0", "q4_0"]),
    type_v=st.sampled_from(["f16", "q8_0", "q4_0"]),
    swa_full=st.booleans(),
    n_gpu_layers=st.sampled_from([None, 0, 1, 12, 20]),
    tensor_split=st.sampled_from([(), (3.0, 1.0, 0.0), (1.0, 2.0, 2.0)]),
    kv_offload=st.sampled_from([True, True, False]),
    op_offload=st.booleans(),
    n_cpu_moe=st.sampled_from([0, 0, 7]),
    embedding=st.sampled_from([False, False, True]),
    fit=st.booleans(),
)


def answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except TeraziError as error:
        return error.message


@pytest.mark.parametrize("name", NAMES)
@examples(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(asked=settings, kind=st.sampled_from(["cuda", "rpc", "none"]))
def test_kept_parts_make_the_same_bill(name: str, asked: LlamaCppSettings, kind: str) -> None:
    model, scale = MODELS[name], SCALES[name, kind]
    # first with what earlier examples left, then with nothing but what it was just asked
    kept = answer(lambda: scale.weigh(asked))
    assert kept == answer(lambda: weigh(model.spec, asked, scale.devices, model.isa))
    assert kept == answer(lambda: scale.weigh(asked))
