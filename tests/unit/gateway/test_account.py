"""What is counted and logged of requests that are over; read back by Prometheus's own parser."""

import json
import logging
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving import CARD, StubDirectory
from terazi.gateway.account import CLIENT_GONE, Attempt, Bookkeeper, Entry, Outcome
from terazi.gateway.call import Call, Caller
from terazi.gateway.figures import Family, Figure, Kind
from terazi.gateway.metrics import MOST_KEYS, Metrics
from terazi.gateway.request_log import NAME, RequestLog
from terazi.gateway.wire.errors import Api
from terazi.policy.dispatch_messages import Why

SECRET = "the prompt that nobody may read"  # noqa: S105 - a prompt
TAIL = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":11},"timings":{"cache_n":20}}\n\n'
CALL = Call(
    id="r1",
    api=Api.OLLAMA,
    path="/v1/chat/completions",
    body=json.dumps({"messages": [{"role": "user", "content": SECRET}]}).encode(),
    model=CARD.id,
    stream=True,
    caller=Caller(name="anna"),
    arrived=100.0,
)
DONE = Outcome(
    status=200,
    began=102.0,
    ended=107.0,
    attempts=(
        Attempt(replica="m#1", began=101.5, ended=103.0, lost="connection reset"),
        Attempt(replica="m#2", began=104.0, ended=107.0),
    ),
    resumed=("continued",),
    tail=TAIL,
)


def entry_of(call: Call, outcome: Outcome) -> Entry:
    seen: list[Entry] = []

    class Reader:
        def noted(self, entry: Entry) -> None:
            seen.append(entry)

    Bookkeeper([Reader()], wait_s=0).closed(call, outcome)
    return seen[0]


def samples(metrics: Metrics) -> dict[str, float]:
    """Each series by its name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get(f"{name}{sorted(labels.items())}")


def test_an_entry_says_what_it_took() -> None:
    entry = entry_of(CALL, DONE)
    assert (entry.queued_s, entry.ttft_s, entry.total_s, entry.replica) == (1.5, 2.0, 7.0, "m#2")
    assert entry.time_per_output_token_s == pytest.approx(0.5)
    never = entry_of(CALL, Outcome(status=503, why=Why.QUEUE_FULL, ended=101.0))
    assert (never.queued_s, never.ttft_s, never.replica, never.time_per_output_token_s) == (1.0, None, None, None)


def test_each_request_is_counted_once() -> None:
    metrics = Metrics(StubDirectory([]))
    Bookkeeper([metrics], wait_s=0).closed(CALL, DONE)
    Bookkeeper([metrics], wait_s=0).closed(CALL, Outcome(status=429, why=Why.RATE, ended=100.0))
    Bookkeeper([metrics], wait_s=0).closed(CALL, replace(DONE, status=CLIENT_GONE))
    model = CARD.id
    for status in ("200", "429", "499"):
        assert value(metrics, "terazi_requests_total", api="ollama", model=model, key="anna", status=status) == 1
    assert value(metrics, "terazi_requests_rejected_total", model=model, key="anna", reason="rate") == 1
    assert value(metrics, "terazi_prompt_tokens_total", model=model, key="anna") == 60
    assert value(metrics, "terazi_prompt_tokens_cached_total", model=model, key="anna") == 40
    assert value(metrics, "terazi_generation_tokens_total", model=model, key="anna") == 22
    assert value(metrics, "terazi_attempts_lost_total", model=model) == 2
    assert value(metrics, "terazi_requests_resumed_total", model=model, kind="continued") == 2
    assert value(metrics, "terazi_time_to_first_token_seconds_sum", api="ollama", model=model) == 4
    assert value(metrics, "terazi_e2e_request_latency_seconds_count", api="ollama", model=model) == 1
    assert value(metrics, "terazi_request_queue_time_seconds_count", model=model, key="anna") == 2


def test_clients_cannot_invent_series() -> None:
    metrics = Metrics(StubDirectory([]))
    book = Bookkeeper([metrics], wait_s=0)
    for number in range(MOST_KEYS + 50):
        book.closed(replace(CALL, caller=Caller(name=f"local/{number}")), DONE)
    of_keys = [name for name in samples(metrics) if name.startswith("terazi_prompt_tokens_total")]
    assert len(of_keys) == MOST_KEYS + 1
    assert value(metrics, "terazi_prompt_tokens_total", model=CARD.id, key="others") == 50 * 30


def test_what_others_know_is_read_on_a_scrape() -> None:
    metrics = Metrics(StubDirectory([]), [lambda: [Figure(Family.WAITING, ("a",), 2.0)]])
    metrics.add(lambda: [Figure(Family.WAITING, ("b",), 1.0), Figure(Family.SWAPS, (), 5.0)])
    assert value(metrics, "terazi_num_requests_waiting", model="a") == 2
    assert value(metrics, "terazi_num_requests_waiting", model="b") == 1
    assert value(metrics, "terazi_model_swaps_total") == 5
    assert value(metrics, "terazi_engine_stuck_total", model="a") is None


def test_every_family_can_be_shown() -> None:
    def all_of_them() -> list[Figure]:
        return [Figure(family, tuple("x" for _ in family.about.labels), 1.0) for family in Family]

    shown = samples(Metrics(StubDirectory([]), [all_of_them]))
    for family in Family:
        name = family.series + ("_total" if family.about.kind is Kind.COUNTER else "")
        assert f"{name}{sorted((label, 'x') for label in family.about.labels)}" in shown


def test_a_request_is_one_line_without_what_it_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    log = RequestLog(lambda: 1_796_000_000.1234, monotonic_s=lambda: 107.01)
    book = Bookkeeper([log], wait_s=0)
    book.closed(CALL, DONE)
    book.closed(CALL, Outcome(status=503, code="engine_unavailable", why=Why.NO_ENGINE, ended=100.5))
    first, second = (json.loads(record.getMessage()) for record in caplog.records)
    assert first == {
        "at": 1_796_000_000.113,  # when it was over, not when that was noted
        "id": "r1",
        "api": "ollama",
        "path": "/v1/chat/completions",
        "model": CARD.id,
        "replica": "m#2",
        "key": "anna",
        "status": 200,
        "stream": True,
        "queued_s": 1.5,
        "ttft_s": 2.0,
        "total_s": 7.0,
        "prompt_tokens": 30,
        "output_tokens": 11,
        "cached_tokens": 20,
        "attempts": 2,
        "resumed": ["continued"],
    }
    assert (second["status"], second["error"], second["queued_s"]) == (503, "engine_unavailable", 0.5)
    assert not {"replica", "ttft_s", "prompt_tokens", "attempts", "resumed", "finish"} & second.keys()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert SECRET not in caplog.text


def test_whatever_names_there_are_a_line_is_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    odd = 'a "name"\\\n\u2028é'
    call = replace(CALL, model=odd, caller=Caller(name=odd), stream=False)
    attempts = (Attempt(replica=odd, began=101.0, ended=102.0),)
    for status, why in ((CLIENT_GONE, None), (429, Why.RATE)):
        outcome = Outcome(status=status, why=why, code=odd if why is None else None, ended=102.0, attempts=attempts)
        Bookkeeper([RequestLog(lambda: 0.0)], wait_s=0).closed(call, outcome)
    gone, refused = (json.loads(record.getMessage()) for record in caplog.records)
    assert [gone[name] for name in ("model", "key", "replica", "error")] == [odd] * 4
    assert (gone["client_gone"], gone["stream"]) == (True, False)
    assert refused["error"] == "rate"
    assert "\n" not in caplog.records[0].getMessage()


def test_a_reader_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def noted(self, entry: Entry) -> None:
            raise ValueError(entry.call.id)

    metrics = Metrics(StubDirectory([]))
    Bookkeeper([Broken(), metrics], wait_s=0).closed(CALL, DONE)
    assert value(metrics, "terazi_attempts_lost_total", model=CARD.id) == 1
    assert "an account of request r1 failed" in caplog.text
