"""Records of launches: kept after each, and looked up when the same plan is weighed again.

The look-up is on the way of every ``terazi weigh``, so nothing is imported before it is known that there is a
store.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from terazi.placement.plan import Plan
from terazi.service.weighing import Weighing

if TYPE_CHECKING:
    from terazi.telemetry.reconciliation import Reconciliation

_NAME = "records.sqlite"


def store_file() -> str:
    """Where records are kept: in ``service.paths.state_dir()``, worked out without making it, or importing much."""
    folder = os.environ.get("TERAZI_HOME")
    if not folder and sys.platform == "linux":
        # the XDG base directory specification, as platformdirs reads it; importing that costs more than weighing
        state = os.environ.get("XDG_STATE_HOME", "")
        folder = os.path.join(state if state.strip() else os.path.expanduser("~/.local/state"), "terazi")  # noqa: PTH111, PTH118
    elif not folder:
        import platformdirs

        folder = platformdirs.user_state_dir("terazi")
    return os.path.abspath(os.path.join(folder, _NAME))  # noqa: PTH100, PTH118 - pathlib costs start-up time


def with_records(weighing: Weighing) -> Weighing:
    """*weighing* with the lines measured that an earlier launch of this very plan confirmed."""
    plan, path = weighing.outcome, store_file()
    if not isinstance(plan, Plan) or not os.path.exists(path):  # noqa: PTH110 - as above
        return weighing
    from terazi.telemetry.store.lookup import held_lines

    found = held_lines(path, plan.id)
    if found is None or not found.build.startswith(plan.bill.build):
        # another build's figures say nothing about the rules of this one
        return weighing
    from time import localtime, strftime

    from terazi.engines.measured import confirm

    note = f"{found.build} on {strftime('%Y-%m-%d', localtime(found.wall_s))}"
    return replace(weighing, outcome=replace(plan, bill=confirm(plan.bill, found.lines, note)))


def keep(found: "Reconciliation", notice: Callable[[str], None]) -> None:
    """Store *found*; what stands against it is said and costs no more than the record."""
    from terazi.telemetry.store.sqlite import Store, StoreError

    try:
        Store(store_file(), notice=notice).add(found)
    except StoreError as error:
        notice(f"this launch isn't recorded: {error.message} ({error.hint})")
