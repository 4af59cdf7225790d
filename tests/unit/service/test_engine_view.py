"""What an engine binary can't use is not planned for, and is said."""

from terazi.engines.llama_cpp.binary import Binary, ListedDevice, parse_devices
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe import load_catalogue
from terazi.service.engine_view import as_engine_sees
from terazi.units import MIB

CATALOGUE = load_catalogue()
BINARY = Binary(path="/usr/bin/llama-server", build=11434, version="b11434", flags=frozenset())

# as common_print_available_devices prints them (b11434)
LISTING = """\
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23803 MiB free)
  Vulkan1: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)
  MTL: Apple (M3) (100 MiB, 50 MiB free)
"""


def test_the_listing_is_read() -> None:
    devices = parse_devices(LISTING)
    assert [d.id for d in devices] == ["CUDA0", "Vulkan1", "MTL"]
    assert devices[1] == ListedDevice(
        id="Vulkan1",
        name="AMD Radeon RX 7900 XTX (RADV NAVI31)",
        total_bytes=24560 * MIB,
        free_bytes=24000 * MIB,
    )
    assert parse_devices("Available devices:\n  (none)\n") == ()


def test_a_cpu_build_leaves_the_cards_and_says_so() -> None:
    machine = parse_machine("2x RTX 3090 + 64GiB", CATALOGUE)
    seen, notes = as_engine_sees(machine, BINARY, (), CATALOGUE)
    assert seen.devices == ()
    assert len(notes) == 2
    assert "CUDA" in notes[0]
    assert "TERAZI_LLAMA_SERVER" in notes[0]


def test_what_both_know_keeps_the_probe_s_figures() -> None:
    machine = parse_machine("RTX 3090 + 64GiB", CATALOGUE)
    seen, notes = as_engine_sees(machine, BINARY, parse_devices(LISTING)[:1], CATALOGUE)
    assert seen.devices == machine.devices
    assert notes == ()


def test_another_backend_s_name_for_a_card_is_taken_from_the_list() -> None:
    machine = parse_machine("64GiB", CATALOGUE)
    seen, _ = as_engine_sees(machine, BINARY, parse_devices(LISTING)[1:2], CATALOGUE)
    device = seen.devices[0]
    assert (device.id, device.backend) == ("Vulkan1", "vulkan")
    assert device.memory_free_bytes == 24000 * MIB
    assert device.memory_bandwidth.value == 960e9


def test_a_binary_that_cannot_say_is_believed() -> None:
    machine = parse_machine("RTX 3090 + 64GiB", CATALOGUE)
    assert as_engine_sees(machine, BINARY, None, CATALOGUE) == (machine, ())
