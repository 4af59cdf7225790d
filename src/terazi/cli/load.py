"""``terazi load``: bring a model into memory now, a stopped one too."""

import argparse
import asyncio

from terazi.cli import options
from terazi.service.beacon import Beacon, find
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi load MODEL``."""
    parser.add_argument("model", metavar="MODEL", help="one of those that terazi ps shows; idle ones may go for it")
    parser.add_argument("--port", type=options.port, help="which service, if several run")


def run(args: argparse.Namespace) -> int:
    """Ask, and wait until it answers."""
    asyncio.run(_load(find(state_dir() / "services", port=args.port), args.model))
    print(f"{args.model} is ready")
    return 0


async def _load(beacon: Beacon, model: str) -> None:
    async with ServiceClient(beacon) as client:
        await client.load(model)
