#!/usr/bin/env python3
"""A fake engine process: llama-server's HTTP surface and log (as of build b11434), with faults on demand.

Only the standard library; run it as a program: ``python tests/fakes/engine.py --port 0 --fake-…``. It takes
llama-server's own ``-m/--model -a/--alias --host --port --api-key(-file) -np/--parallel -c/--ctx-size
--embedding(s) --reranking`` (also ``LLAMA_API_KEY``), ignores flags it doesn't know, and answers ``--version`` and
``--help`` (the captured help).
More flags may come in the variable ``FAKE_ENGINE_FLAGS``, for a command line that somebody else builds.

The next token depends only on all the text before it, so the same prompt gives the same text, and a request
that carries the beginning of an answer gets the rest of it.

Faults (each a flag):
    --fake-load-s S            load for S seconds, with progress lines; /health says 503 meanwhile
    --fake-silent-load         say nothing meanwhile, but fill memory
    --fake-stall-load          load forever, without a word
    --fake-exit-at WHEN        ``loading``, ``first-request``, ``request:N`` (the Nth generation, the probe counts),
                               ``after-tokens:N`` (over all answers): exit 1 while loading, else SIGKILL itself
    --fake-exit-code N         exit with N instead; --fake-exit-signal NAME: by that signal instead
    --fake-once FILE           the faults happen only in the first process that can create FILE
    --fake-oom-log             when loading ends: CUDA out-of-memory lines and exit 1
    --fake-bind-fail           say that the port is taken and exit 1 (a port that is really taken does the same)
    --fake-ignore-sigterm      only SIGKILL ends it
    --fake-no-tokens           healthy, but a generation never answers
    --fake-close-after-response  close the connection after every answer without saying so (streams always do)
    --fake-salt TEXT           another text for the same prompt
    --fake-close-on-reuse      keep every connection (streams' too), and close it when its second request arrives
    --fake-tokens N            length of an answer when max_tokens doesn't end it earlier (16)
    --fake-token-delay-s S     time per token (0.001); --fake-prompt-delay-s S: time before the first (0)
    --fake-hold FILE           no answer gets beyond its fourth token before FILE is there
    --fake-busy-prompt         burn CPU while a prompt is worked on (as a prefill does); it still answers questions
    --fake-hang-after N        after N tokens (over all answers) no more come, and no CPU is used; it still answers
                               questions
    --fake-deaf-after N        after N tokens nothing is answered at all, and no CPU is used (a deadlock)
    --fake-answer-delay-s S    questions (GET) come so late; --fake-busy-answer-delay-s S: only while it works
    --fake-device NAME         its log says that it has loaded onto NAME (else into RAM)
    --fake-tool-calls N        a request that brings tools gets so many calls and no text, two tokens each;
                               --fake-same-index: all with the index 0
    --fake-vain-restore        a slot's restore says that all went well, and nothing is there
    --fake-refuse-prefill      400 for a request that carries the beginning of an answer
    --fake-grandchild FILE     start a process in a session of its own, and write its pid to FILE
    --fake-ledger FILE         append and fsync one JSON line for each request accepted, finished or abandoned
"""

import asyncio
import hashlib
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from engine_http import Request, chunk, client_gone, head, read_request, send, sse
from engine_texts import WORDS, answer_text

HELP_TEXT = Path(__file__).resolve().parents[1] / "golden" / "llama_cpp" / "help.txt"
VALUED = {
    "-m": "model", "--model": "model", "-a": "alias", "--alias": "alias", "--host": "host", "--port": "port",
    "--api-key": "api_key", "--api-key-file": "api_key_file", "-np": "parallel", "--parallel": "parallel",
    "-c": "ctx_size", "--ctx-size": "ctx_size", "--slot-save-path": "slot_save_path",
}  # fmt: skip
SWITCHES = {"--embedding": "embedding", "--embeddings": "embedding", "--reranking": "reranking"}
FAKE_SWITCHES = {
    "silent-load",
    "stall-load",
    "oom-log",
    "bind-fail",
    "ignore-sigterm",
    "no-tokens",
    "busy-prompt",
    "close-after-response",
    "close-on-reuse",
    "same-index",
    "refuse-prefill",
    "vain-restore",
}


@dataclass
class Options:
    """What the command line says; texts as given."""

    values: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, argv: list[str]) -> "Options":
        """Read *argv*; a flag that isn't known is skipped, its value too."""
        found, rest = cls(), list(argv)
        while rest:
            flag, _, attached = rest.pop(0).partition("=")
            fake = flag.removeprefix("--fake-") if flag.startswith("--fake-") else None
            if fake in FAKE_SWITCHES:
                found.switches.add(fake)
            elif flag in SWITCHES:
                found.switches.add(SWITCHES[flag])
            elif (name := fake or VALUED.get(flag)) is not None:
                found.values[name] = attached or rest.pop(0)
        return found

    def text(self, name: str, default: str = "") -> str:
        """The value of *name*."""
        return self.values.get(name, default)

    def number(self, name: str, default: float) -> float:
        """The value of *name* as a number."""
        return float(self.values.get(name, default))


@dataclass
class Job:
    """One generation that was asked for."""

    id: str
    prompt: str
    max_tokens: int | None
    stream: bool
    usage: bool
    shape: str  # "chat", "text" or "native"
    calls: int = 0  # of tools, instead of a text
    ids: tuple[int, ...] = ()  # of the prompt


class Engine:
    """The whole fake: state, faults, endpoints."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.alias = options.text("alias") or Path(options.text("model", "fake.gguf")).name
        self.slots = max(1, int(options.number("parallel", 4)))
        self.n_ctx = int(options.number("ctx_size", 4096)) or 4096
        self.keys = {k for k in (options.text("api_key") or os.environ.get("LLAMA_API_KEY", "")).split(",") if k}
        if options.text("api_key_file"):
            self.keys |= set(Path(options.text("api_key_file")).read_text().split())
        self.faulty = self._claim_faults()
        self.loaded = self.stopping = False
        self.busy = self.requests = self.tokens = self.prompt_tokens = self.decodes = self.serial = 0
        self.gate = asyncio.Semaphore(self.slots)
        self.held: list[tuple[int, ...]] = [()] * self.slots  # prompts, where they may be saved
        self.used = list(range(self.slots))  # the slot that was used longest ago first
        self.waiting = 0
        self.ballast = bytearray()
        self.stopped = asyncio.Event()
        self.started = time.monotonic()

    def _claim_faults(self) -> bool:
        once = self.options.text("once")
        if not once:
            return True
        try:
            Path(once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def fault(self, name: str) -> bool:
        """Whether the switch *name* is on in this process."""
        return self.faulty and name in self.options.switches

    def log(self, text: str, level: str = "I") -> None:
        """One line as llama-server's log writes it."""
        s = time.monotonic() - self.started
        stamp = f"{int(s // 60)}.{int(s % 60):02d}.{int(s * 1e3 % 1e3):03d}.{int(s * 1e6 % 1e3):03d}"
        print(f"{stamp} {level} {text}", file=sys.stderr, flush=True)

    def ledger(self, event: str, **more: object) -> None:
        """Append one line that survives a crash."""
        if path := self.options.text("ledger"):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, (json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n").encode())
                os.fsync(fd)
            finally:
                os.close(fd)

    def die(self, *, loading: bool = False) -> None:
        """End at once, as the flags say."""
        if code := self.options.text("exit-code"):
            os._exit(int(code))
        if (name := self.options.text("exit-signal")) or not loading:
            os.kill(os.getpid(), signal.Signals[name or "SIGKILL"])
        os._exit(1)

    # --- life ---------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Bind, load, serve until told to stop; the exit code."""
        self.log("srv  llama_server: initializing ...")
        self.log("cmn  common_param: common_params_print_info: build 11434 (fake) with Python for Linux x86_64")
        host, port = self.options.text("host", "127.0.0.1"), int(self.options.number("port", 8080))
        try:
            if self.fault("bind-fail"):
                raise OSError  # noqa: TRY301 - one path for the asked and the real failure
            server = await asyncio.start_server(self.serve, host, port, limit=64 << 20)
        except OSError:
            self.log(f"srv         start: couldn't bind HTTP server socket, hostname: {host}, port: {port}", "E")
            self.log("srv  llama_server: exiting due to HTTP server error", "E")
            return 1
        if told := self.options.text("grandchild"):
            self.leave_grandchild(Path(told))
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self.on_signal)
        if not await self.load():
            return 1
        self.loaded = True
        self.log("srv  llama_server: model loaded")
        self.log(f"srv  llama_server: listening on http://{host}:{server.sockets[0].getsockname()[1]}")
        await self.stopped.wait()
        self.log("srv    operator(): operator(): cleaning up before exit...")
        return 0

    def leave_grandchild(self, told: Path) -> None:
        """As vLLM's engine core: a process that is in no group of ours, and whose parent is gone."""
        code = f"sleep 600 & echo $! > {told}.new; mv {told}.new {told}"
        subprocess.run(["/bin/sh", "-c", code], start_new_session=True, check=True)

    def hangs(self, name: str) -> bool:
        """Whether so many tokens have come that the fault *name* is on."""
        after = self.options.text(name)
        return self.faulty and bool(after) and self.tokens >= int(after)

    def on_signal(self) -> None:
        """As llama-server: what runs is finished first; a second signal ends it with exit 1."""
        if self.fault("ignore-sigterm"):
            return
        if self.stopping or not self.loaded:
            os._exit(1 if self.stopping else 0)
        self.stopping = True
        if self.busy == 0:
            self.stopped.set()

    async def load(self) -> bool:
        """Print what llama-server prints while it loads; False if loading failed."""
        model = self.options.text("model", "fake.gguf")
        self.log(f"srv    load_model: loading model '{model}'")
        self.log("llama_model_loader: loaded meta data with 33 key-value pairs and 272 tensors (version GGUF V3)")
        self.log("load_tensors: loading model tensors, this can take a while... (load_mode = mmap)")
        if self.fault("stall-load"):
            await asyncio.Event().wait()
        end = time.monotonic() + (self.options.number("load-s", 0) if self.faulty else 0)
        while (left := end - time.monotonic()) > 0:
            if self.fault("silent-load"):
                self.ballast += b"x" * (4 << 20)
            else:
                print(".", end="", file=sys.stderr, flush=True)
            await asyncio.sleep(min(left, 0.05))
        if self.fault("oom-log"):
            self.log("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: "
                     "cudaMalloc failed: out of memory", "E")  # fmt: skip
            self.log(
                "ggml_backend_buft_alloc_buffer_n_default: failed to allocate CUDA0 buffer of size 4294967296", "E"
            )
            self.log("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "E")
            self.log("srv  llama_server: exiting due to model loading error", "E")
            return False
        if self.faulty and self.options.text("exit-at") == "loading":
            self.die(loading=True)
        self.log("load_tensors: offloaded 31/31 layers to GPU")
        device = self.options.text("device", "CPU_Mapped") if self.faulty else "CPU_Mapped"
        self.log(f"load_tensors: {device:>12} model buffer size =    92.10 MiB")
        self.log(f"llama_context: n_ctx                 = {self.n_ctx}")
        self.log("llama_context:        CPU  output buffer size =     0.38 MiB")
        self.log("llama_kv_cache:        CPU KV buffer size =    90.00 MiB")
        self.log("resolve_fused_ops: Flash Attention enabled")
        self.log("sched_reserve:        CPU compute buffer size =    16.64 MiB")
        self.log(f"srv    load_model: initializing, n_slots = {self.slots}, n_ctx_slot = {self.n_ctx}, "
                 "kv_unified = 'true'")  # fmt: skip
        return True

    # --- HTTP ---------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until either side closes it."""
        try:
            reused = False
            while (request := await read_request(reader)) is not None:
                if reused and self.fault("close-on-reuse"):
                    break
                reused = True
                if await self.answer(request, reader, writer) or self.fault("close-after-response"):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            writer.close()

    async def answer(self, req: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer *req*; True if the connection must be closed."""
        path = req.path.partition("?")[0]
        if self.hangs("deaf-after"):
            await asyncio.Event().wait()
        if req.method == "GET" and self.loaded:
            await asyncio.sleep(self.options.number("answer-delay-s", 0))
            if self.busy:
                await asyncio.sleep(self.options.number("busy-answer-delay-s", 0))
        if path not in {"/health", "/v1/health"}:
            token = req.headers.get("authorization", "").removeprefix("Bearer ") or req.headers.get("x-api-key", "")
            if self.keys and token not in self.keys:
                return await send(writer, 401, error(401, "Invalid API Key", "authentication_error"))
        if not self.loaded:
            return await send(writer, 503, error(503, "Loading model", "unavailable_error"))
        if req.method == "GET":
            return await self.answer_get(path, writer)
        try:
            body = json.loads(req.body or b"{}")
        except ValueError as problem:
            return await send(writer, 400, error(400, f"parse error: {problem}", "invalid_request_error"))
        try:
            said = answer_text(path, body, reranks="reranking" in self.options.switches)
        except (AttributeError, TypeError, ValueError) as problem:
            return await send(writer, 400, error(400, f"senseless body: {problem}", "invalid_request_error"))
        if said is not None:
            return await send(writer, *said)
        if path in {"/v1/embeddings", "/embedding", "/embeddings"}:
            return await self.embed(body, writer, native=not path.startswith("/v1"))
        if path.startswith("/slots/"):
            return await self.act_on_slot(req.path, body, writer)
        shapes = {"/v1/chat/completions": "chat", "/chat/completions": "chat", "/v1/completions": "text",
                  "/completion": "native", "/completions": "native"}  # fmt: skip
        if path not in shapes:
            return await send(writer, 404, error(404, "File Not Found", "not_found_error"))
        return await self.generate(shapes[path], body, reader, writer)

    async def act_on_slot(self, path: str, body: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        """Save or restore what a slot holds."""
        folder = self.options.text("slot_save_path")
        if not folder:
            told = "This server does not support slots action. Start it with `--slot-save-path`"
            return await send(writer, 501, error(501, told, "not_supported_error"))
        slot = int(path.partition("?")[0].rpartition("/")[2])
        act = self.save_slot if path.endswith("action=save") else self.restore_slot
        return await send(writer, 200, {"id_slot": slot, **act(slot, Path(folder + str(body["filename"])))})

    def save_slot(self, slot: int, file: Path) -> dict[str, object]:
        """The format is llama-server's own as far as the prompt goes."""
        ids = self.held[slot]
        head = struct.pack("<IIIiII", 0x67677371, 4, len(ids) + 3, -1, 1, len(ids))
        written = file.write_bytes(head + struct.pack(f"<{len(ids)}i", *ids) + bytes(8))
        return {"n_saved": len(ids), "n_written": written}

    def restore_slot(self, slot: int, file: Path) -> dict[str, object]:
        """The way back."""
        data = file.read_bytes()
        n = struct.unpack_from("<I", data, 20)[0]
        self.held[slot] = () if self.fault("vain-restore") else struct.unpack_from(f"<{n}i", data, 24)
        return {"n_restored": n, "n_read": len(data)}

    def reuse(self, ids: tuple[int, ...]) -> int:
        """Tokens of a prompt that a slot holds already; one that holds enough, or was used longest ago, gets it."""
        if not self.options.text("slot_save_path"):
            return 0
        alike = [
            sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(h, ids, strict=False))) for h in self.held
        ]
        slot = max(self.used, key=lambda i: alike[i])
        slot = slot if 10 * alike[slot] >= len(ids) else self.used[0]
        self.held[slot] = ids
        self.used = [*(i for i in self.used if i != slot), slot]
        return min(alike[slot], len(ids) - 1)

    async def answer_get(self, path: str, writer: asyncio.StreamWriter) -> bool:
        """The endpoints that only tell."""
        if path in {"/health", "/v1/health"}:
            return await send(writer, 200, {"status": "ok"})
        if path in {"/v1/models", "/models"}:
            meta = {"n_vocab": 49152, "n_ctx": self.n_ctx, "n_ctx_train": 8192, "n_embd": 8, "n_params": 134515008,
                    "size": 96576768, "ftype": "Q4_1"}  # fmt: skip
            data = {"id": self.alias, "object": "model", "created": 1, "owned_by": "llamacpp", "meta": meta}
            return await send(writer, 200, {"object": "list", "data": [data]})
        if path == "/props":
            settings = {"n_ctx": self.n_ctx, "params": {"temperature": 0.8}}
            props = {"default_generation_settings": settings, "total_slots": self.slots, "model_alias": self.alias,
                     "model_path": self.options.text("model"), "modalities": {"vision": False, "audio": False},
                     "chat_template": "", "build_info": "b11434-fake", "is_sleeping": False}  # fmt: skip
            return await send(writer, 200, props)
        if path == "/slots":
            slots = [{"id": i, "n_ctx": self.n_ctx, "speculative": False, "is_processing": i < self.busy}
                     for i in range(self.slots)]  # fmt: skip
            return await send(writer, 200, slots)
        if path == "/metrics":
            return await send(writer, 200, self.metrics())
        return await send(writer, 404, error(404, "File Not Found", "not_found_error"))

    def metrics(self) -> str:
        """Prometheus text with llama-server's names."""
        rows = [
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("tokens_predicted_total", "counter", self.tokens),
            ("n_decode_total", "counter", self.decodes),
            ("requests_processing", "gauge", self.busy),
            ("requests_deferred", "gauge", self.waiting),
        ]
        return "".join(f"# HELP llamacpp:{n} {n}\n# TYPE llamacpp:{n} {k}\nllamacpp:{n} {v}\n" for n, k, v in rows)

    async def embed(self, body: dict[str, object], writer: asyncio.StreamWriter, *, native: bool) -> bool:
        """A vector of eight numbers that depends on the text alone."""
        if "embedding" not in self.options.switches:
            message = "This server does not support embeddings. Start it with `--embeddings`"
            return await send(writer, 501, error(501, message, "not_supported_error"))
        given = body.get("content" if native else "input", "")
        texts = [str(t) for t in given] if isinstance(given, list) else [str(given)]
        data = [{"object": "embedding", "index": i, "embedding": [b / 255 for b in digest(t)[:8]]}
                for i, t in enumerate(texts)]  # fmt: skip
        if native:
            vectors = [{"index": d["index"], "embedding": [d["embedding"]]} for d in data]
            return await send(writer, 200, vectors)
        n = sum(len(t.split()) for t in texts)
        usage = {"prompt_tokens": n, "total_tokens": n}
        return await send(writer, 200, {"object": "list", "model": self.alias, "data": data, "usage": usage})

    # --- generation ---------------------------------------------------------------------------------

    async def generate(
        self, shape: str, body: dict[str, object], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One answer, streamed or whole; notices a client that goes away."""
        self.serial += 1
        limit = body.get("max_tokens", body.get("max_completion_tokens", body.get("n_predict")))
        try:
            prompt = render(body)
        except (AttributeError, TypeError, ValueError) as problem:
            return await send(writer, 400, error(400, f"senseless messages: {problem}", "invalid_request_error"))
        job = Job(
            id=f"chatcmpl-{self.serial}",
            prompt=prompt,
            max_tokens=int(limit) if isinstance(limit, int) and limit >= 0 else None,
            stream=body.get("stream") is True,
            usage=isinstance(o := body.get("stream_options"), dict) and o.get("include_usage") is True,
            shape=shape,
            calls=int(self.options.number("tool-calls", 0)) if shape == "chat" and body.get("tools") else 0,
        )
        if self.fault("refuse-prefill") and body.get("continue_final_message"):
            told = "Assistant response prefill is incompatible with enable_thinking."
            return await send(writer, 400, error(400, told, "invalid_request_error"))
        if (n_prompt := len(job.prompt.split())) >= self.n_ctx:
            message = f"request ({n_prompt} tokens) exceeds the available context size ({self.n_ctx} tokens)"
            more = {"n_prompt_tokens": n_prompt, "n_ctx": self.n_ctx}
            return await send(writer, 400, error(400, message, "exceed_context_size_error", **more))
        given = body.get("prompt")
        job.ids = tuple(zlib.crc32(word.encode()) >> 1 for word in job.prompt.split())
        if isinstance(given, list) and all(isinstance(i, int) for i in given):
            job.ids = tuple(given)
        self.ledger("accepted", id=job.id, shape=shape, stream=job.stream, prompt=job.prompt[-200:])
        self.requests += 1
        if self.faulty and self.options.text("exit-at") in {f"request:{self.requests}", "first-request"}:
            self.die()
        gone = asyncio.create_task(client_gone(reader))
        work = asyncio.create_task(self.work(job, writer))
        self.busy += 1
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ConnectionResetError
            work.result()
        except ConnectionError:
            self.ledger("abandoned", id=job.id)
            return True
        else:
            self.ledger("finished", id=job.id)
            return job.stream and not self.fault("close-on-reuse")
        finally:
            self.busy -= 1
            for task in (gone, work):
                task.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)
            if self.stopping and self.busy == 0:
                self.stopped.set()

    async def work(self, job: Job, writer: asyncio.StreamWriter) -> None:
        """Wait for a slot, generate, write."""
        if job.stream:
            await head(writer, "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n")
        self.waiting += 1
        try:
            await self.gate.acquire()
        finally:
            self.waiting -= 1
        try:
            if self.fault("no-tokens"):
                await asyncio.Event().wait()
            self.prompt_tokens += len(job.prompt.split())
            reused = self.reuse(job.ids)
            if job.stream and job.shape == "chat":
                await self.event(writer, job, {"role": "assistant", "content": None}, None)
            text, count, reason = "", 0, "tool_calls" if job.calls else "stop"
            async for piece in self.pieces(job):
                text, count = text + piece, count + 1
                if job.stream:
                    await self.event(writer, job, self.call(job, count - 1) if job.calls else piece, None)
            if not job.calls and job.max_tokens is not None and count >= job.max_tokens:
                reason = "length"
        finally:
            self.gate.release()
        n = len(job.prompt.split())
        usage = {"completion_tokens": count, "prompt_tokens": n, "total_tokens": n + count}
        timings = {
            "cache_n": reused,
            "prompt_n": n - reused,
            "prompt_ms": 1.0,
            "predicted_n": count,
            "predicted_ms": 1.0 * count,
        }
        if not job.stream:
            await send(writer, 200, self.whole(job, text, reason, usage, timings))
            return
        await self.event(writer, job, {} if job.shape == "chat" else "", reason, usage=usage, timings=timings)
        if job.shape != "native":
            await chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def pieces(self, job: Job) -> AsyncIterator[str]:
        """The tokens of an answer, one by one, at the set pace; a token that a fault waits for kills."""
        await self.read_prompt()
        when, text, salt = self.options.text("exit-at"), job.prompt, self.options.text("salt")
        length = min(job.max_tokens if job.max_tokens is not None else 1 << 30, self.length())
        hold = self.options.text("hold")
        for n in range(2 * job.calls or length):
            await asyncio.sleep(self.options.number("token-delay-s", 0.001))
            while hold and n >= 4 and not Path(hold).exists():  # noqa: ASYNC110, ASYNC240 - a test makes it
                await asyncio.sleep(0.01)
            if self.hangs("hang-after") or self.hangs("deaf-after"):
                await asyncio.Event().wait()
            if self.faulty and when == f"after-tokens:{self.tokens}":
                self.die()
            piece = " " + WORDS[digest(salt + text)[0] % len(WORDS)]
            text += piece
            self.tokens += 1
            self.decodes += 1
            yield piece

    def call(self, job: Job, part: int) -> dict[str, object]:
        """The delta that is half of a call: first its name and the beginning of its arguments, then their end."""
        nth = part // 2
        index = 0 if self.fault("same-index") else nth
        if part % 2:
            return {"tool_calls": [{"index": index, "function": {"arguments": f"{nth}}}"}}]}
        function = {"name": "weigh", "arguments": '{"place":'}
        named = {"index": index, "id": f"{job.id}-call-{nth}", "type": "function", "function": function}
        return {"tool_calls": [named]}

    async def read_prompt(self) -> None:
        """Take as long as was asked for, with or without using the CPU."""
        delay = self.options.number("prompt-delay-s", 0)
        if not self.fault("busy-prompt"):
            await asyncio.sleep(delay)
            return
        over = threading.Event()

        def burn() -> None:
            while not over.is_set():
                digest("x" * 4096)

        worker = threading.Thread(target=burn, daemon=True)
        worker.start()
        try:
            await asyncio.sleep(delay)
        finally:
            over.set()

    def length(self) -> int:
        """Tokens after which an answer ends by itself."""
        return int(self.options.number("tokens", 16))

    def whole(
        self, job: Job, text: str, reason: str, usage: dict[str, int], timings: dict[str, float]
    ) -> dict[str, object]:
        """The body of an answer that isn't streamed."""
        if job.shape == "native":
            kind = "limit" if reason == "length" else "eos"
            counts = {"tokens_predicted": usage["completion_tokens"], "tokens_evaluated": usage["prompt_tokens"]}
            end = {"stop": True, "stop_type": kind, "prompt": job.prompt, "timings": timings}
            return {"index": 0, "content": text, "model": self.alias, **counts, **end}
        chat = job.shape == "chat"
        inner: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if job.calls:
            calls = [{"id": f"{job.id}-call-{n}", "type": "function",
                      "function": {"name": "weigh", "arguments": f'{{"place":{n}}}'}}
                     for n in range(job.calls)]  # fmt: skip
            inner = {"message": {"role": "assistant", "content": None, "tool_calls": calls}}
        return {"choices": [{"finish_reason": reason, "index": 0, **inner}], "created": int(time.time()),
                "model": self.alias, "object": "chat.completion" if chat else "text_completion",
                "usage": usage, "id": job.id, "timings": timings}  # fmt: skip

    async def event(
        self,
        writer: asyncio.StreamWriter,
        job: Job,
        piece: object,
        reason: str | None,
        *,
        usage: dict[str, int] | None = None,
        timings: dict[str, float] | None = None,
    ) -> None:
        """One server-sent event; the last one carries *reason*, and usage where llama-server puts it."""
        base: dict[str, object] = {"created": int(time.time()), "id": job.id, "model": self.alias}
        last: dict[str, object] = {"timings": timings} if timings else {}
        if job.shape == "native":
            end = {"stop": reason is not None, "tokens_predicted": self.tokens, **last}
            await sse(writer, {"index": 0, "content": piece, **end})
        elif job.shape == "text":
            choice = {"text": piece, "index": 0, "logprobs": None, "finish_reason": reason}
            more = {"usage": usage, **last} if usage else {}
            await sse(writer, {"choices": [choice], **base, "object": "text_completion", **more})
        else:
            delta = {"content": piece} if isinstance(piece, str) else piece
            base["object"] = "chat.completion.chunk"
            choice = {"finish_reason": reason, "index": 0, "delta": delta}
            await sse(writer, {"choices": [choice], **base, **({} if job.usage else last)})
            if usage and job.usage:
                await sse(writer, {"choices": [], **base, "usage": usage, **last})


def render(body: dict[str, object]) -> str:
    """All the text that the answer continues; a trailing assistant message with the flag is its beginning."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        prompt = body.get("prompt", "")
        return " ".join(map(str, prompt)) if isinstance(prompt, list) else str(prompt)
    text = ""
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        text += f"<{message.get('role', 'user')}> {content}"
        text += "" if message is messages[-1] and body.get("continue_final_message") else "\n"
    return text if body.get("continue_final_message") else text + "<assistant> "


def digest(text: str) -> bytes:
    """Bytes that depend on *text* alone."""
    return hashlib.sha256(text.encode()).digest()


def error(code: int, message: str, kind: str, **more: object) -> dict[str, object]:
    """llama-server's error shape."""
    return {"error": {"code": code, "message": message, "type": kind, **more}}


def main() -> int:
    """Run as a program."""
    argv = sys.argv[1:] + shlex.split(os.environ.get("FAKE_ENGINE_FLAGS", ""))
    if "--version" in argv:
        print("version: 0.6.0-fake (build 11434, commit fake)\nbuilt with Python for Linux x86_64", file=sys.stderr)
        return 0
    if "--help" in argv or "-h" in argv:
        print(HELP_TEXT.read_text())
        return 0
    if "--list-devices" in argv:
        print("Available devices:")
        print(os.environ.get("FAKE_ENGINE_DEVICES", "  (none)"))
        return 0
    options = Options.parse(argv)

    async def live() -> int:
        return await Engine(options).run()

    return asyncio.run(live())


if __name__ == "__main__":
    sys.exit(main())
