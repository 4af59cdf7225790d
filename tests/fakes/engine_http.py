"""The fake engine's HTTP: as much of it as llama-server's clients need, its connection habits included."""

import asyncio
import json
from dataclasses import dataclass


@dataclass
class Request:
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None when it is closed or idle for five seconds."""
    try:
        raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
    except (asyncio.IncompleteReadError, TimeoutError):
        return None
    first, *lines = raw.decode("latin-1").split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
    method, path, _ = first.split(" ", 2)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


async def client_gone(reader: asyncio.StreamReader) -> None:
    """Returns when the client has closed its side; eats nothing of a next request."""
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110 - a stream has no event for it
        await asyncio.sleep(0.005)


async def head(writer: asyncio.StreamWriter, lines: str, status: int = 200) -> None:
    """Status line and headers."""
    writer.write(
        f"HTTP/1.1 {status} X\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\n{lines}\r\n".encode()
    )
    await writer.drain()


async def send(writer: asyncio.StreamWriter, status: int, body: object) -> bool:
    """A whole answer, JSON unless it is text; False: the connection stays."""
    text = isinstance(body, str)
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = "text/plain; version=0.0.4" if text else "application/json; charset=utf-8"
    await head(writer, f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n", status)
    writer.write(data)
    await writer.drain()
    return False


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One chunk of a chunked body."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def sse(writer: asyncio.StreamWriter, event: dict[str, object]) -> None:
    """One server-sent event."""
    await chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
