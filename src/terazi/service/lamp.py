"""Keeps the beacon lit while a service runs."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from terazi.service.beacon import Beacon, light


class Lamp:
    """One for a service.

    Args:
        folder: where beacons are.
        token: of the control API.
        say: tells the person at the terminal.
    """

    def __init__(self, folder: Path, *, token: str, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._token = token
        self._say = say
        self._path: Path | None = None
        #: Where the service is reached, once that is known.
        self.url = ""

    def light(self, api_key: str | None, fingerprint: str | None) -> None:
        """Tell the other commands where this service is; a full disk costs that, not the service.

        Args:
            fingerprint: of the certificate that is served; None without TLS.
        """
        beacon = Beacon(
            url=self.url,
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            control_token=self._token,
            api_key=api_key,
            fingerprint=fingerprint,
        )
        try:
            self._path = light(self._folder, beacon)
        except OSError as error:
            self._say(
                f"note: terazi chat, ps, logs and stop won't find this service, since its address can't be "
                f"kept in {self._folder}: {error.strerror}"
            )

    def put_out(self) -> None:
        """It ends."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
