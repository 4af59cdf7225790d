"""``terazi logs``: what an engine printed."""

import argparse
import asyncio

from terazi.cli import options
from terazi.cli.terminal import harmless
from terazi.service.beacon import find
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi logs [MODEL] [-n N] [-f]``."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="which model, if several are served")
    parser.add_argument("-n", "--lines", type=options.natural, default=50, help="how many last lines (default 50)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--port", type=options.port, help="which service, if several run")


def run(args: argparse.Namespace) -> int:
    """Print the lines."""
    asyncio.run(_print(args))
    return 0


async def _print(args: argparse.Namespace) -> None:
    async with ServiceClient(find(state_dir() / "services", port=args.port)) as client:
        async for line in client.logs(args.model, args.lines, follow=args.follow):
            print(harmless(line), flush=args.follow)
