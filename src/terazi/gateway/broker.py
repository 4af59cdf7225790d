"""Answers calls: a place in an engine, the request sent, the answer passed on, whatever happens on the way."""

import asyncio
import logging
from typing import Final

from terazi.gateway.backend import Backend
from terazi.gateway.call import Call, Flow, Head, Sink
from terazi.gateway.ports import Exchange, Links, Seats, Ticket
from terazi.gateway.traffic import Traffic
from terazi.gateway.wire.errors import RETRY_AFTER_S, WireError, engine_cut, engine_down, shutting_down
from terazi.gateway.wire.openai import TAIL_BYTES, is_complete

_log = logging.getLogger(__name__)

#: A rough size of a token, for admission before anything was counted.
_BYTES_PER_TOKEN: Final = 4


class Broker:
    """The one place that knows an answer's whole life.

    Args:
        seats: who gives out places in engines.
        links: the way to them.
        traffic: what is in flight; a drain waits for it and then cuts it.
    """

    def __init__(self, seats: Seats, links: Links, traffic: Traffic) -> None:
        self._seats = seats
        self._links = links
        self._traffic = traffic

    async def answer(self, call: Call, sink: Sink) -> None:
        """Answer *call* into *sink*; returns when the sink has its end or its fault.

        To cancel it is to say that the client left: the engine is freed at once.
        """
        try:
            with self._traffic.entering():
                ticket = self._seats.enter(call, tokens=len(call.body) // _BYTES_PER_TOKEN)
                try:
                    await self._serve(call, sink, ticket)
                finally:
                    ticket.leave(None)
        except WireError as error:
            sink.fail(error.fault)
        except asyncio.CancelledError:
            if not self._traffic.cutting:
                raise
            sink.fail(shutting_down())

    async def _serve(self, call: Call, sink: Sink, ticket: Ticket) -> None:
        backend = await ticket.seat()
        with backend.tracking():
            await self._attempt(call, sink, ticket, backend)

    async def _attempt(self, call: Call, sink: Sink, ticket: Ticket, backend: Backend) -> None:
        relay = _Relay(call, sink, ticket)
        exchange = self._links.send(backend, call.path, call.body, call.content_type, relay, stream=call.stream)
        relay.exchange = exchange
        try:
            await relay.ended
        finally:
            exchange.abort()


class _Relay(Flow):
    """Hears an engine and tells the client, whole events only."""

    def __init__(self, call: Call, sink: Sink, ticket: Ticket) -> None:
        self._call = call
        self._sink = sink
        self._ticket = ticket
        self._stream = False
        self._begun = False
        self._rest = b""
        self._tail = b""
        self.exchange: Exchange | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pause(self) -> None:
        if self.exchange is not None:
            self.exchange.pause()

    def go_on(self) -> None:
        if self.exchange is not None:
            self.exchange.go_on()

    def head(self, status: int, content_type: str, stream: bool) -> None:  # noqa: FBT001 - as Receiver has it
        self._stream = stream
        headers = {**self._ticket.headers(), "x-request-id": self._call.id}
        if status == 503:
            headers["retry-after"] = str(RETRY_AFTER_S)
        self._begun = True
        self._sink.begin(Head(status=status, content_type=content_type, stream=stream, headers=headers), self)

    def data(self, data: bytes) -> None:
        if self._stream:
            if self._rest:
                data = self._rest + data
            end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
            data, self._rest = (data, b"") if end == len(data) else (data[:end], data[end:])
            self._tail = data if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
        if data:
            self._sink.write(data)

    def done(self) -> None:
        if self._stream and not is_complete(self._tail):
            self._sink.fail(engine_cut())
        else:
            self._sink.end()
        self._finish()

    def lost(self, reason: str, begun: bool) -> None:  # noqa: FBT001 - as Receiver has it
        _log.warning("an engine of %s broke off: %s", self._call.model, reason)
        self._sink.fail(engine_cut() if self._begun or begun else engine_down(reason))
        self._finish()

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
