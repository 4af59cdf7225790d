"""Options that several commands share: the workload and the pinned engine settings."""

import argparse
from collections.abc import Callable
from typing import Final

from terazi.errors import UsageError
from terazi.memory.workload import Workload

#: llama.cpp keeps its counts in 32 bits.
_LARGEST: Final = 2**31 - 1
_PROMPT: Final = 512
_OUTPUT: Final = 128


def add_workload(parser: argparse.ArgumentParser) -> None:
    """``--context --users --prompt --output --ttft --itl``."""
    group = parser.add_argument_group("workload")
    group.add_argument("--context", type=positive, metavar="N", help="tokens that one sequence may grow to")
    group.add_argument("--users", type=positive, metavar="N", help="streams at once (default 1)")
    group.add_argument(
        "--prompt", type=positive, metavar="N", help=f"tokens of a typical prompt (default {_PROMPT})"
    )
    group.add_argument(
        "--output", type=positive, metavar="N", help=f"tokens of a typical answer (default {_OUTPUT})"
    )
    group.add_argument("--ttft", type=_milliseconds, metavar="MS", help="limit: the first token within MS ms")
    group.add_argument("--itl", type=_milliseconds, metavar="MS", help="limit: a token every MS ms, per stream")


def add_price(parser: argparse.ArgumentParser) -> None:
    """``--price-per-kwh``."""
    parser.add_argument("--price-per-kwh", type=_price, metavar="X", help="of electricity, for the cost")


def add_power(parser: argparse.ArgumentParser) -> None:
    """``--price-per-kwh`` and what else decides about watts and money."""
    group = parser.add_argument_group("power and money")
    group.add_argument("--price-per-kwh", type=_price, metavar="X", help="of electricity, for the cost")
    group.add_argument("--currency", metavar="CODE", help="that prices are in (default USD)")
    group.add_argument("--psu", type=_watts, metavar="W", help="rating of the power supply, to have it judged")
    group.add_argument(
        "--duty", type=_share, metavar="SHARE", help="of the month that the machine works, e.g. 0.25"
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Engine settings that may be pinned; what isn't given is chosen and said."""
    group = parser.add_argument_group("engine settings (chosen when not given)")
    group.add_argument("--engine", choices=["llama.cpp", "ollama", "vllm"], help="which engine")
    group.add_argument("--tensor-parallel", type=positive, metavar="N", help="cards that share each layer (vLLM)")
    group.add_argument("--pipeline-parallel", type=positive, metavar="N", help="stages of layers (vLLM)")
    group.add_argument("--kv-type", metavar="TYPE", help="type of the KV cache: f16, q8_0, q4_0 …; fp8 (vLLM)")
    group.add_argument("--gpu-layers", type=natural, metavar="N", help="layers to put on accelerators")
    group.add_argument("--tensor-split", metavar="A,B,…", help="shares of the accelerators")
    group.add_argument("--split-mode", choices=["none", "layer", "tensor"], help="how to use several accelerators")
    group.add_argument("--batch", type=positive, metavar="N", help="tokens of one logical batch")
    group.add_argument("--micro-batch", type=positive, metavar="N", help="tokens computed at once")
    group.add_argument("--flash-attention", choices=["on", "off", "auto"], help="the fused attention kernel")
    group.add_argument("--swa-full", action="store_true", default=None, help="full-length sliding-window cache")
    group.add_argument("--no-kv-offload", action="store_true", default=None, help="keep the KV cache in RAM")
    group.add_argument(
        "--cache-ram", type=_size_mib, metavar="MIB", help="host memory for reusable prompts; -1 is no limit"
    )


def workload(args: argparse.Namespace) -> Workload:
    """The workload that was typed. What wasn't is made to fit a short context.

    Raises:
        UsageError: prompt and answer don't fit the context.
    """
    prompt, output = lengths(args)
    room = args.context
    if room is not None and prompt + output > room:
        if args.output is None:
            output = max(1, min(output, room // 4, room - prompt if args.prompt else room))
        if args.prompt is None:
            prompt = max(1, min(prompt, room - output))
        if prompt + output > max(room, 2):
            raise UsageError(
                f"a prompt of {prompt} and an answer of {output} tokens don't fit a context of {room}",
                hint=f"give --context {prompt + output} or more, or lower --prompt and --output",
            )
    return Workload(
        context=room,
        users=args.users or 1,
        prompt=prompt,
        output=output,
        ttft_limit_s=None if args.ttft is None else args.ttft / 1e3,
        itl_limit_s=None if args.itl is None else args.itl / 1e3,
    )


def lengths(args: argparse.Namespace) -> tuple[int, int]:
    """Tokens of a typical prompt and of its answer, as typed or usual."""
    return args.prompt or _PROMPT, args.output or _OUTPUT


def pins(args: argparse.Namespace) -> dict[str, object]:
    """The engine settings that were typed, under their names in ``LlamaCppSettings``."""
    given: dict[str, object] = {}
    if args.kv_type is not None and args.engine == "vllm":
        given["kv_cache_dtype"] = args.kv_type
    elif args.kv_type is not None:
        given["type_k"] = given["type_v"] = args.kv_type
    if args.tensor_split is not None:
        given["tensor_split"] = _shares(args.tensor_split)
    if args.no_kv_offload:
        given["kv_offload"] = False
    for option, setting in (
        ("tensor_parallel", "tensor_parallel"),
        ("pipeline_parallel", "pipeline_parallel"),
        ("gpu_layers", "n_gpu_layers"),
        ("split_mode", "split_mode"),
        ("batch", "n_batch"),
        ("micro_batch", "n_ubatch"),
        ("flash_attention", "flash_attn"),
        ("swa_full", "swa_full"),
        ("cache_ram", "cache_ram_mib"),
    ):
        value = getattr(args, option)
        if value is not None:
            given[setting] = value
    return given


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        shares = ()
    if not all(0 <= share < float("inf") for share in shares) or not sum(shares) > 0:  # a NaN is in no range
        raise UsageError(
            f"--tensor-split {text!r} is not a list of shares",
            hint="give one number per accelerator, e.g. --tensor-split 2,1",
        )
    return shares


def port(text: str) -> int:
    """A port number, for argparse; 0 asks for a free one."""
    return _whole(text, 0, 65535)


def natural(text: str) -> int:
    """A count that may be none, for argparse."""
    return _whole(text, 0, _LARGEST)


def number(within: Callable[[float], bool], said: str) -> Callable[[str], float]:
    """A type for argparse: a number that is *within*, or the error *said*."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")  # within nothing
        if not within(value):
            raise argparse.ArgumentTypeError(said)
        return value

    return read


_price = number(lambda v: 0 <= v < float("inf"), "must be a price, e.g. 0.30")
_milliseconds = number(lambda v: 0 < v < float("inf"), "must be more than 0 ms, e.g. 500")
_watts = number(lambda v: 1 <= v < 1e6, "must be watts, e.g. 850")
_share = number(lambda v: 0 < v <= 1, "must be above 0 and at most 1, e.g. 0.25")


def positive(text: str) -> int:
    """A count of at least one, for argparse."""
    return _whole(text, 1, _LARGEST)


def _size_mib(text: str) -> int:
    return _whole(text, -1, _LARGEST)


def _whole(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError as error:
        kilo = text[:-1]
        instead = (
            f"; write {int(kilo) * 1024}" if text[-1:] in {"k", "K"} and kilo.isdecimal() and len(kilo) < 7 else ""
        )
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{instead}") from error
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be from {least} to {most}")
    return value
