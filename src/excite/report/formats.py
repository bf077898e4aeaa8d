"""Write tables as text for a terminal, as Markdown or as LaTeX, and numbers and lists in sentences."""

import io
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

NO_BREAK = "\ue000"  # stands for a space at which a cell is not wrapped
PADDING = 3  # columns of a terminal: one to the left of a cell, one to its right, one between cells
WIDTH_WITHOUT_TERMINAL = 120
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "|*_`<\\"})
GREEK = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta"},
    **{"θ": "theta", "λ": "lambda", "μ": "mu", "σ": "sigma", "Δ": "Delta"},
}
LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"$\\{name}$" for character, name in GREEK.items()},
    **{"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$"},
    **{"ℓ": r"$\ell$", "¹": "$^{1}$", "²": "$^{2}$", "₂": "$_{2}$", "–": "--", "†": r"\dag{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}


Rows = Sequence[Sequence[str]]
Mark = Literal["best", "second"]
Marks = Mapping[tuple[int, str], Mark]  # of cells, by the number of the row and the title of the column


def markdown(titles: Sequence[str], rows: Rows, words: Sequence[bool], marks: Marks) -> str:
    """Columns of words are aligned to the left, numbers to the right."""
    styles = {"best": "**{}**", "second": "<u>{}</u>", None: "{}"}
    lines = [
        [title.translate(MARKDOWN) for title in titles],
        [":--" if left else "--:" for left in words],
        *(
            [
                styles[marks.get((n, title))].format(cell.translate(MARKDOWN))
                for title, cell in zip(titles, row, strict=True)
            ]
            for n, row in enumerate(rows)
        ),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(titles: Sequence[str], rows: Rows, words: Sequence[bool], marks: Marks, *, caption: str, label: str) -> str:
    """A `table*`, not wider than the page; the document needs adjustbox and booktabs."""
    styles = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", None: "{}"}
    body = [
        [styles[marks.get((n, title))].format(escape_latex(cell)) for title, cell in zip(titles, row, strict=True)]
        for n, row in enumerate(rows)
    ]
    head, *body_lines = (" & ".join(row) + r" \\" for row in (map(escape_latex, titles), *body))
    return "\n".join(
        [
            r"% \usepackage{adjustbox,booktabs}",
            r"\begin{table*}[t]",
            r"\centering\footnotesize",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{{label}}}",
            r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.75\textheight}",
            rf"\begin{{tabular}}{{{''.join('l' if left else 'r' for left in words)}}}",
            *(r"\toprule", head, r"\midrule", *body_lines, r"\bottomrule"),
            *(r"\end{tabular}", r"\end{adjustbox}", r"\end{table*}"),
        ]
    )


def column_parts(widths: Sequence[int], *, keys: int, width: int) -> list[list[int]]:
    """Split columns into parts that fit into `width`; the first `keys` columns are repeated in every part.

    >>> column_parts([5, 3, 3, 3], keys=1, width=11)
    [[0, 1, 2], [0, 3]]
    """
    repeated = list(range(keys))
    parts: list[list[int]] = [[]]
    for number in range(keys, len(widths)):
        if parts[-1] and sum(widths[n] for n in (*repeated, *parts[-1], number)) > width:
            parts.append([])
        parts[-1].append(number)
    return [[*repeated, *part] for part in parts]


def escape_latex(text: str) -> str:
    """
    >>> print(escape_latex("50% of a_b, ε = 8/255"))
    50\\% of a\\_b, $\\varepsilon$ = 8/255
    """
    return "".join(LATEX.get(character, character) for character in text)


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1, width: int | None = None
) -> str:
    """A table for the terminal: the first `keys` columns to the left, the others to the right.

    Columns that do not fit go below, in a further part that repeats the first `keys` columns.
    """
    room = (width or terminal_width()) - 1
    glue = f"{NO_BREAK}±{NO_BREAK}", f"{NO_BREAK}to{NO_BREAK}"
    rows = [[cell.replace(" ± ", glue[0]).replace(" to ", glue[1]) for cell in row] for row in rows]
    texts = [[title, *(row[n] for row in rows)] for n, title in enumerate(columns)]
    least = [max((cell_len(word) for text in column for word in text.split()), default=0) for column in texts]
    wanted = [max(map(cell_len, column)) for column in texts]
    drawn = []
    for part in column_parts([width + PADDING for width in least], keys=keys, width=room):
        widths = _fit([wanted[n] for n in part], [least[n] for n in part], room)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for number, wide in zip(part, widths, strict=True):
            table.add_column(columns[number], justify="right" if number >= keys else "left", width=wide)
        for row in rows:
            table.add_row(*(row[number] for number in part))
        text = io.StringIO()
        Console(file=text, width=room, color_system=None, markup=False, highlight=False, emoji=False).print(table)
        drawn.append("\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines()))
    return "\n\n".join(drawn).replace(NO_BREAK, " ")


def _fit(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The wanted widths; the widest columns are narrowed until all fit, or until every word would break."""
    widths = list(wanted)
    while sum(widths) + PADDING * len(widths) > room:
        narrowable = [n for n in range(len(widths)) if widths[n] > least[n]]
        if not narrowable:
            break
        widths[max(narrowable, key=lambda n: widths[n])] -= 1
    return widths


def prose(text: str, width: int | None = None) -> str:
    """Sentences wrapped for a terminal. In a file, every sentence stays on one line."""
    if width is None and not sys.stdout.isatty():
        return text
    return "\n".join(textwrap.fill(line, (width or terminal_width()) - 1) for line in text.splitlines())


def terminal_width() -> int:
    """The width of the terminal or the value of COLUMNS; 120 without a terminal."""
    return shutil.get_terminal_size(fallback=(WIDTH_WITHOUT_TERMINAL, 24)).columns


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def points(share: float) -> str:
    """A difference in percentage points, with its sign; what rounds to zero is +0.0."""
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "−")


def listed(words: Iterable[object]) -> str:
    """
    >>> listed(["a", "b", 3])
    'a, b and 3'
    """
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def counted(words: Iterable[str]) -> list[str]:
    """
    >>> counted(["helped", "hurt", "helped"])
    ['helped in 2', 'hurt in 1']
    """
    return [f"{word} in {number}" for word, number in Counter(words).most_common()]


def capitalized(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def template(name: str, **filters: Callable[..., Any]) -> Template:
    """A Jinja template of this folder; a missing value is an error, and only HTML is escaped."""
    environment = Environment(
        loader=PackageLoader("excite", "report/templates"),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"percent": percent, "points": points, "listed": listed, "capitalized": capitalized}
    environment.filters |= {"counted": counted, **filters}
    return environment.get_template(name)
