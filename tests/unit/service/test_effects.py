"""When a changed key counts: every key of the file has a rule, and the guide says the same."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from terazi.service.config import Config, parse_config
from terazi.service.effects import RULES, Effect, told

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "configuration.md").read_text()
#: What the guide's right column begins with, or says.
WORDS = {
    "at once": Effect.NOW,
    "started anew": Effect.MODEL,
    "next load": Effect.LOAD,
    "after a restart": Effect.RESTART,
}


def keys_of(model: type[BaseModel], place: str = "") -> Iterator[str]:
    """Every key of the file, as its own schema has them."""
    for name, field in model.model_fields.items():
        kinds = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        inner = next((k for k in kinds if issubclass(k, BaseModel)), None)
        key = f"{place}.{name}".lstrip(".")
        if inner is None:
            yield key
        else:
            yield from keys_of(inner, key)


def test_every_key_has_a_rule_and_every_rule_a_key() -> None:
    assert set(RULES) == set(keys_of(Config))


def test_what_does_not_count_at_once_has_a_reason() -> None:
    assert all(bool(rule.reason) == (rule.effect is not Effect.NOW) for rule in RULES.values())


def test_the_guides_table_says_of_every_key_when_a_change_of_it_counts() -> None:
    said: dict[str, Effect] = {}
    for line in re.findall(r"^\| (.*) \|$", GUIDE, re.MULTILINE):
        cells = line.split(" | ")
        effect = (
            next((effect for words, effect in WORDS.items() if words in cells[1]), None)
            if len(cells) == 2
            else None
        )
        if effect is None:
            continue
        for name in re.findall(r"`([a-z_.*]+)`", cells[0]):
            stem = name.removesuffix("*")
            said |= {key: effect for key in RULES if key == name or (stem != name and key.startswith(stem))}
    assert said == {key: rule.effect for key, rule in RULES.items()}


def config(text: str) -> Config:
    return parse_config(text.encode(), "terazi.toml")


def test_each_change_is_told_with_what_becomes_of_it() -> None:
    before = config("[service]\nport = 1\n[memory]\nbudget = {RAM = 1}")
    after = config(
        "[service]\nport = 2\nmax_queued = 3\n[memory]\nbudget = {RAM = 2}\n"
        "[guard.shed]\nram_free = 0.05\n[engines.llama_cpp]\ncpu_fallback = true"
    )

    assert told(before, after) == [
        "service.max_queued, memory.budget, guard.shed.ram_free count from now on",
        "engines.llama_cpp.cpu_fallback counts with each engine's next load: engines are started with it",
        "service.port needs a restart of the service: the service listens at one address from its start to its end",
    ]
    assert told(before, before) == []


def test_what_cannot_be_followed_as_things_are_has_its_own_reason() -> None:
    before, after = config(""), config('[service]\napi_key = "eight-or-more"')

    assert told(before, after) == ["service.api_key counts from now on"]
    (said,) = told(before, after, fixed={"service.api_key": "it was typed"})
    assert said == "service.api_key needs a restart of the service: it was typed"


@pytest.mark.parametrize(
    "text", ['[service]\napi_key = "correct-horse"', '[[keys]]\nname = "a"\nkey = "correct-horse"']
)
def test_no_key_is_told(text: str) -> None:
    assert "correct-horse" not in " ".join(told(config(""), config(text)))
