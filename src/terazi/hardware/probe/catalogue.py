"""Reads the packaged table of graphics cards."""

from terazi.hardware.catalogue import Catalogue, parse_catalogue

#: Beside this package, so that a zipped or frozen install is the only thing that breaks it.
_TABLE = __file__.rpartition("/")[0] + "/../data/gpus.csv"


def load_catalogue() -> Catalogue:
    """The packaged catalogue, read anew (about two milliseconds)."""
    with open(_TABLE, encoding="utf-8") as table:  # noqa: PTH123 - pathlib would cost more than the read
        return parse_catalogue(table.read())
