"""HTTPS: the same front on an encrypted transport."""

import asyncio
import io
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from serving import CHAT, StubBackend, StubDirectory, fake_engine, running
from terazi.errors import UsageError
from terazi.gateway.app import create_app
from terazi.gateway.server import Gateway, fingerprint, tls_context
from terazi.service.certificate import Certificate
from terazi.service.config import ServiceTable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As ``make_certificate`` has it."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """One that nobody has signed, for a name that isn't the address; and its key."""
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=box.example", "-days", "2"]
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*argv, *subject, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


async def test_streams_and_pages_over_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    known = aiohttp.Fingerprint(bytes.fromhex(fingerprint(cert)))
    async with running(fake_engine()) as engine:
        app = create_app(StubDirectory([StubBackend(engine.port)]))
        gateway = Gateway(app, "127.0.0.1", 0, tls=tls_context(cert, key))
        await gateway.start()
        assert gateway.address.startswith("https://")
        try:
            async with aiohttp.ClientSession(gateway.address) as client:
                for _ in range(2):
                    body = {**CHAT, "stream": True}
                    async with client.post("/v1/chat/completions", json=body, ssl=known) as reply:
                        assert reply.status == 200
                        assert (await reply.read()).endswith(b"data: [DONE]\n\n")
                async with client.post(
                    "/v1/chat/completions", data=io.BytesIO(b" " * (17 << 20)), ssl=known
                ) as reply:
                    assert reply.status == 413
                async with client.get("/v1/models", ssl=known) as reply:
                    assert reply.status == 200
                with pytest.raises(aiohttp.ServerFingerprintMismatch):
                    await client.get("/v1/models", ssl=aiohttp.Fingerprint(b"x" * 32))
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.set_alpn_protocols(["h2", "http/1.1"])
            host, port = gateway.address.removeprefix("https://").split(":")
            _, writer = await asyncio.open_connection(host, int(port), ssl=old)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            writer.close()
        finally:
            await gateway.stop()


async def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    """Files that don't fit are found before anything has changed."""
    first, second = (make_certificate(tmp_path / name) for name in ("first", "second"))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(pair: tuple[Path, Path]) -> str:
        for source, target in zip(pair, (cert, key), strict=True):
            target.write_bytes(source.read_bytes())
        return fingerprint(str(cert))

    old = aiohttp.Fingerprint(bytes.fromhex(put(first)))
    table = ServiceTable(tls_cert=str(cert), tls_key=str(key))
    certificate = Certificate(table)
    gateway = Gateway(create_app(StubDirectory([])), "127.0.0.1", 0, tls=certificate.context)
    await gateway.start()
    try:
        assert not certificate.follow(table), "the same files are no renewal"
        put((second[0], first[1]))
        with pytest.raises(UsageError, match="can't be used"):
            certificate.check(table)
        new = aiohttp.Fingerprint(bytes.fromhex(put(second)))
        certificate.check(table)
        async with aiohttp.ClientSession(gateway.address) as before:
            assert certificate.follow(table)
            assert certificate.fingerprint == new.fingerprint.hex()
            with pytest.raises(aiohttp.ServerFingerprintMismatch):
                await before.get("/healthz", ssl=old)
            async with before.get("/healthz", ssl=new) as reply:
                assert reply.status == 200
    finally:
        await gateway.stop()


def test_what_is_no_certificate_is_said(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for a, b in ((tmp_path / "none.pem", key), (empty, key), (cert, empty)):
        with pytest.raises(UsageError, match="can't be used"):
            tls_context(str(a), str(b))
