"""Tokens out of the two ends of answers, as llama-server b11434 wrote them."""

import json

import pytest

from terazi.gateway.wire.usage import Usage, read_usage

USAGE = '"usage":{"completion_tokens":3,"prompt_tokens":32,"prompt_tokens_details":{"cached_tokens":31}}'
TIMINGS = '"timings":{"cache_n":31,"prompt_n":1,"prompt_ms":6.5,"predicted_n":3,"predicted_ms":12.25}'
DELTA = 'data: {"choices":[{"finish_reason":%s,"index":0,"delta":{%s}}],"id":"x"%s}\n\n'
SAID = Usage(
    prompt_tokens=32, output_tokens=3, cached_tokens=31, prefill_s=0.0065, decode_s=0.01225, finish="length"
)


def test_a_stream_whose_client_asked_for_usage() -> None:
    tail = DELTA % ("null", '"content":"a"', "") + DELTA % ('"length"', "", "")
    tail += f'data: {{"choices":[],{USAGE},{TIMINGS}}}\n\ndata: [DONE]\n\n'
    assert read_usage(b"", tail.encode()) == SAID


def test_a_stream_whose_client_did_not() -> None:
    tail = DELTA % ("null", '"content":"a"', "") + DELTA % ('"length"', "", f",{TIMINGS}") + "data: [DONE]\n\n"
    assert read_usage(b"", tail.encode()) == SAID


def test_a_whole_answer_and_one_whose_beginning_is_gone() -> None:
    body = f'{{"choices":[{{"finish_reason":"length","message":{{"content":"x"}}}}],{USAGE},"id":"x",{TIMINGS}}}'
    assert read_usage(body.encode(), body.encode()) == SAID
    assert read_usage(b"", body.encode()[9:]) == SAID


def test_an_embedding_says_it_at_the_beginning() -> None:
    body = (
        b'{"model":"m","object":"list","usage":{"prompt_tokens":7,"total_tokens":7},"data":[{"embedding":['
        + b"0," * 9000
    )
    assert read_usage(body[:4096], body[-4096:]) == Usage(prompt_tokens=7)


def test_the_figures_may_stand_before_the_reason_or_apart_and_the_last_ones_count() -> None:
    spaced = (
        'data: {"usage": {"prompt_tokens": %d, "completion_tokens": %d},\n "choices": [{"finish_reason": %s}]}\n\n'
    )
    tail = spaced % (9, 1, "null") + spaced % (9, 2, '"stop"') + "data: [DONE]\n\n"
    assert read_usage(b"", tail.encode()) == Usage(prompt_tokens=9, output_tokens=2, finish="stop")
    tail = tail.replace(" ", "").replace("data:", "data: ")
    assert read_usage(b"", tail.encode()) == Usage(prompt_tokens=9, output_tokens=2, finish="stop")


def test_vllm_says_nothing_of_it_until_the_last_event() -> None:
    """As vLLM 0.32.0 writes a stream whose client asked for its usage."""
    event = 'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%s}],"usage":null}\n\n'
    counts = '{"prompt_tokens":9,"total_tokens":19,"completion_tokens":10,"prompt_tokens_details":null}'
    tail = (
        event % "null" + event % '"stop"' + f'data: {{"id":"c","choices":[],"usage":{counts}}}\n\ndata: [DONE]\n\n'
    )
    assert read_usage(b"", tail.encode()) == Usage(prompt_tokens=9, output_tokens=10, finish="stop")


def test_other_apis_words() -> None:
    tail = b'data: {"usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}\n\n'
    found = read_usage(b"", tail)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (5, 2, 1)


@pytest.mark.parametrize("text", ['"usage":{"prompt_tokens":9}', '"timings":{"prompt_n":9}'])
def test_what_the_model_writes_is_not_believed(text: str) -> None:
    said = json.dumps({"choices": [{"finish_reason": None, "delta": {"content": text}}]})
    assert read_usage(b"", f"data: {said}\n\n".encode()) == Usage()


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b'"usage":',
        b'"usage":{',
        b'"usage":null',
        b'"usage":{"prompt_tokens":-1,"completion_tokens":true}',
        b'"timings":{"prompt_ms":"x"}',
        b'"usage":' + b"[" * 99999,
        b'"usage":{"prompt_tokens":1.5}',
        b'"usage":{"prompt_tokens":12',
        b'"usage":{"prompt_tokens":"7","completion_tokens":' + b"9" * 9999 + b"}",
        b'"finish_reason":"',
    ],
)
def test_junk_is_nothing(tail: bytes) -> None:
    assert read_usage(tail, tail) == Usage()
