"""Bodies are read as Python's own ``json`` reads them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.json_body import read_json

_NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1e308, 1e-7, 1e22])
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text()
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def verdict(read: object, raw: bytes) -> str:
    """What came out, as a text: NaN is no equal of itself, and 1 no other number than 1.0."""
    try:
        return repr(read(raw))  # type: ignore[operator]
    except ValueError as problem:
        return f"{type(problem)} {problem}"


@given(st.dictionaries(st.text(), _VALUES | st.integers(), max_size=6), st.booleans(), st.sampled_from([None, 1]))
def test_as_json_has_it(body: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    assert verdict(read_json, raw) == verdict(json.loads, raw)


@given(_VALUES, st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), min_size=1, max_size=3))
def test_what_is_no_json_is_told_in_the_same_words(value: object, edits: list[tuple[int, bytes]]) -> None:
    raw = json.dumps({"a": value, "b": "x\u20ac"}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for where, put in edits:
        at = where % (len(raw) + 1)
        raw = raw[:at] + put + raw[at + len(put) :]
    assert verdict(read_json, raw) == verdict(json.loads, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"max_tokens": 18446744073709551616}',
        b'{"max_tokens": -9223372036854775809}',
        b'{"max_tokens": 9223372036854775808, "x": 1e19}',
        b'{"a": 1e400}',
        b'{"a": -Infinity, "b": NaN}',
        b'{"a": 1, "a": 2, "\\u0061": 3}',
        b'{"a": -0, "b": -0.0}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32-be"),
        b' \r\n\t{"a": 1} \n',
        b'{"a": 1}\x0b',
        b'{"a": 1} {}',
        b'{"a": "\n"}',
        b'{"a": "\x7f\\u0000"}',
        b'{"a": 01}',
        b'{"a": 1.}',
        b"",
    ],
)
def test_corners(raw: bytes) -> None:
    assert verdict(read_json, raw) == verdict(json.loads, raw)


def test_deeper_whole_numbers_beyond_64_bits_become_doubles() -> None:
    assert repr(read_json(b'{"a": [18446744073709551615, 18446744073709551616]}')) == (
        "{'a': [18446744073709551615, 1.8446744073709552e+19]}"
    )


def test_nesting_has_an_end() -> None:
    with pytest.raises(RecursionError):
        read_json(b'{"a":' * 100_000)
