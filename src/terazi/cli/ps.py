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
    """A line a model, and below it each of its engines with its devices."""
    lines = [f"{snapshot['url']}  pid {snapshot['pid']}, up {format_seconds(snapshot['uptime_s'])}"]
    if snapshot["draining"]:
        lines[0] += ", draining"
    if snapshot["config_problem"] is not None:
        lines.append(f"the changed configuration is not in force: {snapshot['config_problem']}")
    for model in snapshot["models"]:
        lines += _model(model)
    lines += _callers(snapshot["callers"])
    return harmless("\n".join(lines))


def _callers(callers: list[dict[str, Any]]) -> list[str]:
    """Who has requests here, and who is at the end of its rate."""
    lines = []
    for caller in callers:
        if not (caller["waiting"] or caller["running"]):
            continue
        left = "" if caller["rate_left"] is None else f", {max(0, round(caller['rate_left'])):,} tokens to spare"
        lines.append(f"  {caller['caller']}: {caller['running']} in engines, {caller['waiting']} waiting{left}")
    return ["requests by key", *lines] if lines else []


def _model(model: dict[str, Any]) -> list[str]:
    marks = ["pinned"] if model["pinned"] else []
    if model["idle_s"] is not None:
        marks.append(f"unloaded after {format_seconds(model['idle_s'])} idle")
    line = f"{model['id']}  {model['state']}  {model['engine']}"
    if not model["replicas"]:
        holds = ", ".join(f"{device} {format_bytes(need)}" for device, need in model["needs"].items())
        marks.insert(0, f"would hold {holds}" if holds else f"{model['in_flight']} in flight")
    elif len(model["replicas"]) > 1:
        marks.insert(0, f"{len(model['replicas'])} engines")
    elif model["replicas"]:
        marks.insert(0, _engine(model["replicas"][0]))
    lines = [", ".join([f"{line} {marks[0]}" if model["replicas"] else f"{line}  {marks[0]}", *marks[1:]])]
    if model["waiting"]:
        oldest = "" if model["oldest_s"] is None else f", the oldest for {format_seconds(model['oldest_s'])}"
        lines.append(f"  {model['running']} in engines, {model['waiting']} waiting{oldest}")
    if model["closed"] is not None:
        again = "" if model["opens_in_s"] is None else f"; tried again in {format_seconds(model['opens_in_s'])}"
        lines.append(f"  takes no requests: {model['closed']}{again}")
    for replica in model["replicas"]:
        if len(model["replicas"]) > 1:
            lines.append(f"  {replica['replica']}  {replica['state']}  {_engine(replica)}")
        lines += _live(replica, model["forecast"])
        lines += _held(replica)
        lines += [_device(device) for device in replica["devices"]]
    return lines


def _engine(replica: dict[str, Any]) -> str:
    age = "" if replica["uptime_s"] is None else f" up {format_seconds(replica['uptime_s'])}"
    return (
        f"pid {replica['pid'] or '-'}{age}, {replica['in_flight']} in flight, "
        f"{replica['restarts']} restarts, plan {replica['plan_id']}"
    )


def _device(device: dict[str, Any]) -> str:
    measured = device["measured_bytes"]
    found = "not measured yet" if measured is None else f"it says {format_bytes(measured)}"
    planned, expected = format_bytes(device["planned_bytes"]), format_bytes(device["expected_in_log_bytes"])
    return f"  {device['id']:<8} planned {planned:>12}; the engine should say {expected}, {found}"


def _held(replica: dict[str, Any]) -> list[str]:
    """Whether the bill held at the last start, and what the kernel counts."""
    found = replica["reconciliation"]
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


def _live(replica: dict[str, Any], forecast: dict[str, Any] | None) -> list[str]:
    """What the engine says of itself, beside what was forecast."""
    live = replica["live"]
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
