"""``terazi.toml``: what a person may fix once and for all; pydantic names every mistake with its place."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator

from terazi.errors import UsageError
from terazi.service.config_guard import GuardTable
from terazi.service.config_models import KeyTable, ModelTable
from terazi.service.config_values import Duration, Size, Table
from terazi.service.paths import config_paths

_LIMIT_BYTES = 1024 * 1024
_HINT = "see docs/guides/configuration.md for every key"


class ServiceTable(Table):
    """``[service]``: where clients reach the gateway, and how long they may wait."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; elsewhere than loopback needs a key.")
    port: int = Field(default=8484, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    api_key: SecretStr | None = Field(
        default=None, min_length=8, description="Key that clients must send; [[keys]] are for several."
    )
    max_body_mib: int = Field(default=16, ge=1, le=1024, description="Largest request body.")
    max_queued: int = Field(default=512, ge=1, description="Requests that may wait, of all callers together.")
    max_queued_each: int = Field(default=256, ge=1, description="Requests of one caller that may wait.")
    heartbeat_s: Duration = Field(
        default=5.0, gt=0, description="A stream that waits for its engine gets a sign of life this often."
    )
    ready_wait_s: Duration = Field(default=600.0, gt=0, description="How long a request may wait for its engine.")
    drain_s: Duration = Field(default=30.0, description="How long requests in flight may go on when it stops.")
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="Further origins whose web pages may use the service."
    )

    tls_cert: str | None = Field(
        default=None, description="PEM file with a certificate and its chain: serve HTTPS. It needs tls_key, too."
    )
    tls_key: str | None = Field(
        default=None, description="PEM file with the certificate's key, without a passphrase."
    )

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    def key(self) -> str | None:
        """The one key for everybody."""
        return None if self.api_key is None else self.api_key.get_secret_value()


class LlamaCppTable(Table):
    """``[engines.llama_cpp]``."""

    server: str | None = Field(default=None, description="Path of the llama-server to use.")
    stall_s: Duration = Field(
        default=60.0, gt=0, description="Give a load up after this long without any progress."
    )
    stop_grace_s: Duration = Field(default=10.0, gt=0, description="How long SIGTERM may take before SIGKILL.")
    stuck_s: Duration = Field(
        default=15.0, gt=0, description="Replace an engine that has requests and gives no sign of life for so long."
    )
    keep_prompts: bool = Field(
        default=False,
        description="Keep what an engine has read on disk while its model is unloaded, until the service ends.",
    )
    cpu_fallback: bool = Field(
        default=False, description="Let an engine serve that has loaded into RAM what was planned for a card."
    )


class EnginesTable(Table):
    """``[engines]``."""

    llama_cpp: LlamaCppTable = LlamaCppTable()


class MemoryTable(Table):
    """``[memory]``: what all models together may hold; without it, what is really free less a reserve."""

    budget: dict[str, Size] = Field(
        default={}, description='The most per device: {CUDA0 = "20GiB", RAM = "32GiB"}.'
    )
    reserve: dict[str, Size] = Field(
        default={}, description="What stays free per device for others, besides the usual reserve."
    )
    free_wait_s: Duration = Field(
        default=30.0, gt=0, description="How long the memory of an unloaded model may take to become free."
    )
    min_stay_s: Duration = Field(
        default=10.0, description="A loaded model stays at least this long, and twice as long as its load took."
    )
    batch_s: Duration = Field(
        default=20.0, gt=0, description="A model that waits may be held up so long by others that are being used."
    )
    cool_s: Duration = Field(
        default=10.0,
        gt=0,
        description="A model that can't be loaded is tried again after so long, doubled each time.",
    )
    cool_most_s: Duration = Field(default=300.0, gt=0, description="The longest that such a model is left alone.")

    @model_validator(mode="after")
    def _cool_in_order(self) -> Self:
        if self.cool_s > self.cool_most_s:
            raise ValueError("cool_s is above cool_most_s")
        return self


class LogTable(Table):
    """``[log]``: what the service says."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="From which weight on.")
    format: Literal["text", "json"] = Field(default="text", description="Lines for people, or one object a line.")
    requests: bool = Field(default=True, description="Whether each request gets a line.")


class PowerTable(Table):
    """``[power]``."""

    price_per_kwh: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Price of electricity, for the cost."
    )
    currency: str = Field(default="USD", min_length=1, max_length=8, description="What prices are in.")
    psu_w: float | None = Field(default=None, gt=0, description="Rating of the power supply, in watts.")
    psu_atx3: bool = Field(default=False, description="Whether it is an ATX 3.x supply, which bears spikes.")
    psu_efficiency: float | None = Field(
        default=None, gt=0.5, le=1, description="Share of the wall's power that it gives; else 80 PLUS Gold."
    )
    host_idle_w: float | None = Field(default=None, ge=0, description="The computer without its cards, idle.")
    host_load_w: float | None = Field(default=None, ge=0, description="The same while it serves.")
    duty: float = Field(default=0.25, gt=0, le=1, description="Share of the month that the machine works.")


class PricesTable(Table):
    """``[prices]``."""

    file: str | None = Field(default=None, description="Your own rows over the packaged ones.")
    exchange_rate: float | None = Field(
        default=None, gt=0, description="What one USD costs in power.currency; the packaged prices are in USD."
    )
    hardware: float | None = Field(default=None, ge=0, description="What the whole machine cost; 0 if it is paid.")
    months: int = Field(default=36, ge=1, le=240, description="Over which it is written off.")
    residual: float = Field(default=0.2, ge=0, lt=1, description="Share of its price that is left then.")


class Config(Table):
    """The whole file."""

    service: ServiceTable = ServiceTable()
    models: tuple[ModelTable, ...] = ()
    keys: tuple[KeyTable, ...] = ()
    memory: MemoryTable = MemoryTable()
    guard: GuardTable = GuardTable()
    log: LogTable = LogTable()
    engines: EnginesTable = EnginesTable()
    power: PowerTable = PowerTable()
    prices: PricesTable = PricesTable()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [n for model in self.models for n in (model.name, *model.aliases) if n is not None]
        for kind, all_of in (("models", names), ("keys", [key.name for key in self.keys])):
            twice = next((name for name in all_of if all_of.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"two {kind} are called {twice!r}")
        return self


def load_config(path: str | None = None) -> Config:
    """Read *path*, or the first ``terazi.toml`` that is there, or use the defaults.

    Raises:
        UsageError: if a named file is missing, or one has a mistake: the message says which key and why.
    """
    found = find_config(path)
    return Config() if found is None else read_config(found)


def find_config(path: str | None = None) -> Path | None:
    """The file that ``load_config`` would read; None if there is none."""
    if path is not None:
        return Path(path)
    return next((candidate for candidate in config_paths() if candidate.is_file()), None)


def read_config(path: Path) -> Config:
    """The file at *path*.

    Raises:
        UsageError: as ``load_config``.
    """
    try:
        with path.open("rb") as file:
            return parse_config(file.read(_LIMIT_BYTES + 1), str(path))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", hint=_HINT) from error


def parse_config(data: bytes, name: str) -> Config:
    """The configuration in *data*; *name* is for what is said of a mistake, which never shows a value.

    Raises:
        UsageError: as ``load_config``.
    """
    if len(data) > _LIMIT_BYTES:
        raise UsageError(f"{name} is too large to be a configuration file", hint=_HINT)
    try:
        return Config.model_validate(tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not valid TOML: {error}", hint=_HINT) from error
    except ValidationError as error:
        raise UsageError(f"{name}: {'; '.join(_mistakes(error))}", hint=_HINT) from error


def _mistakes(error: ValidationError, most: int = 3) -> list[str]:
    """Place and reason of each, a few at most."""
    told: list[str] = []
    for found in error.errors(include_url=False, include_context=False, include_input=False):
        line = f"{_place(found['loc'])}: {_why(found)}"
        if line not in told:
            told.append(line)
    return told[:most] + ([f"and {len(told) - most} more"] if len(told) > most else [])


def _place(loc: tuple[int | str, ...]) -> str:
    """``models[1].settings.context``, counted from one as a person does."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            text += f".{part}" if text else part
    return text or "the file"


def _why(found: Mapping[str, Any]) -> str:
    if found["type"] == "extra_forbidden":
        return "there is no such key"
    if found["type"] == "too_short" and "8 items" in found["msg"]:
        return "must have at least 8 characters"
    message = str(found["msg"])
    return message.removeprefix("Value error, ")
