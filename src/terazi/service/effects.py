"""When a change of each key of ``terazi.toml`` counts for the running service, and why where that is not at once.

A test holds these rules against the configuration's own tables, and the guide's table against these rules.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import BaseModel

from terazi.service.config import Config


class Effect(StrEnum):
    """When a change counts."""

    NOW = "at once"
    MODEL = "its engine is started anew"  # drained first, and only this model's
    LOAD = "with each engine's next load"
    RESTART = "after a restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When, and for a person why not at once; no reason is needed for what counts at once."""

    effect: Effect
    reason: str = ""


_NOW: Final = Rule(effect=Effect.NOW)
_ENGINE: Final = Rule(effect=Effect.MODEL, reason="it is what the engine is started with")
_SERVERS: Final = "the servers for requests were made with it"


def _rules(table: str, keys: str, rule: Rule = _NOW) -> dict[str, Rule]:
    return {f"{table}.{key}": rule for key in keys.split()}


def _restart(table: str, keys: str, reason: str) -> dict[str, Rule]:
    return _rules(table, keys, Rule(effect=Effect.RESTART, reason=reason))


_NONE: Final[Mapping[str, str]] = {}
#: By key; those of ``[[models]]`` and ``[[keys]]`` without a number.
RULES: Final[Mapping[str, Rule]] = {
    **_restart("service", "host port", "the service listens at one address from its start to its end"),
    **_rules("service", "api_key max_queued max_queued_each ready_wait_s drain_s tls_cert tls_key"),
    **_restart("service", "max_body_mib heartbeat_s allowed_origins", _SERVERS),
    **_rules("models", "name source", _ENGINE),
    **_rules("models", "engine url url_model api_key_env aliases pin idle_s priority"),
    **_rules("models.settings", "context users prompt output quant mmproj kv_type gpu_layers", _ENGINE),
    **_rules("models.settings", "tensor_split split_mode batch micro_batch flash_attention", _ENGINE),
    **_rules("models.settings", "swa_full no_kv_offload cache_ram", _ENGINE),
    **_rules("models.replicas", "min"),
    **_rules("models.replicas", "max", _ENGINE),
    **_rules("keys", "name key key_env key_sha256 weight priority max_concurrent tokens_per_minute"),
    **_rules("keys", "max_queued models"),
    **_rules("memory", "budget reserve free_wait_s min_stay_s batch_s cool_s cool_most_s"),
    **_rules("guard", "enabled every_s settle_s"),
    **_rules("guard.pause", "ram_free vram_free pressure swap_in temperature_c disk_free"),
    **_rules("guard.shed", "ram_free vram_free pressure swap_in"),
    **_rules("guard.shrink", "ram_free vram_free pressure swap_in"),
    **_rules("log", "level format requests"),
    **_rules("engines.llama_cpp", "stall_s stop_grace_s stuck_s"),
    **_rules(
        "engines.llama_cpp",
        "server keep_prompts cpu_fallback",
        Rule(effect=Effect.LOAD, reason="engines are started with it"),
    ),
    **_rules("power", "price_per_kwh currency psu_w psu_atx3 psu_efficiency host_idle_w host_load_w duty"),
    **_rules("prices", "file exchange_rate hardware months residual"),
}


def changed_keys(before: Config, after: Config) -> list[str]:
    """Keys that differ, in the order of the file's tables; ``models`` and ``keys`` are told elsewhere."""
    return [key for key in _changed(before, after, "") if key not in {"models", "keys"}]


def _changed(before: BaseModel, after: BaseModel, place: str) -> Iterator[str]:
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        key = f"{place}.{name}" if place else name
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _changed(old, new, key)
        elif old != new:
            yield key


def told(before: Config, after: Config, *, fixed: Mapping[str, str] = _NONE) -> list[str]:
    """A sentence for each kind of change outside ``[[models]]`` and ``[[keys]]``; never with a value in it.

    *fixed* are keys of which a change takes a restart as things are, with the reason for each.
    """
    grouped: dict[Rule, list[str]] = {}
    for key in changed_keys(before, after):
        rule = Rule(effect=Effect.RESTART, reason=fixed[key]) if key in fixed else RULES[key]
        grouped.setdefault(rule, []).append(key)
    return [
        _sentence(rule, keys) for rule, keys in sorted(grouped.items(), key=lambda item: _ORDER[item[0].effect])
    ]


_ORDER: Final = {effect: number for number, effect in enumerate(Effect)}


def _sentence(rule: Rule, keys: list[str]) -> str:
    names, one = ", ".join(keys), len(keys) == 1
    match rule.effect:
        case Effect.NOW:
            return f"{names} {'counts' if one else 'count'} from now on"
        case Effect.RESTART:
            return f"{names} {'needs' if one else 'need'} a restart of the service: {rule.reason}"
        case _:
            return f"{names} {'counts' if one else 'count'} {rule.effect}: {rule.reason}"
