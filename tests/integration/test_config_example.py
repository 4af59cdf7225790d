"""docs/terazi.example.toml is what it says: it loads, it has every key, and what it calls a default is one."""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from terazi.service.config import Config, parse_config

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "terazi.example.toml"
#: A key, or a header of a table, that is behind "# ".
COMMENTED = re.compile(r"^# (?=[a-z_0-9]+ = |\[)", re.MULTILINE)
#: Tables that are there once: what they show behind "# " is a default, or an example of a key that has none.
ONCE = ("service", "memory", "guard", "log", "engines", "power", "prices")


README = EXAMPLE.parents[1] / "README.md"


def test_the_readmes_is_one() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    config = parse_config(block.encode(), "README.md")
    assert [model.name for model in config.models] == ["chat", "coder", "embed"]
    assert [key.name for key in config.keys] == ["anna", "batch"]
    coder = config.models[1]
    assert (coder.idle_s, coder.replicas.max) == (1200, 2)


def example() -> str:
    return EXAMPLE.read_text()


def tables(table: BaseModel) -> Iterator[BaseModel]:
    yield table
    for name in type(table).model_fields:
        value = getattr(table, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, BaseModel):
                yield from tables(inner)


def test_it_loads_as_it_is() -> None:
    found = parse_config(example().encode(), "example")

    assert [model.name for model in found.models] == ["small", "long", "attached"]
    assert found.service == Config().service


def test_every_key_is_in_it() -> None:
    whole = parse_config(COMMENTED.sub("", example()).encode(), "example")

    given: dict[type[BaseModel], set[str]] = {}
    for table in tables(whole):
        given.setdefault(type(table), set()).update(table.model_fields_set)
    missing = {kind.__name__: set(kind.model_fields) - given[kind] for kind in given}
    assert not {name: keys for name, keys in missing.items() if keys}


def test_what_it_calls_a_default_is_one() -> None:
    whole = parse_config(COMMENTED.sub("", example()).encode(), "example")

    def wrong(table: BaseModel, place: str) -> Iterator[str]:
        for name, field in type(table).model_fields.items():
            value = getattr(table, name)
            if isinstance(value, BaseModel):
                yield from wrong(value, f"{place}.{name}")
            elif field.default not in (None, {}, ()) and value != field.default:
                yield f"{place}.{name}: {value!r}, not {field.default!r}"

    assert [line for name in ONCE for line in wrong(getattr(whole, name), name)] == []
