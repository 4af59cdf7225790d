"""Runs ``terazi`` as a user would: as a process of its own, with a home of its own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import psutil

from terazi.service.beacon import find
from terazi.service.client import ServiceClient

REPO = Path(__file__).parents[1]
SERVING = re.compile(r"serving .+ at (http://\S+)")


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This process's environment, with Terazi's state under *home*."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TERAZI_", "LLAMA_"))}
    own = os.environ.get("TERAZI_LLAMA_SERVER")
    if own:
        env["TERAZI_LLAMA_SERVER"] = own
    return {**env, "PYTHONPATH": str(REPO / "src"), "TERAZI_HOME": str(home), **extra}


def terazi(home: Path, *arguments: str, **extra: str) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "terazi", *arguments],
        env=environment(home, **extra),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=home,
    )


def ps(home: Path) -> dict[str, Any]:
    """As ``terazi ps --json``, without the price of a process."""

    async def asked() -> dict[str, Any]:
        async with ServiceClient(find(home / "services")) as client:
            return await client.snapshot()

    return asyncio.run(asked())


@dataclass
class Up:
    """A running ``terazi up``."""

    process: "subprocess.Popen[str]"
    home: Path
    lines: "Queue[str | None]"
    seen: list[str]

    def wait_for(self, pattern: "re.Pattern[str]", *, within_s: float = 60) -> "re.Match[str]":
        """The first line of its output that matches."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                line = None
            assert line is not None, "\n".join(["it never printed " + pattern.pattern, *self.seen])
            self.seen.append(line)
            match = pattern.search(line)
            if match:
                return match

    def url(self) -> str:
        """Where it serves."""
        return self.wait_for(SERVING)[1]

    def engines(self) -> list[psutil.Process]:
        """Its engine processes: they carry this home's log and record."""
        return engines_of(self.home)

    def end(self, number: int = signal.SIGINT, *, within_s: float = 30) -> int:
        """Send a signal and wait for its end."""
        self.process.send_signal(number)
        return self.process.wait(within_s)


def engines_of(home: Path) -> list[psutil.Process]:
    """Processes whose environment says that they run for *home*, other than Terazi's own."""
    return [process for process, _ in _tagged(home)]


def runs_of(home: Path) -> set[str]:
    """Which engines run for *home*, however many processes each of them is."""
    return {run_id for _, run_id in _tagged(home)}


def _tagged(home: Path) -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        try:
            env = process.environ()
            ours = env.get("TERAZI_HOME") == str(home) and "TERAZI_RUN_ID" in env
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process, env["TERAZI_RUN_ID"]
        except psutil.Error:
            continue


@contextmanager
def up(home: Path, *arguments: str, **extra: str) -> Iterator[Up]:
    """``terazi up --port 0 …``; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "terazi", "up", "--port", "0", *arguments],
        env=environment(home, **extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        start_new_session=True,
    )
    lines: Queue[str | None] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        yield Up(process, home, lines, [])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()
