"""``terazi logs``: what an engine printed."""

import argparse
import asyncio
import sys

from terazi.cli import options
from terazi.cli.terminal import harmless
from terazi.service.beacon import find
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir
from terazi.supervisor.crashes import read_crashes, summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi logs [MODEL] [-n N] [-f]``."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="which model, if several are served")
    parser.add_argument("-n", "--lines", type=options.natural, default=50, help="how many last lines (default 50)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--port", type=options.port, help="which service, if several run")


def run(args: argparse.Namespace) -> int:
    """Print the lines, and how the engine ended when it last did so unasked."""
    if args.follow:
        _tell_crash(args.model)
    asyncio.run(_print(args))
    if not args.follow:
        _tell_crash(args.model)
    return 0


def _tell_crash(model: str | None) -> None:
    """For people only: what the log itself holds goes to stdout."""
    for document in read_crashes(state_dir() / "crashes", model)[-1:]:
        for line in summary(document):
            print(harmless(line), file=sys.stderr)


async def _print(args: argparse.Namespace) -> None:
    async with ServiceClient(find(state_dir() / "services", port=args.port)) as client:
        async for line in client.logs(args.model, args.lines, follow=args.follow):
            print(harmless(line), flush=args.follow)
