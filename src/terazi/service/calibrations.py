"""Which calibration holds for a machine: kept by ``terazi calibrate``, looked up by every forecast.

The look-up is on the way of every ``terazi weigh``: nothing is imported before it is known that there is a store.
A calibration that was made under another engine or driver than is here now is still far better than a guess: it is
used with a wide interval, and that is said.
"""

import os
from typing import TYPE_CHECKING, NamedTuple

from terazi.hardware.machine import Machine
from terazi.models.spec import ModelSpec
from terazi.placement.plan import Plan
from terazi.service.records import store_file
from terazi.units import GIB

if TYPE_CHECKING:
    from terazi.performance.calibration import Calibration
    from terazi.performance.forecast import Forecast

ENGINE = "llama.cpp"
#: What a stale calibration's figures may be off by.
STALE_SPREAD = (0.7, 1.4)
_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
_TEXT_LIMIT = 4096


class Program(NamedTuple):
    """The engine's file, as it was when it was measured."""

    path: str
    mtime_ns: int
    size_bytes: int


class InUse(NamedTuple):
    """The calibration that a forecast is to use, what is said of it, and why it is stale, if it is."""

    calibration: "Calibration"
    words: str
    stale: str | None


def machine_key(machine: Machine) -> str:
    """What tells machines apart as far as speed goes, readable: CPU, cores and memory.

    Free memory and the host's name don't count: equal parts are equally fast. Cards are no part of it, since which
    of them there are depends on the engine that looks; each is told by its own id and name.
    """
    host = machine.host
    return f"{host.cpu_name or 'CPU'}, {host.cores} cores, {round(host.ram_total_bytes / GIB)} GiB"


def model_key(spec: ModelSpec, plan: Plan) -> str:
    """What tells models, and where their layers are, apart as far as speed goes."""
    layers = ",".join(f"{d.id}:{d.layers[1] - d.layers[0] + 1}" for d in plan.devices if d.layers is not None)
    return f"{spec.name} {spec.quantisation} {spec.weights_bytes} {layers}"


def driver_text() -> str:
    """The first line of what the graphics driver's module says of itself; empty without one."""
    for path in _DRIVERS:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs start-up time
                return file.read(_TEXT_LIMIT).partition("\n")[0].strip()
        except OSError:
            continue
    return ""


def program_of(path: str) -> Program | None:
    """The file at *path* as it is now; None if it isn't there."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - pathlib costs start-up time
    except OSError:
        return None
    return Program(path, stat.st_mtime_ns, stat.st_size)


def calibration_of(machine: Machine, *, build: str | None = None) -> InUse | None:
    """The calibration of *machine*; None if it never was calibrated, or is another machine than this one.

    Args:
        machine: as the probe reads it.
        build: of the engine that will run; None if that isn't known yet: then the file that was measured is
            looked at, and must not have changed.
    """
    path = store_file()
    if not os.path.exists(path):  # noqa: PTH110 - as above
        return None
    from terazi.telemetry.store.lookup import measured

    found = measured(path, machine_key(machine), ENGINE)
    if found is None:
        return None
    driver = driver_text()
    usable = [_read(*row) for row in found.calibrations]
    candidates = [entry for entry in usable if entry is not None]
    if not candidates:
        return None
    fresh = [c for c in candidates if _stale(c, driver, build) is None]
    chosen = (fresh or candidates)[0]
    stale = _stale(chosen, driver, build)
    words = f"this machine, calibrated on {chosen.calibration.measured_at[:10]} with {chosen.calibration.build}"
    if stale is None:
        return InUse(chosen.calibration, words, None)
    return InUse(_widened(chosen.calibration), f"{words}; {stale}: run terazi calibrate again", stale)


def taught(said: "Forecast", spec: ModelSpec, plan: Plan, machine: Machine) -> "Forecast":
    """*said*, corrected by what deployments of *plan*'s model reached on this machine, if there were enough."""
    path = store_file()
    if not os.path.exists(path):  # noqa: PTH110 - as above
        return said
    from terazi.telemetry.store.lookup import measured

    found = measured(path, machine_key(machine), ENGINE)
    if found is None or not found.speeds:
        return said
    from terazi.performance.learned import corrected, learn

    wanted, newest = model_key(spec, plan), found.speeds[0][1]
    # an engine's update may have changed its speed
    ratios = [real / told for model, build, _, real, told in found.speeds if (model, build) == (wanted, newest)]
    learned = learn(ratios)
    return said if learned is None else corrected(said, learned)


class _Candidate(NamedTuple):
    driver: str
    calibration: "Calibration"
    program: Program | None


def _read(driver: str, build: str, document: str) -> _Candidate | None:
    import json

    from terazi.performance.saved_calibration import calibration_from_json

    try:
        said = json.loads(document)
        calibration = calibration_from_json(said["calibration"])
        program = said.get("program")
        made = None if program is None else Program(str(program[0]), int(program[1]), int(program[2]))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return _Candidate(driver, calibration, made) if calibration.build == build else None


def _stale(candidate: _Candidate, driver: str, build: str | None) -> str | None:
    if candidate.driver != driver:
        return "the graphics driver is another one now"
    if build is not None:
        return None if candidate.calibration.build == build else f"the engine is {build} now"
    if candidate.program is not None and program_of(candidate.program.path) != candidate.program:
        return f"{candidate.program.path} is no longer the file that was measured"
    return None


def _widened(calibration: "Calibration") -> "Calibration":
    from dataclasses import replace

    devices = tuple(
        replace(d, decode_spread=STALE_SPREAD, prefill_spread=STALE_SPREAD) for d in calibration.devices
    )
    return replace(calibration, devices=devices)
