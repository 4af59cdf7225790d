"""One HTML page around the pictures: the same figures as tables, for those who read rather than look.

In: a sheet and tables. Out: HTML text, complete in itself: no script, no font, nothing from elsewhere.
"""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.pictures.svg import escape

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;margin:0 auto;max-width:960px;padding:1rem}
svg{max-width:100%;height:auto;display:block}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}
caption{text-align:left;font-weight:600;padding:.25rem 0}
th,td{border-bottom:1px solid #8888;padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
"""


class Table(NamedTuple):
    """A table with its caption; a cell that starts with a digit is set to the right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def page(title: str, lead: str, picture: str, tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The whole document."""
    shown = "".join(_table(table) for table in tables if table.rows)
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(lead)}</p>\n{picture}{shown}"
        f"{f'<h2>Why so</h2><ul>{said}</ul>' if said else ''}\n</main>\n</body>\n</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    top = f"<caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead>"
    return f"<table>{top}<tbody>{rows}</tbody></table>\n"


def _cell(cell: str) -> str:
    number = ' class="n"' if cell[:1].isdigit() else ""
    return f"<td{number}>{escape(cell)}</td>"
