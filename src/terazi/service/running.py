"""``terazi up``: weigh, launch, serve, watch, drain, stop. The run loop around the fleet."""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import psutil

from terazi.engines.llama_cpp.binary import Binary, ListedDevice
from terazi.errors import EngineError
from terazi.gateway.access import Keyring, check_exposure
from terazi.gateway.account import Reader
from terazi.gateway.app import create_app
from terazi.gateway.journal import Journal
from terazi.gateway.seats import Seats
from terazi.gateway.server import Gateway, fingerprint, tls_context
from terazi.hardware.machine import Machine
from terazi.hardware.probe import load_catalogue, read_process_memory
from terazi.memory.llama_cpp.settings import BUILD
from terazi.policy.dispatcher import Limits
from terazi.policy.guard_messages import Stage
from terazi.service.beacon import Beacon, light
from terazi.service.config import Config, ServiceTable
from terazi.service.control import ServiceControl
from terazi.service.curator import Curator
from terazi.service.deployment import Deployment
from terazi.service.driver import Driver
from terazi.service.engine_view import as_engine_sees
from terazi.service.fleet import Fleet
from terazi.service.guard import Guard
from terazi.service.keys import callers
from terazi.service.library import ModelLibrary
from terazi.service.log_output import apply, logging_as
from terazi.service.observing import observing
from terazi.service.own_process import own_figures
from terazi.service.paces import watch
from terazi.service.paths import cache_dir, state_dir
from terazi.service.planning import Planning, plan_together
from terazi.service.power import power_terms, with_power
from terazi.service.records import keep, with_records
from terazi.service.relief import FleetRelief
from terazi.service.reload import watch_file
from terazi.service.room import free_for_models, with_room
from terazi.service.scaling import Scaling
from terazi.service.up_request import Reporter, UpRequest
from terazi.service.weigh import find_machine
from terazi.service.wish import Wish, wish_of
from terazi.service.yard import Yard
from terazi.supervisor.find_engine import find_llama_server, list_devices
from terazi.supervisor.process import resident
from terazi.supervisor.sweep import sweep_orphans
from terazi.telemetry.reconciliation import ProcessMemory

_log = logging.getLogger(__name__)

_STOPS = (signal.SIGINT, signal.SIGTERM)
#: Python's own thresholds for the three generations.
_COLLECT = (700, 10, 10)


class _Bounds(TypedDict):
    max_queued: int
    max_queued_each: int
    max_wait_s: float


def _bounds(table: ServiceTable) -> _Bounds:
    return {
        "max_queued": table.max_queued,
        "max_queued_each": table.max_queued_each,
        "max_wait_s": table.ready_wait_s,
    }


def _memory_of(pid: int) -> ProcessMemory:
    anonymous, file = resident(pid)
    return ProcessMemory(anonymous_bytes=anonymous, file_bytes=file, device_bytes=read_process_memory(pid))


def _failure(deployment: Deployment) -> EngineError | None:
    """Why its engine isn't there, if that was not anybody's wish."""
    state = deployment.runner.state
    return deployment.given_up or (deployment.runner.error() if state.ended and not state.stop_wanted else None)


def _settle_memory() -> None:
    """From a command that is over soon to a service that stays.

    Commands collect garbage seldom. Here engines that went, each a knot of objects that know each other, would lie
    about until millions of others had come. What the start made stays: to go through all of that again and again
    was a quarter of a request's cost, and a pause for everybody.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Service:
    """One run of ``terazi up``."""

    def __init__(self, request: UpRequest, reporter: Reporter) -> None:
        self._request = request
        self._config = request.config
        self._reporter = reporter
        self._fleet: Fleet | None = None
        self._gateway: Gateway | None = None
        self._control: ServiceControl | None = None
        self._stopping = asyncio.Event()
        self._settled: Callable[[], None] = lambda: None
        self._scaling: Scaling | None = None
        self._beacon: Path | None = None
        self._background: set[asyncio.Task[None]] = set()

    # ---- the run

    async def run(self) -> None:
        """Until a signal or ``terazi stop``.

        Raises:
            RefusedError, EngineError, ServiceError, UsageError, ModelFileError
        """
        request = self._request
        state = state_dir()
        for swept in (s for s in sweep_orphans(str(state)) if s.killed):
            self._reporter.say(f"stopped an engine that an earlier run had left behind: pid {swept.pid}")
        keyring = Keyring(digests=callers(self._config, os.environ, api_key=request.api_key))
        check_exposure(request.host, bool(keyring.callers))
        with self._signals():
            async with observing(state, self._reporter.say) as readers:
                with logging_as(self._config.log):
                    binary, devices = await self._engine()
                    driver = Driver()
                    yard = Yard(
                        binary=binary,
                        look=partial(self._look, binary, devices),
                        run_dir=state,
                        config=self._config,
                        on_ready=self._became_ready,
                        device_memory=driver.memory_of,
                        price_per_kwh=self._price(self._config),
                    )
                    await self._run(yard, self._plan(yard), keyring, readers, driver)

    async def _run(
        self, yard: Yard, planning: Planning, keyring: Keyring, readers: Sequence[Reader], driver: Driver
    ) -> None:
        request, table, token = self._request, self._config.service, secrets.token_urlsafe(24)
        fleet = self._fleet = Fleet(yard)
        seats = fleet.seats = Seats(fleet, keeper=fleet, limits=Limits(**_bounds(table)))
        curator = Curator(fleet, yard, keyring, api_key=request.api_key, follow=not request.wishes)
        typed = {"service.api_key": request.api_key, "power.price_per_kwh": request.price_per_kwh}
        control = ServiceControl(
            fleet,
            curator,
            seats.survey,
            self._config,
            path=request.config_path,
            stopping=self._stopping,
            typed=[key for key, value in typed.items() if value is not None],
            take_over=lambda config: self._take_over(config, yard, seats, guard, token),
        )
        self._control = control
        library = ModelLibrary(yard.run_dir / "models", curator)
        journal = Journal(yard.run_dir / "journal")
        if left := journal.open().count:
            self._reporter.say(f"an earlier run ended with {left} requests unanswered")
        relief = FleetRelief(fleet, seats, yard)
        guard = Guard(
            self._config.guard, relief, state_dir=yard.run_dir, cards=driver.cards, moving=lambda: fleet.moving
        )
        self._settled = guard.settled
        app = create_app(
            fleet,
            keyring=keyring,
            seats=seats,
            readers=readers,
            sources=(seats.figures, fleet.figures, guard.figures, own_figures),
            control=control,
            control_token=token,
            max_body_bytes=table.max_body_mib * 1024 * 1024,
            allowed_origins=table.allowed_origins,
            ready_wait_s=table.ready_wait_s,
            heartbeat_s=table.heartbeat_s,
            library=library,
            journal=journal,
            paused=lambda: guard.stage is not Stage.OPEN,
        )
        tls = tls_context(table.tls_cert, table.tls_key) if table.tls_cert and table.tls_key else None
        gateway = self._gateway = Gateway(app, request.host, request.port, tls=tls)
        self._scaling = Scaling(fleet, seats.survey)
        try:
            await gateway.start()
            control.url = gateway.address
            self._beacon = self._light(yard.run_dir, token)
            await self._begin(planning, curator, library)
            if not self._stopping.is_set():
                await self._serve(guard, keyed=not keyring.open)
        finally:
            if any(deployment.state != "stopped" for deployment in fleet.deployments()):
                self._reporter.say("draining, then stopping the engine (again to stop at once)")
            await relief.close()
            seats.drain()
            await library.close()
            await curator.close()
            await gateway.drain(self._config.service.drain_s)
            await fleet.stop(0)
            await asyncio.gather(*self._background, return_exceptions=True)
            seats.close()
            await gateway.stop()
            await journal.close()
            if self._beacon is not None:
                with contextlib.suppress(OSError):
                    self._beacon.unlink(missing_ok=True)

    def _take_over(self, config: Config, yard: Yard, seats: Seats, guard: Guard, token: str) -> None:
        """What the fleet and the keyring have not followed already; ``effects`` says what can't be followed."""
        before, self._config = self._config, config
        seats.rebound(**_bounds(config.service))
        guard.reconfigure(config.guard)
        apply(config.log)
        yard.price_per_kwh = self._price(config)
        if before.service.api_key != config.service.api_key:
            self._beacon = self._light(yard.run_dir, token)

    def _price(self, config: Config) -> float | None:
        typed = self._request.price_per_kwh
        return config.power.price_per_kwh if typed is None else typed

    def _look(self, binary: Binary | None, devices: Sequence[ListedDevice] | None) -> Machine:
        machine = find_machine(None)
        return machine if binary is None else as_engine_sees(machine, binary, devices, load_catalogue())[0]

    async def _engine(self) -> tuple[Binary | None, tuple[ListedDevice, ...] | None]:
        """The engine and its devices.

        Raises:
            EngineError: there is none, and models are to be started.
        """
        server = self._config.engines.llama_cpp.server
        try:
            binary = await asyncio.to_thread(find_llama_server, server, os.environ, cache_dir=str(cache_dir()))
            devices = await asyncio.to_thread(list_devices, binary)
        except EngineError as error:
            if self._wishes():
                raise
            _log.info("no models can be started here: %s", error.message)
            return None, None
        if binary.build is not None and f"b{binary.build}" != BUILD:
            self._reporter.say(f"note: the bill follows llama.cpp {BUILD}, and {binary.path} is {binary.label}")
        for note in as_engine_sees(find_machine(None), binary, devices, load_catalogue())[1]:
            self._reporter.say(f"note: {note}")
        return binary, devices

    def _wishes(self) -> tuple[Wish, ...]:
        """The models of the command line, or those of the configuration."""
        tables = self._config.models
        return self._request.wishes or tuple(wish_of(table) for table in tables if table.source is not None)

    def _plan(self, yard: Yard) -> Planning:
        """All models that are asked for, on the machine as it is now, less what the configuration reserves."""
        request = self._request
        wishes = self._wishes()
        if not wishes:
            return Planning(planned=(), together=True)
        machine = yard.look()
        machine = with_room(machine, free_for_models(machine, (), self._config.memory))
        planning = plan_together(wishes, machine, price_per_kwh=yard.price_per_kwh)
        terms = power_terms(self._config, price_per_kwh=request.price_per_kwh)
        for planned in planning.planned:
            self._reporter.weighed(with_power(with_records(planned.weighing), terms))
        if planning.reason:
            self._reporter.say(planning.reason)
        return planning

    async def _begin(self, planning: Planning, curator: Curator, library: ModelLibrary) -> None:
        """Serve all models; load the pinned ones, then those that fit, and wait for them."""
        fleet, request = self._the_fleet(), self._request
        curator.take(planning.planned)
        for url, name in request.attach:
            await curator.attach(url, name)
        if not request.wishes:
            for table in self._config.models:
                if table.url is not None:
                    await curator.attach(table.url, table.name, table)
        for note in await library.open():
            self._reporter.say(f"note: {note}")
        asked = sorted(planning.planned, key=lambda p: (not p.wish.pinned, -p.wish.priority))
        for planned in asked:
            if planned.wish.replicas[0] and not planned.wish.pinned:
                fleet.ask(fleet.models[planned.name], evict=False)
        began = time.monotonic()
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while fleet.moving and not stopping.done():
                for deployment in fleet.deployments():
                    if deployment.state in {"starting", "loading"}:
                        detail = f"{deployment.state}, {time.monotonic() - began:.0f} s"
                        self._reporter.loading(deployment.card.id, detail)
                change = asyncio.ensure_future(fleet.changed.wait())
                await asyncio.wait({change, stopping}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
        finally:
            stopping.cancel()
        if self._stopping.is_set():
            return
        await asyncio.gather(*self._background)
        failed = [error for error in map(_failure, fleet.deployments()) if error is not None]
        if failed and all(model.state != "ready" for model in fleet.served()):
            raise failed[0]

    async def _serve(self, guard: Guard, *, keyed: bool) -> None:
        """Say so, and watch until it is told to stop."""
        _settle_memory()
        fleet, control = self._the_fleet(), self._control
        self._reporter.serving(self._url(), [model.card.id for model in fleet.served()], keyed=keyed)
        watching = [asyncio.ensure_future(watch(fleet.deployments, self._reporter.say))]
        if self._scaling is not None:
            watching.append(asyncio.ensure_future(self._scaling.run()))
        watching.append(asyncio.ensure_future(guard.run()))
        if self._request.config_path is not None and control is not None:
            watching.append(asyncio.ensure_future(watch_file(self._request.config_path, control.reload_quietly)))
        try:
            await self._stopping.wait()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def _url(self) -> str:
        return "" if self._control is None else self._control.url

    def _the_fleet(self) -> Fleet:
        assert self._fleet is not None  # noqa: S101 - made before anything that needs it
        return self._fleet

    def _became_ready(self, deployment: Deployment) -> None:
        """After each start, a restart too."""
        self._settled()
        self._do(self._reconcile(deployment))

    def _do(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _reconcile(self, deployment: Deployment) -> None:
        """Hold the bill against the log, say how that went in a line, and keep it."""
        pid = deployment.runner.pid
        process = await asyncio.to_thread(_memory_of, pid) if pid is not None else ProcessMemory()
        found = deployment.reconcile(process)
        self._reporter.say(f"{deployment.card.id}: {found.sentence()}")
        if found.rows:
            await asyncio.to_thread(keep, found, self._reporter.say)

    def _light(self, state: Path, control_token: str) -> Path | None:
        """Tell the other commands where this service is; a full disk costs that, not the service."""
        certificate = self._request.config.service.tls_cert  # the one that is served, whatever the file says now
        beacon = Beacon(
            url=self._url(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            control_token=control_token,
            api_key=self._request.api_key or self._config.service.key(),
            fingerprint=fingerprint(certificate) if certificate else None,
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
        """The first signal asks for a drained stop, a second one cuts what is being answered and ends the engines.

        SIGHUP reads the configuration again, unless there is a terminal: then that was closed, and it is a stop.
        """
        loop = asyncio.get_running_loop()
        terminal = _has_terminal()
        hurries: list[asyncio.Future[None]] = []  # kept, or they would be collected before they ran

        def asked() -> None:
            if self._stopping.is_set() and self._fleet is not None:
                if self._gateway is not None:  # an engine that is told to end finishes its answers first
                    self._gateway.cut()
                hurries.extend(asyncio.ensure_future(d.runner.stop(drain_s=0)) for d in self._fleet.deployments())
            self._stopping.set()

        def hung_up() -> None:
            if self._control is None or self._request.config_path is None or terminal:
                asked()
            else:
                self._do(self._control.reload_quietly())

        for number in _STOPS:
            loop.add_signal_handler(number, asked)
        loop.add_signal_handler(signal.SIGHUP, hung_up)
        try:
            yield
        finally:
            for number in (*_STOPS, signal.SIGHUP):
                loop.remove_signal_handler(number)
