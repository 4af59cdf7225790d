"""What holds for every draft: sums, the model's own lines, and what more context or more tokens cost."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from terazi.memory.bill import Bill
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import NGRAM_KINDS, Speculation
from tiny_models import device, llama

AVX2 = frozenset({"avx2"})
MODEL, DRAFT = llama(blocks=5, width=1024, heads=16, inner=2048), llama(tied=True)
BESIDE = (Companion("draft", "--spec-draft-model", DRAFT),)
DEVICES = tuple(device(f"RPC{index}", free_gib=8 - 3 * index) for index in range(2))

speculations = st.builds(
    Speculation,
    kinds=st.lists(st.sampled_from(sorted(NGRAM_KINDS | {"draft-simple"})), min_size=1, max_size=3).map(tuple),
    n_max=st.integers(0, 20),
    n_gpu_layers=st.none() | st.integers(0, 6),
    devices=st.sampled_from([(), ("none",), ("RPC1",), ("RPC1", "RPC0")]),
    type_k=st.sampled_from(["f16", "q8_0", "f32"]),
    ngram_mod_n_max=st.integers(0, 100),
)
commands = st.builds(
    LlamaCppSettings,
    n_ctx=st.integers(256, 9000),
    n_parallel=st.none() | st.integers(1, 5),
    kv_unified=st.none() | st.booleans(),
    n_ubatch=st.sampled_from([32, 300, 512]),
    n_gpu_layers=st.none() | st.integers(0, 7),
    fit=st.just(False),
    speculation=speculations,
)


def drafting(command: LlamaCppSettings) -> Bill:
    return weigh(MODEL, command, DEVICES, AVX2, BESIDE)


@settings(max_examples=40, deadline=None)
@given(commands)
def test_a_draft_adds_lines_and_changes_none(command: LlamaCppSettings) -> None:
    both, alone = drafting(command), weigh(MODEL, command, DEVICES, AVX2)
    assert both.of("") == alone.of("")
    assert both.of("ngram") == alone.of("ngram")
    assert {line.part for line in both.lines} <= {"", "draft", "ngram"}
    for name in both.devices():
        held = both.on(name)
        assert held.total_bytes == sum(line.bytes for line in both.lines if line.device == name)
        assert held.beside_bytes == sum(line.bytes for line in both.lines if line.device == name and line.part)
        assert both.needed_bytes(name) >= alone.needed_bytes(name)


@settings(max_examples=25, deadline=None)
@given(commands, st.integers(1, 20))
def test_more_context_and_longer_drafts_never_cost_less(command: LlamaCppSettings, more: int) -> None:
    longer = replace(command, n_ctx=command.n_ctx + 256 * more)
    assert drafting(longer).total_bytes >= drafting(command).total_bytes
    deeper = replace(command, speculation=replace(command.speculation, n_max=command.speculation.n_max + more))

    def later(bill: Bill) -> int:
        return bill.total_bytes + sum(line.bytes for line in bill.growth)

    assert later(drafting(deeper)) >= later(drafting(command))
