"""What a service begins with: the models that it is asked for, planned together, served, and loaded if they fit."""

import asyncio
import time
from typing import Final

from terazi.errors import EngineError
from terazi.service.curator import Curator
from terazi.service.deployment import Deployment
from terazi.service.fleet import Fleet
from terazi.service.planning import Planning, plan_together
from terazi.service.power import power_terms, with_power
from terazi.service.records import with_records
from terazi.service.room import free_for_models, with_room
from terazi.service.up_request import Reporter, UpRequest
from terazi.service.wish import Wish, wish_of
from terazi.service.yard import Yard

#: Progress is told this often.
_TELL_EVERY_S: Final = 0.5


def wishes_of(request: UpRequest) -> tuple[Wish, ...]:
    """The models of the command line, or those of the configuration."""
    tables = request.config.models
    return request.wishes or tuple(wish_of(table) for table in tables if table.source is not None)


def plan_all(request: UpRequest, yard: Yard, reporter: Reporter) -> Planning:
    """All models that are asked for, on the machine as it is now, less what the configuration reserves.

    Raises:
        RefusedError, UsageError, ModelFileError: as ``plan_together``.
    """
    wishes, config = wishes_of(request), request.config
    if not wishes:
        return Planning(planned=(), together=True)
    machine = yard.look()
    machine = with_room(machine, free_for_models(machine, (), config.memory))
    planning = plan_together(wishes, machine, price_per_kwh=yard.price_per_kwh)
    terms = power_terms(config, price_per_kwh=request.price_per_kwh)
    for planned in planning.planned:
        reporter.weighed(with_power(with_records(planned.weighing), terms))
    if planning.reason:
        reporter.say(planning.reason)
    return planning


async def serve_all(request: UpRequest, planning: Planning, curator: Curator) -> None:
    """Serve the models, cold, and what is attached.

    Raises:
        UsageError: as ``Curator.attach``.
    """
    curator.take(planning.planned)
    for url, name in request.attach:
        await curator.attach(url, name)
    if not request.wishes:
        for table in request.config.models:
            if table.url is not None:
                await curator.attach(table.url, table.name, table)


def ask_for_all(planning: Planning, fleet: Fleet) -> None:
    """Have those loaded that are to be kept, as far as they fit: higher priorities first, after the pinned ones."""
    asked = sorted(planning.planned, key=lambda p: (not p.wish.pinned, -p.wish.priority))
    for planned in asked:
        if planned.wish.replicas[0] and not planned.wish.pinned:
            fleet.ask(fleet.models[planned.name], evict=False)


async def until_loaded(fleet: Fleet, stopping: asyncio.Event, reporter: Reporter) -> None:
    """Wait until nothing is being loaded any more, or it is told to stop."""
    began = time.monotonic()
    stop = asyncio.ensure_future(stopping.wait())
    try:
        while fleet.moving and not stop.done():
            for deployment in fleet.deployments():
                if deployment.state in {"starting", "loading"}:
                    detail = f"{deployment.state}, {time.monotonic() - began:.0f} s"
                    reporter.loading(deployment.card.id, detail)
            change = asyncio.ensure_future(fleet.changed.wait())
            await asyncio.wait({change, stop}, timeout=_TELL_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
    finally:
        stop.cancel()


def why_nothing_runs(fleet: Fleet) -> EngineError | None:
    """An engine's failure, if some failed and no model is there."""
    failed = [error for error in map(_failure, fleet.deployments()) if error is not None]
    return failed[0] if failed and all(model.state != "ready" for model in fleet.served()) else None


def _failure(deployment: Deployment) -> EngineError | None:
    """Why its engine isn't there, if that was not anybody's wish."""
    state = deployment.runner.state
    return deployment.given_up or (deployment.runner.error() if state.ended and not state.stop_wanted else None)
