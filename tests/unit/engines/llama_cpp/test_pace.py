"""Two looks at a server's slots."""

import json

import pytest

from terazi.engines.llama_cpp.endpoints import Slot, parse_slots
from terazi.engines.llama_cpp.pace import pace


def slot(number: int, task: int | None, depth: int, decoded: int, *, busy: bool = True) -> Slot:
    return Slot(id=number, n_ctx=512, is_processing=busy, task=task, depth=depth, decoded=decoded)


def test_streams_that_decoded_together() -> None:
    idle = slot(2, 5, 300, 30, busy=False)
    before = (slot(0, 7, 100, 20), slot(1, 8, 50, 4), idle)
    after = (slot(0, 7, 140, 60), slot(1, 8, 90, 44), idle)
    found = pace(before, after, 2.0)
    assert found is not None
    assert (found.streams, found.tok_s) == (2, 40)
    assert found.depth == pytest.approx((120 + 70) / 2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), ()),
        ((slot(0, 7, 100, 20),), (slot(0, 9, 140, 60),)),  # another request
        ((slot(0, 7, 100, 20),), (slot(0, 7, 140, 60), slot(1, 8, 9, 1))),  # one came
        ((slot(0, 7, 100, 20), slot(1, 8, 9, 1)), (slot(0, 7, 140, 60),)),  # one went
        ((slot(0, 7, 100, 0),), (slot(0, 7, 140, 40),)),  # still at its prompt
        ((slot(0, 7, 100, 20),), (slot(0, 7, 105, 25),)),  # too few tokens
        ((slot(0, None, 100, 20),), (slot(0, None, 140, 60),)),  # a build that doesn't say
        ((slot(0, 7, 140, 60, busy=False),), (slot(0, 7, 140, 60, busy=False),)),
    ],
)
def test_what_tells_nothing(before: tuple[Slot, ...], after: tuple[Slot, ...]) -> None:
    assert pace(before, after, 2.0) is None


def test_slots_as_the_engine_prints_them() -> None:
    """``server-context.cpp:server_slot::to_json``, build b11434."""
    body = [{"id": 0, "n_ctx": 512, "is_processing": True, "id_task": 3, "n_prompt_tokens": 12,
             "next_token": [{"has_next_token": True, "n_decoded": 5}]},
            {"id": 1, "n_ctx": 512, "is_processing": False}]  # fmt: skip
    first, second = parse_slots(json.dumps(body))
    assert (first.task, first.depth, first.decoded) == (3, 12, 5)
    assert (second.task, second.depth, second.decoded) == (None, None, None)
