"""Engines that close connections behind the gateway's back, at every moment at which they can."""

import asyncio

import pytest

from serving import CHAT, StubBackend, client_of, fake_engine, gateway_over, running

pytestmark = pytest.mark.timeout(120)
ASKED = 200


@pytest.mark.parametrize("at_once", [4, 64])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streams"])
@pytest.mark.parametrize(
    "habit",
    [(), ("--fake-close-after-response",), ("--fake-close-on-reuse",)],
    ids=["after each stream, as llama-server does", "after everything", "at the moment of reuse"],
)
async def test_no_answer_fails(habit: tuple[str, ...], stream: bool, at_once: int) -> None:
    """nginx in front of the same engines fails up to half of them, most other gateways all that meet the race."""
    flags = ("-np", str(at_once), "--fake-tokens", "3", "--fake-token-delay-s", "0.002", *habit)
    left = iter(range(ASKED))
    good, failed = 0, list[str]()
    async with (
        running(fake_engine(*flags)) as engine,
        gateway_over(StubBackend(engine.port)) as gateway,
        client_of(gateway) as client,
    ):

        async def ask() -> None:
            nonlocal good
            for _ in left:
                async with client.post("/v1/chat/completions", json={**CHAT, "stream": stream}) as reply:
                    text = await reply.text()
                whole = text.endswith("data: [DONE]\n\n") if stream else '"finish_reason": "stop"' in text
                if reply.status == 200 and whole and '"error"' not in text:
                    good += 1
                else:
                    failed.append(text)

        await asyncio.gather(*(ask() for _ in range(at_once)))
    assert failed == []
    assert good == ASKED
