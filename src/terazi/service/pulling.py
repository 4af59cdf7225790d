"""One download that any number of clients may follow. It ends when the last of them leaves, as Ollama has it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from terazi.errors import ServiceError
from terazi.gateway.library import Progress
from terazi.models.hub import HubReference
from terazi.models.sources.download import Follower, RemoteModel, RemotePart, bytes_there, examine, fetch, verify

#: How often followers are told how far it is.
_TELL_EVERY_S: Final = 0.1

Arrived: TypeAlias = Callable[[HubReference, Sequence[Path], str], Awaitable[None]]


class Pull:
    """Runs from the moment that it is made.

    Args:
        reference: what is fetched.
        folder: where its repository's files go.
        arrived: serves the files once they are here and right.
        room: raises if the disk has no room for so many bytes more.
    """

    def __init__(
        self, reference: HubReference, folder: Path, arrived: Arrived, *, room: Callable[[int], None]
    ) -> None:
        self._reference = reference
        self._folder = folder
        self._arrived = arrived
        self._room = room
        self._followers = 0
        self._unwanted = False
        self._steps: list[Progress] = []
        self._completed = 0
        self.task = asyncio.create_task(self._run())

    @property
    def unwanted(self) -> bool:
        """Its last follower has left: it comes to nothing."""
        return self._unwanted

    async def follow(self) -> AsyncGenerator[Progress]:
        """All steps from the first on, and how far the one under way is.

        Raises:
            TeraziError: it failed.
        """
        self._followers += 1
        try:
            told, completed = 0, -1
            while True:
                over = self.task.done()
                for step in self._steps[told:]:
                    yield step
                if len(self._steps) > told:
                    told, completed = len(self._steps), -1
                now = self._completed
                if self._steps and self._steps[-1].total is not None and now != completed:
                    last, completed = self._steps[-1], now
                    yield Progress(status=last.status, digest=last.digest, total=last.total, completed=now)
                if over:
                    if self.task.cancelled():
                        raise ServiceError("the download was ended", hint="pull it again: it goes on")
                    self.task.result()
                    return
                await asyncio.wait((self.task,), timeout=_TELL_EVERY_S)
        finally:
            self._followers -= 1
            if not self._followers:
                await self.cancel()

    async def cancel(self) -> None:
        """End it, if it still runs; what came stays for the next time."""
        self._unwanted = True
        if not self.task.done():
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.shield(self.task)

    async def _run(self) -> None:
        self._steps.append(Progress(status="pulling manifest"))
        model = await asyncio.to_thread(examine, self._reference)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        there = await asyncio.to_thread(bytes_there, model, self._folder)
        self._room(max(0, model.size_bytes - there))
        files = [await self._fetch(model, part) for part in model.parts]
        self._steps.append(Progress(status="verifying sha256 digest"))
        digests = [
            await asyncio.to_thread(verify, path, part, self._is_unwanted)
            for path, part in zip(files, model.parts, strict=True)
        ]
        self._steps.append(Progress(status="writing manifest"))
        await self._arrived(self._reference, files, f"sha256:{digests[0]}")
        self._steps.append(Progress(status="success"))

    async def _fetch(self, model: RemoteModel, part: RemotePart) -> Path:
        known = part.etag if len(part.etag) == 64 else ""
        digest = f"sha256:{known}" if known else part.name
        short = known[:12] or part.name
        self._completed = 0
        self._steps.append(Progress(status=f"pulling {short}", digest=digest, total=part.size_bytes))

        def told(completed: int) -> None:
            self._completed = completed

        return await asyncio.to_thread(fetch, model, part, self._folder, Follower(told, self._is_unwanted))

    def _is_unwanted(self) -> bool:
        return self._unwanted
