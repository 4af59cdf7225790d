"""``terazi calibrate``: measure this machine, so that forecasts rest on it."""

import argparse
import json
import sys
from typing import Any

from terazi.cli.terminal import one_line, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi calibrate [--model MODEL] [--force] [--json]``, ``--show``, ``--forget``."""
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODEL",
        help="measure the tensor types of this model too; may be given again",
    )
    parser.add_argument("--force", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--json", action="store_true", help="print what was found as one JSON document")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--show", action="store_true", help="what is kept, without measuring")
    one.add_argument("--forget", action="store_true", help="drop what was measured on this machine")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 once it is kept, 4 if the engine failed or the machine is busy."""
    from terazi.service import calibrate as service

    if args.show:
        document = service.shown()
        print(json.dumps(document) if args.json else "\n\n".join(_kept(document)))
        return 0
    if args.forget:
        gone = service.forget()
        print(f"{gone} calibration{'s' * (gone != 1)} of this machine forgotten")
        return 0
    report = service.calibrate(lambda step: tell([f"calibrating: {step}"]), models=args.model, force=args.force)
    document = service.report_to_json(report)
    print(json.dumps(document) if args.json else _page(document))
    for note in report.notes:
        print(f"note: {one_line(note)}", file=sys.stderr)
    return 0


def _kept(document: dict[str, Any]) -> list[str]:
    pages = [_page(entry) for entry in document["calibrations"] if "calibration" in entry]
    return pages or ["no calibration is kept; make one with: terazi calibrate"]


def _page(document: dict[str, Any]) -> str:
    """What a person wants to know: rates a type, costs, links."""
    said = document["calibration"]
    lines = [
        one_line(str(document["machine"])),
        f"measured {said['measured_at']} with llama.cpp {said['build']}, by terazi {document['version']}",
        f"in {document['seconds']:.0f} s; {document['disturbed']:.0%} of the runs were disturbed and don't count",
        f"memory is read at {document['memory_bytes_per_s'] / 1e9:.1f} GB/s",
    ]
    for device in said["devices"]:
        lines += ["", one_line(f"{device['device']}: {device['name']}"), *_device(device)]
    for link in said["links"]:
        lines.append(f"{link['a']} to {link['b']}: {link['latency_s'] * 1e3:.2f} ms a hand-over")
    return "\n".join(lines)


def _device(device: dict[str, Any]) -> list[str]:
    layers = device["layer_batches"]
    sizes = [n for n, _ in layers]
    lines = [
        "  GB/s of weights in long rows, by tokens at once; ns for each row besides, of one token",
        "  " + " " * 8 + "".join(f"{n:>9}" for n in sizes),
    ]
    for kernel in device["kernels"]:
        rates = "".join(f"{1e-9 / s:9.2f}" for _, s in kernel["batches"])
        row = f"{1e9 * kernel['rows'][0][1]:9.1f}" if kernel["rows"] else ""
        lines.append(f"  {kernel['dtype']:<8}{rates}{row}")
    lines.append("  a layer besides, us: " + " ".join(f"{s * 1e6:.0f}" for _, s in layers))
    for key, words in (
        ("attention_flops_per_s", "attention over the cache"),
        ("prefill_attention_flops_per_s", "attention within a prompt"),
    ):
        rate = device[key]
        lines.append(f"  {words}: {f'{rate / 1e9:.1f} GFLOP/s' if isinstance(rate, float) else 'too fast to tell'}")
    step, token, vocab = (device[key] for key in ("step_s", "token_s", "vocab_s"))
    lines.append(
        f"  the server, us: {step * 1e6:.0f} a step, {token * 1e6:.0f} a stream, "
        f"{vocab * 1e9:.1f} for 1000 words of the vocabulary"
    )
    return lines
