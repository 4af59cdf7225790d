"""What a user will be shown. Each error is one clear sentence plus a hint, and carries the exit code.

    TeraziError            1  anything else
    ├── UsageError         2  the command line or a configuration value is wrong
    ├── ModelFileError     1  the model file is not what it claims to be
    ├── SourceError        1  a model on another machine can't be reached or read
    ├── RefusedError       3  it would not fit, or only by swapping
    ├── EngineError        4  the engine is missing, too old, or failed
    └── ServiceError       1  the running service can't be reached, or a port is taken

Expected outcomes of the core (a refusal, an unknown) are values, not exceptions; the command line turns
a refusal into an exit code.
"""


class TeraziError(Exception):
    """Base of all errors that are shown to a person.

    Args:
        message: one sentence that says what is wrong, with the name or figure that is.
        hint: what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TeraziError):
    """The command line, a preset, or a configuration value is wrong."""

    exit_code = 2


class ModelFileError(TeraziError):
    """A model file is foreign, truncated, hostile or incomplete."""


class SourceError(TeraziError):
    """A model on another machine can't be reached, isn't allowed, or stops answering."""


class RefusedError(TeraziError):
    """The plan would not fit the machine."""

    exit_code = 3


class EngineError(TeraziError):
    """The engine is missing, too old, or failed."""

    exit_code = 4


class ServiceError(TeraziError):
    """The running service can't be reached or started."""
