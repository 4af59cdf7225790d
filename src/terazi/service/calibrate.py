"""``terazi calibrate``: finds the engine, sees that the machine is quiet, measures, keeps."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from terazi import __version__
from terazi.engines.llama_cpp.binary import Binary
from terazi.errors import EngineError, UsageError
from terazi.hardware.machine import Machine
from terazi.hardware.probe import load_catalogue
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.sources import load_model
from terazi.performance.calibration import Calibration
from terazi.performance.saved_calibration import calibration_to_json
from terazi.service.bystanders import Business, look, too_busy
from terazi.service.calibrations import ENGINE, driver_text, machine_key, program_of
from terazi.service.calibrator import TYPES, Calibrator, Effort, Measured
from terazi.service.config import load_config
from terazi.service.engine_view import as_engine_sees
from terazi.service.paths import cache_dir
from terazi.service.records import store_file
from terazi.service.stoppable import run
from terazi.service.stopwatch import Stopwatch
from terazi.service.weigh import find_machine
from terazi.supervisor.find_engine import find_llama_server, list_devices
from terazi.telemetry.store.speeds import Kept, forget_calibrations, keep_calibration, kept_calibrations
from terazi.telemetry.store.sqlite import Store

#: Looks at what else is running before a busy machine is refused, a second each.
_LOOKS = 5

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was measured, on what, and how well it went."""

    machine: str
    calibration: Calibration
    memory_bytes_per_s: float
    disturbed: float
    seconds: float
    notes: tuple[str, ...]
    version: str = __version__


def calibrate(
    progress: Progress,
    *,
    models: Sequence[str] = (),
    force: bool = False,
    effort: Effort = Effort(),  # noqa: B008 - it is frozen
    look_at_others: Callable[[], Business] = look,
) -> Report:
    """Measure this machine, and keep what was found once all of it is there.

    Args:
        progress: is told each step, for a person.
        models: whose tensor types are measured besides the common ones.
        force: measure although the machine is busy.
        effort: how much is done.
        look_at_others: tells how busy the machine is.

    Raises:
        EngineError: there is no engine with its llama-bench, it failed, or the machine is busy.
        ModelFileError: a model can't be read.
        StoreError: the result can't be kept.
        KeyboardInterrupt: told to stop; nothing is left behind, and an earlier calibration stays as it was.
    """
    types = (*TYPES, *_types_of(models))
    binary = find_llama_server(load_config().engines.llama_cpp.server, os.environ, cache_dir=str(cache_dir()))
    probed = find_machine(None)
    machine, notes = as_engine_sees(probed, binary, list_devices(binary), load_catalogue())
    watch = Stopwatch(binary, threads=machine.host.cores)
    busy = _quiet_or_refuse(progress, look_at_others, force=force)

    async def measured() -> Measured:
        with tempfile.TemporaryDirectory(prefix="terazi-calibrate-") as folder:
            calibrator = Calibrator(
                watch,
                host=machine.host,
                devices=[(d.id, d.name) for d in machine.devices],
                folder=folder,
                progress=progress,
                types=types,
                effort=effort,
            )
            return await calibrator.measure()

    found = run(measured())
    report = _report(probed, binary, found, (*notes, *busy))
    _keep(report, binary)
    return report


def shown() -> dict[str, Any]:
    """All calibrations that are kept, the newest first, and which of them this machine would use.

    Raises:
        StoreError: the file can't be used.
    """
    machine = machine_key(find_machine(None))
    kept = kept_calibrations(Store(store_file())) if os.path.exists(store_file()) else ()  # noqa: PTH110
    return {
        "schema": "terazi.calibrations/1",
        "machine": machine,
        "calibrations": [
            {"machine": k.machine, "driver": k.driver, "this_machine": k.machine == machine, **_loaded(k.document)}
            for k in kept
        ],
    }


def forget() -> int:
    """Drop what was measured on this machine; how many calibrations that were.

    Raises:
        StoreError: the file can't be used.
    """
    if not os.path.exists(store_file()):  # noqa: PTH110
        return 0
    return forget_calibrations(Store(store_file()), machine_key(find_machine(None)))


def report_to_json(report: Report) -> dict[str, Any]:
    """The document that ``--json`` prints."""
    return {
        "schema": "terazi.calibration-report/1",
        "machine": report.machine,
        "calibration": calibration_to_json(report.calibration),
        "memory_bytes_per_s": report.memory_bytes_per_s,
        "disturbed": report.disturbed,
        "seconds": report.seconds,
        "notes": list(report.notes),
        "version": report.version,
    }


def _types_of(models: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for model in models:
        spec = load_model(model)
        if spec.format != "gguf":
            raise UsageError(
                f"{model} is no GGUF model, and llama.cpp is what is measured.", hint="name a .gguf file"
            )
        found.update((t.dtype, None) for t in spec.tensors if len(t.shape) > 1 and _can_be_made_up(t.dtype))
    return tuple(found)


def _can_be_made_up(dtype: str) -> bool:
    return dtype in TYPE_BY_NAME and dtype not in {"f64", "i8", "i16", "i32", "i64", "q8_1", "q8_K"}


def _quiet_or_refuse(progress: Progress, look_at: Callable[[], Business], *, force: bool) -> tuple[str, ...]:
    looks: list[Business] = []
    for _ in range(_LOOKS):
        looks.append(look_at())
        if not too_busy(looks[-1:]):
            return ()
        progress(f"waiting: {looks[-1].words()}")
        if force:
            break
    words = looks[-1].words()
    if force:
        return (f"measured although {words}",)
    raise EngineError(
        f"This machine is busy: {words}, so a measurement would be of that, too.",
        hint="Stop what is running or wait for it, or measure all the same with --force.",
    )


def _report(machine: Machine, binary: Binary, found: Measured, notes: tuple[str, ...]) -> Report:
    key = machine_key(machine)
    if found.disturbed > 0.3:
        notes = (
            *notes,
            f"{found.disturbed:.0%} of the runs were disturbed and don't count; the figures may be low",
        )
    calibration = Calibration(
        machine=key,
        engine=ENGINE,
        build=binary.label,
        driver=driver_text() or None,
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        devices=found.devices,
        links=found.links,
    )
    return Report(
        machine=key,
        calibration=calibration,
        memory_bytes_per_s=found.memory_bytes_per_s,
        disturbed=found.disturbed,
        seconds=found.seconds,
        notes=notes,
    )


def _keep(report: Report, binary: Binary) -> None:
    document = report_to_json(report) | {"program": program_of(binary.path)}
    made = report.calibration
    keep_calibration(
        Store(store_file()),
        Kept(made.machine, made.engine, made.driver or "", made.build, time.time(), json.dumps(document)),
    )


def _loaded(document: str) -> dict[str, Any]:
    try:
        said = json.loads(document)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
