"""Fetches a GGUF model from the Hugging Face hub into a folder: resumable, bounded, and checked against its digest.

Through ``huggingface_hub``'s client, endpoint and token. Its own ``hf_hub_download`` begins anew after a download
that broke off (2.4, ``_download_to_tmp_and_move``), which nobody wants of 40 GB; so bytes are appended here to a
file that is named by its commit and digest, and goes to its place when all are there.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, get_session, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError

from terazi.errors import SourceError, TeraziError, UsageError
from terazi.models.hub import HubReference, choose_gguf, parts_of, quants
from terazi.models.sources.listing import credentials, list_repository
from terazi.models.sources.remote import refused

#: The folder, beside a repository's files, that holds those which aren't complete.
INCOMPLETE: Final = ".incomplete"
_CHUNK_BYTES: Final = 1024**2
#: Seconds that the server may be silent, that are waited before it is asked again, and how often that is done
#: without a byte in between.
_SILENCE_S: Final = 30.0
_PAUSE_S: Final = 1.0
_MOST_SILENT: Final = 5
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1: Final = re.compile(r"[0-9a-f]{40}")
#: Nothing is larger, so no file of a lying server is asked for.
_MOST_BYTES: Final = 4 * 1024**4


class RemotePart(NamedTuple):
    """One file of a model on the hub.

    Args:
        name: in its repository.
        size_bytes: of it.
        etag: what its content is known by: SHA-256 of large files, git's blob id of small ones, or anything.
    """

    name: str
    size_bytes: int
    etag: str


class RemoteModel(NamedTuple):
    """A model's files, the first one first, at one commit."""

    repository: str
    commit: str | None
    parts: tuple[RemotePart, ...]

    @property
    def size_bytes(self) -> int:
        """Of all parts."""
        return sum(part.size_bytes for part in self.parts)


class Follower(NamedTuple):
    """Who hears of a download.

    Args:
        told: is given the bytes that are there so far, again and again.
        cancelled: is asked as often whether it shall end.
    """

    told: Callable[[int], None]
    cancelled: Callable[[], bool]


class CancelledError(Exception):
    """Nobody wants the download any more; what came stays for the next time."""


def examine(reference: HubReference) -> RemoteModel:
    """Which files *reference* means, how large they are, and what they are known by.

    Raises:
        UsageError: the repository has no such GGUF file.
        SourceError: the hub can't be asked, or says no.
    """
    try:
        listing = list_repository(reference)
    except TeraziError:
        raise
    except Exception as error:
        raise _unreachable(reference, error) from None
    names = listing.names
    file = reference.file or choose_gguf(names, reference.quant)
    if file is None or file not in names or not file.endswith(".gguf"):
        there = ", ".join(quants(names)[:16]) or "none"
        raise UsageError(
            f"{reference} names no GGUF file of that repository.", hint=f"Quantisations that it has: {there}."
        )
    revision = listing.commit or reference.revision
    parts = tuple(_part(reference, name, revision) for name in parts_of(file, names))
    return RemoteModel(reference.repository, revision, parts)


def _part(reference: HubReference, name: str, revision: str | None) -> RemotePart:
    try:
        told = get_hf_file_metadata(
            hf_hub_url(reference.repository, name, revision=revision), token=_token(), timeout=20
        )
    except HfHubHTTPError as error:
        raise refused(error.response.status_code, error.response.headers, str(reference)) from None
    except Exception as error:
        raise _unreachable(reference, error) from None
    if told.size is None or not 0 < told.size <= _MOST_BYTES:
        raise SourceError(f"{reference.of(name)}: the server doesn't say how large it is.", hint="Try again later.")
    return RemotePart(name, told.size, told.etag or "")


def fetch(model: RemoteModel, part: RemotePart, folder: Path, follower: Follower) -> Path:
    """Download *part* into *folder*, where it appears under its name once all of it is there.

    A download that broke off goes on from where it was, if it is still the same file of the same commit.

    Raises:
        CancelledError: *follower* said so.
        SourceError: it can't be had.
    """
    place, growing = folder / part.name, _growing(model, part, folder)
    if _size(place) == part.size_bytes:
        follower.told(part.size_bytes)
        return place
    growing.parent.mkdir(parents=True, exist_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(model.repository, part.name, revision=model.commit)
    with growing.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SourceError(
                f"{part.name} is being fetched by another process.", hint="Pull it again when that is done."
            ) from None
        silent = 0  # attempts since the last byte
        while True:
            size = os.fstat(file.fileno()).st_size
            if size > part.size_bytes:
                file.truncate(0)
                continue
            follower.told(size)
            if size == part.size_bytes:
                break
            try:
                _take(url, file, size, part, follower)
            except httpx2.HTTPError as error:
                silent = 0 if os.fstat(file.fileno()).st_size > size else silent + 1
                if silent == _MOST_SILENT:
                    raise SourceError(
                        f"{part.name} can't be fetched: {type(error).__name__}.", hint="Pull it again: it goes on."
                    ) from None
                _pause(follower)
        os.fsync(file.fileno())
        growing.replace(place)
    return place


def _take(url: str, file: BinaryIO, start: int, part: RemotePart, follower: Follower) -> None:
    """Append what the server sends from *start* on; returns when it sends no more."""
    # identity: a packed answer could unpack to any size
    headers = {**credentials(), "accept-encoding": "identity"}
    if start:
        headers["range"] = f"bytes={start}-"
    timeout = httpx2.Timeout(_SILENCE_S)
    with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
        if response.status_code == httpx2.codes.OK and start:  # it knows no ranges
            file.truncate(0)
            start = 0
        elif response.status_code != (httpx2.codes.PARTIAL_CONTENT if start else httpx2.codes.OK):
            raise refused(response.status_code, response.headers, part.name)
        for chunk in response.iter_raw(_CHUNK_BYTES):
            if follower.cancelled():
                raise CancelledError
            start += len(chunk)
            if start > part.size_bytes:
                file.truncate(0)
                raise SourceError(f"{part.name}: the server sends more than it announced.", hint="Try again later.")
            file.write(chunk)
            file.flush()
            follower.told(start)


def _pause(follower: Follower) -> None:
    for _ in range(10):
        if follower.cancelled():
            raise CancelledError
        time.sleep(_PAUSE_S / 10)


def _growing(model: RemoteModel, part: RemotePart, folder: Path) -> Path:
    known = "\n".join((part.name, model.commit or "", part.etag, str(part.size_bytes)))
    return folder / INCOMPLETE / hashlib.sha256(known.encode()).hexdigest()[:32]


def verify(path: Path, part: RemotePart, cancelled: Callable[[], bool]) -> str:
    """Read *path* back and hold it against what the hub knows it by; its SHA-256.

    Raises:
        CancelledError: *cancelled* said so.
        SourceError: it is another file; it is removed then.
    """
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % part.size_bytes, usedforsecurity=False)
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if cancelled():
                raise CancelledError
            size += len(chunk)
            sha256.update(chunk)
            if len(part.etag) == 40:
                blob.update(chunk)
    digest = sha256.hexdigest()
    expected = part.etag.lower()
    wrong = size != part.size_bytes
    if _SHA256.fullmatch(expected):
        wrong = wrong or digest != expected
    elif _GIT_SHA1.fullmatch(expected):
        wrong = wrong or blob.hexdigest() != expected
    if wrong:
        path.unlink(missing_ok=True)
        raise SourceError(
            f"{part.name} arrived damaged: its bytes are not those that the hub knows it by.", hint="Pull it again."
        )
    return digest


def bytes_there(model: RemoteModel, folder: Path) -> int:
    """How much of *model* is in *folder* already, whole files and broken-off ones."""
    return sum(_size(folder / part.name) or _size(_growing(model, part, folder)) for part in model.parts)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - missing files are usual here
    except OSError:
        return 0


def _token() -> str | bool:
    """For the library, to which True would mean that there must be one."""
    return (not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and get_token()) or False


def _unreachable(reference: HubReference, error: Exception) -> SourceError:
    kind = "does not answer in time" if isinstance(error, httpx2.TimeoutException) else "can't be asked"
    return SourceError(
        f"{reference}: the Hugging Face hub {kind} ({type(error).__name__}).",
        hint="Check the network and HF_ENDPOINT.",
    )
