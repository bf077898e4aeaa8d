"""The picture says where 1/L and 2/L are, and shows each run once."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from excite.lipschitz import LipschitzEstimate

EDGE = LipschitzEstimate(
    4.0,
    (3.0, 5.0),
    "edge",
    True,
    "a test",
    details={"rates": [0.1, 0.4, 0.8], "converged": [True, True, False], "curve": [(0.1, 0.99), (0.5, 0.5), (1, 0.1)]},
)


def test_the_lines_stand_at_the_rates(tmp_path: Path) -> None:
    axes = EDGE.plot()
    lines = {line.get_label(): np.asarray(line.get_xdata()).tolist() for line in axes.lines}
    assert lines["1/L"] == [0.25, 0.25]
    assert lines["2/L"] == [0.5, 0.5]
    assert (lines["converged"], lines["did not converge"]) == ([0.1, 0.4], [0.8])
    assert isinstance(axes.figure, Figure)
    axes.figure.savefig(tmp_path / "edge.png")
    assert (tmp_path / "edge.png").stat().st_size > 1000


def test_an_estimate_without_runs_on_axes_of_yours() -> None:
    axes = LipschitzEstimate(4.0, (0.0, 5.0), "stated", True, "a test").plot()
    assert LipschitzEstimate(2.0, (1.0, 5.0), "stated", True, "a test").plot(axes) is axes
    assert [line.get_label() for line in axes.lines] == ["1/L", "2/L"] * 2
