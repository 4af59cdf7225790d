"""``terazi weigh``: the bill, the device map, the forecast and the verdict."""

import argparse
import atexit
import gc
from collections.abc import Iterator

from terazi.cli import options
from terazi.cli.shown import powered, show
from terazi.errors import TeraziError, UsageError
from terazi.service.records import with_records
from terazi.service.weigh import find_machine, split_command_line, weigh_command, weigh_model

_COMMAND_LINE_LIMIT = 64 * 1024
#: What is skipped of one line at most; a device like /dev/zero has no end.
_SKIPPED_LIMIT = 256 * 1024**2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi weigh MODEL``, ``terazi weigh -- COMMAND``, ``terazi weigh --commands FILE``."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a file or folder, hf:org/repo[:quant], ollama:name, a Modelfile, or: demo; several share one budget",
    )
    parser.add_argument("--on", metavar="MACHINE", help='this (default), machine.json, or "2x RTX 3090 + 64GiB"')
    parser.add_argument("--json", action="store_true", help="one document, schema terazi.weighing/1")
    parser.add_argument(
        "--commands", metavar="FILE", help="one engine command a line in (- is stdin), one JSON document a line out"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="ask the engine too: a sparse twin of the model is loaded on stand-in devices of this host, and each "
        "figure is compared (exit code 4 if one differs)",
    )
    parser.add_argument("--compare", action="store_true", help="the engines side by side, and which one to take")
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help='a variation side by side with the first, e.g. kv-type=q8_0, context=32768, "on=+RTX 3090", cap=250W, '
        'link=nvlink, quant=Q5_K_M; several of one: "context=65536; kv-type=q8_0" (may be given more than once)',
    )
    parser.add_argument(
        "--quant",
        metavar="TYPE",
        help="which file of a folder or repository: Q4_K_M …, or: best, which weighs them all",
    )
    parser.add_argument(
        "--any", action="store_true", help="the MODELs are files of one model: weigh them all and take the best"
    )
    parser.add_argument(
        "--draft", metavar="MODEL", help="a small model that may guess tokens for it, if that is faster (llama.cpp)"
    )
    parser.add_argument("--svg", metavar="FILE", help="draw the device map, the roofline and the power caps there")
    parser.add_argument("--html", metavar="FILE", help="the same as a page with tables")
    options.add_power(parser)
    options.add_workload(parser)
    options.add_settings(parser)
    parser.usage = "terazi weigh [options] MODEL… | terazi weigh [options] -- llama-server -m MODEL …"


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if it fits, 3 if it is refused, 4 if the engine was to be asked and doesn't agree or answer."""
    # A weighing holds nothing that must be closed by a finaliser. Taken out of the collector's sight, its objects
    # aren't walked through once more on the way out, which is an eighth of the whole run.
    atexit.register(gc.freeze)
    if bool(args.models) + (args.tail is not None) + (args.commands is not None) != 1:
        raise UsageError(
            "give one thing to weigh: a MODEL, a command after --, or --commands FILE",
            hint="e.g. terazi weigh demo, or: terazi weigh -- llama-server -m model.gguf -c 8192",
        )
    if args.commands is not None:
        if args.svg is not None or args.html is not None:
            raise UsageError(
                "--svg and --html draw one thing, not a file of commands", hint="give the command itself"
            )
        if args.verify:
            raise UsageError(
                "--verify takes one thing to weigh, not a file of commands",
                hint="give the command itself: terazi weigh --verify -- llama-server -m model.gguf",
            )
        return _weigh_file(args)
    beside = args.compare or args.what_if or args.quant or args.any or len(args.models) > 1
    if beside or (args.models and _may_be_several(args.models[0], args.engine)):
        from terazi.cli import weigh_beside

        if beside:
            _refuse_command(args)
        return weigh_beside.run(args)
    if args.tail is not None:
        _refuse_pins(args)
        prompt, output = options.lengths(args)
        weighing = weigh_command(
            args.tail, find_machine(args.on), prompt=prompt, output=output, price_per_kwh=args.price_per_kwh
        )
    else:
        weighing = weigh_model(
            args.models[0],
            find_machine(args.on),
            options.workload(args),
            options.pins(args),
            engine=args.engine,
            price_per_kwh=args.price_per_kwh,
            draft=args.draft,
        )
    return show(args, weighing)


def _may_be_several(model: str, engine: str | None) -> bool:
    """Whether MODEL names no file but where several may lie: a folder, or a repository without a quantisation."""
    if engine == "vllm" or model == "demo":
        return False
    if model.startswith("hf:"):
        return ":" not in model.removeprefix("hf:")
    from terazi.models.sources.files import is_directory

    return ":" not in model and is_directory(model)


def _weigh_file(args: argparse.Namespace) -> int:
    """Every line gets its document, a faulty one an error document; the exit code is 1 if there was any."""
    from terazi.service.document import document_text, error_text

    _refuse_pins(args)
    machine = find_machine(args.on)
    prompt, output = options.lengths(args)
    failed = False
    for line in _lines(args.commands):
        try:
            if len(line) > _COMMAND_LINE_LIMIT:
                raise UsageError(
                    f"a line of over {_COMMAND_LINE_LIMIT} characters is no command", hint="give one command a line"
                )
            words = split_command_line(line)
            if not words:
                continue
            weighing = weigh_command(words, machine, prompt=prompt, output=output, price_per_kwh=args.price_per_kwh)
            text = document_text(powered(with_records(weighing), args))
        except TeraziError as error:
            failed = True
            text = error_text(line[:_COMMAND_LINE_LIMIT], error)
        print(text, flush=True)
    return 1 if failed else 0


def _lines(path: str) -> Iterator[str]:
    """The lines of a command file. Of a line over the limit, only its beginning comes: more than the limit.

    Bytes that are no text become what Python makes of such file names, so that one odd line costs no other.

    Raises:
        UsageError: the file can't be read.
    """
    hint = "a command file is plain text, one command a line; - is standard input"
    try:
        source = open(  # noqa: SIM115 - pathlib costs start-up time; closed below, and 0 stays open
            0 if path == "-" else path, encoding="utf-8", errors="surrogateescape", closefd=path != "-"
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path} can't be read as commands: {reason}", hint=hint) from error
    with source:
        while line := source.readline(_COMMAND_LINE_LIMIT + 1):
            rest, skipped = line, 0
            while rest and not rest.endswith("\n"):
                rest = source.readline(_COMMAND_LINE_LIMIT)
                skipped += len(rest)
                if skipped > _SKIPPED_LIMIT:
                    raise UsageError(f"{path} can't be read as commands: a line of it doesn't end", hint=hint)
            yield line


def _refuse_pins(args: argparse.Namespace) -> None:
    pinned = sorted(options.pins(args))
    if pinned or args.context is not None or args.users is not None:
        raise UsageError(
            "a command line says its own settings, so --context, --users and engine settings don't go with it",
            hint="put them into the command, after --",
        )


def _refuse_command(args: argparse.Namespace) -> None:
    if not args.models:
        raise UsageError(
            "--compare, --what-if, --quant and --any take a MODEL, not a command",
            hint="give the model itself, e.g. terazi weigh model.gguf --compare",
        )
    if args.verify:
        raise UsageError(
            "--verify takes one thing to weigh", hint="leave out --compare, --what-if and all but one MODEL"
        )
