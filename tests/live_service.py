"""A whole service in this process over fake engine processes: configured by a file, asked over HTTP, stopped as a
person stops it. Each engine process that it starts is written down, with the flags of that one life."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deadline import alive, until_async
from demo_files import smollm2
from serving import ledger
from terazi.hardware.probe import read_machine
from terazi.memory.workload import Workload
from terazi.service.beacon import find
from terazi.service.client import ServiceClient
from terazi.service.config import read_config
from terazi.service.planning import plan_one
from terazi.service.room import needs_of
from terazi.service.running import Service
from terazi.service.up_request import UpRequest
from terazi.service.weighing import Weighing
from terazi.service.wish import Wish

FAKE = Path(__file__).parent / "fakes" / "engine.py"
SETTINGS = {"context": 512, "users": 2}
#: Patience for tests: what takes seconds or minutes in a service takes tenths here.
QUICK = """
[service]
heartbeat_s = 0.2
drain_s = 2
ready_wait_s = 30
[guard]
enabled = false
[log]
requests = false
"""
#: Starts the fake with the flags of the model that is loaded: line N of faults/NAME in its Nth life, the last line
#: from then on. Writes down its own pid, the model, and what else of ours runs at that moment.
PROGRAM = """#!/bin/sh
case "$*" in *--port*) ;; *) exec "{python}" -S "{fake}" "$@";; esac
for word in "$@"; do case "$word" in *.gguf) name=$(basename "$word" .gguf); break;; esac; done
beside=
for pid in $(cut -d " " -f 1 "{home}/starts" 2>/dev/null) $(cat "{home}/grandchild" 2>/dev/null); do
  grep -qs "^State:.[^ZX]" "/proc/$pid/status" && beside="$beside $pid"
done
echo "$$ $name$beside" >> "{home}/starts"
life=1
until mkdir "{home}/$name-life-$life" 2>/dev/null; do life=$((life + 1)); done
flags=$(head -n "$life" "{home}/faults/$name" 2>/dev/null | tail -n 1)
exec "{python}" -S "{fake}" "$@" --fake-ledger "{home}/ledger-$name" $flags
"""


@cache
def need_of(context: int = SETTINGS["context"], users: int = SETTINGS["users"]) -> int:
    """Bytes of RAM that the demo model is planned with."""
    workload = Workload(context=context, users=users, prompt=256, output=128)
    planned = plan_one(Wish(source=str(smollm2()), workload=workload, pins={}), "demo", read_machine())
    return needs_of(planned.plan.devices, planned.weighing.machine)["Host"]


def room_for(n: float) -> str:
    """A budget for so many of the demo model."""
    return f"budget = {{RAM = {round(n * need_of())}}}"


@dataclass
class Said:
    """One answer as a client got it."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream."""
        lines = [line[5:].strip() for line in self.body.splitlines() if line.startswith("data:")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def text(self) -> str:
        """What a person reads."""
        if not self.body.startswith(("data:", ":")):
            return str(json.loads(self.body)["choices"][0]["message"]["content"])
        return "".join(c["delta"].get("content") or "" for e in self.events for c in e.get("choices", ()))

    @property
    def whole(self) -> bool:
        """It came to its end, and no error was told."""
        told = "error" not in self.body
        return self.status == 200 and told and (self.body.startswith("{") or self.body.endswith("data: [DONE]\n\n"))


@dataclass
class Reports:
    """A reporter that keeps what it is told."""

    said: list[str] = field(default_factory=list)
    served: asyncio.Event = field(default_factory=asyncio.Event)

    def weighed(self, weighing: Weighing) -> None:
        """As ``Reporter`` has it."""

    def say(self, text: str) -> None:
        """As ``Reporter`` has it."""
        self.said.append(text)

    def loading(self, model: str, detail: str) -> None:
        """As ``Reporter`` has it."""

    def serving(self, url: str, models: Sequence[str], *, keyed: bool) -> None:
        """As ``Reporter`` has it."""
        del url, models, keyed
        self.served.set()


@dataclass
class Home:
    """A folder with a configuration, and the service over it while it runs."""

    folder: Path
    models: dict[str, str] = field(default_factory=dict)
    memory: str = ""
    engine: str = ""
    rest: str = ""
    reports: Reports = field(default_factory=Reports)
    session: aiohttp.ClientSession = field(init=False)
    control: ServiceClient = field(init=False)

    def faults(self, model: str, *lives: str) -> None:
        """The fake's flags in each life of *model*'s engine; the last one stays."""
        (self.folder / "faults").mkdir(exist_ok=True)
        (self.folder / "faults" / model).write_text("".join(f"{life}\n" for life in lives))

    def write(self) -> Path:
        """Lay all of it down in ``terazi.toml``."""
        program = self.folder / "llama-server"
        if not program.exists():
            program.write_text(PROGRAM.format(python=sys.executable, fake=FAKE, home=self.folder))
            program.chmod(0o755)
        memory = f"[memory]\nmin_stay_s = 0\nbatch_s = 0.3\nfree_wait_s = 10\n{self.memory}\n"
        engine = f'[engines.llama_cpp]\nserver = "{program}"\nstop_grace_s = 1\n{self.engine}\n'
        parts = [QUICK, memory, engine, self.rest]
        for name, more in self.models.items():
            link = self.folder / f"{name}.gguf"
            if not link.exists():
                link.symlink_to(smollm2())
            settings = "" if "settings" in more else "settings = {context = 512, users = 2}\n"
            parts.append(f'[[models]]\nname = "{name}"\nsource = "{link}"\n{settings}{more}\n')
        path = self.folder / "terazi.toml"
        path.with_suffix(".new").write_text("\n".join(parts))
        return path.with_suffix(".new").replace(path)

    # ---- what a client does

    async def ask(
        self, model: str, *, tokens: int = 8, stream: bool = True, say: str = "hello", key: str = "", **more: Any
    ) -> Said:
        """One chat, to its end."""
        body = {"model": model, "messages": [{"role": "user", "content": say}], "stream": stream, **more}
        body["max_tokens"] = tokens
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.post("/v1/chat/completions", json=body, headers=headers) as response:
            return Said(response.status, response.headers, await response.text())

    def asking(self, model: str, **more: Any) -> "asyncio.Task[Said]":
        """The same beside all else."""
        return asyncio.create_task(self.ask(model, **more))

    # ---- what can be seen of it

    async def ps(self) -> dict[str, dict[str, Any]]:
        """Its models by name, as ``terazi ps --json`` has them."""
        return {model["id"]: model for model in (await self.control.snapshot())["models"]}

    async def states(self) -> dict[str, str]:
        """Its models' states."""
        return {name: model["state"] for name, model in (await self.ps()).items()}

    async def until_states(self, within_s: float = 10, **wanted: str) -> None:
        """Wait until the models named are so."""
        async with asyncio.timeout(within_s):
            while not wanted.items() <= (await self.states()).items():  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.02)

    def _starts(self) -> list[list[str]]:
        path = self.folder / "starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def starts(self, model: str | None = None) -> list[int]:
        """Process ids of all engines that were started, or those of *model*, in order."""
        return [int(words[0]) for words in self._starts() if model in {None, words[1]}]

    def order(self) -> list[str]:
        """Models in the order in which engines were started for them."""
        return [words[1] for words in self._starts()]

    def beside(self, nth: int) -> list[int]:
        """What else was running when the *nth* engine was started, counted from 0."""
        return [int(pid) for pid in self._starts()[nth][2:]]

    def running(self) -> list[int]:
        """Those that run now."""
        return [pid for pid in self.starts() if alive(pid)]

    def events(self, model: str, event: str) -> list[dict[str, object]]:
        """What *model*'s engines wrote down about requests."""
        return [entry for entry in ledger(self.folder / f"ledger-{model}") if entry["event"] == event]

    async def until_asked(self, model: str, times: int = 1, within_s: float = 10) -> None:
        """Wait until *model*'s engines were given so many generations by clients (each load's probe isn't one)."""
        await until_async(lambda: self.asked(model) >= times, within_s)

    def asked(self, model: str) -> int:
        """Generations that clients have had begun."""
        return len([e for e in self.events(model, "accepted") if e["shape"] == "chat"])


def home_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home; the service in this process keeps its state there, and nothing of this system's counts."""
    monkeypatch.setenv("TERAZI_HOME", str(folder))
    for name in ("TERAZI_LLAMA_SERVER", "TERAZI_API_KEY", "TERAZI_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Home(folder)


@asynccontextmanager
async def serving(home: Home) -> AsyncIterator[Home]:
    """``terazi up`` over *home*, in this process; stopped as ``terazi stop`` does, after which no engine may run.

    *home* is from ``home_in``.
    """
    path = home.write()
    request = UpRequest(
        wishes=(), attach=(), config=read_config(path), config_path=path, host="127.0.0.1", port=0, api_key=None
    )
    run = asyncio.create_task(Service(request, home.reports).run())
    served = asyncio.create_task(home.reports.served.wait())
    try:
        await asyncio.wait({run, served}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            await run
        assert served.done(), f"it does not serve: {home.reports.said}"
        beacon = find(home.folder / "services")
        timeout = aiohttp.ClientTimeout(total=40)
        async with (
            aiohttp.ClientSession(base_url=beacon.url, timeout=timeout) as home.session,
            ServiceClient(beacon) as home.control,
        ):
            yield home
            if not run.done():
                await home.control.stop(None)
        await asyncio.wait_for(run, 20)
    finally:
        served.cancel()
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        left = home.running()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left, "engines were left behind"
