"""Decides what the fleet serves: what was asked for at the start, what a changed file wants, what clients bring.

Implements the library's ``Shelf``.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from terazi.errors import ServiceError, UsageError
from terazi.gateway.access import Keyring
from terazi.gateway.backend import Served
from terazi.models.sources import load_model
from terazi.service.attached import AttachedModel, AttachedServer
from terazi.service.cards import model_id
from terazi.service.config import Config
from terazi.service.config_models import ModelTable
from terazi.service.fleet import Fleet
from terazi.service.fleet_model import FleetModel
from terazi.service.keys import callers
from terazi.service.planning import Planned, check_fits, plan_one, settle
from terazi.service.reload import change_of
from terazi.service.room import with_room
from terazi.service.wish import Wish, wish_of
from terazi.service.yard import Yard

_log = logging.getLogger(__name__)


class Curator:
    """One for a fleet.

    Args:
        fleet: what is changed.
        yard: of the fleet, for planning.
        keyring: whose keys follow the configuration.
        api_key: the one key for everybody, if it was typed: the configuration can't take it away.
        follow: whether the configuration says which models are served; not if they were named when it began.
    """

    def __init__(self, fleet: Fleet, yard: Yard, keyring: Keyring, *, api_key: str | None, follow: bool) -> None:
        self._follow = follow
        self._fleet = fleet
        self._yard = yard
        self._keyring = keyring
        self._api_key = api_key
        self._servers: dict[tuple[object, ...], tuple[AttachedServer, asyncio.Task[None]]] = {}
        #: Ids of models that clients brought; the configuration doesn't take them away.
        self._brought: set[str] = set()
        self._changing = asyncio.Lock()

    # ---- at the start

    def take(self, planned: Sequence[Planned]) -> None:
        """Serve these from now on."""
        for one in planned:
            self._fleet.add(one)

    async def attach(self, url: str, name: str | None = None, table: ModelTable | None = None) -> None:
        """Serve what the server at *url* lists, now and later.

        Raises:
            UsageError: the variable that should hold its key is empty.
        """
        key = _key_of(table)
        server = AttachedServer(
            url,
            key=key,
            only=None if table is None else table.url_model,
            name=name,
            aliases=() if table is None else table.aliases,
            changed=self._listed,
            answers=self._fleet.others.answers,
        )
        await server.look()
        task = asyncio.ensure_future(server.watch())
        self._servers[_server_key(url, name, table)] = (server, task)

    def _listed(self, new: list[AttachedModel], gone: list[AttachedModel]) -> None:
        for model in gone:
            self._fleet.others.detach(model)
        for model in new:
            names = (model.card.id, *model.card.aliases)
            taken = next((n for n in names if self._fleet.find(n) is not None), None)
            if taken is not None:
                _log.warning("%s of %s isn't served: another model has that name", taken, model.base_url)
                continue
            self._fleet.others.attach(model)

    async def close(self) -> None:
        """Watch no more servers."""
        tasks = [task for _, task in self._servers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- a changed file

    async def apply(self, before: Config, after: Config) -> list[str]:
        """Make what is served what *after* says; a sentence for each thing that was done or can't be.

        Raises:
            TeraziError: a key or a model of it is wrong. Nothing has changed then.
        """
        async with self._changing:
            keys = callers(after, os.environ, api_key=self._api_key)
            if not keys and not self._keyring.open:
                raise UsageError(
                    "the last key can't be taken away while the service runs",
                    hint="stop it, and start it without keys",
                )
            tables = after.models if self._follow else ()
            wanted = [settle(wish_of(table)) for table in tables if table.source is not None]
            ours = {
                name: model.wish
                for name, model in self._fleet.models.items()
                if self._follow and name not in self._brought
            }
            change = change_of(ours, tuple(wanted))
            added = [await self._plan_new(wish) for wish in change.added]
            names = [planned.name for planned in added]
            clash = next((n for n in names if names.count(n) > 1 or n in self._fleet.models), None)
            if clash is not None and clash not in change.removed:
                raise UsageError(f"two models are called {clash!r}", hint="name each once")
            restarted = [(name, await self._plan(wish, name)) for name, wish in change.restarted]
            for table in after.models if self._follow else ():
                _key_of(table)
            # all that can fail has been tried: from here on things change
            said = []
            self._keyring.replace(digests=keys)
            self._fleet.reconfigure(after)
            for name in change.removed:
                self._fleet.remove(self._fleet.models[name])
                said.append(f"{name} is served no more")
            for name, wish in change.retermed:
                model = self._fleet.models[name]
                model.wish = replace(wish, name=wish.name)
                self._fleet.reterm(model)
                said.append(f"{name} has other names or terms")
            for name, planned in restarted:
                self._fleet.replace(self._fleet.models[name], planned)
                said.append(f"{name} has other settings: its requests are finished, then it is started anew")
            for planned in added:
                model = self._fleet.add(planned)
                if planned.wish.replicas[0]:
                    self._fleet.ask(model, evict=False)
                said.append(f"{planned.name} is served")
            if self._follow:
                said += await self._reattach(after)
            elif before.models != after.models:
                said.append("[[models]] are not taken over: the models were named when the service was started")
            if before.keys != after.keys:
                said.append("[[keys]] count from now on")
            return said

    async def _reattach(self, config: Config) -> list[str]:
        tables = {_server_key(t.url, t.name, t): t for t in config.models if t.url is not None}
        said = []
        for key in [key for key in self._servers if key not in tables and key[-1] is not None]:
            server, task = self._servers.pop(key)
            task.cancel()
            for model in server.models.values():
                self._fleet.others.detach(model)
            said.append(f"{server.url} is attached no more")
        for key, table in tables.items():
            if key not in self._servers and table.url is not None:
                await self.attach(table.url, table.name, table)
                said.append(f"{table.url} is attached")
        return said

    async def _plan_new(self, wish: Wish) -> Planned:
        return await self._plan(wish, wish.name or model_id(await asyncio.to_thread(load_model, wish.source)))

    async def _plan(self, wish: Wish, name: str) -> Planned:
        """With all the room that there can be for it beside the pinned ones.

        Raises:
            TeraziError: it can't be read, or doesn't fit.
        """
        machine = await asyncio.to_thread(self._yard.look)
        room = await asyncio.to_thread(self._fleet.meter.room, machine)
        price = self._yard.price_per_kwh
        return await asyncio.to_thread(partial(plan_one, wish, name, with_room(machine, room), price_per_kwh=price))

    # ---- Shelf

    def find(self, name: str) -> Served | None:
        """The served model that *name* means."""
        return self._fleet.find(name)

    async def check_model(self, source: str) -> None:
        """As ``Shelf`` has it."""
        machine = await asyncio.to_thread(self._yard.look)
        room = await asyncio.to_thread(self._fleet.meter.room, machine)
        await asyncio.to_thread(check_fits, Wish(source=source), with_room(machine, room))

    async def add_model(self, source: str, *, names: Sequence[str]) -> str:
        """As ``Shelf`` has it."""
        async with self._changing:
            known = next((m for m in self._fleet.models.values() if m.wish.source == source), None)
            if known is None:
                planned = await self._plan_new(await asyncio.to_thread(settle, Wish(source=source)))
                for name in (planned.name, *names):
                    if (other := self._fleet.find(name)) is not None:
                        raise UsageError(f"{name!r} is {other.card.id} already", hint="choose another name")
                known = self._fleet.add(planned)
                self._brought.add(known.name)
            self._give(known, names)
            return known.name

    def _give(self, model: FleetModel, names: Sequence[str]) -> None:
        model.given = tuple(names)
        model.renamed()

    async def remove_model(self, model: str) -> None:
        """As ``Shelf`` has it."""
        found = self._fleet.models.get(model)
        if found is None:
            return
        slots = list(found.slots)
        self._brought.discard(model)
        self._fleet.remove(found)
        while any(self._fleet.residence(slot) is not None for slot in slots):
            await self._fleet.changed.wait()

    async def rename_model(self, model: str, names: Sequence[str]) -> None:
        """As ``Shelf`` has it."""
        found = self._fleet.models.get(model)
        if found is None:
            raise ServiceError(f"{model} can't be given further names", hint="it is served by an attached server")
        self._give(found, names)

    async def keep_model(self, model: str, idle_s: float | None) -> None:
        """As ``Shelf`` has it."""
        found = self._fleet.models.get(model)
        if found is not None:
            found.asked_idle = (idle_s,)
            self._fleet.reterm(found)

    def idle_left_s(self, model: str) -> float | None:
        """As ``Shelf`` has it."""
        found = self._fleet.models.get(model)
        return None if found is None else self._fleet.idle_left_s(found)


def _key_of(table: ModelTable | None) -> str:
    """Raises ``UsageError`` if it should be in a variable and isn't."""
    if table is None or table.api_key_env is None:
        return ""
    key = os.environ.get(table.api_key_env, "")
    if not key:
        raise UsageError(
            f"the key of {table.url} should be in the variable {table.api_key_env}",
            hint=f"set {table.api_key_env} for the service, or leave out api_key_env",
        )
    return key


def _server_key(url: str | None, name: str | None, table: ModelTable | None) -> tuple[object, ...]:
    return (url, name, table)
