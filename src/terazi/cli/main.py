"""The command line: parses, picks the command's module, turns errors into one sentence, a hint and an exit code."""

import argparse
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final, NoReturn

from terazi import __version__
from terazi.cli.terminal import prepare_streams, tell
from terazi.errors import TeraziError, UsageError

#: Command → (module, one line of help). A module has ``add_arguments(parser)`` and ``run(args) -> int``.
COMMANDS: Final = {
    "weigh": ("terazi.cli.weigh", "say what a model, or a ready command line, would hold where"),
    "calibrate": ("terazi.cli.calibrate", "measure this machine, so that forecasts rest on it"),
    "cost": ("terazi.cli.cost", "own hardware against hosted alternatives, for a month of the same work"),
    "up": ("terazi.cli.up", "plan, launch and serve at one address"),
    "chat": ("terazi.cli.chat", "talk to a served model"),
    "ps": ("terazi.cli.ps", "what is running, and what it holds"),
    "stop": ("terazi.cli.stop", "stop the service, or one model"),
    "load": ("terazi.cli.load", "bring a model of the service into memory"),
    "reload": ("terazi.cli.reload", "have the service read its terazi.toml again"),
    "logs": ("terazi.cli.logs", "what an engine printed"),
    "usage": ("terazi.cli.usage", "who used what, by API key and model"),
}

#: What a write to a full or broken place fails with; reads are translated where they happen.
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Characters of an error or a hint; lists of what there is to choose from have a few hundred.
_MESSAGE_LIMIT: Final = 1500

_EPILOG: Final = """\
examples:
  terazi up                                    serve the small demo model at http://127.0.0.1:8484
  terazi weigh model.gguf --context 32768      what it would hold on this machine
  terazi weigh model.gguf --on "2x RTX 3090 nvlink + 64GiB ddr4"
  terazi weigh hf:org/repo:Q4_K_M              a model that is not here: only its header travels
  terazi weigh -- llama-server -m model.gguf -c 16384 -np 4 -ctk q8_0

exit codes: 0 done, 1 failed, 2 usage, 3 refused (would not fit), 4 engine failed
"""


class _Help(argparse.HelpFormatter):
    """As wide as the terminal, found without ``shutil``, which would import half of the archive formats.

    A formatter is made for every option that is added, help or not, so this is on the path of each command.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_columns() - 2)


class _ProgramHelp(_Help, argparse.RawDescriptionHelpFormatter):
    """The same, with the examples' lines left as they are."""


def terminal_columns() -> int:
    """The rule of ``shutil.get_terminal_size``: ``COLUMNS``, else the terminal's own figure, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in this program's own way: one sentence, a hint, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see: {self.prog} --help")


def program_parser() -> argparse.ArgumentParser:
    """The parser that knows the commands by name and one line, and none of their options."""
    parser = _Parser(
        prog="terazi",
        description="Weigh a language model against a machine, run it, and keep the promise.",
        epilog=_EPILOG,
        formatter_class=_ProgramHelp,
    )
    parser.add_argument("--version", action="version", version=f"terazi {__version__}")
    # prog is given, since working it out means formatting a usage line
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="terazi")
    for name, (_, line) in COMMANDS.items():
        commands.add_parser(name, help=line)
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command; only its own module is imported, which keeps start-up short."""
    module, line = COMMANDS[name]
    parser = _Parser(
        prog=f"terazi {name}",
        description=f"{line[0].upper()}{line[1:]}.",
        allow_abbrev=False,
        formatter_class=_Help,
    )
    _module(module).add_arguments(parser)
    return parser


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _shortened(text: str) -> str:
    """*text* as long as a person may want to read it: a message may quote an argument of any length."""
    return text if len(text) <= _MESSAGE_LIMIT else f"{text[: _MESSAGE_LIMIT - 200]} … {text[-200:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    # what follows `weigh --` is another program's command line and not ours to parse
    tail: list[str] | None = None
    if arguments[:1] == ["weigh"] and "--" in arguments:
        cut = arguments.index("--")
        arguments, tail = arguments[:cut], arguments[cut + 1 :]
    # a command makes many objects and drops few: collecting less often is a twentieth of the start-up
    gc.set_threshold(50_000)
    try:
        if not arguments or arguments[0] not in COMMANDS:
            program_parser().parse_args(arguments)
        name, *rest = arguments
        args = command_parser(name).parse_args(rest)
        args.tail = tail
        code: int = _module(COMMANDS[name][0]).run(args)
        sys.stdout.flush()
    except TeraziError as error:
        tell([f"error: {_shortened(error.message)}", f"hint: {_shortened(error.hint)}"])
        return error.exit_code
    except KeyboardInterrupt:
        tell(["interrupted"])
        return 130
    except BrokenPipeError:
        # the reader went away (`terazi … | head`): nothing to say, and nobody to say it to
        sys.stdout = None
        return 141
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        sys.stdout = None
        tell([f"error: the output can't be written: {error.strerror}", "hint: make room where it goes"])
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
