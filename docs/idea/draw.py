"""Draw idea.svg: gradient descent on ½·L·θ² at a rate below 1/L, between 1/L and 2/L, and above 2/L.

python docs/idea/draw.py
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

CURVATURE = 1.0  # L
CASES = (
    (0.5, "η = 0.5/L: straight to θ*, persistently excited", "#2a7f62"),
    (1.7, "η = 1.7/L: across θ* and back, still convergent", "#c98a1b"),
    (2.1, "η = 2.1/L: further away with every step", "#b5403a"),
)


def descend(rate: float, steps: int) -> np.ndarray:
    return np.array([(1 - rate * CURVATURE) ** step for step in range(steps)])


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "excite", "svg.fonttype": "path", "font.size": 9})
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    theta = np.linspace(-1.7, 1.7, 200)
    for axes, (rate, title, colour) in zip(figure.subplots(1, 3, sharey=True), CASES, strict=True):
        path = descend(rate, 6)
        axes.plot(theta, CURVATURE * theta**2 / 2, color="#9aa0a6", lw=1)
        axes.plot(path, CURVATURE * path**2 / 2, "o-", color=colour, ms=4, lw=1.2)
        axes.set(title=title, xlabel="θ − θ*", xticks=[-1, 0, 1], yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(Path(__file__).with_name("idea.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
