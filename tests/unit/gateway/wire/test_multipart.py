"""Finding a field in a form."""

from email.mime.multipart import MIMEMultipart

import pytest

from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.multipart import form_field

KIND = 'multipart/form-data; boundary="b1"'


def form(*parts: tuple[str, bytes], end: bytes = b"--b1--\r\n") -> bytes:
    """A form of *parts*: heads and bodies."""
    return b"".join(b"--b1\r\n%s\r\n\r\n%s\r\n" % (head.encode(), body) for head, body in parts) + end


FILE = ('Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav', b"\0" * 9000)
MODEL = ('content-disposition: form-data; name="model"', b"acme/whisper")


def test_wherever_it_stands() -> None:
    for parts in ((FILE, MODEL), (MODEL, FILE), (MODEL,)):
        assert form_field(form(*parts), KIND, "model") == "acme/whisper"
    assert form_field(form(FILE), KIND, "model") is None
    assert form_field(form(FILE, MODEL, end=b""), KIND, "model") == "acme/whisper"
    assert form_field(b"preamble\r\n" + form(MODEL), KIND, "model") == "acme/whisper"


def test_a_file_that_looks_like_a_field_is_none() -> None:
    inner = b'Content-Disposition: form-data; name="model"\r\n\r\nother'
    assert form_field(form((FILE[0], inner), MODEL), KIND, "model") == "acme/whisper"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{}", KIND),
        (form(MODEL), "multipart/form-data"),
        (form(MODEL), "multipart/form-data; boundary*=utf-8''b1"),
    ],
)
def test_what_is_no_form(body: bytes, kind: str) -> None:
    with pytest.raises(WireError) as caught:
        form_field(body, kind, "model")
    assert caught.value.fault.status == 400


def test_another_writer_of_forms() -> None:
    other = MIMEMultipart("form-data", boundary="b1")
    assert form_field(other.as_bytes(), KIND, "model") is None
