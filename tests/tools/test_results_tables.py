"""The tables of docs/results.md are those that the runs in results/ give: no figure in them is typed."""

from pathlib import Path

from tests.tools.test_walk import loaded

HOME = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_its_runs() -> None:
    tool = loaded(HOME / "tools/results_tables.py")
    text = (HOME / "docs/results.md").read_text(encoding="utf-8")
    assert text.count("<!-- results/") == len(tool.BLOCK.findall(text)) > 0
    assert tool.page(text) == text
    assert tool.page(text.replace("| baseline | 0.1 |", "| baseline | 0.2 |")) == text
