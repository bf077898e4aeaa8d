"""Cells as text for a terminal, as Markdown or as LaTeX: the same table for a screen, a page and a paper."""

import io
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

Plain = None | bool | int | float | str
Value = Plain | Mapping[str, "Value"]
Mark = Literal["best", "second"]

GLUE = "\ue000"  # stands for a space at which no cell wraps
PADDING = 3  # of a column: one to its left, one to its right, one between
WITHOUT_TERMINAL = 120
LATEX_LETTERS = 100  # that a line of a table has room for, in \\footnotesize on a usual page


@dataclass(frozen=True)
class Cell:
    """What a cell says to people (`text`), to machines (`value`), what it is sorted by, and whether it stands out."""

    text: str
    value: Value
    order: float | str | None = None
    mark: Mark | None = None


def markdown(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Best in bold, second underlined, words to the left and numbers to the right."""
    body = list(rows)
    lines = [[_escape_markdown(title) for title in titles]]
    lines += [[":--" if words else "--:" for words in _words(body)]]
    lines += [[_marked(cell, "**{}**", "<u>{}</u>", _escape_markdown(cell.text)) for cell in row] for row in body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def latex(
    titles: Sequence[str], groups: Sequence[Sequence[Sequence[Cell]]], *, keys: int, caption: str, label: str
) -> str:
    """A `table*` that can be read on its page: where it is too wide, columns go below, the first `keys` ones again.

    Groups of several rows stand apart. Its document needs adjustbox and booktabs.
    """
    rows = [row for group in groups for row in group]
    widths = [max(len(text) for text in (title, *(row[n].text for row in rows))) for n, title in enumerate(titles)]
    parts = column_parts([width + 2 for width in widths], keys=keys, room=LATEX_LETTERS)
    tabulars = [
        _tabular([titles[n] for n in part], [[[row[n] for n in part] for row in group] for group in groups])
        for part in parts
    ]
    box = rf"\begin{{adjustbox}}{{max width=\textwidth, max totalheight={0.75 / len(parts):.2g}\textheight}}"
    return "\n".join(
        [
            r"% \usepackage{adjustbox,booktabs}",
            r"\begin{table*}[t]",
            r"\centering\footnotesize",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{{label}}}",
            "\n".join(f"\\par\\smallskip\n{box}\n{tabular}\n\\end{{adjustbox}}" for tabular in tabulars),
            r"\end{table*}",
        ]
    )


def _tabular(titles: Sequence[str], groups: Sequence[Sequence[Sequence[Cell]]]) -> str:
    alignment = "".join("l" if words else "r" for words in _words([row for group in groups for row in group]))
    bodies = [
        "\n".join(
            " & ".join(_marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", escape_latex(cell.text)) for cell in row)
            + r" \\"
            for row in group
        )
        for group in groups
    ]
    apart = "\n\\midrule\n" if any(len(group) > 1 for group in groups) else "\n"
    head = " & ".join(map(escape_latex, titles)) + r" \\"
    lines = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", head, r"\midrule", apart.join(bodies), r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"])


def column_parts(widths: Sequence[int], *, keys: int, room: int) -> list[list[int]]:
    """The numbers of the columns that stand beside each other in `room`; the first `keys` stand in every part.

    >>> column_parts([5, 3, 3, 3], keys=1, room=11)
    [[0, 1, 2], [0, 3]]
    """
    fixed = list(range(keys))
    parts: list[list[int]] = [[]]
    for number in range(keys, len(widths)):
        if parts[-1] and sum(widths[one] for one in (*fixed, *parts[-1], number)) > room:
            parts.append([])
        parts[-1].append(number)
    return [[*fixed, *part] for part in parts]


def escape_latex(text: str) -> str:
    """
    >>> print(escape_latex("50% of a_b, ε = 8/255"))
    50\\% of a\\_b, $\\varepsilon$ = 8/255
    """
    return "".join(LATEX.get(character, character) for character in text)


def _words(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """Per column, whether it is sorted by words."""
    return [any(isinstance(cell.order, str) for cell in column) for column in zip(*rows, strict=True)]


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{character}" if character in "|*_`<\\" else character for character in text)


def _marked(cell: Cell, best: str, second: str, text: str) -> str:
    if cell.mark is None:
        return text
    return (best if cell.mark == "best" else second).format(text)


LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "†": r"\dag{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "∞": r"$\infty$",
    "ℓ": r"$\ell$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "Δ": r"$\Delta$",
    "¹": "$^{1}$",
    "²": "$^{2}$",
    "₂": "$_{2}$",
}


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
