"""``terazi stop``: drain, then stop the service or one model."""

import argparse
import asyncio
import time

from terazi.cli import options
from terazi.errors import ServiceError
from terazi.service.beacon import Beacon, find, is_alive
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir

#: From closing its port until its process has gone, a service takes about a second.
_LEAVING_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi stop [MODEL]``."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="one model; without it the whole service")
    parser.add_argument("--port", type=options.port, help="which service, if several run")
    parser.add_argument("--wait", type=float, default=60, metavar="S", help="how long to wait for it to be gone")


def run(args: argparse.Namespace) -> int:
    """Ask, and wait until it is done."""
    beacon = find(state_dir() / "services", port=args.port)
    try:
        asyncio.run(_stop(beacon, args.model))
    except ServiceError:
        # it may be on its way out already, by another `stop` or a Ctrl-C
        if args.model is not None or not _gone(beacon, min(args.wait, _LEAVING_S)):
            raise
    if args.model is not None:
        print(f"{args.model} is stopped")
        return 0
    if not _gone(beacon, args.wait):
        raise ServiceError(
            f"the service (pid {beacon.pid}) is still draining after {args.wait:g} s", hint="see: terazi ps"
        )
    print(f"the service at {beacon.url} is stopped")
    return 0


async def _stop(beacon: Beacon, model: str | None) -> None:
    async with ServiceClient(beacon) as client:
        await client.stop(model)


def _gone(beacon: Beacon, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while is_alive(beacon.pid, beacon.started):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
