"""``terazi reload``: have the running service take over its changed terazi.toml now."""

import argparse
import asyncio

from terazi.cli import options
from terazi.cli.terminal import harmless
from terazi.service.beacon import Beacon, find
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi reload``."""
    parser.add_argument("--port", type=options.port, help="which service, if several run")


def run(args: argparse.Namespace) -> int:
    """Say what has changed; a mistake in the file changes nothing, and is an error."""
    changes = asyncio.run(_reload(find(state_dir() / "services", port=args.port)))
    print(harmless("\n".join(changes)) if changes else "nothing has changed")
    return 0


async def _reload(beacon: Beacon) -> list[str]:
    async with ServiceClient(beacon) as client:
        return await client.reload()
