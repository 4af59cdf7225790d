"""What ``terazi up`` was asked for, and whom it tells what happens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from terazi.service.config import Config
from terazi.service.weighing import Weighing
from terazi.service.wish import Wish


class Reporter(Protocol):
    """What the person at the terminal is told, as it happens."""

    def weighed(self, weighing: Weighing) -> None:
        """The bill, the map and the forecast of one model."""

    def say(self, text: str) -> None:
        """One line."""

    def loading(self, model: str, detail: str) -> None:
        """The model is still loading."""

    def serving(self, url: str, models: Sequence[str], *, keyed: bool) -> None:
        """It is live; *keyed*: clients must send a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What ``terazi up`` was asked for.

    Args:
        wishes: the models of the command line, if any are named there.
        attach: addresses of running servers, each with a name or None.
        config: all else; its ``[[models]]`` count unless models are named on the command line.
        config_path: the file that it came from, watched for changes; None if there is none.
        host, port: as typed, or the configuration's.
        api_key, price_per_kwh: as typed; None leaves it to the configuration, and to its changes.
    """

    wishes: tuple[Wish, ...]
    attach: tuple[tuple[str, str | None], ...]
    config: Config
    config_path: Path | None
    host: str
    port: int
    api_key: str | None
    price_per_kwh: float | None = None
