"""Processes that are asked one thing: they answer, fail, hang or never listen, and none is left in any case."""

import asyncio
import sys
import time

import pytest

from deadline import alive, until_async
from terazi.engines.base import LaunchSpec
from terazi.errors import EngineError
from terazi.supervisor.asking import MOST_OUTPUT, ask, stand_ins

LISTENER = (
    "import socket, sys\n"
    "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "while True: s.accept()[0].close()\n"
)


def spec(*argv: str) -> LaunchSpec:
    return LaunchSpec(plan_id="", engine="fake", model_name="", argv=argv, base_url="", api_key="")


def shell(script: str) -> LaunchSpec:
    return spec("/bin/sh", "-c", script)


def listener(port: int) -> LaunchSpec:
    return spec(sys.executable, "-c", LISTENER, str(port))


async def test_what_ends_by_itself_is_heard_to_the_end() -> None:
    answer = await ask(shell("echo one; echo two >&2; exit 3"), within_s=20)
    assert (answer.text, answer.code, answer.heard, answer.timed_out) == ("one\ntwo\n", 3, False, False)


async def test_what_has_said_enough_is_ended() -> None:
    pids: list[int] = []

    def listen(text: str) -> bool:
        pids.extend(int(word) for word in text.split() if word.isdecimal())
        return "enough" in text

    answer = await ask(shell("echo $$; echo enough; sleep 1000"), within_s=20, listen=listen)
    assert (answer.heard, answer.timed_out) == (True, False)
    assert not alive(pids[0])


async def test_what_never_answers_is_given_up() -> None:
    began = time.monotonic()
    answer = await ask(shell("echo $$; sleep 1000"), within_s=0.5)
    assert (answer.heard, answer.timed_out) == (False, True)
    assert time.monotonic() - began < 15
    assert not alive(int(answer.text))


async def test_endless_talk_is_bounded() -> None:
    answer = await ask(shell("yes a line that is said again and again"), within_s=1.0)
    assert answer.timed_out
    assert len(answer.text) <= MOST_OUTPUT + 2 * 1024 * 1024


async def test_a_program_that_is_not_there_is_said() -> None:
    answer = await ask(spec("/nowhere/at/all"), within_s=20)
    assert "cannot run /nowhere/at/all" in answer.text
    assert answer.code == 127


async def test_a_cancelled_question_leaves_no_process() -> None:
    heard: list[str] = []

    def hear(text: str) -> bool:
        heard.append(text)
        return False

    task = asyncio.create_task(ask(shell("echo $$; sleep 1000"), within_s=100, listen=hear))
    await until_async(lambda: heard, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_async(lambda: not alive(int(heard[0])))


async def test_stand_ins_listen_inside_and_are_gone_outside() -> None:
    async with stand_ins(listener, 3) as endpoints:
        assert len(set(endpoints)) == 3
        for endpoint in endpoints:
            host, port = endpoint.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()
    for endpoint in endpoints:
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", int(endpoint.split(":")[1]))


async def test_a_port_that_was_taken_in_between_costs_one_more_try() -> None:
    tries: list[int] = []

    def make(port: int) -> LaunchSpec:
        if port:
            tries.append(port)
        return listener(port) if len(tries) > 1 else shell("echo taken; exit 1")

    async with stand_ins(make, 1) as endpoints:
        assert endpoints == (f"127.0.0.1:{tries[1]}",)


async def test_a_program_that_never_listens_is_said_with_its_last_word() -> None:
    with pytest.raises(EngineError, match=r"does not come to listen: no such device"):
        async with stand_ins(lambda _: shell("echo no such device; exit 1"), 2):
            pytest.fail("it never listened")
