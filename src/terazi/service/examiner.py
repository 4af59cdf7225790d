"""Puts the questions of one verification to the engine and compares the answers.

Which oracle is asked is decided by what it costs. The estimator allocates nothing and is always asked if it is
there. A real load of llama-server is the truth, and is made where the host can hold the whole plan at once,
accelerators included, since the stand-ins are on this host too.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from terazi.engines.llama_cpp import oracle
from terazi.engines.llama_cpp.binary import Binary
from terazi.engines.llama_cpp.extra_files import ExtraFile, as_typed
from terazi.engines.llama_cpp.observe import LogReader
from terazi.engines.llama_cpp.reconcile import reconcile
from terazi.engines.llama_cpp.stand_ins import StoodIn, stand_in
from terazi.engines.measured import LineKey, confirm
from terazi.hardware.machine import Host
from terazi.memory.bill import HOST, Bill, LineBasis
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.estimate import estimate
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.models.sources.headers import HeaderBytes, write_twin
from terazi.service.scratch import scratch_folder
from terazi.service.verification import Asked, Verification
from terazi.service.weighing import Weighing
from terazi.supervisor.asking import ask, stand_ins
from terazi.supervisor.find_engine import list_devices
from terazi.supervisor.process import free_port
from terazi.telemetry.reconciliation import lines_held
from terazi.units import format_bytes

#: The estimator answers in seconds, also for a trillion parameters.
ESTIMATE_WITHIN_S = 60.0
#: Of the free RAM, what a real load may take; the rest is for the tools around it.
LOAD_SHARE = 0.85

Progress: TypeAlias = Callable[[str], None]


class Examiner:
    """One verification.

    Args:
        weighing: what was weighed.
        settings: its settings.
        binary: the engine.
        host: this host, as it is now.
        progress: is told each step, for a person.
        header: gives the header's bytes of the model's files.
        load_within_s: how long a real load may take.
    """

    def __init__(
        self,
        weighing: Weighing,
        *,
        settings: LlamaCppSettings,
        binary: Binary,
        host: Host,
        progress: Progress,
        header: HeaderBytes,
        load_within_s: float,
    ) -> None:
        self._weighing = weighing
        self._spec = weighing.spec
        self._companions = weighing.companions
        self._settings = settings
        self._binary = binary
        self._host = host
        self._progress = progress
        self._header = header
        self._load_within_s = load_within_s
        self._asked: list[Asked] = []
        self._unasked: list[str] = []
        self._held: dict[LineKey, int] = {}

    async def examine(self) -> tuple[Verification, Bill]:
        """Ask; returns what was said, and the bill with its confirmed lines measured.

        Raises:
            UsageError, ModelFileError: there can be no twin of the model.
            EngineError: the engine can't be started, or lacks a flag.
        """
        bill, names = self._weighing.outcome.bill, {HOST: HOST}
        devices = self._weighing.machine.devices if self._settings.devices != ("none",) else ()
        program = _beside(self._binary, oracle.STAND_IN_PROGRAMS)
        if devices and program is None:
            self._unasked.append(
                f"anything: the plan has {len(devices)} accelerators, and there is no ggml-rpc-server beside "
                f"{self._binary.path} to stand in for them"
            )
        else:
            with scratch_folder() as folder:
                twin = write_twin(self._spec, folder, self._header)
                beside = []
                for number, companion in enumerate(self._companions):
                    own = Path(folder) / str(number)
                    own.mkdir()
                    twin_of = write_twin(companion.spec, str(own), self._header)
                    beside.append(as_typed(ExtraFile(companion.part, companion.flag, twin_of, companion.scale)))
                if devices:
                    self._progress(f"starting {len(devices)} stand-in device{'s' * (len(devices) > 1)}")
                async with stand_ins(
                    lambda port: oracle.stand_in_launch(program or "", port), len(devices)
                ) as endpoints:
                    stood = stand_in(self._spec, self._settings, devices, endpoints)
                    names = stood.names
                    stood = self._apart_from_own_devices(stood)
                    await self._estimate(stood, twin)
                    await self._load(stood, twin, beside)
        self._say_what_stand_ins_are_not()
        if self._binary.build is not None and f"b{self._binary.build}" != BUILD:
            self._unasked.append(f"{BUILD}, whose rules the bill follows: this engine is {self._binary.label}")
        bill = confirm(bill, self._held, f"{self._binary.label} was asked", names=names)
        lines = [line for line in bill.lines if line.bytes]
        verification = Verification(
            build=self._binary.label,
            asked=tuple(self._asked),
            confirmed=sum(line.basis is LineBasis.MEASURED for line in lines),
            lines=len(lines),
            unasked=tuple(self._unasked),
        )
        return verification, bill

    def _apart_from_own_devices(self, stood: StoodIn) -> StoodIn:
        """A binary that finds cards of its own must be told to leave them alone."""
        if stood.settings.devices or not list_devices(self._binary):
            return stood
        only = tuple(device.id for device in stood.devices) or ("none",)
        return replace(stood, settings=replace(stood.settings, devices=only))

    async def _estimate(self, stood: StoodIn, twin: str) -> None:
        program = _beside(self._binary, (oracle.ESTIMATOR,))
        if program is None:
            self._unasked.append(f"the estimator: there is no {oracle.ESTIMATOR} beside {self._binary.path}")
            return
        if self._settings.split_mode == "tensor" and stood.devices:
            self._unasked.append("the estimator: with -sm tensor it has one row for all devices")
            return
        isa, spec = self._host.isa, self._spec
        settings = oracle.estimator_settings(stood.settings, resolve(spec, stood.settings, stood.devices))
        estimates = estimate(spec, settings, stood.devices, isa)
        launch = oracle.estimator_launch(program, settings, twin)
        self._progress(f"asking {oracle.ESTIMATOR} for its estimate")
        began = time.monotonic()
        answer = await ask(launch, within_s=ESTIMATE_WITHIN_S)
        table = oracle.read_table(answer.text)
        failure = None
        if not table:
            failure = _why(answer.text, timed_out=answer.timed_out, within_s=ESTIMATE_WITHIN_S, code=answer.code)
        rows = oracle.compare_table(estimates, table) if table else ()
        self._keep(
            Asked(
                tool=oracle.ESTIMATOR,
                argv=launch.argv,
                seconds=time.monotonic() - began,
                rows=rows,
                failure=failure,
            )
        )

    async def _load(self, stood: StoodIn, twin: str, beside: list[tuple[str, str]]) -> None:
        if self._settings.tool == oracle.ESTIMATOR:
            self._unasked.append(f"a real load: the bill is of {oracle.ESTIMATOR}, which loads nothing")
            return
        settings = oracle.server_settings(stood.settings, resolve(self._spec, stood.settings, stood.devices))
        # what is reserved only with a first batch is no part of the answer where none is run
        settings = replace(settings, warmup=self._warms())
        bill = weigh(self._spec, settings, stood.devices, self._host.isa, self._companions)
        room = round(self._host.usable_ram_bytes * LOAD_SHARE)
        if settings.repack and _needs(bill) > room:
            # repacking makes a second copy of what could stay a hole
            plain = replace(settings, repack=False)
            lighter = weigh(self._spec, plain, stood.devices, self._host.isa, self._companions)
            if _needs(lighter) <= room < _needs(bill):
                settings, bill = plain, lighter
                self._unasked.append("repacked weights: the host has no room for them, so --no-repack was asked")
        if _needs(bill) > room:
            self._unasked.append(
                f"a real load: it takes {format_bytes(_needs(bill))}, stand-ins included, and this host may "
                f"spare {format_bytes(room)}"
            )
            return
        await self._load_for_real(bill, settings, twin, beside)

    async def _load_for_real(
        self, bill: Bill, settings: LlamaCppSettings, twin: str, beside: list[tuple[str, str]]
    ) -> None:
        launch = oracle.server_launch(
            self._binary, settings, twin, port=free_port(), beside=beside, warmup=self._warms()
        )
        reader = LogReader()
        began = time.monotonic()
        self._progress(f"loading the twin in llama-server ({format_bytes(_needs(bill))})")

        def listen(text: str) -> bool:
            reader.feed(text)
            return reader.report.loaded

        answer = await ask(launch, within_s=self._load_within_s, listen=listen)
        failure = None
        if not answer.heard:
            reader.close()
            known = reader.failure
            failure = (
                known.cause
                if known is not None
                else _why(answer.text, timed_out=answer.timed_out, within_s=self._load_within_s, code=answer.code)
            )
        rows = reconcile(bill, reader.report) if failure is None else ()
        if failure is None and not rows:
            failure = "its log names no buffers"
        self._keep(
            Asked(
                tool=oracle.SERVER,
                argv=launch.argv,
                seconds=time.monotonic() - began,
                rows=rows,
                failure=failure,
            )
        )

    def _warms(self) -> bool:
        """A twin computes nothing of use; but encoders and adapters are reserved for with the first batch."""
        return self._settings.warmup and any(companion.part != "draft" for companion in self._companions)

    def _keep(self, asked: Asked) -> None:
        """The later question is the better one: what it doesn't confirm isn't confirmed."""
        self._asked.append(asked)
        for row in asked.rows:
            for formula, _ in row.parts:
                self._held.pop((row.device, formula), None)
        self._held.update(lines_held(asked.rows))

    def _say_what_stand_ins_are_not(self) -> None:
        others = {d.backend for d in self._weighing.machine.devices if d.backend.lower() != "rpc"}
        if others and self._asked:
            self._unasked.append(
                f"what is {', '.join(sorted(others))}'s own (alignment, padding, copies, the driver's memory): "
                "stand-ins are CPUs, and lines that differ there keep their basis"
            )


def _needs(bill: Bill) -> int:
    """All that a load on this host touches: stand-ins, host, file pages, and what is held only meanwhile."""
    every = (*bill.lines, *bill.page_cache, *bill.loading, *bill.process)
    return sum(line.bytes for line in every if line.formula != "driver-context")


def _why(text: str, *, timed_out: bool, within_s: float, code: int | None) -> str:
    if timed_out:
        return f"it gave no answer within {within_s:g} s"
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
    return f"it ended{'' if code is None else f' with {code}'}: {last[:300]}"


def _beside(binary: Binary, names: tuple[str, ...]) -> str | None:
    """A program in the folder of *binary*, or of the file that it is a link to."""
    for folder in (Path(binary.path).parent, Path(binary.path).resolve().parent):
        for name in names:
            if os.access(folder / name, os.X_OK):
                return str(folder / name)
    return None
