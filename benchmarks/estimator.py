"""How much faster is the estimator than a direct implementation, and how much does recording cost?

python benchmarks/estimator.py            all three parts, a few minutes
python benchmarks/estimator.py heat-map   one of: heat-map, recording, memory
"""

import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from excite import models
from excite.lipschitz.algorithm_1 import PAPER_MAXIMA, PAPER_SHAPES, Epochs, secant_maxima, secants
from excite.trace import Recorder, Trace
from excite.trace.moments import Moments

EPOCHS, PARAMETERS = 164, 272_474  # ResNet-20 on CIFAR-10
POINTS = (80, 100, 120, 150, 164)
Vectors = NDArray[np.float32]


def heat_map_ratio() -> None:
    """Time the paper's whole heat map from a finished trace, and from the vectors."""
    rng = np.random.default_rng(0)
    parameters = rng.normal(size=(EPOCHS, PARAMETERS)).astype(np.float32).cumsum(axis=0)
    gradients = rng.normal(size=(EPOCHS, PARAMETERS)).astype(np.float32) * rng.random((EPOCHS, 1), dtype=np.float32)
    trace = _trace(gradients, parameters)
    Epochs(n_maxima=3, initial_shapes=(1.0,)).heat_map(secant_maxima(secants(trace)), (2,))  # imports
    started = time.perf_counter()
    Epochs().heat_map(secant_maxima(secants(trace)), POINTS)
    ours = time.perf_counter() - started
    plain = _plain_seconds(gradients, parameters, rng)
    print(f"5×5 (M, N) × 7 shapes, T = {EPOCHS}: ours {ours:.2f} s, directly {plain:.0f} s: {plain / ours:.0f}×")


def _plain_seconds(gradients: Vectors, parameters: Vectors, rng: np.random.Generator) -> float:
    """Time one block of each N and one fit of each M and shape, and extrapolate to all of them.

    In favor of the direct way, one set of blocks is used for all seven shapes.
    """
    from scipy.optimize import fmin
    from scipy.stats import kstest, weibull_min

    blocks = fits = 0.0
    maxima = []
    for n in POINTS:
        started = time.perf_counter()
        chosen = rng.choice(EPOCHS, n, replace=False)
        slopes = []
        for i, j in zip(chosen[0::2], chosen[1::2], strict=True):
            rise = np.linalg.norm(gradients[i] - gradients[j])
            slopes.append(rise / np.linalg.norm(parameters[i] - parameters[j]))
        maxima.append(max(slopes))
        blocks += (time.perf_counter() - started) * sum(PAPER_MAXIMA)
    draw = secant_maxima(secants(_trace(gradients, parameters)))
    for m in PAPER_MAXIMA:
        sample = draw(m, POINTS[0], rng)
        for shape in PAPER_SHAPES:
            started = time.perf_counter()
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                fitted = weibull_min.fit(-sample, shape, optimizer=fmin)
                kstest(-sample, "weibull_min", args=fitted)
            fits += (time.perf_counter() - started) * len(POINTS)
    print(f"directly: {blocks:.0f} s of slopes, {fits:.0f} s of fits")
    return blocks + fits


def _trace(gradients: Vectors, parameters: Vectors) -> Trace:
    """Distances from Gram matrices; accurate enough for vectors this far apart."""
    distances = []
    for vectors in (np.concatenate([0 * gradients[:1], gradients]), np.concatenate([parameters[:1], parameters])):
        gram = vectors @ vectors.T
        squared = np.diagonal(gram)[:, None] + np.diagonal(gram) - 2 * gram
        distances.append(np.maximum(squared, 0).astype(np.float64))
    return Trace(distances[0], distances[1], steps=np.arange(EPOCHS), facts={"gradient": "probe"})


def recording_ratio() -> None:
    """Time record() on ResNet-20 with 512 probe images, as a share of an epoch of CIFAR-10."""
    torch.manual_seed(0)
    model = models.create("resnet20").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.rand(512, 3, 32, 32).to(memory_format=torch.channels_last), torch.randint(0, 10, (512,))

    def step(index: int) -> None:
        images, labels = x[index * 128 : (index + 1) * 128], y[index * 128 : (index + 1) * 128]
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    model.train()
    step(0)
    started = time.perf_counter()
    for repeat in range(8):
        step(repeat % 4)
    epoch = (time.perf_counter() - started) / 8 * 50_000 / 128
    recorder = Recorder(model, probe=(x, y), gradient="probe", slopes_per_epoch=0)
    curved = Recorder(
        model, probe=(x, y), gradient="probe", slopes_per_epoch=0, curvature_every=1, curvature_iterations=4
    )
    recorder.record()
    plain = _seconds(recorder.record)
    curvature = (_seconds(curved.record) - plain) * 12 / 4  # 4 of 12 iterations are timed
    moments = Moments("late", None)
    for _ in range(82):  # half of the paper's run, for the average cost of a record
        moments.append(torch.randn(PARAMETERS))
    late = 2 * _seconds(lambda: moments.append(torch.randn(PARAMETERS)))
    print(f"an epoch of CIFAR-10: {epoch:.0f} s; record(): {plain + late:.2f} s, {late:.2f} s of it distances")
    print(f"record() costs {(plain + late) / epoch:.1%} of an epoch (goal: at most 3%)")
    tenth = (plain + late + curvature / 10) / epoch
    print(f"with curvature at every tenth epoch {tenth:.1%} (goal: at most 8%); one curvature {curvature:.1f} s")


def _seconds(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def sketch_memory() -> None:
    """Memory of a Recorder beyond WRN-34-10 with its gradients and momenta."""
    model = models.create("wrn-34-10")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    before = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    recorder = Recorder(model, optimizer, steps_per_epoch=2, slopes_per_epoch=1)
    for _ in range(3):
        started = time.perf_counter()
        optimizer.step()
        optimizer.step()
        recorder.record()
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = sum(parameter.numel() for parameter in model.parameters())
    vectors = 75 * 2 * size * 4
    print(
        f"WRN-34-10, {recorder.trace.facts['storage']}: {(peak - before) / 2**20:.0f} MB beyond the model (goal: 100)"
    )
    print(f"stored vectors of 75 epochs: {vectors / 2**30:.1f} GB; two recorded steps and record(): {seconds:.2f} s")


PARTS = {"heat-map": heat_map_ratio, "recording": recording_ratio, "memory": sketch_memory}

if __name__ == "__main__":
    for part in sys.argv[1:] or ["memory", "recording", "heat-map"]:
        PARTS[part]()
