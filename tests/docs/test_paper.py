"""The pages on the paper name each of its items, and every module and command they name exists."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

from excite.cli import COMMANDS
from excite.report.figures import FIGURES
from excite.report.rows import PUBLISHED
from excite.runs import catalogue

DOCS = Path(__file__).parents[2] / "docs"
TABLES = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("paper.md", "paper-experiments.md"))
OTHERS = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("theorem.md", "released-code.md"))
ITEMS = [line.split("|")[1:3] for line in TABLES.splitlines() if line.startswith("| ")]
QUOTED = sorted({text for text in re.findall(r"`([^`]+)`", TABLES + OTHERS) if text.startswith(("excite.", "excite "))})
IN_THE_PAPER = """
    Definition 1; Definition 2; Definition 3; Lemma 1; Problem statement; Assumption 1; Assumption 2; Theorem 1;
    Remark 1; Remark 2; Remark 3; Algorithm 1; Eq. 1; Eq. 3; Eq. 4; Eq. 5; Eq. 6; Eq. 7;
    Figure 1; Figure 2; Figure 3; Figure 4; Figure 5; Figure 6; Table 2, TRADES; Table 2, PGD-AT; Table 2, RST;
    PGD-AT, min-max; TRADES loss; RST; AutoAttack
"""


@pytest.mark.parametrize("item", [item.strip() for item in IN_THE_PAPER.split(";")])
def test_every_item_of_the_paper_has_a_row(item: str) -> None:
    assert any(re.search(rf"{re.escape(item)}\b", name) for name, _ in ITEMS)


def test_every_row_of_the_paper_s_tables_is_named() -> None:
    assert len(PUBLISHED) == 10
    for name in PUBLISHED:
        assert sum(f"`excite sweep {name}`" in where for _, where in ITEMS) == 1


@pytest.mark.parametrize("name", [text for text in QUOTED if text.startswith("excite.")])
def test_every_module_and_function_it_names_exists(name: str) -> None:
    parts = name.partition("(")[0].split(".")
    item = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        item = getattr(item, part) if hasattr(item, part) else importlib.import_module(".".join(parts[:index]))


@pytest.mark.parametrize("line", [text for text in QUOTED if text.startswith("excite ")])
def test_every_command_it_names_exists(line: str) -> None:
    _, name, *words = line.split()
    commands: dict[str | None, click.Command] = {command.name: command for command in COMMANDS}
    assert name in commands
    known: dict[str, Iterable[str]] = {"run": catalogue(), "sweep": catalogue(), "figure": FIGURES}
    if name in known:
        assert words[0] in known[name]
    options = {option for parameter in commands[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
