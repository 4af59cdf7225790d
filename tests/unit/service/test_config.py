"""terazi.toml: what it takes, what it says of mistakes, and that no key is ever shown."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.errors import UsageError
from terazi.service.config import Config, parse_config
from terazi.service.config_models import read_url
from terazi.service.config_values import read_duration, read_size
from terazi.service.keys import EVERYBODY, callers

SECRET = "correct-horse-battery"  # noqa: S105 - nobody's


def parsed(text: str) -> Config:
    return parse_config(text.encode(), "terazi.toml")


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ('[[models]]\nname = "a"', "models[1]:", "one of source and url"),
        ('[[models]]\nsource = "demo"\nurl = "http://h/v1"', "models[1]:", "one of source and url"),
        ('[[models]]\nurl = "http://h/v1"\npin = true', "models[1]:", "pin: only for a source"),
        ('[[models]]\nurl = "h:80"', "models[1].url:", "must be an address"),
        ('[[models]]\nurl = "http://u:p@h/v1"', "models[1].url:", "a key goes into api_key_env"),
        ('[[models]]\nurl = "http://h/api"', "models[1].url:", "end in /v1"),
        ('[[models]]\nsource = "demo"\nidle_s = "15 minutes"', "models[1].idle_s:", "15m"),
        ('[[models]]\nsource = "demo"\nidle_s = -1', "models[1].idle_s:", "greater than or equal to 0"),
        ('[[models]]\nsource = "demo"\n[models.settings]\ncontxt = 1', "models[1].settings.contxt:", "no such key"),
        ('[[models]]\nsource = "demo"\nreplicas = {min = 3}', "models[1].replicas:", "min is above max"),
        ('[[models]]\nsource = "a"\nname = "x"\n[[models]]\nsource = "b"\naliases = ["x"]', "the file:", "'x'"),
        ('[[keys]]\nname = "a"', "keys[1]:", "one of key, key_env and key_sha256"),
        ('[memory]\nbudget = {RAM = "3 goats"}', "memory.budget.RAM:", "512MiB"),
        ("[memory]\ncool_s = '10m'", "memory:", "cool_s is above cool_most_s"),
        ("[service]\nport = 70000", "service.port:", "65535"),
        ("nonsense", "", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, place: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(text)

    assert place in caught.value.message
    assert why in caught.value.message


def test_all_mistakes_of_a_file_are_told_up_to_a_few() -> None:
    with pytest.raises(UsageError, match=r"service\.a.*service\.b.*service\.c.*and 1 more"):
        parsed("[service]\na = 1\nb = 1\nc = 1\nd = 1")


@pytest.mark.parametrize(
    "text",
    [
        f'[[keys]]\nname = "a"\nkey = "{SECRET}"',
        f'[service]\napi_key = "{SECRET}"',
    ],
)
def test_no_key_is_ever_shown(text: str) -> None:
    config = parsed(text)

    assert SECRET not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"


def test_a_key_in_a_mistake_is_not_shown_either() -> None:
    for text in (f'[[keys]]\nkey = "{SECRET}"', f'[service]\napi_key = ["{SECRET}"]', f'api_key = "{SECRET}"'):
        with pytest.raises(UsageError) as caught:
            parsed(text)
        assert SECRET not in f"{caught.value.message} {caught.value.hint}"


def test_durations_and_sizes() -> None:
    assert [read_duration(t) for t in ("90s", "15m", "1h30m", "250ms", "2d")] == [90, 900, 5400, 0.25, 172800]
    assert [read_size(t) for t in ("512MiB", "20 GiB", "1.5gib", "1GB", "7B")] == [
        512 * 2**20,
        20 * 2**30,
        3 * 2**29,
        10**9,
        7,
    ]


@given(st.text(max_size=12))
def test_a_text_that_is_no_duration_or_size_is_a_value_error_and_nothing_else(text: str) -> None:
    for read in (read_duration, read_size):
        try:
            assert read(text) is not None
        except ValueError:
            continue


def test_a_url_gets_its_v1() -> None:
    assert read_url("http://h:9000") == read_url("http://h:9000/v1/") == "http://h:9000/v1"
    assert read_url("https://h/openai/v1/") == "https://h/openai/v1"


def test_callers_are_known_by_the_digest_of_their_keys() -> None:
    digest = hashlib.sha256(b"third-key").hexdigest()
    config = parsed(
        f'[[keys]]\nname = "a"\nkey = "{SECRET}"\nweight = 2\nmodels = ["m"]\n'
        f'[[keys]]\nname = "b"\nkey_env = "B"\nmax_concurrent = 3\n'
        f'[[keys]]\nname = "c"\nkey_sha256 = "{digest.upper()}"'
    )

    found = callers(config, {"B": "second-key"}, api_key="for everybody")

    by_name = {caller.name: caller for caller in found.values()}
    assert set(by_name) == {"a", "b", "c", EVERYBODY}
    assert found[digest].name == "c"
    assert found[hashlib.sha256(SECRET.encode()).hexdigest()].weight == 2
    assert by_name["a"].models == frozenset({"m"})
    assert found[hashlib.sha256(b"second-key").hexdigest()].max_concurrent == 3
    assert callers(Config(), {}) == {}


def test_a_key_that_is_missing_or_there_twice_is_a_mistake() -> None:
    config = parsed('[[keys]]\nname = "b"\nkey_env = "B"')
    with pytest.raises(UsageError, match="variable B"):
        callers(config, {})
    with pytest.raises(UsageError, match="same key"):
        callers(config, {"B": "one-and-the-same"}, api_key="one-and-the-same")
