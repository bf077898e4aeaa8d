"""What runs on a GPU, run on a pretended one: nothing mixes devices, and results are those of the processor."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import excite
from excite import data, models, precision
from excite.attacks import ATTACKS, Attack, create, fast_inference
from excite.data.augment import AUGMENTATIONS
from excite.data.batches import epoch_batches
from excite.excitation import certificate, gramian, simulate
from excite.lipschitz.online import OnlineRate
from excite.objectives import OBJECTIVES, Objective, standard_loss
from excite.randomness import accelerator
from excite.registry import build
from excite.schedules import constant
from excite.trace import Recorder
from excite.training import checkpoints, descend, train
from tests.objectives.test_every_objective import KINDS
from tests.pretend_gpu import PretendTensor, pretended_gpu

CPU = torch.device("cpu")


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with pretended_gpu() as device:
        yield device


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device without float64."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("pretend",))
    with pretended_gpu(float64=False) as device:
        yield device


@pytest.fixture(scope="module")
def digits() -> data.Split:
    return data.load("mnist-sample").train.subset(64)


def network(device: torch.device) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 5, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)]
        return nn.Sequential(*layers, nn.Linear(4 * 144, 10)).to(device)


def signal(device: torch.device) -> Tensor:
    return torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).to(device)


PLANTED: dict[str, Callable[[Tensor], object]] = {
    "an operand on the CPU": lambda x: x + torch.ones(20, 3),
    "a product with a matrix on the CPU": lambda x: x @ torch.eye(3),
    "an operand in place": lambda x: x.mul_(torch.ones(20, 3)),
    "concatenation": lambda x: torch.cat([x, torch.ones(1, 3)]),
    "an image on the CPU in the loop": lambda x: nn.Linear(3, 1).to(x.device)(torch.ones(1, 3)),
    "a weight on the CPU": nn.Linear(3, 1),
    "indices on the GPU": lambda x: torch.ones(20)[x[:, 0].argsort()],
    "a generator of the CPU": lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
    "NumPy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(gpu: torch.device, mistake: str) -> None:
    with pytest.raises(RuntimeError, match=r"on one device|on the CPU|generator|numpy"):
        PLANTED[mistake](signal(gpu))


def test_what_a_gpu_allows_is_allowed(gpu: torch.device) -> None:
    x = signal(gpu)
    for allowed in (x * torch.tensor(2.0), x[torch.tensor([0, 1])], torch.zeros(20, 3).copy_(x), x.new_zeros(3) + x):
        assert allowed.isfinite().all()
    assert isinstance(torch.tensor([1.0], device=gpu), PretendTensor)


def test_the_device_is_gone_afterwards() -> None:
    with pretended_gpu():
        pass
    assert accelerator().type != "pretend"


def test_a_planted_float64_is_found(mps: torch.device) -> None:
    for mistake in (lambda x: x.double(), lambda x: torch.zeros(3, dtype=torch.float64, device=x.device)):
        with pytest.raises(TypeError, match="float64"):
            mistake(signal(mps))


def trained(
    device: torch.device, split: data.Split, objective: Objective, folder: Path, **options: Any
) -> tuple[nn.Module, Recorder]:
    """Two epochs, resumed after the first, with everything that a recorder can measure."""
    for epochs in (1, 2):
        model = network(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        recorder = Recorder(
            model,
            optimizer,
            probe=split.probe(32, 16),
            objective=objective,
            slopes_per_epoch=2,
            steps_per_epoch=4,
            curvature_every=2,
            batch_size=16,
            **options,
        )
        torch.manual_seed(1)
        usual: dict[str, Any] = {"batch_size": 16, "augment": AUGMENTATIONS["crop-flip-jitter-rotate"]}
        train(
            model, split, objective, optimizer, constant(0.05), epochs=epochs, folder=folder, recorder=recorder, **usual
        )
    return model, recorder


SKETCHED = {"storage": "sketch", "gradient": "probe", "input_gradients": True}


@pytest.mark.parametrize(
    ("kind", "options"), [*((kind, {}) for kind in KINDS), *((kind, SKETCHED) for kind in ("standard", "trades"))]
)
def test_training_recording_and_resuming(
    gpu: torch.device, digits: data.Split, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    objective = build("objective", OBJECTIVES, kind, KINDS[kind])
    (here, recorder), (there, on_gpu) = (
        trained(device, digits, objective, tmp_path / device.type, **options) for device in (CPU, gpu)
    )
    for name, value in here.state_dict().items():
        assert torch.equal(value, there.state_dict()[name].cpu()), name
    assert recorder.problems == on_gpu.problems == ()
    assert len(on_gpu.trace.slopes) == 4
    assert on_gpu.trace.slopes.tolist() == recorder.trace.slopes.tolist()
    np.testing.assert_allclose(on_gpu.trace.curvatures, recorder.trace.curvatures, rtol=1e-5)  # sums in another order
    moved = checkpoints.load_model(tmp_path / "pretend", network(CPU))
    assert torch.equal(moved.state_dict()["0.weight"], here.state_dict()["0.weight"])


def test_a_training_in_parts_with_an_average(gpu: torch.device, digits: data.Split) -> None:
    model = network(gpu)
    optimizer, averaged = torch.optim.SGD(model.parameters(), lr=0.05), AveragedModel(model)
    recorder = Recorder(model, optimizer, slopes_per_epoch=2, steps_per_epoch=4)
    options: dict[str, Any] = {"accumulate": 4, "averaged": averaged, "recorder": recorder}
    train(model, digits, standard_loss, optimizer, constant(0.05), epochs=1, batch_size=16, **options)
    assert all(isinstance(parameter, PretendTensor) for parameter in averaged.parameters())


def test_the_rate_is_found_during_the_training(gpu: torch.device, digits: data.Split, tmp_path: Path) -> None:
    rates = []
    for device in (CPU, gpu):
        model = network(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        online = OnlineRate(model, optimizer, steps=80, rung=5)
        schedule, folder = online.follow(constant(0.05)), tmp_path / device.type
        torch.manual_seed(0)
        train(model, digits, standard_loss, optimizer, schedule, epochs=20, batch_size=16, online=online, folder=folder)
        rates.append(online.rate)
    assert rates[0] == rates[1]


def test_a_rate_is_found_for_a_loader(gpu: torch.device, digits: data.Split) -> None:
    loader = DataLoader(TensorDataset(*digits.probe(64, 64)), batch_size=16)
    estimates = []
    for device in (CPU, gpu):
        model = network(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(0)
        estimates.append(excite.find_learning_rate(model, loader, nn.functional.cross_entropy, optimizer, budget=60))
    assert estimates[0].constant == estimates[1].constant


def created(name: str, norm: str) -> Attack:
    short = {} if name in ("pgd", "fgsm", "square") else {"steps" if name == "fmn" else "iterations": 3}
    short |= {"queries": 20} if name in ("square", "autoattack") else {}
    return create(name, eps=[0.05, 0.1] if name == "pgd" else 0.1, norm=norm, **short)


@pytest.mark.parametrize(
    ("name", "norm"),
    [*((name, "linf") for name in ATTACKS), *((name, "l2") for name in ("pgd", "apgd-t", "fab", "square"))],
)
def test_evaluations(gpu: torch.device, digits: data.Split, name: str, norm: str) -> None:
    attack = created(name, norm)
    x, y = digits.probe(12, 12)
    options: dict[str, Any] = {"batch_size": 8, "checks": name == "pgd"}
    found = [excite.evaluate(network(device).eval(), x, y, {"attack": attack}, **options) for device in (CPU, gpu)]
    assert found[0].outcomes("attack").tolist() == found[1].outcomes("attack").tolist()
    assert [flag.name for flag in found[0].flags] == [flag.name for flag in found[1].flags]


def test_images_may_be_on_either_device(gpu: torch.device, digits: data.Split) -> None:
    x, y = digits.probe(8, 8)
    model = network(gpu).eval()
    found = [
        excite.evaluate(model, images, labels, "fgsm", eps=0.1) for images, labels in ((x, y), (x.to(gpu), y.to(gpu)))
    ]
    assert found[0].worst.correct == found[1].worst.correct


@pytest.mark.parametrize("name", ["lenet5", "resnet8", "densenet40", "wrn-16-4"])  # others have the same layers
def test_models_and_their_fast_copies(gpu: torch.device, name: str) -> None:
    shape = (1, 28, 28) if name == "lenet5" else (3, 32, 32)
    model = models.create(name, input_shape=shape).to(gpu)
    images = torch.rand(4, *shape).to(gpu)
    model(images).sum().backward()
    with torch.no_grad():
        assert isinstance(fast_inference(model.eval())(images), PretendTensor)


def numbers(device: torch.device) -> list[object]:
    points = [torch.tensor(values).to(device) for values in ([2.0, 1.0], [1.0, 0.8], [0.0, 0.0])]
    held = certificate(*points)
    return [
        gramian(signal(device), 5.0).rate,
        simulate(signal(device), points[0].new_ones(3)).cpu().tolist(),
        held.residual,
        held.contract(points[0]).cpu().tolist(),
    ]


def test_gramians_and_certificates(gpu: torch.device) -> None:
    assert numbers(gpu) == numbers(CPU)


def test_gramians_and_certificates_without_float64(mps: torch.device) -> None:
    assert numbers(mps) == numbers(CPU)


def test_training_and_attacks_without_float64(mps: torch.device, digits: data.Split, tmp_path: Path) -> None:
    objective = build("objective", OBJECTIVES, "pgd_at", KINDS["pgd_at"])
    model, recorder = trained(mps, digits, objective, tmp_path, storage="sketch")
    assert recorder.problems == ()
    x, y = digits.probe(8, 8)
    for name, norm in itertools.product(("pgd", "apgd-ce", "apgd-t", "square"), ("linf", "l2")):
        excite.evaluate(model.eval(), x, y, {"attack": created(name, norm)}, checks=name == "pgd")


def test_batches_are_copied_while_the_host_goes_on(digits: data.Split) -> None:
    copies: list[bool] = []
    with pretended_gpu(copies=copies) as gpu:
        batches = epoch_batches(digits, batch_size=16, seed=0, epoch=0, device=gpu)
        assert all(isinstance(part, PretendTensor) for batch in batches for part in batch)
        assert copies == [True] * 8
        copies.clear()
        inside = list(epoch_batches(digits.to(gpu), batch_size=16, seed=0, epoch=0, device=gpu))
        assert isinstance(inside[0][0], PretendTensor)
        assert copies == [False] * 3  # images, labels, order


def test_a_loop_of_ones_own(gpu: torch.device, digits: data.Split) -> None:
    model = network(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = (part.to(gpu) for part in digits.probe(16, 16))
    assert len(list(descend(model, [(x, y)] * 3, standard_loss, optimizer))) == 3
