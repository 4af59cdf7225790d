"""Machines as people describe them."""

import pytest

from terazi.errors import UsageError
from terazi.hardware.machine import Basis, Machine
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe import load_catalogue

CATALOGUE = load_catalogue()
GIB = 1024**3
MIB = 1024**2


def machine(text: str) -> Machine:
    return parse_machine(text, CATALOGUE)


@pytest.mark.parametrize(
    ("text", "ids", "ram_gib"),
    [
        ("2x RTX 3090 nvlink + 64GiB ddr4", ["CUDA0", "CUDA1"], 64),
        ("RTX 3090 + RTX 3060 12GB pcie3x4 + 32GiB", ["CUDA0", "CUDA1"], 32),
        ("RTX 4090 + RTX 3060", ["CUDA0", "CUDA1"], 32),
        ("4x L40S + 512GiB", ["CUDA0", "CUDA1", "CUDA2", "CUDA3"], 512),
        ("8x H100 SXM nvlink + 2TiB", [f"CUDA{i}" for i in range(8)], 2048),
        ("H100 SXM x8 nvlink", [f"CUDA{i}" for i in range(8)], 512),
        ("2x RPC 24GiB", ["RPC0", "RPC1"], 32),
        ("RX 7900 XTX + RTX 3090 + RPC 8GiB + Arc A770", ["RPC0", "CUDA0", "ROCm0", "SYCL0"], 32),
        ("Apple M3 Max 40-core 64GB", ["MTL0"], 64),
        ("Ryzen AI Max+ 395 + RPC 16GiB", ["RPC0", "ROCm0"], 128),
        ("64GiB ddr5", [], 64),
        ("cpu", [], 32),
        ("2×3090+64 gb", ["CUDA0", "CUDA1"], 64),
        ("1 x A100 PCIe 40 GB", ["CUDA0"], 32),
        ("3090x2", ["CUDA0", "CUDA1"], 32),
    ],
)
def test_devices_and_ram(text: str, ids: list[str], ram_gib: int) -> None:
    made = machine(text)
    assert [d.id for d in made.devices] == ids
    assert made.host.ram_total_bytes == ram_gib * GIB
    assert 0 < made.host.ram_available_bytes < made.host.ram_total_bytes
    assert len(made.links) == len(ids) * (len(ids) - 1) // 2


def test_what_is_assumed_is_said() -> None:
    assert any("RAM assumed" in note for note in machine("RTX 3090").host.notes)
    assert not any("since none was named" in note for note in machine("RTX 3090 + 64GiB").host.notes)
    assert any("8 or 12 memory channels" in note for note in machine("4x L40S + 512GiB").notes)
    assert not any("8 or 12" in note for note in machine("4x L40S + 512GiB ddr5 12-channel").notes)


def test_nvlink_bridges_join_pairs() -> None:
    links = {(link.a, link.b): link for link in machine("4x RTX 3090 nvlink").links}
    kinds = {pair: link.kind for pair, link in links.items()}
    assert kinds["CUDA0", "CUDA1"] == kinds["CUDA2", "CUDA3"] == "nvlink"
    assert kinds["CUDA1", "CUDA2"] == kinds["CUDA0", "CUDA3"] == "host"
    assert links["CUDA0", "CUDA1"].bandwidth.value == 56.25e9


def test_nvlink_switches_join_all() -> None:
    links = machine("8x H100 SXM nvlink").links
    assert {(link.kind, link.bandwidth.value) for link in links} == {("nvlink", 450e9)}


def test_a_mesh_shares_each_cards_links_among_its_neighbours() -> None:
    """V100 SXM2: six links of 25 GB/s one way; four cards have two between each pair, two cards all six."""
    assert {link.bandwidth.value for link in machine("4x V100 SXM2 nvlink").links} == {50e9}
    assert {link.bandwidth.value for link in machine("2x V100 SXM2 nvlink").links} == {150e9}


def test_two_nvlinked_pairs_of_one_kind_are_not_one_group() -> None:
    kinds = {(link.a, link.b): link.kind for link in machine("2x A6000 nvlink + 2x A6000 nvlink").links}
    assert kinds["CUDA0", "CUDA1"] == kinds["CUDA2", "CUDA3"] == "nvlink"
    assert kinds["CUDA0", "CUDA2"] == "host"


def test_pcie_is_as_fast_as_the_slower_end() -> None:
    (link,) = machine("RTX 3090 + RTX 3060 12GB pcie3x4").links
    assert link.kind == "host"
    assert link.bandwidth.value == pytest.approx(3.94e9, rel=0.01)
    (direct,) = machine("2x RTX 4090 p2p").links
    assert direct.kind == "pcie-p2p"
    (one_sided,) = machine("RTX 4090 p2p + RTX 4090").links
    assert one_sided.kind == "host"


def test_a_slot_cannot_widen_a_card() -> None:
    (device,) = machine("RTX 4060 pcie5x16").devices
    assert device.pcie is not None
    assert (device.pcie.generation, device.pcie.lanes) == (4, 8)


def test_power_cap() -> None:
    capped = machine("2x RTX 3090 cap 250W").devices
    assert [d.power_cap_w for d in capped] == [250, 250]
    assert machine("RTX 3090").devices[0].power_cap_w is None


def test_unified_memory_is_one_memory() -> None:
    made = machine("Apple M3 Max 40-core 64GB")
    (device,) = made.devices
    assert device.unified_memory
    assert device.backend == "metal"
    assert device.memory_total_bytes == 48 * GIB
    assert device.memory_free_bytes <= made.host.ram_available_bytes
    assert made.host.ram_bandwidth.value == device.memory_bandwidth.value == 409.6e9
    assert "neon" in made.host.isa
    assert any("unified" in note for note in device.notes)


def test_rpc_devices_claim_no_speed() -> None:
    made = machine("2x RPC 24GiB")
    for device in made.devices:
        assert device.backend == "rpc"
        assert device.memory_free_bytes == 24 * GIB
        assert device.memory_bandwidth.value is None
    assert [link.bandwidth.value for link in made.links] == [None]


@pytest.mark.parametrize(
    ("text", "gb_per_s", "basis"),
    [
        ("64GiB", 51.2, Basis.ASSUMED),  # two channels of DDR4-3200
        ("64GiB ddr5", 76.8, Basis.ASSUMED),  # two channels of DDR5-4800
        ("64GiB ddr5-6400 dual channel", 102.4, Basis.CATALOGUE),
        ("512GiB ddr5-4800 12-channel", 460.8, Basis.CATALOGUE),
        ("256 GB ddr4-2133 8 channels", 136.512, Basis.CATALOGUE),
    ],
)
def test_ram_bandwidth(text: str, gb_per_s: float, basis: Basis) -> None:
    figure = machine(text).host.ram_bandwidth
    assert figure.value == pytest.approx(gb_per_s * 1e9)
    assert figure.basis is basis


def test_cores_can_be_said() -> None:
    assert machine("64GiB 16-core").host.cores == 16
    assert machine("64GiB").host.cores == 8


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "empty"),
        (" + ", "empty"),
        ("RTX 3090 + ", "empty part"),
        ("2x RTX 3090 + 64GiB + 32GiB", "'32GiB'"),
        ("64GiB 32GiB", "twice"),
        ("RTX 9999", "'RTX 9999'"),
        ("2x H100", "fits several"),
        ("4090 nvlink", "no NVLink"),
        ("2x RTX 4090 nvlink", "no NVLink"),
        ("RTX 3090 nvlink", "one card"),
        ("2x RPC 24GiB nvlink", "no NVLink"),
        ("2x RPC", "memory size"),
        ("RPC 24GiB foo", "memory size"),
        ("0x RTX 3090", "0 devices"),
        ("99x RTX 3090", "99 devices"),
        ("9x RTX 3090 + 9x RTX 4090", "18 devices"),
        ("RTX 3090 pcie9x16", "PCIe"),
        ("RTX 3090 pcie4x5", "PCIe"),
        ("RTX 3090 cap 0W", "power cap"),
        ("1MiB", "128 MiB"),
        ("64GiB ddr9", "'ddr9' isn't understood"),
        ("64GiB 0-channel", "channels"),
        ("Apple M1", "8 to 16"),
        ("Apple M1 64GB", "no card named"),
        ("2x Apple M3 Max 64GB", "whole machine"),
        ("Apple M3 Max 64GB + RTX 3090", "whole machine"),
        ("Apple M3 Max 64GB + 64GiB", "one memory"),
        ("RTX 3090, please", "please"),
        ("x" * 1000, "1000 characters"),
        ("99999999999999999999GiB", "99999"),
    ],
)
def test_what_is_not_understood_is_quoted_with_a_hint(text: str, quoted: str) -> None:
    with pytest.raises(UsageError) as caught:
        machine(text)
    assert quoted in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2
