"""The tables of the pages in docs/lab are those that the runs in results/ give."""

from pathlib import Path

from tests.tools.loading import loaded

HOME = Path(__file__).parents[2]


def test_lab_tables_match_the_results() -> None:
    tool = loaded(HOME / "tools/results_tables.py")
    text = "\n".join(file.read_text(encoding="utf-8") for file in tool.PAGES)
    assert text.count("<!-- results/") == len(tool.BLOCK.findall(text)) == 12
    assert tool.page(text) == text
    assert tool.page(text.replace("| baseline | 0.1 |", "| baseline | 0.2 |")) == text
