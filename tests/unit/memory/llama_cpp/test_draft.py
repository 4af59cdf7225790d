"""Which second context there is, what it holds, and what the engine would not run."""

from dataclasses import replace

import pytest

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.draft import settle, speculation_notes
from terazi.memory.llama_cpp.draft_checks import vocabulary_mismatch
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import Speculation
from terazi.models.spec import MetadataValue, ModelSpec, Tensor
from tiny_models import device, llama

SPEC = llama(blocks=6, width=1024, heads=16, inner=2048)
SMALL = llama()
NO_FLAGS: frozenset[str] = frozenset()
SIMPLE = Speculation(kinds=("draft-simple",))


def beside(draft: ModelSpec) -> tuple[Companion, ...]:
    return (Companion("draft", "--spec-draft-model", draft),)


def drafting(
    speculation: Speculation = SIMPLE, *, draft: ModelSpec = SMALL, devices: tuple[Device, ...] = (), **more: object
) -> Bill:
    settings = replace(LlamaCppSettings(n_ctx=4096, fit=False), speculation=speculation, **more)  # type: ignore[arg-type]
    return weigh(SPEC, settings, devices, NO_FLAGS, beside(draft))


def sums(bill: Bill, part: str) -> dict[tuple[Term, str], int]:
    found: dict[tuple[Term, str], int] = {}
    for line in bill.of(part):
        found[line.term, line.device] = found.get((line.term, line.device), 0) + line.bytes
    return found


def test_a_draft_holds_what_it_would_hold_alone() -> None:
    """Weights, cache, graph and logits of its own; the context is the model's, padded and for all slots."""
    both = drafting(n_parallel=3, n_ctx=5000, kv_unified=False)
    alone = weigh(SMALL, LlamaCppSettings(n_ctx=3 * 1792, n_parallel=3, kv_unified=False, fit=False), (), NO_FLAGS)
    assert sums(both, "draft") == sums(alone, "")
    assert both.on(HOST).beside_bytes == alone.total_bytes
    assert both.exact


def test_its_cache_has_types_of_its_own() -> None:
    plain = sums(drafting(type_k="q8_0", type_v="q8_0"), "draft")[Term.KV, HOST]
    halved = sums(drafting(Speculation(kinds=("draft-simple",), type_k="q8_0", type_v="q8_0")), "draft")
    assert halved[Term.KV, HOST] == plain * 17 // 32
    with pytest.raises(UsageError, match="For the draft: A quantised V"):
        drafting(Speculation(kinds=("draft-simple",), type_v="q8_0"), flash_attn="off")


def test_layers_of_the_model_say_nothing_about_the_draft() -> None:
    cards = (device("RPC0"), device("RPC1"))
    on_host = drafting(devices=cards[:1], n_gpu_layers=0)
    assert {line.device for line in on_host.of("draft") if line.term is Term.KV} == {"RPC0"}
    apart = drafting(Speculation(kinds=("draft-simple",), devices=("RPC1",)), devices=cards)
    assert {line.device for line in apart.of("draft") if line.term is Term.KV} == {"RPC1"}
    none = drafting(Speculation(kinds=("draft-simple",), devices=("none",)), devices=cards)
    assert {line.device for line in none.of("draft")} == {HOST}


@pytest.mark.parametrize(("backend", "blocks"), [("cuda", 1), ("rpc", 3)])
def test_a_draft_goes_where_the_model_left_room(backend: str, blocks: int) -> None:
    """Without -ts four blocks and the output are shared out by the memory that is free once the model is loaded:
    one part in six on the first card, not a half. A server on a CPU reports what it did before.
    """
    settings = LlamaCppSettings(n_ctx=4096, fit=False, devices=("CUDA0",))
    card = device("CUDA0", backend=backend, context_mib=8)
    held = weigh(SPEC, settings, (card,), NO_FLAGS).on("CUDA0").total_bytes
    cards = tuple(replace(card, id=f"CUDA{n}", memory_free_bytes=held * 5 // 4) for n in range(2))
    speculation = Speculation(kinds=("draft-simple",), devices=("CUDA0", "CUDA1"))
    bill = weigh(SPEC, replace(settings, speculation=speculation), cards, NO_FLAGS, beside(SMALL))
    caches = sums(bill, "draft")
    assert 4 * caches[Term.KV, "CUDA0"] == blocks * (caches[Term.KV, "CUDA0"] + caches[Term.KV, "CUDA1"])
    contexts = [line.device for line in bill.lines if line.formula == "driver-context"]
    assert contexts == (["CUDA0", "CUDA1"] if backend == "cuda" else []), "one a card, whatever runs there"


def test_without_a_kind_the_draft_is_let_go() -> None:
    bill = drafting(Speculation())
    kept = drafting()
    assert bill.of("draft") == ()
    assert bill.on(HOST).beside_bytes == 0
    assert sum(line.bytes for line in bill.loading) == kept.on(HOST).beside_bytes
    assert bill.peak_bytes(HOST) - bill.total_bytes - bill.process_bytes(HOST) == kept.on(HOST).beside_bytes
    (note,) = speculation_notes(SPEC, LlamaCppSettings(), beside(SMALL))
    assert "--spec-type draft-simple" in note


def test_the_drafts_file_may_say_how() -> None:
    head = Tensor("blk.3.nextn.eh_proj.weight", (1024, 512), "f16", 1 << 20, 0, 0, 3)
    mtp = replace(SMALL, tensors=(*SMALL.tensors, head))
    blocks = replace(SMALL, architecture="dflash")
    markov = replace(blocks, tensors=(*blocks.tensors, renamed(head, "markov_w1.weight")))
    for draft, kind in ((SMALL, None), (mtp, "draft-mtp"), (blocks, "draft-dflash"), (markov, "draft-dspark")):
        kinds = settle(LlamaCppSettings(), beside(draft)).speculation.kinds
        assert kinds == (None if kind is None else (kind,))
        said = LlamaCppSettings(speculation=SIMPLE)
        assert settle(said, beside(draft)) == said


def renamed(tensor: Tensor, name: str) -> Tensor:
    return Tensor(name, tensor.shape, tensor.dtype, tensor.n_bytes, tensor.offset, 0, None)


@pytest.mark.parametrize(
    ("ours", "theirs", "tokens", "why"),
    [
        ({}, {}, 0, None),
        ({"model": "gpt2"}, {"model": "llama"}, 0, "another kind"),
        ({"model": "gpt2"}, {"model": "hybriddna"}, 0, None),
        ({"add_bos_token": True}, {"add_bos_token": False}, 0, "the other doesn't"),
        ({"add_bos_token": True, "bos_token_id": 1}, {"add_bos_token": True, "bos_token_id": 2}, 0, "differ"),
        ({"add_bos_token": False, "bos_token_id": 1}, {"add_bos_token": False, "bos_token_id": 2}, 0, None),
        ({}, {}, 128, None),
        ({}, {}, 129, "over 128 apart"),
    ],
)
def test_vocabularies_must_match(
    ours: dict[str, MetadataValue], theirs: dict[str, MetadataValue], tokens: int, why: str | None
) -> None:
    """``common_speculative_are_compatible``: kind, text marks, and at most 128 tokens more or less."""
    model = replace(SPEC, metadata={f"tokenizer.ggml.{key}": value for key, value in ours.items()})
    draft = replace(
        SMALL,
        metadata={f"tokenizer.ggml.{key}": value for key, value in theirs.items()},
        vocab_size=model.vocab_size + tokens,
    )
    found = vocabulary_mismatch(model, draft)
    assert (found is None) if why is None else (why in (found or ""))


def test_heads_that_the_engine_cant_run_are_refused() -> None:
    wants = LlamaCppSettings(n_ctx=4096, speculation=Speculation(kinds=("draft-mtp",)))
    one = replace(SMALL, architecture="glm4", metadata={"glm4.nextn_predict_layers": 1})
    two = replace(SMALL, architecture="glm4moe", metadata={"glm4moe.nextn_predict_layers": 2})
    for spec, why in ((SMALL, "no draft head"), (one, "can't run"), (two, "would abort")):
        with pytest.raises(UsageError, match=why):
            weigh(spec, wants, (), NO_FLAGS)


def test_other_tools_speculate_not() -> None:
    settings = LlamaCppSettings(n_ctx=4096, tool="llama-fit-params", speculation=Speculation(kinds=("draft-mtp",)))
    assert weigh(SPEC, settings, (), NO_FLAGS).of("draft") == ()


def test_checked_drafts_need_rows_of_logits_later() -> None:
    bill = drafting(Speculation(kinds=("draft-simple",), n_max=7), n_parallel=2)
    (line,) = [line for line in bill.growth if line.formula == "output-buffer.drafts"]
    assert line.bytes == 2 * 7 * SPEC.vocab_size * 4


def test_what_is_beside_the_model_is_no_part_of_its_terms() -> None:
    large = llama(blocks=20, width=2048, inner=8192)
    bill = drafting(draft=large)
    plain = weigh(SPEC, LlamaCppSettings(n_ctx=4096, fit=False), (), NO_FLAGS)
    assert bill.on(HOST).weights_bytes == plain.on(HOST).weights_bytes
    assert bill.on(HOST).kv_bytes == plain.on(HOST).kv_bytes
    assert bill.on(HOST).total_bytes == bill.total_bytes == sum(line.bytes for line in bill.lines)
    assert bill.on(HOST).beside_bytes > plain.total_bytes
