"""``terazi.toml``: what a person may fix once and for all; pydantic names every mistake with its place."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from terazi.errors import UsageError
from terazi.service.paths import config_paths

_LIMIT_BYTES = 1024 * 1024


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServiceTable(_Table):
    """``[service]``: where clients reach the gateway."""

    host: str = Field(
        default="127.0.0.1", description="Address to listen on; elsewhere than loopback needs api_key."
    )
    port: int = Field(default=8484, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    api_key: str | None = Field(default=None, min_length=8, description="Key that clients must send.")
    max_body_mib: int = Field(default=16, ge=1, le=1024, description="Largest request body.")


class LlamaCppTable(_Table):
    """``[engines.llama_cpp]``."""

    server: str | None = Field(default=None, description="Path of the llama-server to use.")
    stall_s: float = Field(default=60, gt=0, description="Give a load up after this long without any progress.")
    stop_grace_s: float = Field(default=10, gt=0, description="How long SIGTERM may take before SIGKILL.")


class EnginesTable(_Table):
    """``[engines]``."""

    llama_cpp: LlamaCppTable = LlamaCppTable()


class PowerTable(_Table):
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


class PricesTable(_Table):
    """``[prices]``."""

    file: str | None = Field(default=None, description="Your own rows over the packaged ones.")
    exchange_rate: float | None = Field(
        default=None, gt=0, description="What one USD costs in power.currency; the packaged prices are in USD."
    )
    hardware: float | None = Field(default=None, ge=0, description="What the whole machine cost; 0 if it is paid.")
    months: int = Field(default=36, ge=1, le=240, description="Over which it is written off.")
    residual: float = Field(default=0.2, ge=0, lt=1, description="Share of its price that is left then.")


class Config(_Table):
    """The whole file."""

    service: ServiceTable = ServiceTable()
    engines: EnginesTable = EnginesTable()
    power: PowerTable = PowerTable()
    prices: PricesTable = PricesTable()


def load_config(path: str | None = None) -> Config:
    """Read *path*, or the first ``terazi.toml`` that is there, or use the defaults.

    Raises:
        UsageError: if a named file is missing, or one has a mistake: the message says which key and why.
    """
    if path is not None:
        return _read(Path(path))
    for candidate in config_paths():
        if candidate.is_file():
            return _read(candidate)
    return Config()


def _read(path: Path) -> Config:
    hint = "see docs/guides/configuration.md for every key"
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
        if len(data) > _LIMIT_BYTES:
            raise UsageError(f"{path} is too large to be a configuration file", hint=hint)
        return Config.model_validate(tomllib.loads(data.decode()))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", hint=hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        why = "there is no such key" if first["type"] == "extra_forbidden" else first["msg"]
        raise UsageError(f"{path}: {place}: {why}", hint=hint) from error
