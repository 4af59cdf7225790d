"""The error of an engine that could not be brought up, with all that is known about its end."""

from terazi.engines.llama_cpp.failures import LoadFailure
from terazi.errors import EngineError


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
