"""``terazi up``: weigh, launch, serve, watch, drain, stop. The run loop that owns the deployments."""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from terazi.engines.llama_cpp.binary import Binary, ListedDevice
from terazi.errors import RefusedError, UsageError
from terazi.gateway.access import check_exposure
from terazi.gateway.app import create_app
from terazi.gateway.backend import find_served
from terazi.gateway.server import Gateway
from terazi.hardware.probe import load_catalogue, read_process_memory
from terazi.memory.llama_cpp.settings import BUILD
from terazi.memory.workload import Workload
from terazi.models.sources import load_model
from terazi.placement.plan import Plan, Refusal
from terazi.policy.lifecycle_messages import Phase
from terazi.service.beacon import Beacon, light
from terazi.service.config import Config
from terazi.service.deployment import Deployment, model_id
from terazi.service.engine_view import as_engine_sees
from terazi.service.paces import watch
from terazi.service.paths import cache_dir, state_dir
from terazi.service.power import power_terms, with_power
from terazi.service.records import keep, with_records
from terazi.service.weigh import find_machine, weigh_model
from terazi.service.weighing import Weighing
from terazi.supervisor.find_engine import find_llama_server, list_devices
from terazi.supervisor.log import read_log
from terazi.supervisor.process import resident
from terazi.supervisor.sweep import sweep_orphans
from terazi.telemetry.reconciliation import ProcessMemory

#: How long requests in flight may go on after the first Ctrl-C.
DRAIN_S = 30.0
#: How often a followed log is looked at.
_FOLLOW_EVERY_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Reporter(Protocol):
    """What the person at the terminal is told, as it happens."""

    def weighed(self, weighing: Weighing) -> None:
        """The bill, the map and the forecast of one model."""

    def say(self, text: str) -> None:
        """One line."""

    def loading(self, model: str, detail: str) -> None:
        """The model is still loading."""

    def serving(self, url: str, models: Sequence[str], api_key: str | None) -> None:
        """It is live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What ``terazi up`` was asked for."""

    models: tuple[str, ...]
    workload: Workload
    pins: Mapping[str, object]
    config: Config
    host: str
    port: int
    api_key: str | None
    price_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class _Engine:
    """The binary and what it says that it can use; None if it can't say."""

    binary: Binary
    devices: tuple[ListedDevice, ...] | None


def _memory_of(pid: int) -> ProcessMemory:
    anonymous, file = resident(pid)
    return ProcessMemory(anonymous_bytes=anonymous, file_bytes=file, device_bytes=read_process_memory(pid))


def _check_names(models: Sequence[str]) -> None:
    """Look at all headers before the first engine starts: a mistake in the last model shall not cost a load.

    Raises:
        UsageError, ModelFileError: one can't be read, or two would answer to one name.
    """
    if len(models) < 2:
        return
    names = [model_id(load_model(model)) for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two models are called {twice!r}", hint="name each once, or rename one of the files")


class Service:
    """Implements the gateway's ``Directory`` and ``Control`` over the deployments."""

    def __init__(self, request: UpRequest, reporter: Reporter) -> None:
        self._request = request
        self._reporter = reporter
        self._deployments: list[Deployment] = []
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        self._url = ""
        self._reconciling: set[asyncio.Task[None]] = set()

    # ---- Directory

    def served(self) -> tuple[Deployment, ...]:
        """All deployments, in the order in which they were asked for."""
        return tuple(self._deployments)

    def find(self, name: str) -> Deployment | None:
        """By id or alias; Ollama's ``:latest`` is the same model."""
        return find_served(self._deployments, name)

    # ---- Control

    async def snapshot(self) -> dict[str, object]:
        """``terazi ps --json``; each engine is asked how it is, briefly."""
        models = await asyncio.gather(*(deployment.snapshot() for deployment in self._deployments))
        return {
            "schema": "terazi.ps/1",
            "url": self._url,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._started,
            "draining": self._stopping.is_set(),
            "models": models,
        }

    async def stop(self, model: str | None) -> None:
        """Stop one model, or ask the whole service to stop.

        Raises:
            UsageError: no such model.
        """
        if model is None:
            self._stopping.set()
            return
        deployment = self._named(model)
        if self._deployments == [deployment]:
            self._stopping.set()  # the last one takes the service with it
            return
        await deployment.runner.stop(drain_s=DRAIN_S)
        with contextlib.suppress(ValueError):  # asked for twice at once
            self._deployments.remove(deployment)

    def logs(self, model: str | None, lines: int) -> list[str]:
        """The last lines of an engine's log.

        Raises:
            UsageError: no such model.
        """
        text = read_log(self._named(model).log_path).decode("utf-8", "replace")
        return text.splitlines()[-lines:] if lines > 0 else []

    async def follow(self, model: str | None) -> AsyncIterator[str]:
        """What the engine prints from now on."""
        runner = self._named(model).runner
        taken = runner.log.lines_taken if runner.log is not None else 0
        while not runner.state.ended:
            log = runner.log
            for line in log.lines_after(taken) if log is not None else ():
                yield line
            taken = log.lines_taken if log is not None else 0
            await asyncio.sleep(_FOLLOW_EVERY_S)

    def _named(self, model: str | None) -> Deployment:
        found = self.find(model) if model is not None else None
        if found is None and model is None and len(self._deployments) == 1:
            found = self._deployments[0]
        if found is None:
            names = ", ".join(d.card.id for d in self._deployments) or "none"
            raise UsageError(f"which model? {model or 'several are served'}", hint=f"served: {names}")
        return found

    # ---- the run

    async def run(self) -> None:
        """Until a signal, ``terazi stop``, or the failure of the last engine.

        Raises:
            RefusedError, EngineError, ServiceError, UsageError, ModelFileError
        """
        request = self._request
        check_exposure(request.host, request.api_key)
        _check_names(request.models)
        state = state_dir()
        for swept in (s for s in sweep_orphans(str(state)) if s.killed):
            self._reporter.say(f"stopped an engine that an earlier run had left behind: pid {swept.pid}")
        control_token = secrets.token_urlsafe(24)
        app = create_app(
            self,
            api_key=request.api_key,
            control=self,
            control_token=control_token,
            max_body_bytes=request.config.service.max_body_mib * 1024 * 1024,
        )
        gateway = Gateway(app, request.host, request.port)
        beacon: Path | None = None
        with self._signals():
            try:
                engine = await self._engine()
                first = self._weigh(request.models[0], engine)
                await gateway.start()
                self._url = gateway.address
                beacon = self._light(state, control_token)
                await self._launch_all(first, engine, state)
                if not self._stopping.is_set():
                    names = [d.card.id for d in self._deployments]
                    self._reporter.serving(self._url, names, request.api_key)
                    watching = asyncio.ensure_future(watch(lambda: self._deployments, self._reporter.say))
                    try:
                        await self._until_stopped()
                    finally:
                        watching.cancel()
                        await asyncio.gather(watching, return_exceptions=True)
            finally:
                if self._deployments:
                    self._reporter.say("draining, then stopping the engine (again to stop at once)")
                await self._shut_down(gateway)
                if beacon is not None:
                    with contextlib.suppress(OSError):
                        beacon.unlink(missing_ok=True)

    def _weigh(self, model: str, engine: "_Engine") -> tuple[Weighing, Plan]:
        """Weigh on the machine as it is now, with the devices that the engine can use."""
        machine, unused = as_engine_sees(find_machine(None), engine.binary, engine.devices, load_catalogue())
        weighing = weigh_model(
            model,
            machine,
            self._request.workload,
            self._request.pins,
            price_per_kwh=self._request.price_per_kwh,
        )
        _check_startable(weighing)
        terms = power_terms(self._request.config, price_per_kwh=self._request.price_per_kwh)
        self._reporter.weighed(with_power(with_records(weighing), terms))
        for note in unused:
            self._reporter.say(f"note: {note}")
        if isinstance(weighing.outcome, Refusal):
            nearest = (
                weighing.outcome.alternatives[0].change if weighing.outcome.alternatives else "a smaller model"
            )
            raise RefusedError(
                f"{weighing.spec.name} was not started: {weighing.outcome.reason}", hint=f"try {nearest}"
            )
        return weighing, weighing.outcome

    async def _engine(self) -> "_Engine":
        server = self._request.config.engines.llama_cpp.server
        binary = await asyncio.to_thread(find_llama_server, server, os.environ, cache_dir=str(cache_dir()))
        devices = await asyncio.to_thread(list_devices, binary)
        if binary.build is not None and f"b{binary.build}" != BUILD:
            self._reporter.say(f"note: the bill follows llama.cpp {BUILD}, and {binary.path} is {binary.label}")
        return _Engine(binary, devices)

    async def _launch_all(self, first: tuple[Weighing, Plan], engine: "_Engine", state: Path) -> None:
        """One after the other: each is planned with what the ones before it have left free."""
        for index, model in enumerate(self._request.models):
            if self._stopping.is_set():
                return
            weighing, plan = first if index == 0 else self._weigh(model, engine)
            deployment = Deployment(
                weighing,
                plan,
                engine.binary,
                alias=model,
                run_dir=state,
                limits=self._request.config.engines.llama_cpp,
                on_ready=self._became_ready,
            )
            self._deployments.append(deployment)
            deployment.runner.start()
            await self._load(deployment)

    async def _load(self, deployment: Deployment) -> None:
        """Wait until it has generated a token, telling how far it is; gives up when asked to stop."""
        ready = asyncio.ensure_future(deployment.ready())
        stopping = asyncio.ensure_future(self._stopping.wait())
        began = time.monotonic()
        try:
            while not ready.done() and not stopping.done():
                await asyncio.wait({ready, stopping}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                detail = f"{deployment.state}, {time.monotonic() - began:.0f} s"
                self._reporter.loading(deployment.card.id, detail)
            if ready.done():
                await ready
                await asyncio.gather(*self._reconciling)
        finally:
            for task in (ready, stopping):
                task.cancel()
            await asyncio.gather(ready, stopping, return_exceptions=True)

    def _became_ready(self, deployment: Deployment) -> None:
        """After each start, a restart too."""
        task = asyncio.ensure_future(self._reconcile(deployment))
        self._reconciling.add(task)
        task.add_done_callback(self._reconciling.discard)

    async def _reconcile(self, deployment: Deployment) -> None:
        """Hold the bill against the log, say how that went in a line, and keep it."""
        pid = deployment.runner.pid
        process = await asyncio.to_thread(_memory_of, pid) if pid is not None else ProcessMemory()
        found = deployment.reconcile(process)
        self._reporter.say(f"{deployment.card.id}: {found.sentence()}")
        if found.rows:
            await asyncio.to_thread(keep, found, self._reporter.say)

    async def _until_stopped(self) -> None:
        """Returns on a stop; raises when the last engine has failed for good."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not stopping.done():
                alive = [d for d in self._deployments if not d.runner.state.ended]
                if not alive:
                    for deployment in self._deployments:
                        if deployment.runner.state.phase is Phase.FAILED:
                            raise deployment.runner.error()
                    return
                # only those that live: one that has ended would wake this loop at once, for ever
                watched = {asyncio.ensure_future(d.runner.wait_stopped()) for d in alive}
                await asyncio.wait({stopping, *watched}, return_when=asyncio.FIRST_COMPLETED)
                for task in watched:
                    task.cancel()
                await asyncio.gather(*watched, return_exceptions=True)
        finally:
            stopping.cancel()

    async def _shut_down(self, gateway: Gateway) -> None:
        await gateway.drain(DRAIN_S)
        await asyncio.gather(*(d.runner.stop(drain_s=0) for d in self._deployments))
        await asyncio.gather(*self._reconciling, return_exceptions=True)
        await gateway.stop()

    def _light(self, state: Path, control_token: str) -> Path | None:
        """Tell the other commands where this service is; a full disk costs that, not the service."""
        beacon = Beacon(
            url=self._url,
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            control_token=control_token,
            api_key=self._request.api_key,
        )
        try:
            return light(state / "services", beacon)
        except OSError as error:
            self._reporter.say(
                f"note: terazi chat, ps, logs and stop won't find this service, since its address can't be "
                f"kept in {state}: {error.strerror}"
            )
            return None

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """The first signal asks for a drained stop, a second one kills the engines at once."""
        loop = asyncio.get_running_loop()

        hurries: list[asyncio.Future[None]] = []  # kept, or they would be collected before they ran

        def asked() -> None:
            if self._stopping.is_set():
                hurries.extend(asyncio.ensure_future(d.runner.stop(drain_s=0)) for d in self._deployments)
            self._stopping.set()

        for number in _SIGNALS:
            loop.add_signal_handler(number, asked)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def _check_startable(weighing: Weighing) -> None:
    """Refuse, before anything is launched, what the engine can't open.

    Raises:
        UsageError: the model's files are elsewhere, or of a format that llama.cpp doesn't load.
    """
    from terazi.models.hub import is_remote

    spec = weighing.spec
    if any(is_remote(file.path) for file in spec.files):
        raise UsageError(
            f"{spec.origin} was weighed from its header, but to run it must be here.",
            hint="Download it first, e.g. with: hf download ORG/REPO FILE.gguf --local-dir .",
        )
    if spec.format != "gguf":
        raise UsageError(
            f"{spec.name} is no GGUF model, and llama.cpp loads no other.",
            hint="Get it as a .gguf file, or convert it with llama.cpp's convert_hf_to_gguf.py.",
        )
