"""Host memory is held against the machine by its kinds, and a refusal says which is short."""

from dataclasses import replace
from typing import Any

from specs import card, llama_spec, machine
from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.placement.capacity import capacity_of
from terazi.placement.judge import Judged, judge, memlock_reason
from terazi.units import GIB, MIB

SPEC = llama_spec()


def judged(on: Machine, **settings: Any) -> Judged:
    made = replace(LlamaCppSettings(n_ctx=4096, n_parallel=1, fit=False, repack=False), **settings)
    return judge(SPEC, on, made, capacity_of(on))


def test_mapped_weights_that_do_not_fit_are_refused_and_said_to_be_file_pages() -> None:
    mapped = judged(machine(host_gib=4.5))
    (lack,) = mapped.shortfall
    assert lack.device == HOST
    assert "file pages" in lack.why
    copied = judged(machine(host_gib=4.5), load_mode="none")
    assert "can't be dropped" not in mapped.shortfall[0].why
    assert copied.shortfall[0].needed_bytes >= mapped.host.total_bytes
    # a cache that can't be dropped is another matter
    (cache,) = judged(machine(host_gib=4.5), n_ctx=65536).shortfall
    assert "can't be dropped" in cache.why


def test_swap_is_never_counted_on() -> None:
    small = machine(host_gib=4.5)
    swapping = replace(small, host=replace(small.host, swap_total_bytes=64 * GIB))
    assert judged(swapping).shortfall == judged(small).shortfall


def test_what_is_held_only_while_loading_must_fit_too() -> None:
    """Direct I/O uploads through 256 MiB of pinned memory, which a host of exactly the rest doesn't have."""
    roomy = judged(machine(card(0)), load_mode="dio", n_gpu_layers=99)
    assert roomy.host.peak_bytes == roomy.host.total_bytes + roomy.host.process_bytes + roomy.host.loading_bytes
    assert roomy.host.loading_bytes > 200 * MIB
    needed = roomy.bill.needed_bytes(HOST)
    base = machine(card(0))
    reserve = base.host.usable_ram_bytes - capacity_of(base).host_bytes
    tight = replace(base, host=replace(base.host, ram_available_bytes=needed + reserve - 1))
    (lack,) = judged(tight, load_mode="dio", n_gpu_layers=99).shortfall
    assert (lack.device, lack.missing_bytes) == (HOST, 1)
    enough = replace(base, host=replace(base.host, ram_available_bytes=needed + reserve))
    assert not judged(enough, load_mode="dio", n_gpu_layers=99).shortfall


def test_a_limit_of_locked_memory_is_worth_a_reason() -> None:
    limited = replace(machine(), host=replace(machine().host, memlock_limit_bytes=8 * MIB))
    said = memlock_reason(judged(limited, load_mode="mlock"), limited)
    assert said is not None
    assert "8.00 MiB" in said
    assert memlock_reason(judged(limited), limited) is None
    assert memlock_reason(judged(machine(), load_mode="mlock"), machine()) is None


def test_cut_tensors_show_their_layers_on_every_device() -> None:
    on = machine(card(0), card(1))
    found = judged(on, split_mode="tensor", n_gpu_layers=99)
    first, second, host = found.shares
    assert first.layers == second.layers == (0, SPEC.block_count)
    assert host.layers is None
    assert abs(first.weights_bytes - second.weights_bytes) < 0.02 * first.weights_bytes
