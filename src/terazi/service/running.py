"""``terazi up``: weigh, launch, serve, watch, drain, stop. The run loop around the fleet."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from terazi.engines.llama_cpp.binary import Binary, ListedDevice
from terazi.errors import ServiceError, TeraziError, UsageError
from terazi.gateway.access import Keyring
from terazi.gateway.account import Reader
from terazi.gateway.app import create_app
from terazi.gateway.backend import READY
from terazi.gateway.figures import Family, Figure
from terazi.gateway.seats import Seats
from terazi.gateway.server import Gateway
from terazi.hardware.machine import Machine
from terazi.hardware.probe import load_catalogue, read_process_memory
from terazi.memory.llama_cpp.settings import BUILD
from terazi.policy.dispatcher import Limits
from terazi.policy.guard_messages import Stage
from terazi.policy.residency_state import Residence
from terazi.service.beacon import Beacon, light
from terazi.service.config import read_config
from terazi.service.curator import Curator
from terazi.service.deployment import Deployment
from terazi.service.driver import Driver
from terazi.service.engine_view import as_engine_sees
from terazi.service.fleet import Fleet, Yard
from terazi.service.fleet_model import FleetModel
from terazi.service.guard import Guard
from terazi.service.keys import callers
from terazi.service.library import ModelLibrary
from terazi.service.observing import observing
from terazi.service.paces import watch
from terazi.service.paths import cache_dir, state_dir
from terazi.service.planning import Planning, plan_together
from terazi.service.power import power_terms, with_power
from terazi.service.records import keep, with_records
from terazi.service.relief import FleetRelief
from terazi.service.reload import watch_file
from terazi.service.room import free_for_models, with_room
from terazi.service.up_request import Reporter, UpRequest
from terazi.service.weigh import find_machine
from terazi.service.wish import wish_of
from terazi.supervisor.find_engine import find_llama_server, list_devices
from terazi.supervisor.log import read_log
from terazi.supervisor.process import resident
from terazi.supervisor.sweep import sweep_orphans
from terazi.telemetry.reconciliation import ProcessMemory

_log = logging.getLogger(__name__)

#: How often a followed log is looked at.
_FOLLOW_EVERY_S = 0.2
_STOPS = (signal.SIGINT, signal.SIGTERM)


def _memory_of(pid: int) -> ProcessMemory:
    anonymous, file = resident(pid)
    return ProcessMemory(anonymous_bytes=anonymous, file_bytes=file, device_bytes=read_process_memory(pid))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Service:
    """Implements the gateway's ``Control`` over the fleet."""

    def __init__(self, request: UpRequest, reporter: Reporter) -> None:
        self._request = request
        self._config = request.config
        self._reporter = reporter
        self._fleet: Fleet | None = None
        self._curator: Curator | None = None
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        self._url = ""
        self._problem: str | None = None
        self._guard: Guard | None = None
        self._background: set[asyncio.Task[None]] = set()

    # ---- Control

    async def snapshot(self) -> dict[str, object]:
        """``terazi ps --json``; each engine is asked how it is, briefly."""
        fleet = self._the_fleet()
        models = await asyncio.gather(
            *(model.snapshot(fleet.closed_until(model)) for model in fleet.models.values())
        )
        return {
            "schema": "terazi.ps/1",
            "url": self._url,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._started,
            "draining": self._stopping.is_set(),
            "models": [*models, *(model.snapshot() for model in fleet.attached.values())],
            "config": None if self._request.config_path is None else str(self._request.config_path),
            "config_problem": self._problem,
        }

    async def stop(self, model: str | None) -> None:
        """Stop one model until it is loaded again by hand, or ask the whole service to stop.

        Raises:
            UsageError: no such model.
        """
        fleet = self._the_fleet()
        if model is None:
            self._stopping.set()
            return
        found = self._named(model)
        if not fleet.attached and all(other.stopped or other is found for other in fleet.models.values()):
            self._stopping.set()  # the last one takes the service with it
            return
        fleet.stop_model(found)
        while any(fleet.residence(slot) not in {Residence.COLD, None} for slot in found.slots):
            await fleet.changed.wait()

    async def load(self, model: str) -> None:
        """Bring *model* into memory; idle ones may go for it. Returns when it answers.

        Raises:
            UsageError: no such model.
            ServiceError: it can't be loaded now; the message says why.
        """
        fleet, found = self._the_fleet(), self._named(model)
        fleet.load_model(found)
        while found.state != READY:
            if found.closed is not None:
                raise ServiceError(found.closed, hint="see: terazi ps, and terazi logs")
            await fleet.changed.wait()

    async def reload(self) -> list[str]:
        """Read the configuration again and apply it; a sentence for each change.

        Raises:
            UsageError, TeraziError: something in it is wrong; nothing has changed.
        """
        path = self._request.config_path
        if path is None or self._curator is None:
            raise UsageError("this service was started without a terazi.toml", hint="start it with --config FILE")
        try:
            after = await asyncio.to_thread(read_config, path)
            said = await self._curator.apply(self._config, after)
        except TeraziError as error:
            self._problem = error.message
            _log.warning("the configuration was not taken over: %s", error.message)
            raise
        self._config, self._problem = after, None
        for text in said or ["nothing changes"]:
            _log.info("configuration: %s", text)
        return said

    def logs(self, model: str | None, lines: int) -> list[str]:
        """The last lines of an engine's log.

        Raises:
            UsageError: no such model.
        """
        text = read_log(self._named(model).slots[0].log_path).decode("utf-8", "replace")
        return text.splitlines()[-lines:] if lines > 0 else []

    async def follow(self, model: str | None) -> AsyncIterator[str]:
        """What the engine prints from now on, over restarts too."""
        found = self._named(model)
        deployment, taken = None, 0
        while found.slots and not self._stopping.is_set():
            now = found.slots[0].deployment
            log = None if now is None else now.runner.log
            if log is not None:
                if deployment is None:
                    taken = log.lines_taken
                elif now is not deployment:
                    taken = 0
                deployment = now
                for line in log.lines_after(taken):
                    yield line
                taken = log.lines_taken
            await asyncio.sleep(_FOLLOW_EVERY_S)

    def _named(self, model: str | None) -> FleetModel:
        fleet = self._the_fleet()
        known = fleet.models
        found = fleet.find(model) if model is not None else None
        if found is None and model is None and len(known) == 1:
            return next(iter(known.values()))
        if isinstance(found, FleetModel):
            return found
        if found is not None:
            raise UsageError(f"{model} is another server's, and only used here", hint="ask whoever runs it")
        raise UsageError(
            f"which model? {model or 'several are served'}", hint=f"served: {', '.join(known) or 'none'}"
        )

    def _the_fleet(self) -> Fleet:
        if self._fleet is None:
            raise UsageError("the service is just starting", hint="ask again in a moment")
        return self._fleet

    # ---- the run

    async def run(self) -> None:
        """Until a signal or ``terazi stop``.

        Raises:
            RefusedError, EngineError, ServiceError, UsageError, ModelFileError
        """
        state = state_dir()
        async with observing(state, self._reporter.say) as readers:
            await self._run(state, readers)

    async def _run(self, state: Path, readers: Sequence[Reader]) -> None:
        request = self._request
        for swept in (s for s in sweep_orphans(str(state)) if s.killed):
            self._reporter.say(f"stopped an engine that an earlier run had left behind: pid {swept.pid}")
        keyring = Keyring(digests=callers(self._config, os.environ, api_key=request.api_key))
        token = secrets.token_urlsafe(24)
        beacon: Path | None = None
        with self._signals():
            binary, devices = await self._engine()
            driver = Driver()
            yard = Yard(
                binary=binary,
                look=partial(self._look, binary, devices),
                run_dir=state,
                on_ready=self._became_ready,
                device_memory=driver.memory_of,
                price_per_kwh=request.price_per_kwh,
            )
            planning = self._plan(yard)
            fleet = self._fleet = Fleet(yard, self._config)
            table = self._config.service
            limits = Limits(max_queued=table.max_queued, max_queued_each=table.max_queued_each)
            seats = fleet.seats = Seats(fleet, keeper=fleet, limits=limits)
            curator = self._curator = Curator(
                fleet, yard, keyring, api_key=request.api_key, follow=not request.wishes
            )
            library = ModelLibrary(state / "models", curator)
            app = create_app(
                fleet,
                keyring=keyring,
                seats=seats,
                control=self,
                control_token=token,
                max_body_bytes=table.max_body_mib * 1024 * 1024,
                allowed_origins=table.allowed_origins,
                ready_wait_s=table.ready_wait_s,
                library=library,
                readers=readers,
                sources=(seats.figures, fleet.figures, self._figures),
            )
            gateway = Gateway(app, request.host, request.port)
            relief = FleetRelief(fleet, seats, yard.look, price_per_kwh=request.price_per_kwh)
            guarding = self._guarding(relief, state, driver)
            try:
                await gateway.start()
                self._url = gateway.address
                beacon = self._light(state, token)
                await self._begin(planning, library)
                await self._serve()
            finally:
                if any(d.state != "stopped" for d in fleet.deployments()):
                    self._reporter.say("draining, then stopping the engine (again to stop at once)")
                guarding.cancel()
                await asyncio.gather(guarding, return_exceptions=True)
                await relief.close()
                await self._shut_down(gateway, seats, library)
                if beacon is not None:
                    with contextlib.suppress(OSError):
                        beacon.unlink(missing_ok=True)

    def _guarding(self, relief: FleetRelief, state: Path, driver: Driver) -> "asyncio.Future[None]":
        """Watch memory, heat and disk from now on, unless the configuration has none of it."""
        if not self._config.guard.enabled:
            return asyncio.ensure_future(asyncio.sleep(0))
        self._guard = Guard(
            self._config.guard, relief, state_dir=state, cards=driver.cards, moving=lambda: self._the_fleet().moving
        )
        return asyncio.ensure_future(self._guard.run())

    def _figures(self) -> Iterator[Figure]:
        """The guard's part of the metrics: each stage, so that a graph shows when it was left again."""
        if self._guard is not None:
            for stage in Stage:
                yield Figure(Family.GUARD, (stage.name.lower(),), float(stage is self._guard.stage))

    def _look(self, binary: Binary, devices: Sequence[ListedDevice] | None) -> Machine:
        return as_engine_sees(find_machine(None), binary, devices, load_catalogue())[0]

    async def _engine(self) -> tuple[Binary, tuple[ListedDevice, ...] | None]:
        server = self._config.engines.llama_cpp.server
        binary = await asyncio.to_thread(find_llama_server, server, os.environ, cache_dir=str(cache_dir()))
        devices = await asyncio.to_thread(list_devices, binary)
        if binary.build is not None and f"b{binary.build}" != BUILD:
            self._reporter.say(f"note: the bill follows llama.cpp {BUILD}, and {binary.path} is {binary.label}")
        for note in as_engine_sees(find_machine(None), binary, devices, load_catalogue())[1]:
            self._reporter.say(f"note: {note}")
        return binary, devices

    def _plan(self, yard: Yard) -> Planning:
        """All models that are asked for, on the machine as it is now, less what the configuration reserves."""
        request = self._request
        tables = () if request.wishes else self._config.models
        wishes = request.wishes or tuple(wish_of(table) for table in tables if table.source is not None)
        if not wishes:
            return Planning(planned=(), together=True)
        machine = yard.look()
        machine = with_room(machine, free_for_models(machine, (), self._config.memory))
        planning = plan_together(wishes, machine, price_per_kwh=request.price_per_kwh)
        terms = power_terms(self._config, price_per_kwh=request.price_per_kwh)
        for planned in planning.planned:
            self._reporter.weighed(with_power(with_records(planned.weighing), terms))
        if planning.reason:
            self._reporter.say(planning.reason)
        return planning

    async def _begin(self, planning: Planning, library: ModelLibrary) -> None:
        """Serve all models; load the pinned ones, then those that fit, and wait for them."""
        fleet, curator, request = self._the_fleet(), self._curator, self._request
        assert curator is not None  # noqa: S101 - made just before
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
        failed = [d for d in fleet.deployments() if d.runner.state.ended and not d.runner.state.stop_wanted]
        if failed and all(model.state != "ready" for model in fleet.served()):
            raise failed[0].runner.error()

    async def _serve(self) -> None:
        """Say so, and watch until it is told to stop."""
        if self._stopping.is_set():
            return
        fleet = self._the_fleet()
        names = [model.card.id for model in fleet.served()]
        self._reporter.serving(self._url, names, self._request.api_key)
        watching = [asyncio.ensure_future(watch(fleet.deployments, self._reporter.say))]
        if self._request.config_path is not None:
            watching.append(asyncio.ensure_future(watch_file(self._request.config_path, self._reload_quietly)))
        try:
            await self._stopping.wait()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _reload_quietly(self) -> None:
        """What is wrong has been logged, and ``terazi ps`` shows it."""
        with contextlib.suppress(TeraziError):
            await self.reload()

    def _became_ready(self, deployment: Deployment) -> None:
        """After each start, a restart too."""
        if self._guard is not None:
            self._guard.settled()
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

    async def _shut_down(self, gateway: Gateway, seats: Seats, library: ModelLibrary) -> None:
        fleet = self._the_fleet()
        seats.drain()
        await library.close()
        if self._curator is not None:
            await self._curator.close()
        await gateway.drain(self._config.service.drain_s)
        await fleet.stop(0)
        await asyncio.gather(*self._background, return_exceptions=True)
        seats.close()
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
        """The first signal asks for a drained stop, a second one kills the engines at once.

        SIGHUP reads the configuration again, unless there is a terminal: then that was closed, and it is a stop.
        """
        loop = asyncio.get_running_loop()
        terminal = _has_terminal()
        hurries: list[asyncio.Future[None]] = []  # kept, or they would be collected before they ran

        def asked() -> None:
            if self._stopping.is_set() and self._fleet is not None:
                hurries.extend(asyncio.ensure_future(d.runner.stop(drain_s=0)) for d in self._fleet.deployments())
            self._stopping.set()

        def hung_up() -> None:
            if self._request.config_path is None or terminal:
                asked()
            else:
                self._do(self._reload_quietly())

        for number in _STOPS:
            loop.add_signal_handler(number, asked)
        loop.add_signal_handler(signal.SIGHUP, hung_up)
        try:
            yield
        finally:
            for number in (*_STOPS, signal.SIGHUP):
                loop.remove_signal_handler(number)
