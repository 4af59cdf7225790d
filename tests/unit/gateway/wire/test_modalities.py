"""Images and audio go to models that take them."""

from dataclasses import replace

import pytest

from serving import CARD
from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.modalities import check_modalities

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "QQ", "format": "wav"}}


def chat(*parts: object) -> dict[str, object]:
    """A request whose last message has *parts*."""
    return {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    ("parts", "capability", "told"), [([IMAGE], "vision", "takes no images"), ([SOUND], "audio", "takes no audio")]
)
def test_what_a_model_lacks_is_said(parts: list[object], capability: str, told: str) -> None:
    with pytest.raises(WireError, match=told) as caught:
        check_modalities(chat({"type": "text", "text": "look"}, *parts), CARD)
    assert caught.value.fault.status == 400
    check_modalities(chat(*parts), replace(CARD, capabilities=("completion", capability)))
    check_modalities(chat(*parts), replace(CARD, engine="attached: http://127.0.0.1:9000/v1"))


@pytest.mark.parametrize("fields", [{}, {"messages": None}, {"messages": [None, {"content": [None, 1]}]}, chat()])
def test_nonsense_is_the_engines_business(fields: dict[str, object]) -> None:
    check_modalities(fields, CARD)
