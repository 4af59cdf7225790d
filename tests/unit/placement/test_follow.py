"""A weighed command with a draft: shares, verdict, refusal and its alternatives."""

from dataclasses import replace

from specs import card, llama_spec, machine
from terazi.memory.bill import HOST
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import Speculation
from terazi.memory.workload import Workload
from terazi.placement.follow import follow
from terazi.placement.plan import Plan, Refusal, Verdict

MODEL = llama_spec()
DRAFT = (Companion("draft", "--spec-draft-model", llama_spec(layers=16, embedding=2048, feed_forward=8192)),)
SIMPLE = Speculation(kinds=("draft-simple",))
SETTINGS = LlamaCppSettings(n_ctx=32768, n_parallel=1, fit=False, speculation=SIMPLE)


def test_the_draft_counts_on_its_device() -> None:
    with_draft = follow(MODEL, machine(card(0)), SETTINGS, Workload(), DRAFT)
    without = follow(MODEL, machine(card(0)), SETTINGS, Workload())
    assert isinstance(with_draft, Plan)
    assert isinstance(without, Plan)
    held, alone = with_draft.devices[0], without.devices[0]
    assert held.beside_bytes > 2**30 > alone.beside_bytes == 0
    assert held.total_bytes - alone.total_bytes == held.beside_bytes
    assert (held.weights_bytes, held.kv_bytes) == (alone.weights_bytes, alone.kv_bytes)
    assert with_draft.id != without.id


def test_a_draft_in_ram_doesnt_make_the_model_offloaded() -> None:
    speculation = Speculation(kinds=("draft-simple",), devices=("none",))
    settings = LlamaCppSettings(n_ctx=4096, n_parallel=1, fit=False, speculation=speculation)
    plan = follow(MODEL, machine(card(0)), settings, Workload(), DRAFT)
    assert isinstance(plan, Plan)
    assert plan.verdict is Verdict.FITS
    assert plan.devices[-1].id == HOST
    assert plan.devices[-1].beside_bytes > 2**29


def test_what_doesnt_fit_with_the_draft_is_refused_and_its_alternatives_keep_the_draft() -> None:
    """The card has 24 GiB: 40,000 tokens more fit without the draft than with it."""
    room = machine(card(0), host_gib=4)
    settings = LlamaCppSettings(n_ctx=110_000, n_parallel=1, fit=False, n_gpu_layers=99, speculation=SIMPLE)
    assert isinstance(follow(MODEL, room, settings, Workload()), Plan)
    refused = follow(MODEL, room, settings, Workload(), DRAFT)
    assert isinstance(refused, Refusal)
    assert refused.alternatives
    for alternative in refused.alternatives:
        assert alternative.settings.speculation == SIMPLE
        again = follow(MODEL, room, alternative.settings, Workload(), DRAFT)
        assert isinstance(again, Plan), alternative.change
        assert again.bill.total_bytes == alternative.total_bytes


def test_a_draft_that_is_let_go_must_fit_while_loading() -> None:
    """No kind of speculation: nothing of it stays, but it was there."""
    room = machine(card(0), host_gib=4)
    settings = LlamaCppSettings(n_ctx=110_000, n_parallel=1, fit=False, n_gpu_layers=99)
    refused = follow(MODEL, room, settings, Workload(), DRAFT)
    assert isinstance(refused, Refusal)
    assert refused.bill.of("draft") == ()


def test_reasons_of_a_command_dont_claim_a_want_of_room() -> None:
    """The cards could hold all of it: where the layers lie was asked for."""
    two = machine(card(0), card(1))
    plain = LlamaCppSettings(n_ctx=4096, n_parallel=1, fit=False)
    for settings, said in (
        (replace(plain, n_gpu_layers=10), "23 of 33 layers stay in RAM: as -ngl 10 says"),
        (replace(plain, devices=("CUDA1",)), "CUDA0 left unused: as asked."),
        (replace(plain, split_mode="none"), "CUDA1 left unused: as asked."),
        (replace(plain, tensor_split=(1.0, 1.0)), "17 layers on CUDA0"),
        (plain, "17 layers on CUDA0"),
    ):
        plan = follow(MODEL, two, settings, Workload())
        assert isinstance(plan, Plan)
        assert any(reason.startswith(said) for reason in plan.reasons), plan.reasons
        assert not any(lie in reason for reason in plan.reasons for lie in ("no room", "No card", "not needed"))
