"""``terazi up``: plan, launch, serve, until told to stop."""

import argparse
import asyncio
import contextlib
import json
import logging
import shlex
import shutil
import sys
from collections.abc import Sequence

from terazi.cli import options
from terazi.cli.render import render_weighing
from terazi.cli.terminal import one_line, tell
from terazi.errors import UsageError
from terazi.service.config import Config, find_config, read_config
from terazi.service.config_models import read_url
from terazi.service.log_output import PROGRAM, JsonLine, TextLine
from terazi.service.running import Service
from terazi.service.up_request import UpRequest
from terazi.service.weighing import Weighing
from terazi.service.wish import Wish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi up [MODEL…]``."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a .gguf file, ollama:name, or: demo; without any those of terazi.toml, or demo if there are none",
    )
    parser.add_argument(
        "--attach",
        action="append",
        default=[],
        metavar="URL[=NAME]",
        help="serve the models of a running OpenAI-compatible server too, e.g. http://127.0.0.1:9000/v1; "
        "it is never started or stopped (may be given more than once)",
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=options.port, help="port to listen on (default 8484; 0 picks a free one)")
    parser.add_argument(
        "--api-key", metavar="KEY", help="what clients must send; $TERAZI_API_KEY keeps it out of `ps`"
    )
    parser.add_argument("--config", metavar="FILE", help="terazi.toml to read")
    parser.add_argument(
        "--mmproj",
        metavar="FILE",
        help="projector for images or sound; without it the one beside the model, if there is one; none: without",
    )
    options.add_price(parser)
    options.add_workload(parser)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, SIGTERM or ``terazi stop``."""
    import os

    import uvloop

    path = find_config(args.config)
    config = Config() if path is None else read_config(path)
    attach = tuple(_attached(text) for text in args.attach)
    models = args.models or ([] if config.models or attach else ["demo"])
    workload, pins = options.workload(args), options.pins(args)
    if args.mmproj is not None and len(models) != 1:
        raise UsageError(
            "--mmproj goes with one MODEL on the command line",
            hint="of several, give each its own: mmproj in its [models.settings] in terazi.toml",
        )
    if not models and (pins or args.context is not None or args.users is not None):
        raise UsageError(
            "settings on the command line go with a MODEL on the command line",
            hint="name the model, or put them into its [models.settings] in terazi.toml",
        )
    request = UpRequest(
        wishes=tuple(Wish(source=model, workload=workload, pins=pins, mmproj=args.mmproj) for model in models),
        attach=attach,
        config=config,
        config_path=path,
        host=args.host or config.service.host,
        port=config.service.port if args.port is None else args.port,
        price_per_kwh=args.price_per_kwh,
        api_key=args.api_key or os.environ.get("TERAZI_API_KEY") or None,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(request))
    return 0


def _attached(text: str) -> tuple[str, str | None]:
    """``URL`` or ``URL=NAME``."""
    url, _, name = text.partition("=")
    try:
        return read_url(url), name or None
    except ValueError as error:
        raise UsageError(
            f"--attach {text!r} {error}", hint="e.g. --attach http://127.0.0.1:9000/v1=qwen"
        ) from error


async def _serve(request: UpRequest) -> None:
    reporter = TerminalReporter()
    logger = logging.getLogger(PROGRAM)
    logger.addHandler(reporter)
    try:
        await Service(request, reporter).run()
    finally:
        logger.removeHandler(reporter)


class TerminalReporter(logging.Handler):
    """Pages to stdout, progress and what the program logs to stderr.

    Nothing here raises once the service runs: a terminal that has gone away must not keep engines from being
    stopped as they should.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextLine())
        self._drawn = False

    def weighed(self, weighing: Weighing) -> None:
        """The page of ``terazi weigh``."""
        print(render_weighing(weighing), flush=True)

    def say(self, text: str) -> None:
        """One line, after the progress line; a record where all lines are to be objects."""
        self._wipe()
        if isinstance(self.formatter, JsonLine):
            text = self.format(logging.makeLogRecord({"name": PROGRAM, "levelname": "INFO", "msg": text}))
        tell([text])

    def emit(self, record: logging.LogRecord) -> None:
        """A log record as a line, in the form that ``[log]`` asks for."""
        self._wipe()
        tell([self.format(record)])

    def loading(self, model: str, detail: str) -> None:
        """A progress line, redrawn on a terminal only."""
        if sys.stderr.isatty():
            self._draw(f"\r\033[K{one_line(model)}: {detail}")
            self._drawn = True

    def serving(self, url: str, models: Sequence[str], *, keyed: bool) -> None:
        """The address, and how to use it."""
        self._wipe()
        names = [one_line(model) for model in models]
        if not names:
            print(f"\nserving no model yet at {url}", flush=True)
            return
        asked = {"model": models[0], "messages": [{"role": "user", "content": "Hello"}]}
        body = json.dumps(asked, ensure_ascii=False)
        key = ' -H "Authorization: Bearer $TERAZI_API_KEY"' if keyed else ""
        me = called_as()
        print(
            f"\nserving {', '.join(names)} at {url}\n"
            f"  OpenAI clients: base_url {url}/v1    Ollama clients: host {url}\n"
            f'  try: {me} chat "What is a pair of scales?"\n'
            f"   or: curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
            f"-d {shlex.quote(body)}\n"
            f"  stop with Ctrl-C or: {me} stop",
            flush=True,
        )

    def _wipe(self) -> None:
        if self._drawn:
            self._draw("\r\033[K")
            self._drawn = False

    @staticmethod
    def _draw(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=sys.stderr, flush=True)


def called_as() -> str:
    """How to type this program's name here: an environment that isn't activated needs the path."""
    typed = sys.argv[0]
    if shutil.which("terazi") or not typed.endswith("/terazi"):
        return "terazi"
    return shlex.quote(typed)
