"""What a notebook shows of our results: sentences and tables as HTML."""

from collections.abc import Iterable, Sequence
from html import escape


def paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """A table with notes below it.

    >>> table(["n"], [["<1"]], ["all"])
    '<table><tr><th>n</th></tr><tr><td>&lt;1</td></tr></table><p>all</p>'
    """
    lines = [_line("th", titles), *(_line("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>{''.join(map(paragraphs, notes))}"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
