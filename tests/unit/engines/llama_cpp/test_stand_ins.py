"""A plan on cards, said for stand-ins: the layers lie where they lay, and nothing is left to free memory."""

from dataclasses import replace

import pytest

from specs import llama_spec
from terazi.engines.llama_cpp.stand_ins import MOST, stand_in
from terazi.errors import UsageError
from terazi.hardware.machine import Basis, Device, Figure
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.units import GIB

UNKNOWN = Figure(value=None, basis=Basis.ASSUMED)
SPEC = llama_spec()


def cards(*free_gib: float) -> tuple[Device, ...]:
    return tuple(
        Device(
            id=f"CUDA{index}",
            name="card",
            vendor="nvidia",
            backend="cuda",
            memory_total_bytes=round(free * GIB),
            memory_free_bytes=round(free * GIB),
            memory_bandwidth=UNKNOWN,
            flops_fp16=UNKNOWN,
            tdp_w=UNKNOWN,
        )
        for index, free in enumerate(free_gib)
    )


def ports(count: int) -> tuple[str, ...]:
    return tuple(f"127.0.0.1:{41000 + n}" for n in range(count))


@pytest.mark.parametrize("free", [(24.0, 12.0), (23.7, 11.3, 7.9), (8.0,)])
@pytest.mark.parametrize("ngl", [None, 7, 20, 33])
def test_layers_stay_where_they_were(free: tuple[float, ...], ngl: int | None) -> None:
    settings = LlamaCppSettings(n_ctx=4096, n_gpu_layers=ngl)
    devices = cards(*free)
    stood = stand_in(SPEC, settings, devices, ports(len(devices)))
    before = resolve(SPEC, settings, devices).layer_devices
    # the engine sees this host's memory on each stand-in, so the split must not depend on it
    alike = tuple(replace(device, memory_free_bytes=20 * GIB) for device in stood.devices)
    after = resolve(SPEC, stood.settings, alike).layer_devices
    assert [stood.names[device] for device in before] == list(after)
    assert stood.names[HOST] == HOST


def test_named_devices_and_overrides_are_said_for_stand_ins() -> None:
    settings = LlamaCppSettings(
        n_ctx=4096,
        devices=("cuda1", "CUDA0"),
        override_tensor=(("ffn_up", "CUDA1"), ("ffn_down", "CPU"), ("attn_q", "CUDA_Host")),
    )
    stood = stand_in(SPEC, settings, cards(24, 24), ports(2))
    assert stood.settings.devices == ("RPC1", "RPC0")
    assert stood.settings.rpc == ports(2)
    assert stood.settings.override_tensor == (
        ("ffn_up", f"RPC0[{ports(2)[1]}]"),
        ("ffn_down", "CPU"),
        ("attn_q", "CPU"),
    )


def test_servers_of_the_command_are_replaced_by_our_own() -> None:
    settings = LlamaCppSettings(
        n_ctx=4096, rpc=("10.0.0.1:1", "10.0.0.2:2"), override_tensor=(("ffn", "RPC0[10.0.0.2:2]"),)
    )
    devices = tuple(replace(device, id=f"RPC{n}", backend="rpc") for n, device in enumerate(cards(24, 24)))
    stood = stand_in(SPEC, settings, devices, ports(2))
    assert stood.settings.rpc == ports(2)
    assert stood.settings.override_tensor == (("ffn", f"RPC0[{ports(2)[1]}]"),)


@pytest.mark.parametrize(("slots", "unified"), [(None, None), (2, False), (3, True)])
def test_a_context_left_open_becomes_the_one_that_was_planned(slots: int | None, unified: bool | None) -> None:
    settings = LlamaCppSettings(n_parallel=slots, kv_unified=unified)
    stood = stand_in(SPEC, settings, (), ())
    assert not stood.settings.fit
    assert resolve(SPEC, stood.settings, ()).n_ctx == resolve(SPEC, settings, ()).n_ctx


def test_more_devices_than_the_engine_takes_are_refused() -> None:
    with pytest.raises(UsageError, match="at most"):
        stand_in(SPEC, LlamaCppSettings(), cards(*[1.0] * (MOST + 1)), ports(MOST + 1))
