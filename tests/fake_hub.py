"""A Hugging Face hub on loopback: lists repositories, serves ranges, records requests, and misbehaves on demand.

``FakeHub(files)`` serves each repository's files as bytes, or as a ``Sparse`` file of any size. Tests change its
``behaviour``. What was sent counts the bytes that this side wrote; the other may have read fewer.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
_CHUNK = 64 * 1024
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Sparse(NamedTuple):
    """A file that begins with *head* and is zeros up to *size*."""

    head: bytes
    size: int

    def part(self, start: int, stop: int) -> bytes:
        piece = self.head[start:stop]
        return piece + bytes(stop - start - len(piece))


class Seen(NamedTuple):
    """One request: its path, ``Range``, and whether it brought credentials."""

    path: str
    range: str | None
    authorization: str | None


@dataclass
class Behaviour:
    """What is wrong with the server."""

    status: int | None = None
    body: bytes = b'{"error": "no"}'
    headers: dict[str, str] = field(default_factory=dict)
    no_ranges: bool = False
    redirect_to: str | None = None
    cut_after: int | None = None
    content_range: str | None = None
    drip_s: float | None = None
    pause_s: float = 0.0
    silent_s: float | None = None
    silent_about: str = ""
    bodies: dict[str, bytes] = field(default_factory=dict)


class FakeHub:
    """A server in a thread. A context manager."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes | Sparse]]) -> None:
        self.repositories = repositories
        self.behaviour = Behaviour()
        self.seen: list[Seen] = []
        self.sent_bytes = 0
        self.stopping = threading.Event()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def files_asked(self) -> list[Seen]:
        """The requests for files; not those of the API."""
        return [seen for seen in self.seen if not seen.path.startswith("/api/")]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that hangs up in the middle is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        """What a file is known by: its size, its digest if it is given as bytes, and the commit."""
        hub = self.server_hub
        path = unquote(urlsplit(self.path).path)
        file = _FILE.fullmatch(path)
        found = hub.repositories.get(file[1], {}).get(file[3]) if file else None
        wrong = hub.behaviour
        if wrong.status is not None or found is None:
            self.send_response(wrong.status or 404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        etag = hashlib.sha256(found).hexdigest() if isinstance(found, bytes) else "0" * 40
        self.send_response(200)
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{etag}"',
            "X-Linked-Size": str(len(found) if isinstance(found, bytes) else found.size),
            **wrong.headers,
        }
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        hub = self.server_hub
        path = unquote(urlsplit(self.path).path)
        hub.seen.append(Seen(path, self.headers.get("range"), self.headers.get("authorization")))
        wrong = hub.behaviour
        try:
            if wrong.silent_s is not None and wrong.silent_about in path:
                hub.stopping.wait(wrong.silent_s)
            if wrong.status is not None:
                self._answer(wrong.status, wrong.body, wrong.headers)
            elif api := _API.fullmatch(path):
                self._list(api[1])
            elif file := _FILE.fullmatch(path):
                self._file(file[1], file[3])
            else:
                self._answer(404, b"")
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _list(self, repository: str) -> None:
        files = self.server_hub.repositories.get(repository)
        if files is None:
            self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [{"rfilename": name} for name in sorted(files)]
        body = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "tags": []}
        self._answer(200, json.dumps(body).encode())

    def _file(self, repository: str, name: str) -> None:
        hub, wrong = self.server_hub, self.server_hub.behaviour
        found = hub.repositories.get(repository, {}).get(name)
        if wrong.redirect_to is not None:
            self._answer(302, b"moved", {"Location": wrong.redirect_to + self.path})
            return
        if found is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        file = Sparse(found, len(found)) if isinstance(found, bytes) else found
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        last = int(asked[2]) + 1 if asked and asked[2] else file.size
        start, stop = (int(asked[1]), min(last, file.size)) if asked else (0, file.size)
        if wrong.no_ranges or not asked:
            start, stop = 0, file.size
            self.send_response(200)
        else:
            self.send_response(206)
            self.send_header("Content-Range", wrong.content_range or f"bytes {start}-{stop - 1}/{file.size}")
        for key, value in wrong.headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if wrong.cut_after is not None:
            stop = min(stop, start + wrong.cut_after)
            self.close_connection = True
        self._body(file, start, stop)

    def _body(self, file: Sparse, start: int, stop: int) -> None:
        hub, drip_s = self.server_hub, self.server_hub.behaviour.drip_s
        step = 1 if drip_s is not None else _CHUNK
        while start < stop and not hub.stopping.is_set():
            piece = file.part(start, min(stop, start + step))
            self.wfile.write(piece)
            hub.sent_bytes += len(piece)
            start += len(piece)
            time.sleep(drip_s or hub.behaviour.pause_s)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
