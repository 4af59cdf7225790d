"""The error of an engine that could not be brought up, with all that is known about its end."""

import signal

from terazi.engines.llama_cpp.failures import LoadFailure
from terazi.errors import EngineError
from terazi.policy.lifecycle import State
from terazi.policy.lifecycle_messages import Phase


class EngineDiedError(EngineError):
    """An engine could not be brought up, or died for good.

    Args:
        failure: what its log says about the cause, if it was a known cause.
        code, exit_signal: how the process ended, if it did.
        last_lines: the end of its log.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        failure: LoadFailure | None = None,
        code: int | None = None,
        exit_signal: int | None = None,
        last_lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.failure = failure
        self.code = code
        self.exit_signal = exit_signal
        self.last_lines = last_lines


def not_running(
    name: str,
    state: State,
    *,
    ended: tuple[int | None, int | None],
    killed: bool,
    failure: LoadFailure | None,
    log_path: str,
    log_tail: tuple[str, ...],
) -> EngineDiedError:
    """Why the engine for the model *name* isn't running.

    Args:
        ended: its last process's exit code and signal.
        killed: by this program.
        failure: what its log says about the cause.
    """
    hint = f"Read the end of its log: {log_path}"
    if state.phase is Phase.STOPPED:
        message, hint = f"The engine for {name} was stopped before it was ready.", "Start it again."
    else:
        message = f"The engine for {name} failed: {state.reason}."
        if failure is not None:
            hint = failure.remedy
        elif ended[1] == signal.SIGKILL and not killed:
            hint = f"Something killed it: look for 'Out of memory' in the kernel log. Its own log: {log_path}"
    return EngineDiedError(
        message, hint=hint, failure=failure, code=ended[0], exit_signal=ended[1], last_lines=log_tail[-20:]
    )
