"""The estimate of a prompt's tokens against what the real engine counts."""

import base64
import json
from pathlib import Path

import aiohttp
import pytest

from serving import ENGINE_KEY, real_engine, running
from terazi.gateway.wire.estimate import estimate_tokens, fewest_tokens

ROOT = Path(__file__).parents[3]
CHAT = "/v1/chat/completions"

#: Text, and how many times its tokens the estimate is at least and at most.
TEXTS = {
    "English": ((ROOT / "LICENSE").read_text()[:9000], 1.0, 2.0),
    "Markdown": ((ROOT / "docs/guides/queues.md").read_text(), 0.9, 2.0),
    "Python": ((ROOT / "src/terazi/policy/dispatcher.py").read_text(), 1.0, 2.0),
    "indented JSON": (
        json.dumps(json.loads((ROOT / "docs/reference/terazi.schema.json").read_text()), indent=8),
        1,
        4,
    ),
    "Chinese": (
        "天秤是一种用来称量语言模型的工具。它会告诉你模型需要多少内存。它还会告诉你模型在哪些设备上运行。" * 60,
        0.8,
        2.0,
    ),
    "Turkish": (
        "Terazi bir dil modelini yüklemeden önce makine ile tartar ve sonucu dürüstçe söyler. " * 60,
        1,
        2,
    ),
    "base64": (base64.b64encode(bytes(range(256)) * 20).decode(), 0.4, 1.0),
    "blanks": ((" " * 64 + "x\n") * 150, 1.0, 10.0),
}


@pytest.mark.e2e
async def test_estimates_are_near_the_engines_count_and_the_least_is_never_above_it() -> None:
    async with (
        running(real_engine("-c", "512", "-np", "1")) as engine,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {ENGINE_KEY}"}) as session,
    ):
        for name, (text, low, high) in TEXTS.items():
            async with session.post(f"http://127.0.0.1:{engine.port}/tokenize", json={"content": text}) as answer:
                counted = len((await answer.json())["tokens"])
            fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 0}
            for escaped in (True, False):
                body = json.dumps(fields, ensure_ascii=escaped).encode()
                ratio = estimate_tokens(CHAT, body, fields, None) / counted
                assert low <= ratio <= high, f"{name}: {ratio:.2f} times {counted}"
                assert fewest_tokens(fields) <= counted, name
