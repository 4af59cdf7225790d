"""Whatever is typed, read or saved: a machine or one clear error, and nothing lost on the way to JSON and back."""

import json

from hypothesis import given
from hypothesis import strategies as st

from terazi.errors import UsageError
from terazi.hardware.parse_cgroup import GroupFiles, find_folder, tightest_memory
from terazi.hardware.parse_drm import ATTRIBUTES, drm_device, parse_drm_card
from terazi.hardware.parse_nvml import NvmlGpu, parse_nvml, select_visible
from terazi.hardware.parse_pci import LinkFiles, path_link
from terazi.hardware.parse_proc import parse_cpu_list, parse_cpuinfo, parse_meminfo, parse_node_meminfo
from terazi.hardware.presets import MAX_DEVICES, parse_machine
from terazi.hardware.probe import load_catalogue
from terazi.hardware.saved import machine_from_json, machine_to_json

CATALOGUE = load_catalogue()
CARDS = [r for r in CATALOGUE.records if not r.unified]

WORDS = st.sampled_from(
    ["2x", "x8", "RTX", "3090", "Ti", "H100", "SXM", "RPC", "24GiB", "64 GB", "+", "nvlink", "p2p", "pcie3x4",
     "cap 250W", "ddr5-6400", "8-channel", "Apple", "M3 Max", "40-core", "cpu", "×", "Max+", "MI300X", "0x",
     "99999GiB", "cap", "x"]
)  # fmt: skip
#: Hypothesis reads a file for its full Unicode alphabet, which a core test may not; these are the awkward ones.
AWKWARD = "aAgGmMtTxX019+-*.,/()[]{}'\"\\ \t\n\0×²٣İßǅ🦀\u202e\ud800"
ANY_TEXT = st.lists(st.sampled_from(AWKWARD), max_size=60).map("".join)


def _check(error: UsageError) -> None:
    assert error.hint
    assert "\n" not in error.message


@given(st.one_of(ANY_TEXT, st.lists(WORDS, max_size=9).map(" ".join)))
def test_any_text_is_a_machine_or_a_usage_error(text: str) -> None:
    try:
        machine = parse_machine(text, CATALOGUE)
    except UsageError as error:
        _check(error)
        return
    assert len(machine.devices) <= MAX_DEVICES
    for device in machine.devices:
        assert 0 < device.memory_free_bytes <= device.memory_total_bytes
    assert machine_from_json(json.loads(json.dumps(machine_to_json(machine)))) == machine


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(CARDS)), min_size=1, max_size=4),
    st.integers(1, 4096),
    st.sampled_from(["", " pcie3x4", " pcie4x8 p2p", " cap 200W"]),
)
def test_every_well_formed_machine_is_understood(parts: list[tuple[int, object]], ram: int, flags: str) -> None:
    names = [(count, getattr(record, "name", "")) for count, record in parts]
    text = " + ".join([*(f"{count}x {name}{flags}" for count, name in names), f"{ram}GiB"])
    machine = parse_machine(text, CATALOGUE)
    assert sorted(d.name for d in machine.devices) == sorted(name for count, name in names for _ in range(count))
    assert machine.host.ram_total_bytes == ram * 1024**3
    pairs = {(link.a, link.b) for link in machine.links}
    assert len(pairs) == len(machine.links) == len(machine.devices) * (len(machine.devices) - 1) // 2
    for link in machine.links:
        ends = [d.pcie.bytes_per_s for d in machine.devices if d.id in {link.a, link.b} and d.pcie is not None]
        assert link.bandwidth.value == min(ends)


@given(st.sampled_from(CATALOGUE.records), st.sampled_from([str.lower, str.upper, str.title, str.strip]))
def test_every_row_is_found_by_its_full_name(record: object, style: object) -> None:
    name = getattr(record, "name", "")
    assert callable(style)
    assert CATALOGUE.find(style(f"  {name} ")) is record


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
SAVED = json.dumps(machine_to_json(parse_machine("RTX 3090 + RPC 4GiB + 64GiB", CATALOGUE)))


@given(st.data())
def test_a_saved_machine_with_one_value_replaced_is_a_machine_or_a_usage_error(data: st.DataObject) -> None:
    saved = json.loads(SAVED)
    place = saved
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        deeper = isinstance(place[key], dict | list) and place[key]
        if not deeper or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    try:
        machine = machine_from_json(saved)
    except UsageError as error:
        _check(error)
    else:
        assert machine_from_json(machine_to_json(machine)) == machine


TEXT = st.lists(st.sampled_from("0123456789-,: \n\tkBMemTotalprocessorflagsmax/.xn"), max_size=80).map("".join)


@given(TEXT, TEXT, st.lists(TEXT, max_size=3))
def test_captured_texts_never_break_a_parser(a: str, b: str, more: list[str]) -> None:
    parse_cpuinfo(a)
    parse_meminfo(a)
    parse_node_meminfo(a)
    parse_cpu_list(a)
    folder = find_folder("memory", a, b)
    assert folder is None or all(p.startswith(folder.mount) and ".." not in p for p in folder.chain())
    tightest_memory(GroupFiles(limits=(t, a), usage=b, stat=t) for t in more)
    path_link(LinkFiles(max_speed=a, max_width=b, current_width=t) for t in more)
    parse_nvml(a)


@given(st.sampled_from(["0x1002", "0x8086"]), st.dictionaries(st.sampled_from(ATTRIBUTES), TEXT))
def test_any_sysfs_card_is_a_device_or_a_reason(vendor: str, files: dict[str, str]) -> None:
    card = parse_drm_card("0000:03:00.0", files | {"vendor": vendor})
    assert card is not None
    made = drm_device("ROCm0", card, CATALOGUE, None)
    assert made if isinstance(made, str) else 0 <= made.memory_free_bytes <= made.memory_total_bytes


GPUS = tuple(
    NvmlGpu(
        index=i, name="NVIDIA L4", uuid=f"GPU-{i}{i}", address=None, memory_total_bytes=1, memory_free_bytes=1,
        power_limit_w=None, power_draw_w=None, pcie=None, mig=False,
    )
    for i in range(4)
)  # fmt: skip


@given(st.lists(st.sampled_from(["0", "1", "2", "3", "4", "-1", "GPU-1", "gpu-22", "", " 3 ", "x"]), max_size=6))
def test_visible_devices_are_distinct_cards(entries: list[str]) -> None:
    chosen = select_visible(GPUS, ",".join(entries))
    assert len({g.index for g in chosen}) == len(chosen)
