"""Rows as a plain text table that fits the terminal: cells wrap, and where that is not enough, columns go below."""

import io
import shutil
import sys
import textwrap
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from excite.report.tables.formats import column_parts

GLUE = "\ue000"  # stands for a space at which no cell wraps
PADDING = 3  # of a column: one to its left, one to its right, one between
WITHOUT_TERMINAL = 120


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1, width: int | None = None
) -> str:
    """The first `keys` columns to the left, the others to the right; the former stand again before every part."""
    room = (width or terminal_width()) - 1
    rows = [[cell.replace(" ± ", f"{GLUE}±{GLUE}").replace(" to ", f"{GLUE}to{GLUE}") for cell in row] for row in rows]
    cells = [columns, *rows]
    least = [max(_longest_word(row[number]) for row in cells) + PADDING for number in range(len(columns))]
    drawn = [_draw(part, columns, rows, keys, room) for part in column_parts(least, keys=keys, room=room)]
    return "\n\n".join(drawn).replace(GLUE, " ")


def prose(text: str, width: int | None = None) -> str:
    """Sentences wrapped for a terminal; in a file every sentence keeps its line, to be searched."""
    if width is None and not sys.stdout.isatty():
        return text
    return "\n".join(textwrap.fill(line, (width or terminal_width()) - 1) for line in text.splitlines())


def terminal_width() -> int:
    """As wide as the terminal, or as COLUMNS says; wider where there is none, in a file."""
    return shutil.get_terminal_size(fallback=(WITHOUT_TERMINAL, 24)).columns


def _draw(chosen: Sequence[int], columns: Sequence[str], rows: Sequence[Sequence[str]], keys: int, room: int) -> str:
    texts = [[columns[number], *(row[number] for row in rows)] for number in chosen]
    widths = _widths([max(map(cell_len, one)) for one in texts], [max(map(_longest_word, one)) for one in texts], room)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for number, wide in zip(chosen, widths, strict=True):
        table.add_column(columns[number], justify="right" if number >= keys else "left", width=wide)
    for row in rows:
        table.add_row(*(row[number] for number in chosen))
    text = io.StringIO()
    Console(file=text, width=room, color_system=None, markup=False, highlight=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _widths(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """What every column wants, the widest narrowed until they fit or can give no more."""
    widths = list(wanted)
    while sum(widths) + PADDING * len(widths) > room:
        able = [number for number in range(len(widths)) if widths[number] > least[number]]
        if not able:
            break
        widths[max(able, key=lambda number: widths[number])] -= 1
    return widths


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)
