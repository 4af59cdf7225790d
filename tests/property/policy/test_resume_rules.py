"""Whatever a request holds and whatever was sent: no step may lose, double or forge text."""

from hypothesis import given
from hypothesis import strategies as st

from terazi.policy.resume import (
    CHAT,
    GENERATING,
    LLAMA_CPP,
    UNKNOWN,
    VLLM,
    Continue,
    Finish,
    Form,
    GiveUp,
    Hold,
    Powers,
    Replay,
    RunAgain,
    Setbacks,
    Told,
    binds,
    hold_of,
    next_step,
    shape_of,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**32) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={"content": st.text(max_size=5) | JSON, "tool_calls": JSON},
)
BINDING = ("n", "seed", "temperature", "response_format", "grammar", "json_schema", "tools", "tool_choice", "echo",
           "suffix", "structured_outputs")  # fmt: skip
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "prompt": st.text(max_size=5) | st.lists(st.integers(0, 9) | st.text(max_size=3), max_size=3) | JSON,
        **dict.fromkeys(BINDING, JSON),
    },
)  # fmt: skip
PATHS = st.sampled_from([*GENERATING, "/v1/embeddings", "/infill"])
TOLD = st.builds(
    Told,
    begun=st.booleans(),
    content=st.booleans(),
    reasoning=st.booleans(),
    tool_calls=st.booleans(),
    finished=st.booleans(),
    lost_track=st.booleans(),
)
TWO = st.tuples(st.booleans(), st.booleans())
POWERS = st.sampled_from([LLAMA_CPP, VLLM, UNKNOWN])


@given(
    path=PATHS,
    fields=FIELDS,
    stream=st.booleans(),
    told=TOLD,
    powers=POWERS,
    asked=st.tuples(st.booleans(), st.booleans()),
)
def test_no_step_is_wrong(
    *, path: str, fields: dict[str, object], stream: bool, told: Told, powers: Powers, asked: tuple[bool, bool]
) -> None:
    resume, replayed = asked
    shape = shape_of(path, fields, stream=stream)
    step = next_step(shape, told, powers, resume=resume, replayed=replayed)
    sent = told.content or told.reasoning or told.tool_calls or told.lost_track
    match step:
        case Finish():
            assert told.finished
        case RunAgain():  # what has been seen would be seen twice
            assert not stream or not sent
        case Replay():
            assert shape.seeded
            assert not replayed
            assert not told.lost_track
        case Continue():
            assert resume
            assert shape.obstacle is None
            assert not told.tool_calls
            assert not told.lost_track
            assert path in GENERATING
            assert path != CHAT or powers != UNKNOWN
        case GiveUp(why=why):
            assert why
            assert sent
    assert not told.finished or step == Finish()


@given(PATHS, FIELDS, POWERS)
def test_what_is_not_held_back_can_be_continued(path: str, fields: dict[str, object], powers: Powers) -> None:
    """An answer whose form is bound, and which nobody could continue, must be held back from the beginning."""
    shape = shape_of(path, fields, stream=True)
    hold = hold_of(shape, powers, resume=True)
    if shape.obstacle is None and shape.form in {Form.SCHEMA, Form.GRAMMAR} and hold is Hold.NOTHING:
        told = Told(begun=True, content=True)
        assert next_step(shape, told, powers, replayed=True) == Continue()
    assert hold is Hold.NOTHING or binds(fields)
    assert hold is not Hold.CALLS or shape.form is Form.TOOLS


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=60, max_size=60))
def test_taking_an_answer_up_again_has_an_end(breaks: list[tuple[int, bool]]) -> None:
    """Whatever each engine brings and however it ends, there is a last one; and ten ends never are too many if
    each engine brought something, or was killed by somebody."""
    setbacks, pieces, count, honest = Setbacks(), 0, 0, True
    for gained, from_outside in breaks:
        if setbacks.enough is not None:
            break
        pieces, count = pieces + gained, count + 1
        honest = honest and (from_outside or gained >= Setbacks.LEAST_PIECES)
        setbacks.broke(pieces=pieces, from_outside=from_outside)
    assert setbacks.enough
    assert Setbacks.MEAGRE_LIMIT <= count <= Setbacks.LIMIT
    assert not honest or count == Setbacks.LIMIT > 10
