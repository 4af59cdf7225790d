"""An engine that answers every chat with the same events, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


def chunk(finish: str | None = None, **delta: object) -> dict[str, object]:
    """One event of a chat."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: int, call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A tool call in one event."""
    function = {"name": name, "arguments": arguments}
    return chunk(tool_calls=[{"index": index, "id": call_id, "type": "function", "function": function}])


USAGE: dict[str, object] = {
    "choices": [],
    "usage": {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 12}},
}


@dataclass
class Canned:
    """What was asked, and where to ask."""

    port: int
    asked: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def canned(
    *events: dict[str, object], status: int = 200, done: bool = True, first_cut_after: int | None = None
) -> AsyncIterator[Canned]:
    """The engine; a *status* other than 200 answers with the first of *events* as a body.

    *first_cut_after*: the first answer ends after so many events; ``done`` False: none says that it is complete.
    """
    engine = Canned(0)

    async def chat(request: web.Request) -> web.StreamResponse:
        engine.asked.append(await request.json())
        if status != 200:
            return web.json_response(events[0], status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        cut = first_cut_after if len(engine.asked) == 1 else None
        for event in events[:cut]:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if done and cut is None:
            await response.write(b"data: [DONE]\n\n")
        return response

    async with answering("/v1/chat/completions", chat) as engine.port:
        yield engine


@asynccontextmanager
async def answering(
    path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[int]:
    """A server with one handler, for what is posted to *path*; its port."""
    app = web.Application()
    app.router.add_post(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
