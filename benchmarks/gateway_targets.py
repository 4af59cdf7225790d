"""What the gateway is compared with: each target is a way to one engine, and the process that does its work."""

import asyncio
import cProfile
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from serving import CARD, ENGINE_KEY, StubBackend, StubDirectory
from terazi.gateway.app import create_app
from terazi.gateway.journal import Journal
from terazi.gateway.request_log import RequestLog
from terazi.gateway.seats import Seats
from terazi.gateway.server import Gateway
from terazi.policy.dispatch_messages import ReplicaChanged

#: A file that the gateway's profile is written to.
PROFILE = "BENCH_GATEWAY_PROFILE"
HERE = Path(__file__).parent
#: Of the engine in the gateway's eyes: more than streams in any test, so that nobody waits in a queue.
SLOTS = 20_000

NGINX = """
worker_processes 1; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
worker_rlimit_nofile 65000;
events {{ worker_connections 30000; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  server {{
    listen 127.0.0.1:{port} backlog=16384;
    location / {{
      proxy_pass http://127.0.0.1:{engine}; proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""
LITELLM = """
model_list:
  - model_name: {model}
    litellm_params: {{model: "openai/{model}", api_base: "http://127.0.0.1:{engine}/v1", api_key: x}}
"""


#: It asks nobody on the network, needs no key, and finds its own packages only.
LITELLM_ENV = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "PYTHONPATH": "",
}


@dataclass(kw_only=True)
class Target:
    """One way. *reuse*: clients keep their connections to it."""

    name: str
    port: int
    pid: int | None = None
    reuse: bool = True
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def cpu_s(self) -> float:
        """Time on a processor of all its threads so far, to the nanosecond (``/proc/PID/task/TID/schedstat``)."""
        if self.pid is None:
            return 0.0
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def rss_mib(self) -> float:
        """What it holds in memory."""
        if self.pid is None:
            return 0.0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def stop(self) -> None:
        """End what was started for it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def start_engine() -> Target:
    """The engine, reached directly."""
    process = subprocess.Popen([sys.executable, str(HERE / "gateway_engine.py")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return Target(name="direct", port=port, pid=process.pid, reuse=False, process=process)


def start_ours(engine: int) -> Target:
    """The gateway, journal and all."""
    process = subprocess.Popen([sys.executable, __file__, str(engine)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    return Target(name="terazi", port=int(process.stdout.readline()), pid=process.pid, process=process)


def start_floor(engine: int) -> Target:
    """The least that Python on uvloop can do."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "gateway_floor.py"), str(engine)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    return Target(name="floor", port=int(process.stdout.readline()), pid=process.pid, process=process)


def start_nginx(engine: int, folder: Path) -> Target | str:
    """nginx, or why not."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        return "nginx: skipped, there is none here"
    port = _free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, engine=engine))
    process = subprocess.Popen([binary, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")])
    return Target(name="nginx", port=port, pid=process.pid, process=process)


def start_litellm(engine: int, folder: Path) -> Target | str:
    """LiteLLM's proxy, or why not."""
    script = shutil.which("litellm")
    if script is None:
        return "LiteLLM: skipped, its command is not on the PATH"
    port = _free_port()
    config = folder / "litellm.yaml"
    config.write_text(LITELLM.format(model=CARD.id, engine=engine))
    process = subprocess.Popen(
        [script, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **LITELLM_ENV},
    )
    return Target(name="litellm", port=port, pid=process.pid, process=process)


def given_peer(text: str) -> Target:
    """``NAME=PORT[,PID]``: a proxy that somebody else has started in front of the engine."""
    name, _, rest = text.partition("=")
    port, _, pid = rest.partition(",")
    return Target(name=name, port=int(port), pid=int(pid) if pid else None)


async def until_it_answers(target: Target) -> None:
    """Wait for the first good answer."""
    body = {"model": CARD.id, "messages": [], "stream": True, "events": 1, "every_ms": 1}
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.post(f"http://127.0.0.1:{target.port}/v1/chat/completions", json=body) as reply:
                    text = await reply.text()
                    if reply.status == 200 and "[DONE]" in text:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def _serve(engine: int) -> None:
    """As ``terazi up`` puts it together: queues, the journal with its file, an account with the request log."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    backend = StubBackend(engine)
    directory = StubDirectory([backend])
    seats = Seats(directory)
    seats.tell(ReplicaChanged(replica=backend.replica, model=CARD.id, open=True, slots=SLOTS))
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        journal.open()
        app = create_app(directory, keys={}, seats=seats, journal=journal, readers=(RequestLog(time.time),))
        gateway = Gateway(app, "127.0.0.1", 0)
        await gateway.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000)
        print(gateway.address.rpartition(":")[2], flush=True)
        await ended.wait()
        await gateway.stop()
        await journal.close()


def request_bytes(**asked: object) -> bytes:
    """A streaming request that asks the engine for *asked*."""
    body = json.dumps(
        {"model": CARD.id, "messages": [{"role": "user", "content": "weigh"}], "stream": True, **asked}
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {ENGINE_KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


if __name__ == "__main__":
    profiler = cProfile.Profile() if PROFILE in os.environ else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profiler is not None:
            profiler.enable()
        runner.run(_serve(int(sys.argv[1])))
    if profiler is not None:
        profiler.disable()
        profiler.dump_stats(os.environ[PROFILE])
