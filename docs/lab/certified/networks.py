"""The networks that the certified L was tuned on, and those that judge it: model, data, optimizer, schedule, length.

The judging networks were named here before any of them was trained.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.optim import SGD, AdamW, Optimizer

import excite
from excite.randomness import derive_seed

Schedule = Callable[[float], float]  # from the share of a training that is done to a factor of the rate


def constant(_done: float) -> float:
    return 1.0


def cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def step(done: float) -> float:
    """Divides the rate by 10 at half and at three quarters of the training, as the paper's CIFAR schedule does."""
    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


def exponential(done: float) -> float:
    """Divides the rate by 100 in the course of the training."""
    return 100.0**-done


@dataclass(frozen=True)
class Network:
    model: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    optimizer: Callable[[list[nn.Parameter], float], Optimizer]
    steps: int  # of a whole training
    batch: int = 64
    schedule: Schedule = constant
    start: float = 0.1  # where a search begins

    def losses(self, rate: float, draw: int, *, schedule: Schedule = constant) -> Iterator[float]:
        """Train without end; another draw has other initial weights and another data order."""
        torch.manual_seed(derive_seed(20261118, draw))
        x, y = self.data()
        model = self.model().train()
        if x.ndim == 4:
            model = model.to(memory_format=torch.channels_last)
        optimizer = self.optimizer(list(model.parameters()), rate)
        rng = torch.Generator().manual_seed(derive_seed(7, draw))
        taken = 0
        while True:
            order = torch.randperm(len(y), generator=rng)
            for batch in order[: len(y) // self.batch * self.batch].split(self.batch):
                for group in optimizer.param_groups:
                    group["lr"] = rate * schedule(taken / self.steps)
                optimizer.zero_grad()
                loss = cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                optimizer.step()
                taken += 1
                yield loss.item()

    def whole(self, rate: float, draw: int) -> list[float]:
        """The losses of a whole training; it ends early where the loss is not finite."""
        losses: list[float] = []
        for loss in self.losses(rate, draw, schedule=self.schedule):
            losses.append(loss)
            if len(losses) == self.steps or not math.isfinite(loss):
                return losses
        raise AssertionError


def sgd(momentum: float = 0.0, weight_decay: float = 0.0, *, nesterov: bool = False):
    return lambda params, rate: SGD(params, lr=rate, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)


def adamw(params: list[nn.Parameter], rate: float) -> Optimizer:
    return AdamW(params, lr=rate)


@cache
def images(name: str, count: int) -> tuple[Tensor, Tensor]:
    split = excite.data.load(name).train.subset(count, seed=0)
    return split.images.float() / 255, split.labels.long()


@cache
def diamonds() -> tuple[Tensor, Tensor]:
    """The cut of 53,940 diamonds (five classes) from seven measurements; the table ships with plotnine."""
    from plotnine.data import diamonds as table

    x = torch.tensor(table[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(), dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor(table["cut"].cat.codes.to_numpy(), dtype=torch.long)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1,797 handwritten digits as a table of 64 columns; the table ships with scikit-learn."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    table = torch.tensor(x, dtype=torch.float32)
    return (table - table.mean(0)) / (table.std(0) + 1e-6), torch.tensor(y)


@cache
def marriages() -> tuple[Tensor, Tensor]:
    """Who of 6,366 women had an affair, from eight answers; the table ships with statsmodels. Mostly noise."""
    from statsmodels.datasets import fair

    table = fair.load_pandas().data
    x = torch.tensor(table.drop(columns="affairs").to_numpy(), dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor((table["affairs"] > 0).to_numpy(), dtype=torch.long)


@cache
def votes() -> tuple[Tensor, Tensor]:
    """Whom 944 Americans voted for in 1996, from nine answers; the table ships with statsmodels."""
    from statsmodels.datasets import anes96

    table = anes96.load_pandas().data
    x = torch.tensor(table.drop(columns=["vote", "popul"]).iloc[:, :9].to_numpy(), dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor(table["vote"].to_numpy(), dtype=torch.long)


@cache
def travel() -> tuple[Tensor, Tensor]:
    """Which of four means of transport 210 travelers chose, one row for each; the table ships with statsmodels."""
    from statsmodels.datasets import modechoice

    table = modechoice.load_pandas().data
    x = torch.tensor(table[["ttme", "invc", "invt", "gc", "hinc", "psize"]].to_numpy(), dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor(table["choice"].to_numpy(), dtype=torch.long)


@cache
def doctor() -> tuple[Tensor, Tensor]:
    """Whether 20,190 people saw a doctor, from nine columns of insurance data; the table ships with statsmodels."""
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    x = torch.tensor(table.drop(columns="mdvis").to_numpy(), dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0), torch.tensor((table["mdvis"] > 0).to_numpy(), dtype=torch.long)


@cache
def tumours() -> tuple[Tensor, Tensor]:
    """The Wisconsin breast-cancer table that ships with scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    table = torch.tensor(x, dtype=torch.float32)
    return (table - table.mean(0)) / table.std(0), torch.tensor(y)


def perceptron(widths: list[int], activation: type[nn.Module], *, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), *([nn.BatchNorm1d(after)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


def lenet(activation: str) -> nn.Module:
    return excite.models.create("lenet5", input_shape=(1, 28, 28), activation=activation)


def small(name: str, **options: object) -> nn.Module:
    return excite.models.create(name, input_shape=(1, 14, 14), **options)


class PlainConvNet(nn.Sequential):
    """Convolutions without any normalisation; the stride is 2 where the width changes."""

    def __init__(self, widths: tuple[int, ...] = (16, 16, 32, 32, 48, 48)) -> None:
        layers: list[nn.Module] = []
        for before, after in pairwise((1, *widths)):
            layers += [nn.Conv2d(before, after, 3, stride=2 if before != after and before > 1 else 1, padding=1)]
            layers += [nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


class RowTransformer(nn.Module):
    """Reads an image row by row: two pre-norm encoder layers of width 64."""

    def __init__(self, rows: int = 28, columns: int = 28, patch: int = 1) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(columns * patch, 64)
        self.place = nn.Parameter(0.02 * torch.randn(rows // patch, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(len(x), -1, self.embed.in_features)
        return self.head(self.encoder(self.embed(tokens) + self.place).mean(1))


class VisionTransformer(nn.Module):
    """Sixteen patches of a 14×14 image, padded to 16×16; three post-norm encoder layers of width 48."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 48, 4, stride=4, padding=1)
        self.place = nn.Parameter(0.02 * torch.randn(16, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.encoder(tokens).mean(1))


def mnist() -> tuple[Tensor, Tensor]:
    return images("mnist-sample", 5000)


def fashion() -> tuple[Tensor, Tensor]:
    return images("fashion-mnist", 5000)


@cache
def halved(data: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Images of half the size, for networks that would be too slow on whole ones here."""
    x, y = data()
    return avg_pool2d(x, 2).contiguous(memory_format=torch.channels_last), y


@cache
def quartered(data: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Images of 8×8 pixels."""
    x, y = data()
    return avg_pool2d(x, 4, padding=2).contiguous(memory_format=torch.channels_last), y


TUNING = {
    "lenet-relu": Network(lambda: lenet("relu"), mnist, sgd(), 1560),
    "lenet-tanh-momentum": Network(lambda: lenet("tanh"), mnist, sgd(0.9), 780),
    "lenet-large-batch": Network(lambda: lenet("relu"), mnist, sgd(), 200, batch=1000),
    "perceptron-tanh-adamw": Network(lambda: perceptron([784, 128, 128, 10], nn.Tanh), mnist, adamw, 780, start=0.001),
    "perceptron-eight-layers": Network(
        lambda: perceptron([784, *[100] * 7, 10], nn.ReLU), mnist, sgd(0.9), 1560, schedule=cosine
    ),
    "perceptron-batch-norm": Network(
        lambda: perceptron([784, 128, 128, 10], nn.ReLU, norm=True), fashion, sgd(0.9), 780, schedule=step
    ),
    "perceptron-relu-momentum": Network(lambda: perceptron([784, 128, 128, 10], nn.ReLU), fashion, sgd(0.9), 1560),
    "tabular-tumours": Network(
        lambda: perceptron([30, 64, 64, 2], nn.ReLU), tumours, adamw, 510, batch=32, schedule=cosine, start=0.001
    ),
    "patches-transformer": Network(lambda: RowTransformer(patch=4), mnist, adamw, 780, schedule=cosine, start=0.001),
    "resnet8": Network(lambda: small("resnet8"), lambda: halved(fashion), sgd(0.9, 1e-4), 480, batch=32, schedule=step),
    "resnet8-plain": Network(
        lambda: small("resnet8", batch_norm=False), lambda: halved(fashion), sgd(0.9), 640, batch=32, schedule=cosine
    ),
}

# Judged with earlier rules. What each showed: resnet20, that the rule was too careful; plain-conv, that it gave up too
# early; lenet-batch-500, that runs of 60 steps say nothing where the length of a plateau is luck; tabular-marriages,
# that a loss which cannot fall by 30% is not a sign of short runs; the fourth group, that thresholds drift with length.
JUDGED_BEFORE = {
    "resnet20": Network(lambda: small("resnet20"), lambda: halved(mnist), sgd(0.9, 1e-4), 480, batch=32, schedule=step),
    "densenet40": Network(
        lambda: small("densenet40"), lambda: halved(mnist), sgd(0.9, 1e-4), 320, batch=32, schedule=step
    ),
    "plain-conv": Network(PlainConvNet, fashion, sgd(0.9), 780),
    "tabular-diamonds": Network(
        lambda: perceptron([7, 128, 128, 5], nn.ReLU), diamonds, adamw, 1260, batch=128, start=0.001
    ),
    "row-transformer": Network(RowTransformer, fashion, adamw, 780, start=0.001),
    "lenet-cosine-nesterov": Network(
        lambda: lenet("tanh"), fashion, sgd(0.9, 5e-4, nesterov=True), 1170, schedule=cosine
    ),
    "four-convolutions": Network(
        lambda: PlainConvNet(widths=(16, 32, 32, 64)), lambda: halved(mnist), sgd(0.9), 1170, batch=64, schedule=cosine
    ),
    "tabular-digits": Network(
        lambda: perceptron([64, 128, 128, 10], nn.ReLU), digits, adamw, 1120, batch=32, start=0.001
    ),
    "lenet-batch-500": Network(lambda: lenet("relu"), fashion, sgd(0.9), 300, batch=500),
    "perceptron-six-layers": Network(
        lambda: perceptron([784, *[128] * 5, 10], nn.Tanh), fashion, sgd(), 1560, schedule=exponential
    ),
    "perceptron-dropout": Network(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)),
        mnist,
        sgd(0.9, 5e-4, nesterov=True),
        780,
        schedule=cosine,
    ),
    "tabular-marriages": Network(
        lambda: perceptron([8, 64, 64, 2], nn.ReLU), marriages, adamw, 1000, batch=64, start=0.001
    ),
    # The fourth group: runs of 60 steps were too short on resnet20-fashion and perceptron-layer-norm.
    "resnet20-fashion": Network(
        lambda: small("resnet20"), lambda: halved(fashion), sgd(0.9, 1e-4), 1640, batch=16, schedule=step
    ),
    "densenet40-mnist": Network(
        lambda: excite.models.create("densenet40", input_shape=(1, 8, 8)),
        lambda: quartered(mnist),
        sgd(0.9, 1e-4),
        1640,
        batch=16,
        schedule=step,
    ),
    "vision-transformer": Network(
        VisionTransformer, lambda: halved(fashion), adamw, 1170, schedule=cosine, start=0.001
    ),
    "three-convolutions": Network(
        lambda: PlainConvNet(widths=(8, 16, 32)), lambda: halved(fashion), sgd(0.9), 1560, batch=32, schedule=step
    ),
    "tabular-votes": Network(lambda: perceptron([9, 64, 64, 2], nn.ReLU), votes, adamw, 900, batch=32, start=0.001),
    "lenet-batch-250": Network(lambda: lenet("tanh"), mnist, sgd(0.9), 400, batch=250, schedule=cosine),
    "perceptron-layer-norm": Network(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)),
        fashion,
        adamw,
        1560,
        batch=32,
        schedule=cosine,
        start=0.001,
    ),
    "perceptron-plain-descent": Network(
        lambda: perceptron([784, 256, 128, 10], nn.Tanh), fashion, sgd(), 1560, schedule=exponential
    ),
    # The fifth group: estimates were up to 2.7 times apart.
    "lenet-batch-128": Network(lambda: lenet("relu"), fashion, sgd(0.9), 780, batch=128),
    "perceptron-tanh-batch-norm": Network(
        lambda: perceptron([784, 128, 64, 10], nn.Tanh, norm=True), mnist, sgd(0.9), 1170, schedule=cosine
    ),
    "tabular-travel": Network(lambda: perceptron([6, 64, 64, 2], nn.ReLU), travel, adamw, 800, batch=32, start=0.001),
    "row-transformer-steps": Network(
        lambda: RowTransformer(14, 14), lambda: halved(mnist), adamw, 800, batch=32, schedule=step, start=0.001
    ),
    "resnet20-mnist": Network(
        lambda: excite.models.create("resnet20", input_shape=(1, 8, 8)),
        lambda: quartered(mnist),
        sgd(0.9, 1e-4),
        1000,
        batch=16,
        schedule=step,
    ),
}

# Named before any of them was trained. The first two were named with the fifth group.
JUDGING = {
    "four-convolutions-exponential": Network(
        lambda: PlainConvNet(widths=(8, 16, 16, 32)),
        lambda: halved(mnist),
        sgd(0.9),
        1170,
        batch=32,
        schedule=exponential,
    ),
    "densenet40-fashion": Network(
        lambda: excite.models.create("densenet40", input_shape=(1, 8, 8)),
        lambda: quartered(fashion),
        sgd(0.9, 1e-4),
        1000,
        batch=16,
        schedule=cosine,
    ),
    "resnet20-cosine": Network(
        lambda: excite.models.create("resnet20", input_shape=(1, 8, 8)),
        lambda: quartered(fashion),
        sgd(0.9, 5e-4, nesterov=True),
        1000,
        batch=16,
        schedule=cosine,
    ),
    "tabular-doctor": Network(lambda: perceptron([9, 64, 64, 2], nn.Tanh), doctor, adamw, 1250, batch=64, start=0.001),
    "vision-transformer-constant": Network(VisionTransformer, lambda: halved(mnist), adamw, 1000, start=0.001),
    "lenet-batch-400": Network(lambda: lenet("relu"), mnist, sgd(0.9), 480, batch=400, schedule=cosine),
    "perceptron-wide": Network(
        lambda: perceptron([784, 400, 10], nn.ReLU), fashion, sgd(0.9, 5e-4), 1170, schedule=step
    ),
}
