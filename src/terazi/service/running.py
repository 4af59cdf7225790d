"""``terazi up``: weigh, launch, serve, watch, drain, stop. The run loop around the fleet."""

import asyncio
import gc
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence

from terazi.gateway.access import Keyring, check_exposure
from terazi.gateway.account import Reader
from terazi.gateway.app import create_app
from terazi.gateway.journal import Journal
from terazi.gateway.seats import Seats
from terazi.gateway.server import Gateway
from terazi.policy.dispatcher import Limits
from terazi.policy.guard_messages import Stage
from terazi.service.beginning import ask_for_all, plan_all, serve_all, until_loaded, why_nothing_runs, wishes_of
from terazi.service.certificate import Certificate
from terazi.service.confirming import confirm
from terazi.service.control import ServiceControl
from terazi.service.curator import Curator
from terazi.service.deployment import Deployment
from terazi.service.driver import Driver
from terazi.service.engine_at_hand import find_engine
from terazi.service.fleet import Fleet
from terazi.service.following import Following, bounds_of, key_of, price_of
from terazi.service.guard import Guard
from terazi.service.keys import callers
from terazi.service.lamp import Lamp
from terazi.service.library import ModelLibrary
from terazi.service.log_output import level_of_requests, logging_as
from terazi.service.observing import observing
from terazi.service.own_process import own_figures
from terazi.service.paces import watch
from terazi.service.paths import state_dir
from terazi.service.planning import Planning
from terazi.service.relief import FleetRelief
from terazi.service.reload import watch_file
from terazi.service.scaling import Scaling
from terazi.service.signals import signals
from terazi.service.up_request import Reporter, UpRequest
from terazi.service.yard import Yard
from terazi.supervisor.sweep import sweep_orphans

#: Python's own thresholds for the three generations.
_COLLECT = (700, 10, 10)


def _settle_memory() -> None:
    """From a command that is over soon to a service that stays.

    Commands collect garbage seldom. Here engines that went, each a knot of objects that know each other, would lie
    about until millions of others had come. What the start made stays: to go through all of that again and again
    was a quarter of a request's cost, and a pause for everybody.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


class Service:
    """One run of ``terazi up``."""

    def __init__(self, request: UpRequest, reporter: Reporter) -> None:
        self._request = request
        self._reporter = reporter
        self._fleet: Fleet | None = None
        self._gateway: Gateway | None = None
        self._control: ServiceControl | None = None
        self._stopping = asyncio.Event()
        self._settled: Callable[[], None] = lambda: None
        self._scaling: Scaling | None = None
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
        keyring = Keyring(digests=callers(request.config, os.environ, api_key=request.api_key))
        check_exposure(request.host, bool(keyring.callers))
        with (
            signals(stopping=self._stopping, hurry=self._hurry, reload=self._reload),
            logging_as(request.config.log),
        ):
            server, needed = request.config.engines.llama_cpp.server, bool(wishes_of(request))
            engine = await find_engine(server, needed=needed, say=self._reporter.say)
            driver = Driver()
            yard = Yard(
                binary=engine.binary,
                look=engine.look,
                run_dir=state,
                config=request.config,
                on_ready=self._became_ready,
                device_memory=driver.memory_of,
                price_per_kwh=price_of(request, request.config),
            )
            planning = plan_all(request, yard, self._reporter)
            level = level_of_requests(request.config.log)
            async with observing(state, self._reporter.say, level=level) as readers:
                await self._run(yard, planning, keyring, readers, driver)

    async def _run(
        self, yard: Yard, planning: Planning, keyring: Keyring, readers: Sequence[Reader], driver: Driver
    ) -> None:
        request, table, token = self._request, self._request.config.service, secrets.token_urlsafe(24)
        fleet = self._fleet = Fleet(yard)
        seats = fleet.seats = Seats(fleet, keeper=fleet, limits=Limits(**bounds_of(table)))
        curator = Curator(fleet, yard, keyring, api_key=request.api_key, follow=not request.wishes)
        relief = FleetRelief(fleet, seats, yard)
        guard = Guard(
            request.config.guard, relief, state_dir=yard.run_dir, cards=driver.cards, moving=lambda: fleet.moving
        )
        self._settled = guard.settled
        certificate = Certificate(table)
        lamp = Lamp(yard.run_dir / "services", token=token, say=self._reporter.say)
        following = Following(
            request,
            yard=yard,
            seats=seats,
            guard=guard,
            lamp=lamp,
            certificate=certificate,
            say=self._reporter.say,
        )
        control = self._control = ServiceControl(
            fleet,
            curator,
            seats.survey,
            request.config,
            path=request.config_path,
            stopping=self._stopping,
            follower=following,
        )
        library = ModelLibrary(yard.run_dir / "models", curator)
        journal = Journal(yard.run_dir / "journal")
        if left := journal.open().count:
            self._reporter.say(f"an earlier run ended with {left} requests unanswered")
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
        gateway = self._gateway = Gateway(app, request.host, request.port, tls=certificate.context)
        self._scaling = Scaling(fleet, seats.survey)
        try:
            await gateway.start()
            control.url = lamp.url = gateway.address
            lamp.light(key_of(request, request.config), certificate.fingerprint)
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
            await gateway.drain(following.config.service.drain_s)
            await fleet.stop(0)
            await asyncio.gather(*self._background, return_exceptions=True)
            seats.close()
            await gateway.stop()
            await journal.close()
            lamp.put_out()

    async def _begin(self, planning: Planning, curator: Curator, library: ModelLibrary) -> None:
        """Serve all models; load the pinned ones, then those that fit, and wait for them."""
        fleet = self._the_fleet()
        await serve_all(self._request, planning, curator)
        for note in await library.open():
            self._reporter.say(f"note: {note}")
        ask_for_all(planning, fleet)
        await until_loaded(fleet, self._stopping, self._reporter)
        if self._stopping.is_set():
            return
        await asyncio.gather(*self._background)
        if (problem := why_nothing_runs(fleet)) is not None:
            raise problem

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
        self._do(confirm(deployment, self._reporter.say))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ---- signals

    def _hurry(self) -> None:
        """Cut what is being answered, and end the engines: one that is told to end finishes its answers first."""
        if self._fleet is not None:
            if self._gateway is not None:
                self._gateway.cut()
            for deployment in self._fleet.deployments():
                self._do(deployment.runner.stop(drain_s=0))

    def _reload(self) -> bool:
        if self._control is None or self._request.config_path is None:
            return False
        self._do(self._control.reload_quietly())
        return True
