"""How a name finds a backend."""

from dataclasses import replace

import pytest

from serving import CARD, StubBackend
from terazi.gateway.backend import find_served


def named(id_: str, *aliases: str) -> StubBackend:
    return StubBackend(1, card=replace(CARD, id=id_, aliases=aliases))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("org/a-7b", "org/a-7b"),
        ("org/a-7b:latest", "org/a-7b"),
        ("a", "org/a-7b"),
        ("a:latest", "org/a-7b"),
        ("b:8b", "b:8b"),
        ("b:8b:latest", "b:8b"),
        ("b", None),
        ("c", "c:latest"),
        ("c:latest", "c:latest"),
        ("", None),
        ("A", None),
    ],
)
def test_find(name: str, found: str | None) -> None:
    backends = [named("org/a-7b", "a"), named("b:8b"), named("c:latest")]
    backend = find_served(backends, name)
    assert (backend.card.id if backend else None) == found


def test_an_id_wins_over_an_alias() -> None:
    backends = [named("x", "y"), named("y")]
    found = find_served(backends, "y")
    assert found is not None
    assert found.card.id == "y"
