"""The relay, fed by hand: what goes out, what is kept back, and how an attempt comes out."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from terazi.gateway import relay as module
from terazi.gateway.call import Call, Flow, Head
from terazi.gateway.in_flight import InFlight
from terazi.gateway.journal import Entry, Journal
from terazi.gateway.relay import Ending, Relay, Result
from terazi.gateway.wire.errors import Api, Fault
from terazi.policy.resume import CHAT, Hold

DONE = b"data: [DONE]\n\n"


class Client:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.flow: Flow | None = None
        self.body = b""
        self.bypasses: list[bytes] = []
        self.bypassed_bytes = 0
        self.ended = False
        self.fault: Fault | None = None

    def begin(self, head: Head, flow: Flow) -> None:
        """As ``Sink`` has it."""
        assert self.head is None
        self.head, self.flow = head, flow

    def write(self, data: bytes) -> None:
        """As ``Sink`` has it."""
        assert self.head is not None
        assert not self.ended
        self.body += data

    def bypass(self) -> Callable[[bytes], None] | None:
        """As ``Sink`` has it."""
        return self.bypasses.append if self.head is not None else None

    def bypassed(self, size: int) -> None:
        """As ``Sink`` has it."""
        self.bypassed_bytes += size

    def end(self) -> None:
        """As ``Sink`` has it."""
        self.ended = True

    def fail(self, fault: Fault) -> None:
        """As ``Sink`` has it."""
        self.fault = fault


class Line:
    """An exchange that can be looked at."""

    reached = True
    ending = False

    def __init__(self) -> None:
        self.aborted = self.paused = False
        self.ways: tuple[Callable[[bytes], None], Callable[[bytes], None]] | None = None

    def bypass(self, to: Callable[[bytes], None], keep: Callable[[bytes], None], most_bytes: int) -> None:
        """As ``Exchange`` has it."""
        assert most_bytes > 1000
        self.ways = to, keep

    def comes(self, event: bytes) -> None:
        """A chunk past the relay."""
        assert self.ways is not None
        for way in self.ways:
            way(b"%x\r\n%b\r\n" % (len(event), event))

    def pause(self) -> None:
        """As ``Flow`` has it."""
        self.paused = True

    def go_on(self) -> None:
        """As ``Flow`` has it."""
        self.paused = False

    def abort(self) -> None:
        """As ``Exchange`` has it."""
        self.aborted = True


class Attempt:
    """A relay with one attempt under way."""

    def __init__(self, path: str = CHAT, *, stream: bool = True, **armed: Any) -> None:
        call = Call(id="r", api=Api.OPENAI, path=path, body=b"{}", model="m", stream=stream, arrived=0)
        self.client, self.line = Client(), Line()
        self.entry = Entry(Journal(), call)
        self.relay = Relay(call, self.client, self.entry, headers=lambda: {"x-request-id": "r"})
        self.results: list[Result] = []
        self.relay.arm(self.results.append, **armed)
        self.relay.attach(self.line)
        self.relay.head(200, "text/event-stream" if stream else "application/json", stream)

    def result(self) -> Result:
        """How it came out."""
        [result] = self.results[-1:]
        return result


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """A chat's event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def text(value: str) -> bytes:
    """An event with text."""
    return event({"content": value})


CALL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
async def test_events_go_out_whole_however_they_come(size: int) -> None:
    attempt = Attempt()
    whole = text("a") + b": ping\n\n" + text("\u00e4\u4e16") + event({}, "stop") + DONE
    sizes = []
    for begin in range(0, len(whole), size):
        before = len(attempt.client.body)
        attempt.relay.data(whole[begin : begin + size])
        sizes.append(len(attempt.client.body) - before)
        assert attempt.client.body == b"" or attempt.client.body.endswith(b"\n\n")
    attempt.relay.done()
    assert attempt.client.body == whole
    assert attempt.client.ended
    assert attempt.result().ending is Ending.DONE


async def test_the_head_waits_for_the_first_event() -> None:
    attempt = Attempt()
    assert attempt.client.head is None
    attempt.relay.data(b": ping\n\n")
    assert attempt.client.head is not None
    assert attempt.client.head.headers == {"x-request-id": "r"}
    assert not attempt.relay.got_on
    attempt.relay.data(text("a"))
    assert attempt.relay.got_on


@pytest.mark.parametrize("end", [b"", text("b"), b'data: {"half'])
async def test_an_end_without_an_end_is_a_loss_and_halves_are_never_sent(end: bytes) -> None:
    attempt = Attempt()
    attempt.relay.data(text("a") + end)
    attempt.relay.done() if end != b'data: {"half' else attempt.relay.lost("reset", begun=True)
    assert attempt.result().ending is Ending.BROKE
    assert attempt.line.aborted
    assert not attempt.client.ended
    assert b"half" not in attempt.client.body


async def test_a_last_empty_line_may_be_missing() -> None:
    attempt = Attempt()
    attempt.relay.data(text("a") + b"data: [DONE]\n")
    attempt.relay.done()
    assert attempt.client.body == text("a") + DONE
    assert attempt.client.ended


async def test_carriage_returns_are_fine() -> None:
    attempt = Attempt()
    whole = (text("a") + DONE).replace(b"\n", b"\r\n")
    for i in range(len(whole)):
        attempt.relay.data(whole[i : i + 1])
    attempt.relay.done()
    assert attempt.client.body == whole
    assert attempt.client.ended


async def test_llama_cpps_own_stream_ends_with_stop() -> None:
    for last, ending in (
        (b'{"content":"","stop":true}', Ending.DONE),
        (b'{"content":"b","stop":false}', Ending.BROKE),
    ):
        attempt = Attempt("/completion")
        attempt.relay.data(b'data: {"content":"\\"stop\\":true","stop":false}\n\ndata: ' + last + b"\n\n")
        attempt.relay.done()
        assert attempt.result().ending is ending


async def test_tool_calls_are_held_back_until_they_are_whole() -> None:
    attempt = Attempt(hold=Hold.CALLS)
    attempt.relay.data(text("Let me see") + event(CALL))
    assert attempt.client.body == text("Let me see")
    attempt.relay.data(event({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}))
    assert attempt.client.body == text("Let me see")
    attempt.relay.data(event({}, "tool_calls") + DONE)
    attempt.relay.done()
    assert attempt.client.body.count(b"data: ") == 5
    assert attempt.client.ended


async def test_held_calls_of_a_dead_engine_are_forgotten() -> None:
    attempt = Attempt(hold=Hold.CALLS)
    attempt.relay.data(text("a") + event(CALL))
    attempt.relay.lost("reset", begun=True)
    assert attempt.result().ending is Ending.BROKE
    attempt.relay.arm(attempt.results.append, hold=Hold.CALLS)
    attempt.relay.attach(attempt.line)
    attempt.relay.head(200, "text/event-stream", True)
    attempt.relay.data(text("b") + event({}, "stop") + DONE)
    attempt.relay.done()
    assert attempt.client.body == text("a") + text("b") + event({}, "stop") + DONE


async def test_words_about_tool_calls_are_text() -> None:
    attempt = Attempt(hold=Hold.CALLS)
    said = text('"tool_calls": [{"') + event({"content": "a", "tool_calls": []}) + event({"tool_calls": None})
    attempt.relay.data(said)
    assert attempt.client.body == said


async def test_what_is_bound_is_held_back_whole_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HELD_BYTES", 300)
    attempt = Attempt(hold=Hold.ALL)
    attempt.relay.data(text("{"))
    assert attempt.client.head is None
    attempt.relay.data(text("}"))
    for _ in range(4):
        attempt.relay.data(text("x"))
    assert attempt.client.body == text("{") + text("}") + 4 * text("x")
    attempt.relay.data(event({}, "stop") + DONE)
    attempt.relay.done()
    assert attempt.client.ended


async def test_nothing_overtakes_an_engines_error() -> None:
    attempt = Attempt()
    failed = b'data: {"error":{"code":500,"message":"boom"}}\n\n'
    for came in (text("a"), failed, DONE):
        attempt.relay.data(came)
    attempt.relay.done()
    assert attempt.client.body == text("a") + failed + DONE
    assert attempt.result().ending is Ending.DONE


async def test_an_engines_error_is_its_word_if_it_lives_on() -> None:
    fault = b'data: {"error":{"code":400,"message":"no"}}\n\n'
    attempt = Attempt()
    attempt.relay.data(text("a") + fault)
    assert attempt.client.body == text("a")
    attempt.relay.done()
    assert attempt.client.body == text("a") + fault
    assert attempt.client.ended
    dying = Attempt()
    dying.relay.data(text("a") + fault)
    dying.relay.lost("reset", begun=True)
    assert dying.client.body == text("a")
    assert dying.result().ending is Ending.BROKE


@pytest.mark.parametrize(
    ("status", "body", "ending"),
    [
        (200, b'{"usage": {"total_tokens": 12}}', Ending.DONE),
        (400, b'{"error": {"message": "no"}}', Ending.DONE),
        (503, b'{"error": {"message": "Loading model", "type": "unavailable_error"}}', Ending.STARTING),
        (503, b'{"error": {"message": "full", "type": "other"}}', Ending.DONE),
    ],
)
async def test_whole_answers(status: int, body: bytes, ending: Ending) -> None:
    attempt = Attempt(stream=False)
    attempt.relay.head(status, "application/json", False)
    attempt.relay.data(body[:9])
    assert attempt.client.head is None
    attempt.relay.data(body[9:])
    attempt.relay.done()
    assert attempt.result().ending is ending
    if ending is Ending.DONE:
        assert attempt.client.head is not None
        assert (attempt.client.head.status, attempt.client.body) == (status, body)
        assert attempt.relay.tokens == (12 if status == 200 else None)
        assert ("retry-after" in attempt.client.head.headers) is (status == 503)


async def test_a_refusal_to_continue_is_no_answer() -> None:
    attempt = Attempt()
    attempt.relay.data(text("a"))
    attempt.relay.lost("reset", begun=True)
    attempt.relay.arm(attempt.results.append)
    attempt.relay.attach(attempt.line)
    attempt.relay.head(400, "application/json", False)
    attempt.relay.data(b'{"error": "no such flag"}')
    attempt.relay.done()
    assert attempt.result().ending is Ending.REFUSED
    assert "no such flag" in attempt.result().reason
    assert attempt.client.body == text("a")


async def test_a_slow_client_pauses_the_next_engine_too() -> None:
    attempt = Attempt()
    attempt.relay.pause()
    assert attempt.line.paused
    attempt.relay.lost("reset", begun=True)
    attempt.relay.arm(attempt.results.append)
    other = Line()
    attempt.relay.attach(other)
    assert other.paused
    attempt.relay.go_on()
    assert not other.paused


async def test_timings_say_the_tokens_where_usage_was_not_asked_for() -> None:
    attempt = Attempt()
    timings = b'"timings":{"cache_n":3,"prompt_n":4,"prompt_ms":1.0,"predicted_n":5}'
    attempt.relay.data(text("a") + b'data: {"choices":[],' + timings + b"}\n\n" + DONE)
    attempt.relay.done()
    assert attempt.relay.tokens == 12


async def test_a_silent_stream_is_heard_of() -> None:
    attempt = Attempt()
    for beats in range(4):
        assert attempt.client.body.count(b": waiting") == max(0, beats - 1)  # the first only says: silent until now
        attempt.relay.beat()
    attempt.relay.data(text("a"))
    said = attempt.client.body
    attempt.relay.beat()
    assert attempt.client.body == said
    attempt.line.comes(text("b"))
    attempt.relay.beat()
    assert attempt.client.body == said, "what goes past it is no silence"


async def test_a_client_that_reads_nothing_gets_no_signs_of_life_on_top() -> None:
    attempt = Attempt()
    attempt.relay.pause()
    for _ in range(5):
        attempt.relay.beat()
    assert attempt.client.body == b""
    attempt.relay.go_on()
    attempt.relay.beat()
    assert b": waiting" in attempt.client.body


async def test_what_goes_past_it_is_known_as_if_it_had_not() -> None:
    attempt = Attempt()
    attempt.relay.flight = flight = InFlight()
    attempt.relay.data(text("a"))
    for value in "bcd":
        attempt.line.comes(text(value))
    before = flight.bytes_seen  # asking is what makes it be told
    assert before == sum(len(text(value)) for value in "abcd")
    attempt.line.comes(text("e"))
    attempt.relay.data(text("f") + event({}, "stop") + DONE)
    attempt.relay.done()
    assert attempt.client.bypassed_bytes == sum(len(text(value)) for value in "bcde")
    assert attempt.client.body == text("a") + text("f") + event({}, "stop") + DONE
    script = attempt.entry.script()
    assert script.content == "abcdef"
    assert flight.bytes_seen - before == sum(map(len, (text("e"), text("f"), event({}, "stop"), DONE)))


async def test_an_engine_that_breaks_takes_nothing_along_that_went_past() -> None:
    attempt = Attempt()
    attempt.relay.data(text("a"))
    attempt.line.comes(text("b"))
    attempt.relay.lost("reset", begun=True)
    assert attempt.entry.script().content == "ab"


async def test_text_before_a_call_goes_past_and_the_call_does_not() -> None:
    attempt = Attempt(hold=Hold.CALLS)
    attempt.relay.data(text("a"))
    attempt.line.comes(text("b"))
    attempt.line.ways = None
    attempt.relay.data(event(CALL))
    assert attempt.line.ways is None
    attempt.relay.data(event({}, "tool_calls") + DONE)
    assert attempt.client.body == text("a")
    attempt.relay.done()
    assert attempt.client.body == text("a") + event(CALL) + event({}, "tool_calls") + DONE
    assert attempt.entry.script().content == "ab"


async def test_nothing_goes_past_that_is_held_back_whole() -> None:
    attempt = Attempt(hold=Hold.ALL)
    attempt.relay.data(text("a"))
    assert attempt.line.ways is None
