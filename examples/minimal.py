"""The paper in one file: train a baseline, find L, train at 1/L and 2/L, attack with PGD, print a table.

    python examples/minimal.py                       # about a minute on one core
    python examples/minimal.py --seeds 1 --epochs 2  # seconds, too short to mean anything

Gradient descent withstands disturbances while its learning rate is below 1/L, where L is the Lipschitz constant of the
loss gradient; it converges up to 2/L. The paper's claim: networks trained at 1/L or 2/L withstand adversarial attacks
better than a baseline. L comes from short trainings: if η* is the largest rate that converges reliably, then L = 2/η*.

This file needs torch and numpy; from excite it takes nothing but 5,000 MNIST images. The package does the same with
more care: it fits the probability of convergence, reports an interval, and says when L is not identified.
"""

import argparse
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.data import load

BASELINE_RATE = 0.1  # the customary rate
BATCH_SIZE = 100
AS_FAR = 0.9  # a training converges if its loss falls at least this share of the best fall
DRAWS = 3  # short trainings per rate; all of them must converge
PRECISION = 1.2  # the search stops when it knows the largest convergent rate within this factor
MARGIN = 1.5  # short trainings cannot see failures that come late, so η* is divided by this
EPS, STEP, STEPS = 0.1, 0.01, 40  # PGD: radius, step size, number of steps

digits = load("mnist-sample")  # replace by your own data: images in [0, 1] and class numbers
images, labels = digits.train.floats(), digits.train.labels
test_images, test_labels = digits.test.floats()[:500], digits.test.labels[:500]


# --- 1. Training ------------------------------------------------------------------------------------------------------


def new_model(seed: int) -> nn.Module:
    """A small convolutional network with random weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.Tanh(), nn.Conv2d(8, 16, 5, stride=2), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10)),
    )


def shape(progress: float) -> float:
    """The schedule's shape γᵏ/γ¹ as a function of progress from 0 to 1: constant, then a tenth in the last quarter."""
    return 1.0 if progress < 0.75 else 0.1


def train(model: nn.Module, first_rate: float, n_steps: int, seed: int) -> list[float]:
    """SGD with the rates ηᵏ = η¹ γᵏ/γ¹; returns the loss of every step, up to the first that is not finite."""
    optimizer = torch.optim.SGD(model.parameters(), lr=first_rate)
    order = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(n_steps):
        optimizer.param_groups[0]["lr"] = first_rate * shape(step / n_steps)
        batch = torch.randint(len(labels), (BATCH_SIZE,), generator=order)
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
    return losses


# --- 2. L, from short trainings ---------------------------------------------------------------------------------------


def fall(rate: float, n_steps: int, seed: int) -> float:
    """How far the loss falls in a short training: its first value minus the mean over the last quarter."""
    losses = train(new_model(seed), rate, n_steps, seed)
    if not math.isfinite(losses[-1]):
        return -math.inf
    return losses[0] - float(np.mean(losses[-n_steps // 4 :]))


def find_lipschitz(start: float, n_steps: int) -> float:
    """Double the rate until trainings fail, then bisect on a log scale; L = 2/η*.

    A rate converges if all of its trainings fall nine tenths as far as those at the best rate so far. Rates below the
    best one are only slower, so they count as convergent.
    """
    falls: dict[float, list[float]] = {}

    def converges(rate: float) -> bool:
        seeds = range(1000 + DRAWS * len(falls), 1000 + DRAWS * (len(falls) + 1))  # new weights and a new data order
        falls[rate] = [fall(rate, n_steps, seed) for seed in seeds]
        medians = {tried: float(np.median(each)) for tried, each in falls.items()}
        best = max(medians, key=lambda tried: medians[tried])
        verdict = rate < best or min(falls[rate]) >= AS_FAR * medians[best]
        print(f"  rate {rate:.3f}: {'converges' if verdict else 'fails'}")
        return verdict

    low, high = start, 2 * start  # the baseline's rate is assumed to converge
    while converges(high):
        low, high = high, 2 * high
    while high / low > PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if converges(middle) else (low, middle)
    return 2 / (low / MARGIN)


# --- 3. The attack ----------------------------------------------------------------------------------------------------


def pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Projected gradient ascent on the margin loss within the L∞ ball of radius ε, from a random start.

    The margin loss does not saturate. The cross-entropy does when a large rate has made the logits large, which looks
    like robustness.
    """
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    adversarial = (x + EPS * (2 * noise - 1)).clamp(0, 1)
    for _ in range(STEPS):
        adversarial.requires_grad_(True)
        logits = model(adversarial)
        right = logits.gather(1, y[:, None]).squeeze(1)
        best_wrong = logits.scatter(1, y[:, None], -math.inf).amax(1)
        (gradient,) = torch.autograd.grad((best_wrong - right).sum(), adversarial)
        moved = adversarial.detach() + STEP * gradient.sign()
        adversarial = torch.min(torch.max(moved, x - EPS), x + EPS).clamp(0, 1)
    return adversarial


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).float().mean())


# --- 4. The comparison ------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="trainings per arm")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    n_steps = options.epochs * len(labels) // BATCH_SIZE

    print("Short trainings:")
    lipschitz = find_lipschitz(BASELINE_RATE, max(n_steps // 5, 20))
    print(f"L = {lipschitz:.2f}\n")

    arms = {"baseline": BASELINE_RATE, "1/L": 1 / lipschitz, "2/L": 2 / lipschitz}
    print(f"{'arm':<10}{'rate':>7}{'clean %':>15}{'PGD %':>15}{'gain under PGD':>20}")
    baseline = np.zeros(options.seeds)
    for arm, rate in arms.items():
        clean, robust = np.zeros(options.seeds), np.zeros(options.seeds)
        for seed in range(options.seeds):
            model = new_model(seed)
            train(model, rate, n_steps, seed)
            model.eval().requires_grad_(False)
            clean[seed] = accuracy(model, test_images, test_labels)
            robust[seed] = accuracy(model, pgd(model, test_images, test_labels), test_labels)
        if arm == "baseline":
            baseline = robust
        gain = "" if arm == "baseline" else spread(robust - baseline, sign="+")  # paired by seed
        print(f"{arm:<10}{rate:>7.3f}{spread(clean):>15}{spread(robust):>15}{gain:>20}")
    print(f"\nMean ± standard deviation over {options.seeds} seeds, {len(test_labels)} test images, PGD at ε = {EPS}.")


def spread(values: np.ndarray, sign: str = "") -> str:
    deviation = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.1f}{deviation}"


if __name__ == "__main__":
    main()
