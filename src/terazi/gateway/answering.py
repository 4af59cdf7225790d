"""One answer under way: what may happen to it from outside, and its end, which comes once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from terazi.gateway.account import CLIENT_GONE
from terazi.gateway.relay import Ending, Relay, Result
from terazi.gateway.run import Run
from terazi.gateway.wire.errors import Fault, WireError, deadline_passed, server_error, shutting_down

_log = logging.getLogger(__name__)


class Answerer(Protocol):
    """The broker, for one answer."""

    @property
    def cutting(self) -> bool:
        """Whether the service ends what is still under way."""
        ...

    def go_on(self, answering: "Answering", lost: Result) -> None:
        """Its first engine broke: *lost* says how. Something has to ``follow``."""
        ...

    def close(self, answering: "Answering") -> None:
        """It is over; called once."""
        ...


class Answering:
    """One answer under way.

    Args:
        broker: whose it is.
        run, relay: what is known of it, and what it goes through.
        over: called when all of it is over.
    """

    __slots__ = ("_broker", "_closed", "_over", "_task", "relay", "run")

    def __init__(self, broker: Answerer, run: Run, relay: Relay, over: Callable[[], None] | None) -> None:
        self.run = run
        self.relay = relay
        self._broker = broker
        self._over = over
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def came_out(self, result: Result) -> None:
        """Its first attempt has: if that was all, it is over now."""
        try:
            if result.ending is Ending.DONE:
                self.run.leave(None)
                self.close()
            else:
                self.run.leave(result.reason)
                self._broker.go_on(self, result)
        except Exception:
            _log.exception("answering request %s failed", self.run.call.id)
            self.fail(server_error())

    def follow(self, work: Coroutine[None, None, None]) -> None:
        """The rest of it is *work*, which takes its time."""
        self._task = asyncio.get_running_loop().create_task(self._follow(work))

    async def _follow(self, work: Coroutine[None, None, None]) -> None:
        call = self.run.call
        try:
            if call.deadline_s is None:
                await work
            else:
                async with asyncio.timeout_at(call.arrived + call.deadline_s):
                    await work
        except WireError as error:
            self.relay.fail(error.fault)
        except TimeoutError:
            self.relay.fail(deadline_passed(call.deadline_s))
        except asyncio.CancelledError:
            self._left()
        except Exception:
            _log.exception("answering request %s failed", call.id)
            self.relay.fail(server_error())
        finally:
            work.close()  # it was never begun if this was cancelled before
            self.close()

    def cancel(self) -> None:
        """The client has left, or the service ends: the engine is freed at once."""
        if self._closed:
            return
        if self._task is not None:
            self._task.cancel()
        else:
            self._left()
            self.close()

    def _left(self) -> None:
        relay = self.relay
        if relay.over:  # whoever read it had enough
            return
        if self._broker.cutting:
            relay.fail(shutting_down())
        else:
            relay.status = CLIENT_GONE

    def fail(self, fault: Fault) -> None:
        """It ends with *fault*."""
        self.relay.fail(fault)
        self.close()

    def close(self) -> None:
        """It is over. Once is enough."""
        if self._closed:
            return
        self._closed = True
        try:
            self.relay.close()
            self.run.leave(None)
            self._broker.close(self)
        finally:
            if self._over is not None:
                self._over()
