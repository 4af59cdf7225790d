"""What the handlers that translate a chat have in common: the call, its stream, its whole answer, questions."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from aiohttp import web

from terazi.gateway.answer import Answer
from terazi.gateway.backend import ModelCard
from terazi.gateway.call import Call, Head
from terazi.gateway.calling import make_call
from terazi.gateway.desk import Desk, Tab, stream_response
from terazi.gateway.wire.errors import Api, Fault, WireError, engine_fault
from terazi.gateway.wire.sse import EventReader

_log = logging.getLogger(__name__)

CHAT_PATH: Final = "/v1/chat/completions"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
#: Names the tools of a request that were left out, since only the API's own vendor could run them.
LEFT_OUT_HEADER: Final = "X-Terazi-Left-Out"

Event = dict[str, object]


class Translator(Protocol):
    """Reads the engine's events and says another API's."""

    @property
    def stopped(self) -> bool:
        """It needs no more of the engine."""
        ...

    def feed(self, data: bytes) -> list[Event]:
        """The events for one of the engine's."""
        ...

    def end(self) -> list[Event]:
        """The last events."""
        ...


def call_for(
    request: web.Request,
    tab: Tab,
    *,
    api: Api,
    path: str,
    fields: Mapping[str, object],
    card: ModelCard,
    stream: bool = False,
) -> Call:
    """The call that *request* is, once its body is *fields*.

    Raises:
        WireError: 400, a header makes no sense.
    """
    body = json.dumps(fields).encode()
    return raw_call(request, tab, api=api, path=path, body=body, fields=fields, card=card, stream=stream)


def raw_call(
    request: web.Request,
    tab: Tab,
    *,
    api: Api,
    path: str,
    body: bytes,
    card: ModelCard,
    stream: bool,
    content_type: str = "application/json",
    fields: Mapping[str, object] | None = None,
) -> Call:
    """The call that *request* is, with *body* as it goes to the engine.

    Raises:
        WireError: 400, a header makes no sense.
    """
    return make_call(
        api=api,
        path=path,
        body=body,
        fields=fields or {},
        model=card.id,
        stream=stream,
        caller=tab.caller,
        headers=request.headers,
        arrived=asyncio.get_running_loop().time(),
        content_type=content_type,
    )


def engine_extras(card: ModelCard, *, counted: bool) -> dict[str, object]:
    """What llama-server, and it alone, is asked for besides: its progress while it reads a prompt.

    Args:
        counted: token counts are needed before the end, since the stream may be left early.
    """
    if not card.engine.startswith("llama"):
        return {}
    return {"return_progress": True, **({"timings_per_token": True} if counted else {})}


async def stream_chat(
    desk: Desk,
    request: web.Request,
    tab: Tab,
    call: Call,
    translator: Translator,
    *,
    encode: Callable[[Sequence[Event]], bytes],
    fail: Callable[[Fault], bytes],
    ping: bytes,
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """Turn the engine's events into others as they come.

    Args:
        fail: how a stream ends that broke off.
        ping: said when there is nothing else to say.
    """
    async with desk.converse(call) as answer:
        head = await begun(answer)
        desk.first_byte(call.api, tab)
        response = stream_response(200, EVENT_STREAM)
        response.headers.update({**public_headers(head), **headers})
        fault: Fault | None = None
        sent = 0
        try:
            reader = EventReader()
            async for chunk in answer:
                events = [event for data in reader.feed(chunk) for event in translator.feed(data)]
                await _begin(request, response, tab)  # an error in the first event can still be a status
                out = encode(events) or ping
                await response.write(out)
                sent += len(out)
                if translator.stopped:
                    answer.enough()
                    break
            last = encode(translator.end())
            await _begin(request, response, tab)
            await response.write(last)
        except WireError as error:
            if not tab.prepared:
                raise
            fault = error.fault
        finally:
            desk.metrics.stream_bytes.labels(tab.model).inc(sent)
        if fault is not None:
            _log.warning("a stream of %s was cut after %d bytes: %s", tab.model, sent, fault.code)
            await response.write(fail(fault))
        await response.write_eof()
        return response


async def whole_chat(desk: Desk, tab: Tab, call: Call, translator: Translator) -> tuple[list[Event], Head]:
    """All events of an answer, for clients that want it in one piece.

    Raises:
        WireError: it broke off.
    """
    events: list[Event] = []
    async with desk.converse(call) as answer:
        head = await begun(answer)
        desk.first_byte(call.api, tab)
        reader = EventReader()
        async for chunk in answer:
            for data in reader.feed(chunk):
                events += translator.feed(data)
            if translator.stopped:
                answer.enough()
                break
        return events + translator.end(), head


async def ask(desk: Desk, call: Call) -> tuple[int, bytes]:
    """Status and body of an answer that isn't streamed.

    Raises:
        WireError: there is none.
    """
    async with desk.converse(call) as answer:
        head = await answer.head()
        return head.status, await answer.body()


async def begun(answer: Answer) -> Head:
    """The head of a good answer.

    Raises:
        WireError: it is none.
    """
    head = await answer.head()
    if head.status != 200:
        raise WireError(engine_fault(head.status, await answer.body()))
    return head


def response_headers(head: Head, left_out: Sequence[str]) -> dict[str, str]:
    """What a client is told beside the answer."""
    return {**public_headers(head), **left_out_headers(left_out)}


def left_out_headers(names: Sequence[str]) -> dict[str, str]:
    """Which tools were left out."""
    shown = ", ".join(name if name.isascii() and name.isprintable() else "?" for name in names)
    return {LEFT_OUT_HEADER: shown} if names else {}


def public_headers(head: Head) -> dict[str, str]:
    """The broker's own headers, as they are sent."""
    return {name.title(): value for name, value in head.headers.items()}


async def _begin(request: web.Request, response: web.StreamResponse, tab: Tab) -> None:
    if not tab.prepared:
        await response.prepare(request)
        tab.prepared = True
