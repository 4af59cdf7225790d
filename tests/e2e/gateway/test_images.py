"""Images and sound through the whole service to a real engine. The projector is a small twin with empty weights, so
what the model says of them means nothing; that they get there, and are counted, does."""

import base64
import struct
import zlib
from pathlib import Path

import httpx
import openai
import pytest

import projector_twins
from demo_files import smollm2
from running import up

pytestmark = pytest.mark.e2e


def png(width: int, height: int) -> str:
    """A black picture as a data URI."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(3 * width)) * height
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def test_an_image_reaches_the_engine_through_each_api(tmp_path: Path) -> None:
    model = tmp_path / "models" / smollm2().name
    model.parent.mkdir()
    model.symlink_to(smollm2())
    projector_twins.write_twin(model.parent, "gemma3").rename(model.parent / "mmproj-F16.gguf")
    picture, home = png(64, 64), tmp_path / "home"
    home.mkdir()
    words = {"type": "text", "text": "What is this?"}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    with up(home, str(model), "--context", "1024") as running:
        url = running.url()
        with httpx.Client(base_url=url, timeout=120) as client:
            shown = client.post("/api/show", json={"model": model.stem}).json()
            assert "vision" in shown["capabilities"]
            counts = []
            for content in ([words], [words, image]):
                body = {"model": model.stem, "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
                answer = client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                counts.append(answer.json()["usage"]["prompt_tokens"])
            # 224 x 224 pixels in patches of 14, sixteen of them to a token
            assert counts[1] - counts[0] >= 16
            said = client.post(
                "/api/chat",
                json={
                    "model": model.stem,
                    "stream": False,
                    "messages": [{"role": "user", "content": "What is this?", "images": [picture]}],
                    "options": {"num_predict": 4},
                },
            )
            assert said.status_code == 200, said.text
            assert said.json()["prompt_eval_count"] == counts[1]
            source = {"type": "base64", "media_type": "image/png", "data": picture}
            content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
            told = client.post(
                "/v1/messages",
                json={"model": model.stem, "max_tokens": 4, "messages": [{"role": "user", "content": content}]},
            )
            assert told.status_code == 200, told.text
            # what isn't a picture is the client's mistake, not the gateway's
            broken = {**image, "image_url": {"url": "data:image/png;base64,QUJD"}}
            body = {"model": model.stem, "messages": [{"role": "user", "content": [words, broken]}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 400


def test_without_a_projector_an_image_is_a_bad_request(tmp_path: Path) -> None:
    picture = f"data:image/png;base64,{png(8, 8)}"
    with (
        up(tmp_path, "demo", "--context", "512", "--mmproj", "none") as running,
        openai.OpenAI(base_url=f"{running.url()}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="without a projector"),
    ):
        client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}]}],
        )
