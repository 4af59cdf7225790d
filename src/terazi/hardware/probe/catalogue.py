"""Reads the packaged table of graphics cards."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from terazi.hardware.catalogue import Catalogue

#: Beside this package. Package resources would cost more to import than the table costs to read.
_TABLE = __file__.rpartition("/")[0] + "/../data/gpus.csv"


def load_catalogue() -> "Catalogue":
    """The packaged catalogue, read anew (about two milliseconds)."""
    from terazi.hardware.catalogue import parse_catalogue

    with open(_TABLE, encoding="utf-8") as table:  # noqa: PTH123 - pathlib would cost more than the read
        return parse_catalogue(table.read())
