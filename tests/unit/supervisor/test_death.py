"""Who has ended an engine, and what is said about it."""

import signal

import pytest

from terazi.supervisor.death import By, explain, signal_name, who
from terazi.supervisor.vitals import OomKills


@pytest.mark.parametrize(
    ("number", "asked", "oom", "by"),
    [
        (None, False, None, By.ITSELF),
        (signal.SIGABRT, False, None, By.ITSELF),
        (signal.SIGSEGV, False, "on the machine", By.ITSELF),
        (signal.SIGKILL, False, None, By.OTHERS),
        (signal.SIGTERM, False, "on the machine", By.OTHERS),
        (signal.SIGKILL, False, "in its control group", By.KERNEL),
        (signal.SIGKILL, True, "on the machine", By.TERAZI),
    ],
)
def test_who_it_was(number: int | None, asked: bool, oom: str | None, by: By) -> None:
    assert who(number, asked=asked, oom=oom) is by


def test_the_reason_names_what_is_known() -> None:
    assert explain(By.ITSELF, 3, None, oom=None, told=None) == "ended with exit code 3"
    assert explain(By.ITSELF, None, 6, oom=None, told="CUDA error") == "was ended by SIGABRT: CUDA error"
    assert "something outside" in explain(By.OTHERS, None, 9, oom=None, told=None)
    assert "memory ran out in its control group" in explain(
        By.KERNEL, None, 9, oom="in its control group", told=None
    )
    assert signal_name(250) == "signal 250"


def test_the_nearest_count_that_rose_says_where() -> None:
    before = OomKills(engine=0, service=4, machine=9)
    assert OomKills(engine=0, service=4, machine=9).since(before) is None
    assert OomKills(engine=1, service=5, machine=10).since(before) == "in its control group"
    assert OomKills(engine=None, service=4, machine=10).since(before) == "on the machine"
    assert OomKills(engine=1).since(OomKills()) is None, "what wasn't counted before says nothing"
