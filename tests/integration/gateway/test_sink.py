"""What a sink writes, and in how many pieces: each of them is a system call. Python's own client reads it."""

import asyncio
import http.client
import io
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.call import Head
from terazi.gateway.front.sink import HttpSink
from terazi.gateway.wire.errors import server_error

EVENT = b'data: {"choices": []}\n\n'
DONE = b"data: [DONE]\n\n"


class Wire:
    """Keeps what it is given, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def writelines(self, list_of_data: list[bytes]) -> None:
        self.pieces.append(b"".join(list_of_data))

    def read(self) -> tuple[http.client.HTTPResponse, bytes]:
        """What a client makes of it all."""
        answer = http.client.HTTPResponse(cast("object", _File(b"".join(self.pieces))))  # type: ignore[arg-type]
        answer.begin()
        return answer, answer.read()


class _File:
    def __init__(self, held: bytes) -> None:
        self._held = held

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._held)


class Ears:
    """Notes what it hears, and how much was written by then."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.heard: list[tuple[object, ...]] = []

    def began(self) -> None:
        self.heard.append(("began", bool(self._wire.pieces)))

    def ended(self, status: int, sent_bytes: int, *, keep_alive: bool) -> None:
        self.heard.append(("ended", status, sent_bytes, keep_alive))


class Tap:
    """An engine's."""

    def pause(self) -> None: ...
    def go_on(self) -> None: ...
    def enough(self) -> None: ...


def sink(*, keep_alive: bool = True, old: bool = False, leaving: bool = False) -> tuple[HttpSink, Wire, Ears]:
    wire = Wire()
    ears = Ears(wire)
    fields = (("X-Request-Id", "req-1"), ("Vary", "Origin"))
    return (
        HttpSink(wire, ears, fields=fields, keep_alive=keep_alive, old=old, leaving=lambda: leaving),
        wire,
        ears,
    )


def stream(status: int = 200) -> Head:
    headers = {"x-terazi-queue-ms": "7", "x-request-id": "req-1"}
    return Head(status=status, content_type="text/event-stream", stream=True, headers=headers)


def send(to: HttpSink, event: bytes) -> None:
    """An event, as a whole chunk past the sink where that may be."""
    way = to.bypass()
    if way is None:
        to.write(event)
    else:
        way(b"%x\r\n%b\r\n" % (len(event), event))
        to.bypassed(len(event))


def test_a_streams_head_goes_out_with_its_first_event() -> None:
    to, wire, ears = sink()
    to.begin(stream(), Tap())
    assert wire.pieces == []
    to.write(EVENT)
    assert len(wire.pieces) == 1
    assert ears.heard == [("began", True)]
    send(to, EVENT)
    assert len(wire.pieces) == 2
    to.end()
    assert len(wire.pieces) == 3
    answer, body = wire.read()
    assert (answer.status, body) == (200, EVENT * 2)
    assert answer.headers.get_all("X-Request-Id") == ["req-1"]
    assert answer.getheader("Content-Type") == "text/event-stream"
    assert answer.getheader("Cache-Control") == "no-cache"
    assert answer.getheader("x-terazi-queue-ms") == "7"
    assert answer.getheader("Vary") == "Origin"
    assert answer.getheader("Date")
    assert not answer.will_close
    assert ears.heard[1:] == [("ended", 200, 2 * len(EVENT), True)]


async def test_a_last_event_goes_out_with_the_end() -> None:
    to, wire, ears = sink()
    to.begin(stream(), Tap())
    to.write(EVENT)
    to.write(DONE)
    to.end()
    await asyncio.sleep(0)
    assert len(wire.pieces) == 2
    assert wire.read()[1] == EVENT + DONE
    assert ears.heard[1:] == [("ended", 200, len(EVENT + DONE), True)]


async def test_a_short_stream_is_one_piece() -> None:
    to, wire, _ = sink()
    to.begin(stream(), Tap())
    to.write(EVENT + DONE)
    to.end()
    assert len(wire.pieces) == 1
    assert wire.read()[1] == EVENT + DONE


async def test_a_last_event_does_not_wait_longer_than_this_turn() -> None:
    to, wire, _ = sink()
    to.begin(stream(), Tap())
    to.write(EVENT)
    to.write(DONE)
    await asyncio.sleep(0)
    assert wire.pieces[-1].endswith(DONE + b"\r\n")
    to.end()
    assert wire.pieces[-1] == b"0\r\n\r\n"
    assert wire.read()[1] == EVENT + DONE


async def test_a_fault_after_a_held_event() -> None:
    to, wire, _ = sink()
    to.begin(stream(), Tap())
    to.write(DONE)
    to.fail(server_error())
    answer, body = wire.read()
    assert answer.status == 200
    assert body.startswith(DONE + b'data: {"error"')


@pytest.mark.parametrize("begun", [True, False])
def test_a_fault_before_the_first_event(begun: bool) -> None:
    to, wire, ears = sink()
    if begun:
        to.begin(stream(), Tap())
    to.fail(server_error())
    answer, body = wire.read()
    assert answer.status == (200 if begun else 500)
    assert b'{"error"' in body
    assert answer.getheader("X-Request-Id") == "req-1"
    assert ears.heard[-1][:2] == ("ended", answer.status)


def test_an_empty_stream() -> None:
    to, wire, ears = sink()
    to.begin(stream(), Tap())
    to.end()
    assert len(wire.pieces) == 1
    answer, body = wire.read()
    assert (answer.status, body) == (200, b"")
    assert ears.heard == [("ended", 200, 0, True)]


async def test_http_1_0_knows_no_chunks() -> None:
    to, wire, ears = sink(old=True)
    to.begin(stream(), Tap())
    to.write(EVENT)
    assert to.bypass() is None
    to.write(DONE)
    to.end()
    answer, body = wire.read()
    assert body == EVENT + DONE
    assert answer.will_close
    assert ears.heard[-1] == ("ended", 200, len(EVENT + DONE), False)


def test_a_service_that_ends_keeps_no_connection() -> None:
    to, wire, ears = sink(leaving=True)
    to.begin(stream(), Tap())
    to.write(EVENT)
    to.end()
    assert wire.read()[0].will_close
    assert ears.heard[-1][-1] is False


@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (20_000,)])
def test_a_whole_answer_says_its_length(sizes: tuple[int, ...]) -> None:
    to, wire, ears = sink()
    to.begin(Head(status=404, content_type="application/json", stream=False, headers={"a": "b"}), Tap())
    for size in sizes:
        to.write(b"x" * size)
    assert wire.pieces == []
    to.end()
    assert len(wire.pieces) == 1
    answer, body = wire.read()
    assert (answer.status, body, answer.getheader("a")) == (404, b"x" * sum(sizes), "b")
    assert answer.getheader("Content-Length") == str(sum(sizes))
    assert [name for name, *_ in ears.heard] == ["began", "ended"]


def test_nothing_is_written_for_a_client_that_has_gone() -> None:
    to, wire, ears = sink()
    to.begin(stream(), Tap())
    to.write(EVENT)
    to.drop()
    to.write(EVENT)
    assert to.bypass() is None
    to.end()
    to.fail(server_error())
    assert len(wire.pieces) == 1
    assert len(ears.heard) == 1
    assert to.over


@given(st.lists(st.tuples(st.sampled_from([1, 40, 16 * 1024 - 14, 16 * 1024, 70_000]), st.booleans()), max_size=6))
def test_any_stream_comes_out_as_it_went_in(events: list[tuple[int, bool]]) -> None:
    to, wire, ears = sink()
    to.begin(stream(), Tap())
    sent = b""
    for size, by_itself in events:
        event = b": " + b"x" * size + b"\n\n"
        sent += event
        if by_itself:
            send(to, event)
        else:
            to.write(event)
    assert len(wire.pieces) == len(events)
    to.end()
    assert wire.read()[1] == sent
    assert ears.heard[-1] == ("ended", 200, len(sent), True)
