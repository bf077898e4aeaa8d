"""What reaches the axes of each figure, from run folders whose figures are known, and what the files look like."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from excite.cli import cli
from excite.errors import InputError
from excite.evaluation import Evaluation
from excite.excitation import acuteness, certify
from excite.lipschitz import ESTIMATORS, estimate_lipschitz
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.figures import FIGURES, draw, plot, style
from excite.report.rows import FIGURE_5
from excite.report.verdict import Effect
from excite.runs.folder import RunFolder, collect
from excite.runs.stages.attack import certify as leave_certificate
from excite.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D

EDGE = LipschitzEstimate(4.0, (3.5, 4.0), "edge", True, "6 runs")
Write = Callable[..., RunFolder]
Evaluated = Callable[..., Evaluation]
Descent = Callable[..., Trace]


def lines(axes: "Axes") -> dict[str, "Line2D"]:
    return {str(line.get_label()): line for line in axes.lines}


def points(line: "Line2D") -> dict[float, float]:
    x, y = (np.asarray(values, dtype=float).tolist() for values in line.get_data())
    return dict(zip(x, y, strict=True))


def from_trace(trace: Trace, *methods: str) -> dict[str, LipschitzEstimate]:
    """As a run keeps them, but for the p-values that no figure shows."""
    return {method: estimate_lipschitz(trace, method, bootstraps=0) for method in methods}


def certified(run: RunFolder) -> RunFolder:
    for arm in run.arms:
        leave_certificate(arm)
    return RunFolder(run.path)


def outline(band: "Collection") -> list[tuple[float, float]]:
    return [(x, y) for x, y in np.asarray(band.get_paths()[0].vertices, dtype=float).tolist()]


def written(axes: "Axes") -> list[str]:
    return [text.get_text() for text in axes.texts]


def gained(axes: "Axes") -> list[tuple[float, float, bool]]:
    """For each gain: its row, its points, and whether several seeds stand behind it."""
    marked = [line for line in axes.lines if line.get_marker() not in ("None", "", ".")]
    return [(y, x, line.get_markerfacecolor() != "none") for line in marked for x, y in points(line).items()]


def headings(axes: "Axes") -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]


def row_names(axes: "Axes") -> list[str]:
    return [name for label in axes.get_yticklabels() if (name := label.get_text())]


@pytest.fixture(scope="module")
def said(descent: Descent) -> dict[str, LipschitzEstimate]:
    return from_trace(descent(8, noise=0.02), "epochs", "local")


@pytest.fixture
def everything(
    write_run: Write, evaluated: Evaluated, descent: Descent, said: dict[str, LipschitzEstimate]
) -> list[RunFolder]:
    """Runs that hold what each of the figures needs: two rates, two batch sizes, attacked epochs, traces, an L."""
    runs = [
        write_run(
            {
                "baseline": {
                    "rate": rate,
                    "evaluation": evaluated(90, 40 + seed),
                    "epochs": [{"test_accuracy": 0.5, "robust_accuracy": 0.2}] * 8,
                    "trace": descent(8, noise=0.02, seed=seed),
                },
                "poe": {"trace": descent(8, noise=0.02, seed=seed), "evaluation": evaluated(90, 45)},
            },
            changes=[f"seed={seed}", f"training.schedule.rate={rate}", f"training.batch_size={size}"],
            estimate=EDGE,
            estimates=said,
        )
        for seed, (rate, size) in enumerate([(0.1, 32), (0.2, 32), (0.1, 64)])
    ]
    return [certified(run) for run in runs]


def test_figure_1_rescales_every_kind_of_schedule(write_run: Write) -> None:
    schedule = 'training.schedule={kind="step",rate=0.1,milestones=[2,3]}'
    run = write_run({}, changes=["training.epochs=4", schedule], estimate=EDGE)
    step, exponential, cosine = plot("figure-1", [run]).axes
    assert [axes.get_title() for axes in (step, exponential, cosine)] == ["step, as trained", "exponential", "cosine"]
    baseline, poe, largest = step.lines
    assert points(baseline) == pytest.approx({1: 0.1, 2: 0.1, 3: 0.01, 4: 0.001})
    assert points(poe) == pytest.approx({1: 0.25, 2: 0.25, 3: 0.025, 4: 0.0025})
    assert points(largest) == pytest.approx({1: 0.5, 2: 0.5, 3: 0.05, 4: 0.005})
    assert poe.get_label() == "PoE-motivated, 1/L: η¹ = 0.25"
    for axes in (exponential, cosine):
        rates = [list(points(line).values()) for line in axes.lines]
        assert np.divide(rates[1], rates[0]) == pytest.approx([2.5] * 4)
        assert np.divide(rates[2], rates[1]) == pytest.approx([2.0] * 4)


def test_figure_1_without_a_run_is_at_the_published_l(tmp_path: Path) -> None:
    step = plot("figure-1", []).axes[0]
    rates = [points(line) for line in step.lines]
    assert [rate[1] for rate in rates] == pytest.approx([0.1, 1 / 3.526, 2 / 3.526])
    assert len(rates[0]) == 164
    drawn = CliRunner().invoke(cli, ["figure", "figure-1", "--out", str(tmp_path)])
    assert (drawn.exit_code, (tmp_path / "figure-1.svg").exists()) == (0, True)
    with pytest.raises(InputError, match="figure-4-small"):
        plot("figure-4", [])


def test_figure_2_has_mean_and_range_over_seeds_and_marks_the_edge(write_run: Write, evaluated: Evaluated) -> None:
    def run(rate: float, robust: int, seed: int, activation: str = "relu", **more: Any) -> RunFolder:
        arm = {"rate": rate, "evaluation": evaluated(95, robust)}
        changes = [f"seed={seed}", f"training.schedule.rate={rate}", f"model.options.activation={activation}"]
        control = {"rate": rate, "batch_size": 8, "evaluation": evaluated(90, 0)}  # is of another size of batches
        return write_run({"baseline": arm, "batch": control}, changes=changes, **more)

    lost = write_run({"baseline": {"rate": 2.0, "problem": "diverged"}}, changes=["training.schedule.rate=2.0"])
    runs = [run(0.1, 40, 0, estimate=EDGE), run(0.1, 50, 1), run(0.3, 60, 0), lost]
    relu, tanh = plot("figure-2", [*runs, run(0.1, 10, 0, "tanh"), run(0.3, 20, 0, "tanh")]).axes
    assert (relu.get_title(), tanh.get_title()) == ("lenet5 relu, mnist-sample", "lenet5 tanh, mnist-sample")
    drawn = lines(relu)
    assert points(drawn["clean"]) == {0.1: 95, 0.3: 95}
    assert points(drawn["PGD_20 ε=1/255"]) == {0.1: 45, 0.3: 60}
    assert points(drawn["diverged"]) == {2.0: 0}
    assert [set(points(drawn[name])) for name in ("1/L", "2/L")] == [{0.25}, {0.5}]
    assert set(outline(relu.collections[1])) == {(0.1, 40), (0.1, 50), (0.3, 60)}
    assert "1/L" not in lines(tanh)


def test_figure_3_has_a_line_per_arm(write_run: Write) -> None:
    def epochs(*robust: float) -> dict[str, Any]:
        return {"epochs": [{"test_accuracy": 0.9, "robust_accuracy": value} for value in robust]}

    runs = [
        write_run({"baseline": epochs(0.1, 0.2 + 0.1 * seed), "poe": epochs(0.3, 0.4)}, changes=[f"seed={seed}"])
        for seed in range(2)
    ]
    clean, robust = plot("figure-3", runs).axes
    assert points(lines(clean)["baseline"]) == {1: 90, 2: 90}
    assert points(lines(robust)["baseline"]) == pytest.approx({1: 10, 2: 25})
    assert points(lines(robust)["PoE-motivated, 1/L"]) == pytest.approx({1: 30, 2: 40})
    assert "PGD_20 ε=1/255" in robust.get_title()


def test_figure_3_shows_clean_accuracy_on_the_attacked_images(write_run: Write) -> None:
    """And 2/L at which a training broke is not largest convergent."""
    epochs = {"epochs": [{"test_accuracy": 0.9, "robust_accuracy": 0.5, "attacked_clean_accuracy": 0.8}]}
    broken = epochs | {"problem": "Training diverged in epoch 2"}
    clean, _ = plot("figure-3", [write_run({"baseline": epochs, "largest": broken})]).axes
    assert {"baseline", "2/L"} <= lines(clean).keys()
    assert points(lines(clean)["baseline"]) == {1: 80}


def test_figure_3_falls_back_to_held_out_images(write_run: Write) -> None:
    looks = [{"test_accuracy": 0.5, "held_out_accuracy": 0.2}, {"test_accuracy": 0.6}]
    run = write_run({"baseline": {"epochs": looks}}, changes=["record.best_every=2", "record.held_out_examples=50"])
    clean, robust = plot("figure-3", [run]).axes
    assert points(lines(clean)["baseline"]) == {1: 50, 2: 60}
    assert points(lines(robust)["baseline"]) == {1: 20}
    assert "held-out" in robust.get_title()


def test_gains_are_paired_with_the_baseline_of_the_same_seed(write_run: Write, evaluated: Evaluated) -> None:
    def arm(clean: int, robust: int, **more: Any) -> dict[str, Any]:
        return {"evaluation": evaluated(clean, robust)} | more

    runs = [
        write_run({"baseline": arm(90, 40), "poe": arm(92, 42 + 2 * seed, rate=0.25)}, changes=[f"seed={seed}"])
        for seed in range(2)
    ]
    (axes,) = plot("gains", runs).axes
    attack = "PGD_20 ε=1/255"
    assert headings(axes) == ["on clean images", f"under {attack}"]
    assert [round(x) for _, x, _ in gained(axes)] == [2, 3]
    each = [sorted(points(line)) for line in axes.lines if line.get_marker() == "."]
    assert sorted(each)[-1] == pytest.approx([2, 4])
    assert row_names(axes) == ["1/L (0.25)"] * 2
    assert {line.get_color() for line in axes.lines} == {style.look("poe")[0]}


def test_gains_name_every_rate_of_an_arm(write_run: Write, evaluated: Evaluated) -> None:
    judged = {"evaluation": evaluated(90, 40)}
    runs = [
        write_run({"baseline": judged, "poe": judged | {"rate": rate}}, changes=[f"seed={seed}"])
        for seed, rate in enumerate((0.5, 0.125))
    ]
    (axes,) = plot("gains", runs).axes
    assert set(row_names(axes)) == {"1/L (0.125–0.5)"}


def test_the_summary_has_a_row_per_arm_and_experiment(write_run: Write, evaluated: Evaluated) -> None:
    def arms(clean: int, robust: int) -> dict[str, Any]:
        return {"baseline": {"evaluation": evaluated(90, 40)}, "poe": {"evaluation": evaluated(clean, robust)}}

    several = [write_run(arms(92, 42 + 2 * seed), changes=[f"seed={seed}"]) for seed in range(2)]
    objective = 'training.objective={kind="trades",beta=6.0}'
    one = write_run(arms(60, 35) | {"largest": {"problem": "blew up"}}, changes=[objective])
    robust, clean = plot("summary", [*several, one]).axes

    names = [label.get_text() for label in robust.get_yticklabels()]
    assert [name for name in names if name] == ["1/L (0.1)", "1/L (0.1)", "2/L (0.1)"]
    first, second, _ = (number for number, name in enumerate(names) if name)
    assert np.array(gained(robust)) == pytest.approx(np.array([(first, 3, True), (second, -5, False)]))
    assert np.array(gained(clean)) == pytest.approx(np.array([(first, 2, True), (second, -30, False)]))
    both = " ".join(headings(robust))
    assert both.index("2 seeds") < both.index("trades, 1 seed")
    (diverged,) = (text.get_text() for text in clean.texts if text.get_fontweight() != "bold")
    assert diverged == Effect.DIVERGED


def test_figure_4_has_the_share_of_epochs_per_batch_size(write_run: Write, descent: Descent) -> None:
    traces = {size: descent(12, noise=noise, seed=1) for size, noise in ((32, 0.3), (512, 0.0))}
    runs = [
        certified(write_run({"baseline": {"trace": trace}}, changes=[f"training.batch_size={size}"]))
        for size, trace in traces.items()
    ]
    (axes,) = plot("figure-4", runs).axes
    shares = points(lines(axes)["baseline"])
    assert shares == {size: 100 * acuteness(trace).fraction for size, trace in traces.items()}
    assert shares[512] == 100 > shares[32]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "512"]


def test_figure_4_draws_a_control_at_its_own_batch_size(write_run: Write, descent: Descent) -> None:
    arms = {"baseline": {"trace": descent(12)}, "batch": {"trace": descent(12), "batch_size": 64}}
    (axes,) = plot("figure-4", [certified(write_run(arms, changes=["training.batch_size=512"]))]).axes
    assert [set(points(line)) for line in lines(axes).values()] == [{512}, {64}]


def test_figure_5_shows_our_and_the_papers_estimates(write_run: Write, descent: Descent) -> None:
    trace = descent(164, noise=0.05)
    (estimate,) = from_trace(trace, "epochs").values()
    run = write_run({"baseline": {}}, changes=["name=figures-5-6"], estimates={"epochs": estimate})
    figure = plot("figure-5", [run])
    by_shape, ours, p_values, papers = figure.axes
    cells = estimate.details["heat_map"]
    best = np.argmax(cells["p_values"], axis=2)[:, :, None]
    expected = np.take_along_axis(np.array(cells["constants"]), best, axis=2)[:, :, 0]
    assert np.asarray(ours.collections[0].get_array()).ravel() == pytest.approx(expected.ravel())
    assert written(ours) == [f"{value:.3g}" for value in expected.ravel()]
    assert f"framed: L = {estimate.constant:.3g}" in figure.get_suptitle()
    chosen = cells["p_values"][cells["n_maxima"].index(estimate.details["M"])]
    assert written(by_shape) == [f"{value:.2f}" for row in chosen for value in row]
    assert written(p_values) == [f"{value:.2f}" for value in np.max(cells["p_values"], axis=2).ravel()]
    assert written(papers) == [f"{value:.3g}" for row in FIGURE_5["constants"] for value in row]
    assert [label.get_text() for label in ours.get_xticklabels()] == ["80", "100", "120", "150", "164"]
    (frame,) = ours.patches
    column, row = (
        cells[name].index(estimate.details[letter]) for name, letter in (("n_points", "N"), ("n_maxima", "M"))
    )
    assert (int(frame.get_x()), int(frame.get_y())) == (column, row)  # type: ignore[attr-defined]


def test_figure_6_has_a_row_per_pair_and_a_column_per_shape(write_run: Write, descent: Descent) -> None:
    run = write_run({"baseline": {}}, estimates=from_trace(descent(20, noise=0.05), "epochs"))
    constants, p_values = plot("figure-6", [run]).axes
    assert [label.get_text() for label in constants.get_xticklabels()] == ["0.1", "1", "5", "10", "20", "50", "100"]
    pairs = [label.get_text() for label in constants.get_yticklabels()]
    assert (pairs[0], pairs[-1]) == ("25, 10", "200, 20")
    assert len(written(constants)) == len(written(p_values)) == 7 * len(pairs)
    assert all(0 <= float(text) <= 1 for text in written(p_values))


def test_theorem_1_marks_the_steps_that_are_certified(write_run: Write, descent: Descent) -> None:
    trace = descent(30, noise=0.02, seed=3)
    run = write_run({"poe": {"trace": trace}, "largest": {"trace": trace}}, estimate=EDGE)
    one_dimension, _, network = plot("theorem-1", [run]).axes
    names = [line.get_label() for line in one_dimension.lines if not str(line.get_label()).startswith("_")]
    assert names == ["0.5/L", "1/L", "1.5/L", "2/L"]
    looks = {line.get_label(): line.get_color() for line in one_dimension.lines}
    assert {line.get_label(): line.get_color() for line in network.lines}["2/L"] == looks["2/L"] != looks["1/L"]
    curve, crosses = network.lines[:2]
    path = certify(trace)
    assert list(points(curve).values()) == pytest.approx(path.angles.cosines.tolist())
    assert np.array_equal(np.asarray(curve.get_markevery()), np.flatnonzero(path.certified))
    assert (crosses.get_marker(), len(points(crosses))) == ("x", (~path.certified).sum())


@pytest.mark.parametrize("name", FIGURES)
def test_svg_needs_no_estimator_is_self_contained_and_names_units(
    everything: list[RunFolder], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ESTIMATORS.values():
        monkeypatch.setattr(kind, "__call__", None)
    if name != "theorem-1":  # which shows every step
        for trace in tmp_path.rglob("*.safetensors"):
            trace.unlink()
    figure = plot(name, everything[:1] if name == "theorem-1" else everything)
    assert figure.axes
    text = style.svg(figure, name, FIGURES[name].title)
    root = ET.fromstring(text)  # noqa: S314
    assert root.get("aria-label") == FIGURES[name].title
    assert len(text) < 400_000
    letters = {element.text for element in root.iter() if element.tag.endswith("text")}
    for axes in figure.axes:
        for label in (axes.get_xlabel(), axes.get_ylabel()):
            assert not label or label in letters
            assert label in ("", "epoch") or "(" in label, f"{label} has no unit"
    for outside in ("http://matplotlib", "https://", "<image", "date>"):
        assert outside not in text


@pytest.mark.parametrize("name", ["figure-1", "figure-2", "gains"])
def test_files_are_identical_when_drawn_again(everything: list[RunFolder], tmp_path: Path, name: str) -> None:
    first = draw(name, everything, tmp_path / "once")
    again = draw(name, everything, tmp_path / "again")
    assert [path.name for path in first] == [f"{name}.svg", f"{name}.png", f"{name}.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert first[1].read_bytes().startswith(b"\x89PNG")


def test_ids_of_several_figures_do_not_collide(everything: list[RunFolder]) -> None:
    names = ("figure-1", "figure-2", "figure-4")
    texts = [style.svg(plot(name, everything), name, name) for name in names]
    ids = [identifier for text in texts for identifier in re.findall(r'\bid="([^"]+)"', text)]
    assert len(ids) == len(set(ids))
    used = [identifier for text in texts for identifier in re.findall(r'(?:href="#|url\(#)([^")]+)', text)]
    assert set(used) <= set(ids)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("figure-1", "excite estimate RUN --train"),
        ("figure-2", "excite sweep figure-2-relu-small"),
        ("figure-3", "record.attacked_examples=100"),
        ("figure-4", "excite sweep figure-4-small"),
        ("figure-5", "excite run figures-5-6-small"),
        ("figure-6", "excite run figures-5-6-small"),
        ("gains", "excite run mnist-sample"),
        ("summary", "excite run mnist-sample"),
        ("theorem-1", "excite run theorem-1"),
    ],
)
def test_names_what_the_runs_lack(write_run: Write, tmp_path: Path, name: str, cure: str) -> None:
    bare = write_run({"baseline": {"epochs": [{"test_accuracy": 0.5}]}})
    with pytest.raises(InputError, match=re.escape(cure)):
        draw(name, [bare], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_refuses_an_unknown_figure(everything: list[RunFolder], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="figure-7"):
        draw("figure-7", everything, tmp_path)


@pytest.mark.parametrize("name", ["figure-1", "figure-2"])
def test_draws_figures_of_a_real_run(small_run: RunFolder, tmp_path: Path, name: str) -> None:
    assert all(path.stat().st_size > 1000 for path in draw(name, collect([small_run.path]), tmp_path))


def test_the_command_draws_and_prints_the_paths(small_run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "pictures"
    result = CliRunner().invoke(cli, ["figure", "figure-3", str(small_run.path), "--out", str(out)])
    assert result.output.splitlines() == [str(out / f"figure-3.{kind}") for kind in ("svg", "png", "pdf")]
    assert isinstance(CliRunner().invoke(cli, ["figure", "figure-4", str(small_run.path)]).exception, InputError)
