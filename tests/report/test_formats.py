"""One table for a terminal, for LaTeX, as CSV and as JSON: the same figures, escaped, within their page."""

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from excite.report.formats import escape_latex
from excite.report.rows import tidy
from excite.report.tables import StudyTable
from excite.runs.folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs" / "tables.md"
ATTACK = "PGD_20 ε=1/255"
Write = Callable[..., RunFolder]


def test_csv_equals_json(three_seeds: list[RunFolder]) -> None:
    table = StudyTable(tidy(three_seeds))
    for read, row in zip(csv.DictReader(io.StringIO(table.csv())), table.to_json()["rows"], strict=True):
        assert list(read) == list(row)
        for name, value in row.items():
            expected = json.dumps(value) if isinstance(value, bool) else "" if value is None else str(value)
            assert read[name] == expected


@pytest.mark.parametrize("sign", "=+-@")
def test_no_text_of_a_csv_is_a_formula(sign: str, write_run: Write) -> None:
    run = write_run({"baseline": {}}, changes=[f"name={sign}x"])
    (row,) = csv.DictReader(io.StringIO(StudyTable(tidy([run])).csv()))
    assert row["experiment"] == f"'{sign}x"


def test_fields_are_constant_and_documented(write_run: Write, three_seeds: list[RunFolder]) -> None:
    bare = StudyTable(tidy([write_run({"baseline": {}})]))
    diverged = StudyTable(tidy([write_run({"poe": {"problem": "Training diverged"}})]))
    tables = [bare, diverged, StudyTable(tidy(three_seeds))]
    (fields,) = {table.csv().splitlines()[0] for table in tables}
    documented = re.findall(r"`([A-Za-z_]+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", DOCS.read_text("utf-8"))))
    assert documented == fields.split(",")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_text_table_fits_its_width_and_is_complete(three_seeds: list[RunFolder], width: int) -> None:
    table = StudyTable(tidy(three_seeds))
    assert max(map(len, table.text(width).splitlines())) <= width
    body = table.text(width).split("\n\nAccuracies in %")[0]
    shown = set(body.split())
    for column in table.columns.values():
        assert {word for text in column for word in text.split()} <= shown
    assert "|" not in body


def test_latex_is_escaped_and_balanced(three_seeds: list[RunFolder]) -> None:
    text = StudyTable(tidy(three_seeds)).latex()
    assert r"PGD\_20 $\varepsilon$=1/255 \%" in text
    assert r"43.00 $\pm$ 2.65" in text
    assert text.isascii()
    assert r"\label{tab:" in text
    bare = re.sub(r"\\[{}%&_$\\]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    tabulars = re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, flags=re.DOTALL)
    for alignment, tabular in tabulars:
        assert [tabular.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
        body = [line for line in tabular.splitlines() if line.endswith(r"\\")]
        assert {re.sub(r"\\&", "", line).count("&") + 1 for line in body} == {len(alignment)}
        assert [line.partition(" & ")[0] for line in body] == [
            "arm",
            "baseline",
            "PoE-motivated, 1/L",
            "largest convergent, 2/L",
        ]


def test_latex_moves_common_values_to_the_caption(three_seeds: list[RunFolder]) -> None:
    text = StudyTable(tidy(three_seeds)).latex()
    assert text.count("resnet8") == 1
    for title in ("clean %", "paper: robust %", f"Δ {ATTACK}"):
        assert escape_latex(title) in text


def test_escapes_special_characters_of_latex() -> None:
    assert escape_latex(r"a\b & 5% $x$ #1 {y} ~^ <ε|η¹>") == (
        r"a\textbackslash{}b \& 5\% \$x\$ \#1 \{y\} \textasciitilde{}\textasciicircum{} "
        r"\textless{}$\varepsilon$\textbar{}$\eta$$^{1}$\textgreater{}"
    )


def has_latex() -> bool:
    """With the packages that the table names."""
    if not (shutil.which("pdflatex") and shutil.which("kpsewhich")):
        return False
    return subprocess.run(["kpsewhich", "adjustbox.sty"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_latex(), reason="no pdflatex with adjustbox: apt install texlive-latex-extra")
def test_latex_compiles_and_fits_its_page(three_seeds: list[RunFolder], tmp_path: Path) -> None:
    table = StudyTable(tidy(three_seeds)).latex()
    document = rf"\documentclass{{article}}\usepackage{{adjustbox,booktabs}}\begin{{document}}{table}\end{{document}}"
    (tmp_path / "table.tex").write_text(document, encoding="ascii")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Output written on table.pdf (1 page" in done.stdout
    for complaint in ("Overfull", "Missing character", "too large for page"):
        assert complaint not in done.stdout
