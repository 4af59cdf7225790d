"""A home of its own for each test's service."""

from pathlib import Path

import pytest

from live_service import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Empty; the service in this process keeps its state there."""
    monkeypatch.setenv("TERAZI_HOME", str(tmp_path))
    for name in ("TERAZI_LLAMA_SERVER", "TERAZI_API_KEY", "TERAZI_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Home(tmp_path)
