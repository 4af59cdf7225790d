"""Reads the head of a file on another machine by range requests: at most two, and never the whole file.

The first asks for the beginning, which often suffices. The second asks for what follows and is closed as soon as
the header has been read, so what travels is the header and what was on its way. A server that doesn't know ranges
and answers with the whole file is read no further than that either.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Final, Self

import httpx2

from terazi.errors import ModelFileError, SourceError, UsageError
from terazi.models.gguf_window import display

CONNECT_S: Final = 10.0
#: How long a server may be silent.
READ_S: Final = 20.0
#: How long one file's header may take in all, however slowly it trickles in.
DEADLINE_S: Final = 120.0
#: The longest head that is read of a remote file.
HEAD_LIMIT_BYTES: Final = 128 * 1024**2
FIRST_BYTES: Final = 1024**2
_NO_TIME: Final = "Try again later, or download the file and give its path."
_REDIRECTS: Final = 8


class RemoteFile:
    """The head of one remote file, as a ``Fetch``; a context manager.

    Args:
        client: asks; on a redirect to another host it leaves the credentials out.
        url: of the file.
        headers: credentials; never shown.
        label: names the file in messages.
        first_bytes: how much the first request asks for.
        exact: the second request asks for no more than what is wanted at that moment; else it goes on until closed.
    """

    def __init__(
        self,
        client: httpx2.Client,
        url: str,
        headers: Mapping[str, str],
        *,
        label: str,
        first_bytes: int = FIRST_BYTES,
        exact: bool = False,
    ) -> None:
        self._client = client
        self._url = url
        self._headers = dict(headers)
        self._label = display(label)
        self._exact = exact
        self._buffer = bytearray()
        self._response: httpx2.Response | None = None
        self._stream: Iterator[bytes] = iter(())
        self._deadline = time.monotonic() + DEADLINE_S
        self._requests = 0
        self.size = 0
        try:
            self._begin(first_bytes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no further; what the server still sends is dropped with the connection."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def fetch(self, offset: int, length: int) -> bytes:
        """The bytes from *offset* on, fewer than *length* only at the end of the file.

        Raises:
            SourceError: the server fails, lies, or is too slow.
            ModelFileError: the header is longer than any real one.
        """
        end = min(offset + length, self.size)
        while len(self._buffer) < end:
            self._pull(end)
        return bytes(self._buffer[offset:end])

    def _begin(self, first_bytes: int) -> None:
        response = self._ask(0, first_bytes)
        if response.status_code == httpx2.codes.PARTIAL_CONTENT:
            self.size = self._range(response, 0)
            self._drain(min(first_bytes, self.size))
            return
        length = response.headers.get("content-length", "")
        if not length.isascii() or not length.isdecimal():
            raise self._failed("does not say how long the file is")
        self.size = int(length)

    def _pull(self, end: int) -> None:
        """Take the next bytes of the open answer, or ask for what follows."""
        here = len(self._buffer)
        if here >= HEAD_LIMIT_BYTES:
            raise ModelFileError(
                f"{self._label} has a header of more than {HEAD_LIMIT_BYTES // 1024**2} MiB.",
                hint="No real model has one; the file is damaged or not meant to be read.",
            )
        if self._response is None:
            if self._requests > 1:
                raise self._failed("sent less than it announced")
            stop = end if self._exact else min(self.size, HEAD_LIMIT_BYTES)
            response = self._ask(here, stop)
            if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                raise self._failed("answered one range and ignores the next")
            if self._range(response, here) != self.size:
                raise self._failed("changed the file while it was being read")
        self._take()

    def _drain(self, end: int) -> None:
        while self._response is not None and len(self._buffer) < end:
            self._take()
        if len(self._buffer) < end:
            raise self._failed("sent less than it announced")
        if self._response is not None and self._response.headers.get("content-length") == str(end):
            self._take()  # the end of the message, after which the connection serves the next request
        self.close()

    def _take(self) -> None:
        if time.monotonic() > self._deadline:
            raise SourceError(f"{self._label}: the server is too slow for even the header.", hint=_NO_TIME)
        try:
            chunk = next(self._stream, None)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        if chunk is None:
            self.close()
        else:
            self._buffer += chunk

    def _ask(self, start: int, stop: int) -> httpx2.Response:
        self._requests += 1
        wanted = {**self._headers, "range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        timeout = httpx2.Timeout(READ_S, connect=CONNECT_S)
        try:
            request = self._client.build_request("GET", self._url, headers=wanted, timeout=timeout)
            response = self._follow(request)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise UsageError(f"{self._label} is no address.", hint="Give https://host/path/model.gguf.") from None
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        if response.status_code not in {httpx2.codes.OK, httpx2.codes.PARTIAL_CONTENT}:
            raise refused(response.status_code, response.headers, self._label)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._failed("packs what was asked for as it is")
        # raw: a packed answer could unpack to any size
        self._stream = response.iter_raw()
        return response

    def _follow(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to *request* at the end of its redirects, whose own bodies nobody reads.

        What follows is asked for where the beginning came from, with the credentials that went there.
        """
        for _ in range(_REDIRECTS):
            response = self._client.send(request, stream=True, follow_redirects=False)
            self._response = response
            if response.next_request is None:
                self._url = str(response.url)
                kept = ("authorization", "user-agent", "cookie")
                self._headers = {k: v for k, v in response.request.headers.items() if k.lower() in kept}
                return response
            self.close()
            request = response.next_request
        raise SourceError(f"{self._label}: the server redirects in a circle.", hint=_NO_TIME)

    def _range(self, response: httpx2.Response, start: int) -> int:
        """The file's size out of ``Content-Range: bytes START-END/SIZE``."""
        unit, _, rest = response.headers.get("content-range", "").partition(" ")
        span, _, size = rest.partition("/")
        first = span.partition("-")[0]
        if unit != "bytes" or not (first + size).isascii() or not first.isdecimal() or not size.isdecimal():
            raise self._failed("answers a range without saying which")
        if int(first) != start or int(size) >= 2**63:
            raise self._failed("answers with another range than the one that was asked for")
        return int(size)

    def _failed(self, what: str) -> SourceError:
        return SourceError(f"{self._label}: the server {what}.", hint=_NO_TIME)

    def _unreachable(self, error: httpx2.HTTPError) -> SourceError:
        host = display(httpx2.URL(self._url).host)
        if isinstance(error, httpx2.TimeoutException):
            return SourceError(f"{self._label}: {host} does not answer in time.", hint=_NO_TIME)
        if isinstance(error, httpx2.ConnectError):
            reason = display(str(error)[:100])
            return SourceError(f"{self._label}: {host} can't be reached ({reason}).", hint="Check the network.")
        return SourceError(f"{self._label}: the connection to {host} broke.", hint="Try again.")


def refused(status: int, headers: Mapping[str, str], label: str) -> SourceError:
    """What an answer that is no success means, in words; its body is not looked at."""
    code = headers.get("x-error-code", "")
    if code == "GatedRepo":
        return SourceError(
            f"{label} is gated: its publisher wants to be asked.",
            hint="Ask for access on the model's page, then set HF_TOKEN to a token of that account.",
        )
    if status in {401, 403}:
        return SourceError(
            f"{label} is private, or isn't there ({status}).",
            hint="Check its name; for a private or gated model set HF_TOKEN to a token that may read it.",
        )
    if status in {404, 410}:
        return SourceError(f"{label} isn't there ({status}).", hint="Check its name and its revision.")
    if status == 429:
        after = headers.get("retry-after", "")
        when = f" in {after} s" if after.isascii() and after.isdecimal() else " later"
        return SourceError(
            f"{label}: too many requests were made from here ({status}).",
            hint=f"Try again{when}; with HF_TOKEN set, more are allowed.",
        )
    return SourceError(f"{label}: the server answers with status {status}.", hint=_NO_TIME)
