"""Where Terazi keeps what it must remember: run records, logs, and how other commands find the service."""

import os
from pathlib import Path

import platformdirs

from terazi.errors import ServiceError


def state_dir() -> Path:
    """``$TERAZI_HOME``, else the system's place for a user's state; made if it isn't there.

    Raises:
        ServiceError: if it can't be made or may not be written.
    """
    home = os.environ.get("TERAZI_HOME")
    path = Path(home) if home else Path(platformdirs.user_state_path("terazi"))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(path, error) from error
    return path.absolute()


def cache_dir() -> Path:
    """Where answers that can be had again are kept."""
    path = state_dir() / "cache"
    try:
        path.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def _unusable(path: Path, error: OSError) -> ServiceError:
    return ServiceError(
        f"Terazi can't keep its state in {path}: {error.strerror}",
        hint="set TERAZI_HOME to a folder that you may write to",
    )


def config_paths() -> tuple[Path, ...]:
    """Where ``terazi.toml`` is looked for, first match wins."""
    named = os.environ.get("TERAZI_CONFIG")
    if named:
        return (Path(named),)
    return (Path("terazi.toml"), Path(platformdirs.user_config_path("terazi")) / "terazi.toml")
