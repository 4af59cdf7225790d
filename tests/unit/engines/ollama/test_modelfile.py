"""Modelfiles, with the cases of Ollama's own ``parser/parser_test.go`` (commit fb30760)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.engines.ollama.modelfile import Modelfile, is_modelfile, parse_modelfile
from terazi.errors import UsageError


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('FROM "FOO  BAR  "', "FOO  BAR  "),
        ("FROM     FOOO BAR    ", "FOOO BAR"),
        ("FROM /what/is/the path ", "/what/is/the path"),
        ("FROM llama3:7b-instruct-q4_K_M", "llama3:7b-instruct-q4_K_M"),
        ("PARAMETER param1 value1\nFROM foo", "foo"),
        ("\n# comment\nFROM foo\n\t", "foo"),
        ("\ufefffrom foo", "foo"),
        ("FROM foo\r\nSYSTEM x\r\n", "foo"),
    ],
)
def test_from(text: str, source: str) -> None:
    assert parse_modelfile(text).sources == (source,)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("num_ctx 1", "num_ctx", "1"),
        ("stop ### User: ", "stop", "### User:"),
        ('stop "### User: "', "stop", "### User: "),
        ('stop """### User:\n"""', "stop", "### User:\n"),
        ("stop <|endoftext|>", "stop", "<|endoftext|>"),
        ("temperature 1.0", "temperature", "1.0"),
    ],
)
def test_parameters(line: str, name: str, value: str) -> None:
    assert parse_modelfile(f"FROM foo\nPARAMETER {line}\n").parameters == ((name, value),)


@pytest.mark.parametrize(
    "system",
    ['"""\nThis is a\nmultiline system.\n"""', '"""one line"""', '""', '""""""', "\"'\"", 'plain # no comment',
     '"""\nwith "quotes".\n"""', "\"\"\"''\"'\"\"'\"\"'\"'''''\"\"'\"\"'\"\"\""],
)  # fmt: skip
def test_what_comes_after_a_text_is_read_on(system: str) -> None:
    read = parse_modelfile(f"FROM foo\nSYSTEM {system}\nPARAMETER num_ctx 8\nADAPTER ./a.gguf\nDRAFT d.gguf\n")
    assert read == Modelfile(
        sources=("foo",), parameters=(("num_ctx", "8"),), adapters=("./a.gguf",), drafts=("d.gguf",)
    )


def test_other_commands_are_passed_over() -> None:
    text = 'FROM foo\nMESSAGE user hello\nLICENSE """MIT"""\nTEMPLATE x\nRENDERER r\nPARSER p\nREQUIRES 0.14\n'
    assert parse_modelfile(text).sources == ("foo",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no FROM"),
        ("PARAMETER param1 value1", "no FROM"),
        ("FROM foo\nBADCOMMAND param1 value1", "line 2"),
        ("\nFROM foo\nPARAMETER param1\n", "line 3"),
        ('FROM foo\nSYSTEM """This is a multiline system.""', "line 2"),
        ('FROM foo\nSYSTEM "', "not closed"),
        ("FROM foo\nMESSAGE badrole x", "line 2"),
        ("FROM", "line 1"),
        ("{}", "line 1"),
    ],
)
def test_what_ollama_refuses(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_modelfile(text)
    assert "\n" not in caught.value.message
    assert caught.value.hint


@given(st.text(alphabet='FROMfoPARETS num_ctx18"\n\t#\r', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert parse_modelfile(text).sources


@pytest.mark.parametrize(
    ("path", "answer"),
    [("Modelfile", True), ("a/b/modelfile", True), ("Modelfile.big", True), ("x.modelfile", True),
     ("model.gguf", False), ("Modelfiles/x.gguf", False), ("ollama:m", False)],
)  # fmt: skip
def test_names(path: str, answer: bool) -> None:
    assert is_modelfile(path) is answer
