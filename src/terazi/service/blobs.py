"""Files that clients upload for ``create``, known by their SHA-256."""

import asyncio
import hashlib
from collections.abc import AsyncIterable, Callable
from pathlib import Path
from typing import Final

from terazi.errors import UsageError

#: The disk is looked at after so many bytes.
_LOOK_EVERY_BYTES: Final = 256 * 1024**2
_BATCH_BYTES: Final = 4 * 1024**2


class Blobs:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, digest: str) -> Path | None:
        """Where the one with *digest* (``sha256:…``) is; None if it isn't there."""
        path = self._place(digest)
        return path if path.is_file() else None

    def _place(self, digest: str) -> Path:
        kind, _, digits = digest.partition(":")
        if kind != "sha256" or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
            raise UsageError(f"{digest[:80]!r} is no digest", hint="say sha256: and 64 hexadecimal digits")
        return self._folder / f"sha256-{digits}"

    async def add(self, digest: str, chunks: AsyncIterable[bytes], *, room: Callable[[int], None]) -> None:
        """Write *chunks* as they come; the file appears when all are there and have that *digest*.

        Args:
            room: raises when the disk has no room for so many bytes more.

        Raises:
            UsageError: they have another digest.
        """
        place = self._place(digest)
        if place.is_file():
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        growing = place.with_name(f"{place.name}.{id(chunks):x}.part")
        sha256, taken, batch = hashlib.sha256(), 0, bytearray()
        try:
            with growing.open("xb") as file:

                def keep() -> None:
                    sha256.update(batch)
                    file.write(batch)

                async for chunk in chunks:
                    batch += chunk
                    if len(batch) >= _BATCH_BYTES:
                        if taken // _LOOK_EVERY_BYTES != (taken + len(batch)) // _LOOK_EVERY_BYTES:
                            room(len(batch))
                        taken += len(batch)
                        await asyncio.to_thread(keep)
                        batch.clear()
                await asyncio.to_thread(keep)
            if f"sha256:{sha256.hexdigest()}" != digest:
                raise UsageError("digest mismatch: the file has another digest than its name", hint="send it again")
            growing.replace(place)
        finally:
            growing.unlink(missing_ok=True)
