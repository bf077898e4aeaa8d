"""Cells as Markdown or LaTeX: the same table for a page and a paper."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Plain = None | bool | int | float | str
Value = Plain | Mapping[str, "Value"]
Mark = Literal["best", "second"]


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


def latex(titles: Sequence[str], groups: Sequence[Sequence[Sequence[Cell]]], *, caption: str, label: str) -> str:
    """A `table*` no larger than its page, groups of rows apart; its document needs adjustbox and booktabs."""
    alignment = "".join("l" if words else "r" for words in _words([row for group in groups for row in group]))
    head = " & ".join(map(escape_latex, titles)) + r" \\"
    bodies = [
        "\n".join(
            " & ".join(_marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", escape_latex(cell.text)) for cell in row)
            + r" \\"
            for row in group
        )
        for group in groups
    ]
    return "\n".join(
        [
            r"% \usepackage{adjustbox,booktabs}",
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{{label}}}",
            r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.75\textheight}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            head,
            r"\midrule",
            "\n\\midrule\n".join(bodies),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            r"\end{table*}",
        ]
    )


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
