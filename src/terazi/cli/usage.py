"""``terazi usage``: who used what, in the last days."""

import argparse
import json

from terazi.cli import options
from terazi.cli.terminal import harmless


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``terazi usage [--days N] [--by-day] [--json]``."""
    parser.add_argument("--days", type=options.natural, default=30, help="how many days, today too (default 30)")
    parser.add_argument("--by-day", action="store_true", help="a row for each day")
    parser.add_argument("--json", action="store_true", help="one document, schema terazi.usage/1")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from terazi.service.usage import usage_of_days

    rows = usage_of_days(max(1, min(args.days, 3650)), by_day=args.by_day)
    if args.json:
        said = [{name: value for name, value in row._asdict().items() if value != ""} for row in rows]
        print(json.dumps({"schema": "terazi.usage/1", "days": args.days, "rows": said}))
        return 0
    if not rows:
        print("nothing was used")
        return 0
    head = ["key", "model", "requests", "failed", "prompt", "cached", "output", "engine time"]
    table = [[row.key, row.model, *(f"{n:,}" for n in row[3:8]), f"{row.seconds / 3600:,.2f} h"] for row in rows]
    if args.by_day:
        head = ["day", *head]
        table = [[row.day, *cells] for row, cells in zip(rows, table, strict=True)]
    words = len(head) - 6
    widths = [max(len(line[i]) for line in (head, *table)) for i in range(len(head))]
    for line in (head, *table):
        cells = [c.ljust(w) if i < words else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        print(harmless("  ".join(cells).rstrip()))
    return 0
