"""Saved machines: what goes out comes back, and nonsense is told where it is."""

import copy
import json
from typing import Any

import pytest

from terazi.errors import UsageError
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe import load_catalogue
from terazi.hardware.saved import machine_from_json, machine_to_json

MACHINE = parse_machine("2x RTX 3090 nvlink cap 250W + RPC 8GiB + 64GiB ddr4", load_catalogue())
SAVED: dict[str, Any] = json.loads(json.dumps(machine_to_json(MACHINE)))


def test_round_trip() -> None:
    assert machine_from_json(SAVED) == MACHINE
    assert SAVED["schema"] == "terazi.machine/1"
    assert SAVED["devices"][1]["memory_bandwidth"]["basis"] == "catalogue"


@pytest.mark.parametrize("obj", [None, 3, "x", [], [SAVED], {}, {"schema": "terazi.machine/2"}, {1: 2}])
def test_other_things_are_no_machine(obj: object) -> None:
    with pytest.raises(UsageError, match="not a saved machine"):
        machine_from_json(obj)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["name"], 3, "machine.name"),
        (["name"], "x" * 3000, "machine.name"),
        (["host"], None, "machine.host"),
        (["host", "cores"], 0, "machine.host.cores"),
        (["host", "cores"], True, "machine.host.cores"),
        (["host", "ram_total_bytes"], -1, "machine.host.ram_total_bytes"),
        (["host", "ram_total_bytes"], 1e30, "machine.host.ram_total_bytes"),
        (["host", "ram_available_bytes"], "64GiB", "machine.host.ram_available_bytes"),
        (["host", "isa"], [1], "machine.host.isa"),
        (["host", "isa"], ["avx"] * 5000, "machine.host.isa"),
        (["host", "wibble"], 1, "unknown keys: 'wibble'"),
        (["devices", 1, "id"], "RPC0", "two devices with one id"),
        (["devices", 0, "memory_bandwidth", "basis"], "hearsay", "machine.devices[0].memory_bandwidth.basis"),
        (["devices", 0, "memory_bandwidth", "value"], float("nan"), "machine.devices[0].memory_bandwidth.value"),
        (["devices", 0, "unified_memory"], "yes", "machine.devices[0].unified_memory"),
        (["devices", 1, "pcie", "lanes"], 0, "machine.devices[1].pcie.lanes"),
        (["devices"], {}, "machine.devices"),
        (["links", 0, "a"], "CUDA9", "CUDA9"),
        (["links", 0, "kind"], "string", "machine.links[0].kind"),
        (["host", "numa"], [{"id": 0, "cpus": ["a"], "memory_bytes": None}], "machine.host.numa[0].cpus"),
    ],
)
def test_nonsense_is_told_where_it_is(path: list[str | int], value: object, where: str) -> None:
    broken = copy.deepcopy(SAVED)
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(UsageError) as caught:
        machine_from_json(broken)
    assert where in caught.value.message
    assert caught.value.hint


def test_a_missing_key_is_told() -> None:
    broken = copy.deepcopy(SAVED)
    del broken["host"]["cores"]
    with pytest.raises(UsageError, match=r"machine\.host\.cores"):
        machine_from_json(broken)
