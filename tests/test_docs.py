"""What the documentation shows runs: every Python block of README and docs, and the scripts in examples/."""

import importlib
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

import excite

ROOT = Path(__file__).parents[1]
ELSEWHERE = ROOT / "docs" / "run-folder.md"  # its blocks read a run, which tests/runs/test_folder.py has
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {ELSEWHERE})]

STAGE = """
import excite, torch
from pathlib import Path
from torch import nn
torch.manual_seed(0)
Net = lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(784, elementwise_affine=False), nn.Linear(784, 10))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loss_fn, epochs = nn.functional.cross_entropy, 3
split = excite.data.load("mnist-sample").train.subset(40, seed=0)
x, y = split.floats(), split.labels
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10, shuffle=True)
"""
"""What the pages take for granted: a model, its optimizer and scheduler, a loss, a loader, and one batch."""

MORE = {
    "attacks.md": (
        "same = {'pgd': excite.attacks.create('pgd', eps=8 / 255, step=2 / 255, restarts=3),"
        " 'autoattack': excite.attacks.create('autoattack', eps=8 / 255)}\n"
        "result_of_another_model = excite.evaluate(model, x, y, same)\n"
    ),
    "attack-tools.md": "target_classes = (y + 1) % 10\n",
    "loggers.md": "estimate = excite.LipschitzEstimate(4.0, (3.0, 5.0), 'stated', True, 'an example')\n",
}
FENCE = re.compile(r"^(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def installed(package: str | None) -> bool:
    try:
        importlib.import_module(package or "torch")
    except ImportError:
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name) for page in PAGES if FENCE.search(page.read_text(encoding="utf-8"))],
)
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "page"}
    exec(STAGE + MORE.get(page.name, ""), namespace)  # noqa: S102
    for block in FENCE.finditer(text):
        if installed(block[1]):
            lines_before = text[: block.start(2)].count("\n")
            exec(compile("\n" * lines_before + block[2], str(page), "exec"), namespace)  # noqa: S102


def script(name: str) -> list[str]:
    return (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()


SCRIPTS = ["cnn.py", "transformer.py", "tabular.py", "fine_tuning.py"]


def run_script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_most_four_lines_are_added(name: str) -> None:
    lines = [line for line in script(name) if line.endswith("# +")]
    assert 0 < len(lines) <= 4


@pytest.mark.parametrize("name", [*SCRIPTS[2:], *(pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS[:2])])
def test_a_script_finds_its_rate_and_learns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(name, monkeypatch)
    printed = capsys.readouterr().out
    assert "(1/L)" in printed
    assert float(printed.splitlines()[-1].split()[-1].removesuffix("%")) > 75


@pytest.mark.slow
def test_the_loop_under_accelerate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    run_script("accelerate_loop.py", monkeypatch)
    printed = capsys.readouterr().out
    assert "(1/L)" in printed
    assert "epoch 3: loss" in printed


def test_the_paper_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = script("minimal.py")
    assert len(lines) <= 200
    assert [line for line in lines if "excite" in line and "import" in line] == ["from excite.data import load"]
    monkeypatch.setattr(sys, "argv", ["minimal.py", "--seeds", "1", "--epochs", "1"])
    few = tmp_path / "minimal.py"
    few.write_text("\n".join(lines).replace("[:500]", "[:50]"), encoding="utf-8")
    runpy.run_path(str(few), run_name="__main__")
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()}
    assert float(rows["2/L"][1]) == pytest.approx(2 * float(rows["1/L"][1]), abs=0.002)
    assert all(float(accuracy) <= 100 for arm in ("baseline", "1/L", "2/L") for accuracy in rows[arm][2:4])


@pytest.mark.slow
def test_without_the_added_lines_it_is_a_plain_script(tmp_path: Path) -> None:
    lines = [line for line in script("cnn.py") if not line.endswith("# +")]
    plain = tmp_path / "plain.py"
    plain.write_text("\n".join([*lines, ""]), encoding="utf-8")
    command = [sys.executable, str(plain), "--epochs", "1"]
    assert "epoch 1: loss" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_page_shows_the_lines_of_the_script() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs/your-own-loop.md").read_text(encoding="utf-8"), re.DOTALL)
    known = [line.removesuffix("# +").split("  # type: ignore")[0].rstrip() for line in script("cnn.py")]
    added = [line.removesuffix("# +").rstrip() for line in script("cnn.py") if line.endswith("# +")]
    assert [line[1:] for line in diff.splitlines() if line.startswith("+")] == added
    assert {line[1:] for line in diff.splitlines()} <= {*known, ""}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    options = ["-W", "--keep-going", "-q", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "your-own-loop.html").exists()


@pytest.mark.parametrize(
    "name", [name for name in excite.__all__ if not isinstance(getattr(excite, name), types.ModuleType)]
)
def test_a_public_object_explains_itself(name: str) -> None:
    """Arguments and what comes back, where it is a function; an example, which the doctests run."""
    item = getattr(excite, name)
    asked = [">>>"] if isinstance(item, type) else ["Args:", "Returns:", ">>>"]
    assert [word for word in asked if word not in (item.__doc__ or "")] == []
