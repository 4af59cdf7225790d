"""What is read of llama-server's slot files and answers, strange ones included."""

import struct

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, lists

from terazi.engines.llama_cpp.slot_files import tokens_in, tokens_moved, tokens_reused

MAGIC = 0x67677371


@given(lists(integers(0, 2**31 - 1), max_size=50))
def test_the_prompt_of_both_layouts_is_read(tokens: list[int]) -> None:
    packed = struct.pack(f"<iII{len(tokens)}i", -1, 1, len(tokens), *tokens)
    now = struct.pack("<III", MAGIC, 4, len(tokens) + 3) + packed + bytes(64)
    before = struct.pack(f"<III{len(tokens)}i", MAGIC, 3, len(tokens), *tokens) + bytes(64)
    assert tokens_in(now) == tuple(tokens)
    assert tokens_in(before) == tuple(tokens)


@given(binary(max_size=200))
def test_what_is_no_such_file_is_none(data: bytes) -> None:
    assert tokens_in(data) is None or data[:4] == struct.pack("<I", MAGIC)


def test_a_prompt_with_pictures_cannot_be_asked_about() -> None:
    packed = struct.pack("<iII3i", -1, 1, 3, 5, -1, 7)
    assert tokens_in(struct.pack("<III", MAGIC, 4, 6) + packed) is None


def test_a_prompt_that_is_cut_off_cannot_be_asked_about() -> None:
    assert tokens_in(struct.pack("<IIIiII", MAGIC, 4, 1003, -1, 1, 1000) + bytes(400)) is None


@pytest.mark.parametrize(
    "answer", [None, "", "[]", "no", '{"timings": 3}', '{"error": {}}', '{"timings": {"cache_n": "x"}}']
)
def test_an_answer_that_says_nothing_is_nothing(answer: str | None) -> None:
    assert (tokens_moved(answer), tokens_reused(answer)) == (0, 0)


def test_what_was_moved_and_reused() -> None:
    assert tokens_moved('{"n_saved": 7}') == tokens_moved('{"n_restored": 7}') == 7
    assert tokens_reused('{"timings": {"cache_n": 344, "prompt_n": 1}}') == 344
