"""``terazi ps``: what is running, and what it holds, planned against measured."""

import argparse
import asyncio
import json
from typing import Any

from terazi.cli import options
from terazi.cli.terminal import harmless
from terazi.service.beacon import Beacon, find_all
from terazi.service.client import ServiceClient
from terazi.service.paths import state_dir
from terazi.units import format_bytes, format_figure, format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi ps [--json]``."""
    parser.add_argument("--json", action="store_true", help="one document a service, schema terazi.ps/1")
    parser.add_argument("--port", type=options.port, help="which service, if several run")


def run(args: argparse.Namespace) -> int:
    """Print the snapshot of each service; as JSON, one document a line."""
    for beacon in find_all(state_dir() / "services", port=args.port):
        snapshot = asyncio.run(_snapshot(beacon))
        print(json.dumps(snapshot) if args.json else render(snapshot))
    return 0


async def _snapshot(beacon: Beacon) -> dict[str, Any]:
    async with ServiceClient(beacon) as client:
        return await client.snapshot()


def render(snapshot: dict[str, Any]) -> str:
    """A line a model, and below it its devices."""
    lines = [f"{snapshot['url']}  pid {snapshot['pid']}, up {format_seconds(snapshot['uptime_s'])}"]
    if snapshot["draining"]:
        lines[0] += ", draining"
    for model in snapshot["models"]:
        age = "" if model["uptime_s"] is None else f" up {format_seconds(model['uptime_s'])}"
        lines.append(
            f"{model['id']}  {model['state']}  {model['engine']} pid {model['pid'] or '-'}{age}, "
            f"{model['in_flight']} in flight, {model['restarts']} restarts, plan {model['plan_id']}"
        )
        lines += _live(model)
        lines += _held(model)
        for device in model["devices"]:
            measured = device["measured_bytes"]
            found = "not measured yet" if measured is None else f"it says {format_bytes(measured)}"
            planned, expected = format_bytes(device["planned_bytes"]), format_bytes(device["expected_in_log_bytes"])
            lines.append(f"  {device['id']:<8} planned {planned:>12}; the engine should say {expected}, {found}")
    return harmless("\n".join(lines))


def _held(model: dict[str, Any]) -> list[str]:
    """Whether the bill held at the last start, and what the kernel counts."""
    found = model["reconciliation"]
    if found is None:
        return []
    wrong = [row for row in found["rows"] if row["verdict"] == "differs"]
    count = len(found["rows"])
    lines = [f"  bill held: {count - len(wrong)} of {count} buffers" if count else "  its log names no buffers"]
    lines += [
        f"    {row['device']} {row['term']} planned {format_bytes(row['planned_bytes'])}, "
        f"is {format_bytes(row['actual_bytes'])}"
        for row in wrong
    ]
    process = found["process"]
    if process["anonymous_bytes"] is not None and process["file_bytes"] is not None:
        lines.append(
            f"  resident at the start: {format_bytes(process['anonymous_bytes'])} its own, "
            f"{format_bytes(process['file_bytes'])} of mapped files"
        )
    return lines


def _live(model: dict[str, Any]) -> list[str]:
    """What the engine says of itself, beside what was forecast."""
    live, forecast = model["live"], model["forecast"]
    if live is None:
        return []
    lines = []
    if live["slots"] is not None:
        lines.append(f"  {live['slots_busy']} of {live['slots']} slots busy, {live['context']} tokens each")
    for name, text in (("decode_tok_s", "decode"), ("prefill_tok_s", "prompt")):
        if live[name] is not None:
            said = forecast[name] if forecast else None
            figures = " … ".join(format_figure(said[end]) for end in ("low", "mid", "high")) if said else ""
            expected = f", forecast {figures}" if said else ""
            lines.append(f"  {text} {format_figure(live[name])} tok/s a stream since the start{expected}")
    return lines
