"""``terazi up``: plan, launch, serve, until told to stop."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from terazi.cli import options
from terazi.cli.render import render_weighing
from terazi.service.config import load_config
from terazi.service.running import Service, UpRequest
from terazi.service.weighing import Weighing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi up [MODEL…]``."""
    parser.add_argument("models", nargs="*", default=["demo"], metavar="MODEL", help="a .gguf file (default: demo)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8484; 0 picks a free one)")
    parser.add_argument(
        "--api-key", metavar="KEY", help="what clients must send; $TERAZI_API_KEY keeps it out of `ps`"
    )
    parser.add_argument("--config", metavar="FILE", help="terazi.toml to read")
    options.add_workload(parser)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, SIGTERM or ``terazi stop``."""
    import os

    config = load_config(args.config)
    request = UpRequest(
        models=tuple(args.models),
        workload=options.workload(args),
        pins=options.pins(args),
        config=config,
        host=args.host or config.service.host,
        port=config.service.port if args.port is None else args.port,
        api_key=args.api_key or os.environ.get("TERAZI_API_KEY") or config.service.api_key,
    )
    asyncio.run(_serve(request))
    return 0


async def _serve(request: UpRequest) -> None:
    await Service(request, TerminalReporter()).run()


class TerminalReporter:
    """Pages to stdout, progress to stderr."""

    def __init__(self) -> None:
        self._drawn = False

    def weighed(self, weighing: Weighing) -> None:
        """The page of ``terazi weigh``."""
        print(render_weighing(weighing), flush=True)

    def say(self, text: str) -> None:
        """One line, after the progress line."""
        self._wipe()
        print(text, file=sys.stderr, flush=True)

    def loading(self, model: str, detail: str) -> None:
        """A progress line, redrawn on a terminal only."""
        if sys.stderr.isatty():
            print(f"\r\033[K{model}: {detail}", end="", file=sys.stderr, flush=True)
            self._drawn = True

    def serving(self, url: str, models: Sequence[str], api_key: str | None) -> None:
        """The address, and how to use it."""
        self._wipe()
        key = "" if api_key is None else ' -H "Authorization: Bearer $TERAZI_API_KEY"'
        print(
            f"\nserving {', '.join(models)} at {url}\n"
            f"  OpenAI clients: base_url {url}/v1    Ollama clients: host {url}\n"
            f'  try: terazi chat "What is a pair of scales?"\n'
            f"   or: curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
            f'-d \'{{"model": "{models[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}\'\n'
            f"  stop with Ctrl-C or: terazi stop",
            flush=True,
        )

    def _wipe(self) -> None:
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr)
            self._drawn = False
