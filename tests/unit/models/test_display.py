"""What may be shown of names that strangers chose."""

from hypothesis import given
from hypothesis import strategies as st

from terazi.models.gguf_window import display


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    shown = display(text)
    assert shown.isprintable()
    shown.encode()


def test_bytes_of_a_file_name_and_half_a_character() -> None:
    assert display(b"a\xff".decode("utf-8", "surrogateescape")) == r"a\xff"
    assert display("\ud800") == r"\ud800"
    assert display("\ud800\x1b") == r"\ud800\x1b"
