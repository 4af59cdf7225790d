"""Where Terazi keeps what it must remember: run records, logs, and how other commands find the service."""

import os
from pathlib import Path

import platformdirs


def state_dir() -> Path:
    """``$TERAZI_HOME``, else the system's place for a user's state; made if it isn't there."""
    home = os.environ.get("TERAZI_HOME")
    path = Path(home) if home else Path(platformdirs.user_state_path("terazi"))
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def cache_dir() -> Path:
    """Where answers that can be had again are kept."""
    path = state_dir() / "cache"
    path.mkdir(exist_ok=True, mode=0o700)
    return path


def config_paths() -> tuple[Path, ...]:
    """Where ``terazi.toml`` is looked for, first match wins."""
    named = os.environ.get("TERAZI_CONFIG")
    if named:
        return (Path(named),)
    return (Path("terazi.toml"), Path(platformdirs.user_config_path("terazi")) / "terazi.toml")
