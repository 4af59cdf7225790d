"""The beacon: a small file by which ``ps``, ``chat``, ``stop`` and ``logs`` find the running service.

It holds the address, the process's identity and a random token for the control API; only its owner may read it.
A beacon whose process is gone is stale and is removed by the next reader.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from terazi.errors import ServiceError

_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """One running service. ``started`` is the process's start time as the system reports it (seconds).

    ``fingerprint`` is the SHA-256 of its certificate, if it speaks HTTPS: the commands know it by that, since the
    certificate's name need not be the address.
    """

    url: str
    pid: int
    started: float
    control_token: str
    api_key: str | None
    fingerprint: str | None = None
    schema: str = "terazi.beacon/1"


def light(directory: Path, beacon: Beacon) -> Path:
    """Write the beacon whole or not at all; returns its path.

    Raises:
        OSError: if the disk says no; nothing is left then.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / f"{beacon.pid}.json"
    handle, name = tempfile.mkstemp(dir=directory, prefix=".beacon-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(beacon), file)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def living(directory: Path) -> tuple[Beacon, ...]:
    """The services that are running now, newest first; stale beacons are removed."""
    return tuple(sorted(_living(directory), key=lambda beacon: -beacon.started))


def _living(directory: Path) -> Iterator[Beacon]:
    for path in directory.glob("*.json"):
        try:
            with path.open() as file:
                beacon = Beacon(**json.loads(file.read(_LIMIT_BYTES)))
        except (OSError, ValueError, TypeError):
            continue
        if is_alive(beacon.pid, beacon.started):
            yield beacon
        else:
            with contextlib.suppress(OSError):  # a disk that can't be written is no reason not to look
                path.unlink(missing_ok=True)


def is_alive(pid: int, started: float) -> bool:
    """Whether the very process is there: same number and same start time (pids are reused)."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < 1
    except psutil.Error:
        return False


def find(directory: Path, *, port: int | None = None) -> Beacon:
    """The one service that is running, or that runs on *port*.

    Raises:
        ServiceError: if there is none, or several could be meant.
    """
    beacons = find_all(directory, port=port)
    if len(beacons) > 1:
        urls = ", ".join(b.url for b in beacons)
        raise ServiceError(f"{len(beacons)} services are running: {urls}", hint="say which one with --port")
    return beacons[0]


def find_all(directory: Path, *, port: int | None = None) -> tuple[Beacon, ...]:
    """All running services, newest first, or those on *port* (one, unless they listen on different addresses).

    Raises:
        ServiceError: if there is none.
    """
    beacons = living(directory)
    if port is not None:
        beacons = tuple(b for b in beacons if b.url.endswith(f":{port}"))
    if not beacons:
        where = f" on port {port}" if port is not None else ""
        raise ServiceError(f"no Terazi service is running{where}", hint="start one with: terazi up")
    return beacons
