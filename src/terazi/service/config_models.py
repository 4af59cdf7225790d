"""``[[models]]`` and ``[[keys]]``: what is served, and to whom."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, WithJsonSchema, field_validator, model_validator

from terazi.errors import UsageError
from terazi.service.config_values import Duration, Table

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s,](?:[^,\r\n]*[^\s,])?$")]
_PINS = {
    "gpu_layers": "n_gpu_layers",
    "split_mode": "split_mode",
    "batch": "n_batch",
    "micro_batch": "n_ubatch",
    "flash_attention": "flash_attn",
    "swa_full": "swa_full",
    "cache_ram": "cache_ram_mib",
}


class SettingsTable(Table):
    """``[models.settings]``: what isn't given is chosen, as ``terazi weigh`` does; the words are its options'."""

    context: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Tokens that a request may grow to.")
    users: int | None = Field(default=None, ge=1, le=256, description="Requests that it works on at once.")
    prompt: int | None = Field(default=None, ge=1, description="Tokens of a typical prompt, for the forecast.")
    output: int | None = Field(default=None, ge=1, description="Tokens of a typical answer, for the forecast.")
    quant: str | None = Field(default=None, description='Which file of a folder: "Q4_K_M" and the like.')
    mmproj: str | None = Field(
        default=None,
        min_length=1,
        description='Projector for images or sound; "none" for none; not set is the one beside the model.',
    )
    kv_type: str | None = Field(default=None, description="Type of the KV cache: f16, q8_0, q4_0 and so on.")
    gpu_layers: int | None = Field(default=None, ge=0, description="Layers to put on accelerators.")
    tensor_split: tuple[float, ...] | None = Field(default=None, description="Shares of the accelerators.")
    split_mode: Literal["none", "layer"] | None = Field(default=None, description="How to use several of them.")
    batch: int | None = Field(default=None, ge=1, description="Tokens of one logical batch.")
    micro_batch: int | None = Field(default=None, ge=1, description="Tokens computed at once.")
    flash_attention: Literal["on", "off", "auto"] | None = Field(
        default=None, description="The fused attention kernel."
    )
    swa_full: bool | None = Field(default=None, description="Full-length cache for sliding-window layers.")
    no_kv_offload: bool | None = Field(default=None, description="Keep the KV cache in RAM.")
    cache_ram: int | None = Field(default=None, ge=-1, description="MiB for reusable prompts; -1 is no limit.")

    @field_validator("tensor_split")
    @classmethod
    def _shares(cls, shares: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if shares is not None and not (all(0 <= s < float("inf") for s in shares) and sum(shares) > 0):
            raise ValueError("must be one share per accelerator, e.g. [2, 1]")
        return shares

    def pins(self) -> dict[str, object]:
        """The engine's settings that are given, by their names in ``LlamaCppSettings``."""
        given = {to: value for name, to in _PINS.items() if (value := getattr(self, name)) is not None}
        if self.kv_type is not None:
            given["type_k"] = given["type_v"] = self.kv_type
        if self.tensor_split is not None:
            given["tensor_split"] = self.tensor_split
        if self.no_kv_offload:
            given["kv_offload"] = False
        return given


def _auto(value: object) -> object:
    return {} if value == "auto" else value


#: The word, or the table.
_AUTO_SCHEMA = {"anyOf": [{"const": "auto"}, SettingsTable.model_json_schema()]}


class ReplicasTable(Table):
    """``[models.replicas]``: how many engines of one model there may be."""

    min: int = Field(default=1, ge=0, le=64, description="Engines to keep, as far as they fit; 0 is: on demand.")
    max: int = Field(default=1, ge=1, le=64, description="Engines when requests wait and there is room.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError("min is above max")
        return self


class ModelTable(Table):
    """``[[models]]``: one model each: a ``source`` that is started here, or the ``url`` of a running server."""

    name: Name | None = Field(default=None, description="What clients call it; else the file's name.")
    source: str | None = Field(default=None, min_length=1, description="MODEL as for `terazi weigh`.")
    url: str | None = Field(default=None, description="A running OpenAI-compatible server instead, with its /v1.")
    url_model: str | None = Field(
        default=None, min_length=1, description="Which of that server's models; else all that it lists."
    )
    api_key_env: str | None = Field(
        default=None, min_length=1, description="Environment variable that holds that server's key."
    )
    engine: Literal["auto", "llama.cpp"] = Field(default="auto", description="What runs a source.")
    settings: Annotated[SettingsTable, BeforeValidator(_auto), WithJsonSchema(_AUTO_SCHEMA)] = Field(
        default=SettingsTable(), description='"auto", or a table of what is not to be chosen.'
    )
    aliases: tuple[Name, ...] = Field(default=(), description="Further names for clients.")
    pin: bool = Field(default=False, description="Loaded at once, and never unloaded for others.")
    idle_s: Duration | None = Field(
        default=None, description='Unloaded after so long without a request, e.g. "15m"; not set is never.'
    )
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher ones stay and load before others.")
    replicas: ReplicasTable = Field(default=ReplicasTable(), description="How many engines of it.")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        return None if url is None else read_url(url)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.source is None) == (self.url is None):
            raise ValueError("give one of source and url")
        if self.url is None and (self.url_model is not None or self.api_key_env is not None):
            raise ValueError("url_model and api_key_env go with url")
        if self.url is not None:
            ours = {"engine", "settings", "pin", "idle_s", "replicas"} & self.model_fields_set
            if ours:
                raise ValueError(
                    f"{', '.join(sorted(ours))}: only for a source, since nothing is started for a url"
                )
        return self


class KeyTable(Table):
    """``[[keys]]``: one API key each, given as it is, by a variable, or by its SHA-256."""

    name: Name = Field(description="Whose it is; shown in logs, metrics and queues instead of the key.")
    key: SecretStr | None = Field(default=None, min_length=8, description="The key itself.")
    key_env: str | None = Field(default=None, min_length=1, description="Environment variable that holds it.")
    key_sha256: str | None = Field(
        default=None, pattern="^[0-9a-fA-F]{64}$", description="Its SHA-256, so that the file holds no secret."
    )
    weight: float = Field(default=1.0, gt=0, le=1000, description="Its share beside the others'.")
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher ones go first, whatever the shares.")
    max_concurrent: int | None = Field(default=None, ge=1, description="Requests in engines at once.")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Prompts and answers together.")
    max_queued: int | None = Field(default=None, ge=0, description="Requests that may wait.")
    models: tuple[Name, ...] | None = Field(default=None, description="Models it may use; not set is all.")

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if sum(given is not None for given in (self.key, self.key_env, self.key_sha256)) != 1:
            raise ValueError("give one of key, key_env and key_sha256")
        return self

    def digest(self, environ: Mapping[str, str]) -> str:
        """SHA-256 of the key, 64 lower-case hexadecimal digits.

        Raises:
            UsageError: the variable that should hold it is empty or missing, or too short.
        """
        if self.key_sha256 is not None:
            return self.key_sha256.lower()
        key = self.key.get_secret_value() if self.key is not None else environ.get(self.key_env or "", "")
        if len(key) < 8:
            raise UsageError(
                f"the key of {self.name!r} should be in the variable {self.key_env}, with at least 8 characters",
                hint=f"set {self.key_env} for the service, or give key or key_sha256",
            )
        return hashlib.sha256(key.encode()).hexdigest()


def read_url(text: str) -> str:
    """The address of an OpenAI-compatible server without a trailing slash; it ends in ``/v1``, typed or not.

    Raises:
        ValueError: it is none, or holds a password or a query.
    """
    parts = urlsplit(text.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError('must be an address such as "http://127.0.0.1:9000/v1"')
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must be an address alone; a key goes into api_key_env")
    _ = parts.port  # raises on a port that is none
    path = parts.path.rstrip("/") or "/v1"
    if not path.endswith("/v1"):
        raise ValueError("must end in /v1")
    return f"{parts.scheme}://{parts.netloc}{path}"
