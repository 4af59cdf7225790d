"""A fast engine for benchmarks: streams of equal events, at a pace or flat out, so cheap that it is no bottleneck.

    python benchmarks/gateway_engine.py            # prints its port

A request says in its body what it wants: ``events`` (how many), ``every_ms`` (the pace; 0 is flat out: one write
for each event, all streams in turn), ``hold`` (after the first event nothing more comes). As llama-server does, it
sends the head at once and closes the connection after a stream.
"""

import asyncio
import json
import socket
from typing import cast

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: " + json.dumps(
    {
        "choices": [{"finish_reason": None, "index": 0, "delta": {"content": " scale"}}],
        "created": 1764000000,
        "id": "chatcmpl-Xo3hyQlY2bqzwBsdnR1kzd8ZlQ7bDwVa",
        "model": "acme/scale-135m",
        "system_fingerprint": "b11434-fake",
        "object": "chat.completion.chunk",
    }
).encode() + b"\n\n"  # fmt: skip
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Engine:
    """All its streams; those without a pace take turns."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.flat_out: set[Stream] = set()
        self.turning = False

    def add(self, stream: "Stream") -> None:
        """Let *stream* take its turns."""
        self.flat_out.add(stream)
        if not self.turning:
            self.turning = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        """One event to each stream whose client keeps up."""
        for stream in tuple(self.flat_out):
            if not stream.paused:
                stream.tick()
        if self.flat_out:
            self.loop.call_later(0.001 if all(s.paused for s in self.flat_out) else 0, self.turn)
        else:
            self.turning = False


class Stream(asyncio.Protocol):
    """One connection, which serves one request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen = b""
        self.left = 0
        self.every_s = 0.0
        self.paused = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.transport = None
        self.engine.flat_out.discard(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def data_received(self, data: bytes) -> None:
        self.seen += data
        head, found, body = self.seen.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"POST"):  # a peer that looks whether it is there
            if self.transport is not None:
                self.transport.close()
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
        if len(body) < length or self.transport is None:
            return
        asked = json.loads(body)
        self.left, self.every_s = asked["events"], asked["every_ms"] / 1000
        self.seen = b""
        self.transport.write(HEAD)
        if asked.get("hold"):
            self.transport.write(CHUNK)
        elif self.every_s:
            self.pace()
        else:
            self.engine.add(self)

    def pace(self) -> None:
        """The next event, and the one after it in time."""
        if self.tick():
            self.engine.loop.call_later(self.every_s, self.pace)

    def tick(self) -> bool:
        """Write one event, or the end; whether there is more."""
        if self.transport is None:
            return False
        if self.left:
            self.left -= 1
            self.transport.write(CHUNK)
            return True
        self.engine.flat_out.discard(self)
        self.transport.write(DONE)
        self.transport.close()
        return False


async def main() -> None:
    """Serve until killed."""
    engine = Engine()
    sock = socket.create_server(("127.0.0.1", 0), backlog=16384)
    await asyncio.get_running_loop().create_server(lambda: Stream(engine), sock=sock, backlog=16384)
    print(sock.getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
