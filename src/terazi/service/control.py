"""What the local commands ask of the running service: ``ps``, ``stop``, ``load``, ``reload``, ``logs``."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from terazi.errors import ServiceError, TeraziError, UsageError
from terazi.gateway.backend import READY
from terazi.policy.residency_state import Residence
from terazi.policy.survey import Survey
from terazi.service.config import Config, read_config
from terazi.service.curator import Curator
from terazi.service.effects import told
from terazi.service.fleet import Fleet
from terazi.service.fleet_model import FleetModel
from terazi.service.own_process import own_process
from terazi.supervisor.log import read_log

_log = logging.getLogger(__name__)

#: How often a followed log is looked at.
_FOLLOW_EVERY_S = 0.2


class Follower(Protocol):
    """What follows a configuration besides models and keys."""

    async def check(self, config: Config) -> None:
        """Get ready to ``follow`` it.

        Raises:
            TeraziError: something in it is wrong.
        """
        ...

    def fixed(self, config: Config) -> Mapping[str, str]:
        """Keys that it can't follow as things are, beyond those that nothing can, with the reason for each."""
        ...

    def follow(self, config: Config) -> list[str]:
        """Follow what was checked last; sentences on what isn't a key's change."""
        ...


class ServiceControl:
    """Implements the gateway's ``Control`` over the fleet.

    Args:
        fleet: all models.
        curator: who changes what is served.
        survey: the dispatcher's view of all queues.
        config: as it was read; *path* is where, None if nowhere.
        follower: has all that isn't the curator's follow a configuration; None follows nothing.
        stopping: set to end the service.
    """

    def __init__(
        self,
        fleet: Fleet,
        curator: Curator,
        survey: Callable[[], Survey],
        config: Config,
        *,
        path: Path | None,
        stopping: asyncio.Event,
        follower: Follower | None = None,
    ) -> None:
        self._follower = follower
        self._survey = survey
        self._fleet = fleet
        self._curator = curator
        self._config = config
        self._path = path
        self._stopping = stopping
        self._started = time.monotonic()
        self._problem: str | None = None
        #: Where clients reach the service, once it is known.
        self.url = ""

    async def snapshot(self) -> dict[str, object]:
        """``terazi ps --json``; each engine is asked how it is, briefly."""
        fleet = self._fleet
        models = await asyncio.gather(
            *(model.snapshot(fleet.closed_until(model)) for model in fleet.models.values())
        )
        survey = self._survey()
        lines = {line.model: line for line in survey.lines}
        shown = [*models, *(model.snapshot() for model in fleet.others.models.values())]
        for model in shown:
            line = lines.get(model["id"])
            model["waiting"] = 0 if line is None else line.waiting
            model["running"] = 0 if line is None else line.running
            model["oldest_s"] = None if line is None else line.oldest_s
        return {
            "schema": "terazi.ps/1",
            "url": self.url,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._started,
            "draining": self._stopping.is_set(),
            "process": own_process(),
            "models": shown,
            "callers": [asdict(caller) for caller in survey.callers],
            "config": None if self._path is None else str(self._path),
            "config_problem": self._problem,
        }

    async def stop(self, model: str | None) -> None:
        """Stop one model until it is loaded again by hand, or ask the whole service to stop.

        Raises:
            UsageError: no such model.
        """
        fleet = self._fleet
        if model is None:
            self._stopping.set()
            return
        found = self._named(model)
        if not fleet.others.models and all(other.stopped or other is found for other in fleet.models.values()):
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
        fleet, found = self._fleet, self._named(model)
        fleet.load_model(found)
        while found.state != READY:
            if found.closed is not None:
                raise ServiceError(found.closed, hint="see: terazi ps, and terazi logs")
            if fleet.models.get(found.name) is not found:
                raise ServiceError(f"{found.name} is not served any more", hint="see: terazi ps")
            await fleet.changed.wait()

    async def reload(self) -> list[str]:
        """Read the configuration again and apply it; a sentence for each change, and for what can't be applied.

        Raises:
            UsageError, TeraziError: something in it is wrong; nothing has changed.
        """
        path = self._path
        if path is None:
            raise UsageError("this service was started without a terazi.toml", hint="start it with --config FILE")
        try:
            after = await asyncio.to_thread(read_config, path)
            if self._follower is not None:
                await self._follower.check(after)
            said = await self._curator.apply(self._config, after)
        except TeraziError as error:
            self._problem = error.message
            _log.warning("the configuration was not taken over: %s", error.message)
            raise
        if self._follower is not None:
            said += self._follower.follow(after)
            said += told(self._config, after, fixed=self._follower.fixed(after))
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
        fleet = self._fleet
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

    async def reload_quietly(self) -> None:
        """What is wrong has been logged, and ``terazi ps`` shows it."""
        with contextlib.suppress(TeraziError):
            await self.reload()
