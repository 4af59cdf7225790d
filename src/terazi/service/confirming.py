"""Holds the bill of each engine that has become ready against what it has really loaded."""

import asyncio
from collections.abc import Callable

from terazi.hardware.probe import read_process_memory
from terazi.service.deployment import Deployment
from terazi.service.records import keep
from terazi.supervisor.process import resident
from terazi.telemetry.reconciliation import ProcessMemory


async def confirm(deployment: Deployment, say: Callable[[str], None]) -> None:
    """Say how that went in a line, and keep it."""
    pid = deployment.runner.pid
    process = await asyncio.to_thread(_memory_of, pid) if pid is not None else ProcessMemory()
    found = deployment.reconcile(process)
    say(f"{deployment.card.id}: {found.sentence()}")
    if found.rows:
        await asyncio.to_thread(keep, found, say)


def _memory_of(pid: int) -> ProcessMemory:
    anonymous, file = resident(pid)
    return ProcessMemory(anonymous_bytes=anonymous, file_bytes=file, device_bytes=read_process_memory(pid))
