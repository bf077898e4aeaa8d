"""The callback in a real Lightning training, on a CPU: the rate becomes 1/L, training is otherwise as without it."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from excite import OnlineRate
from excite.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and missing loggers
lightning = pytest.importorskip("lightning.pytorch")

import torchmetrics  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.utilities import CombinedLoader  # noqa: E402

from excite.integrations.lightning import OnlineRateCallback, PoECallback  # noqa: E402

FIND = {"budget": 200, "steps": 20}


class Module(lightning.LightningModule):  # type: ignore[name-defined]
    def __init__(self, lr: float = 0.1, schedule: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr, self.schedule = lr, schedule
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return {"loss": loss}

    def on_train_epoch_start(self) -> None:
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.5)
        return ([optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]) if self.schedule else optimizer


def loader() -> DataLoader[Any]:
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16, shuffle=True)


def fit(
    module: Any,
    *callbacks: Any,
    data: Any = None,
    epochs: int = 4,
    logger: Any = False,
    resume: Path | None = None,
    **options: Any,
) -> lightning.Trainer:  # type: ignore[name-defined]
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    trainer.fit(module, loader() if data is None else data, ckpt_path=resume, weights_only=False if resume else None)
    return trainer


def test_the_rate_is_one_over_l_and_the_schedule_keeps_its_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, callback = Module(), PoECallback(find=FIND)
    fit(module, callback, logger=CSVLogger(tmp_path))
    assert callback.estimate is not None
    first = callback.estimate.learning_rate()
    assert module.rates == pytest.approx([first, first, first / 2, first / 2])
    assert callback.trace is not None
    assert len(callback.trace) == 4
    (metrics,) = tmp_path.rglob("metrics.csv")
    header = metrics.read_text().splitlines()[0].split(",")
    assert {"excite/L", "excite/acuteness", "excite/certified", "loss_epoch"} <= {*header}


def test_two_over_l_without_a_scheduler() -> None:
    module, callback = Module(schedule=False), PoECallback(2, find=FIND, record=False)
    fit(module, callback, epochs=1)
    assert callback.estimate is not None
    assert module.rates == [pytest.approx(callback.estimate.learning_rate(2))]
    assert callback.trace is None


def test_training_is_as_without_the_callback_at_that_rate() -> None:
    torch.manual_seed(0)
    watched, callback = Module(), PoECallback(find=FIND)
    fit(watched, callback, epochs=2)
    assert callback.estimate is not None
    torch.manual_seed(0)
    plain = Module(lr=callback.estimate.learning_rate())
    fit(plain, epochs=2)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(watched.state_dict()[name], value, rtol=1e-4, atol=1e-6)


class Seen(Module):
    """Notes what it is trained on; `batch` may be several loaders' batches."""

    def __init__(self) -> None:
        super().__init__(schedule=False)
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        batches = batch.values() if isinstance(batch, dict) else [batch]
        return {"loss": torch.stack([cross_entropy(self.net(inputs), labels) for inputs, labels in batches]).sum()}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        batches = batch.values() if isinstance(batch, dict) else [batch]
        self.seen.append([inputs[:, 0].tolist() for inputs, _ in batches])


def own_order(**options: Any) -> DataLoader[Any]:
    dataset: Any = loader().dataset
    return DataLoader(dataset, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1), **options)


class TwoBatches:
    def __iter__(self) -> Iterator[Any]:
        yield from itertools.islice(own_order(), 2)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: own_order(num_workers=1, persistent_workers=True), id="persistent workers"),
        pytest.param(lambda: {"a": own_order(), "b": own_order()}, id="several loaders"),
        pytest.param(lambda: CombinedLoader({"a": own_order(), "b": TwoBatches()}, "min_size"), id="the shortest"),
        pytest.param(TwoBatches, id="no DataLoader"),
    ],
)
def test_the_search_leaves_the_batches_of_the_training_as_they_are(data: Any) -> None:
    seen = []
    for callbacks in ([PoECallback(find=FIND, record=False)], []):
        torch.manual_seed(0)
        module = Seen()
        fit(module, *callbacks, data=data(), epochs=2)
        seen.append(module.seen)
    assert seen[0] == seen[1]


class Hooks:
    """Each notes in the batch that it was there."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [*batch, "before"]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return [*batch, f"to {device}"]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [*batch, "after"]


class Steps(Module):
    """Keeps the notes in every batch that it computes a loss of, in the search and in the training."""

    def __init__(self) -> None:
        super().__init__(schedule=False)
        self.steps: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, labels, *notes = batch
        self.steps.append((inputs.dtype, *notes))
        return {"loss": cross_entropy(self.net(inputs), labels)}


class HookedSteps(Hooks, Steps): ...


class HookedData(Hooks, lightning.LightningDataModule):  # type: ignore[name-defined]
    def train_dataloader(self) -> DataLoader[Any]:
        return loader()


@pytest.mark.parametrize(("module", "data"), [(HookedSteps, loader), (Steps, HookedData)])
def test_the_search_takes_batches_through_precision_and_transfer_hooks(module: type[Steps], data: Any) -> None:
    trained = module()
    fit(trained, PoECallback(find=FIND, allow_unidentified=True), epochs=1, data=data(), precision="64-true")
    assert len(trained.steps) > 100
    assert {*trained.steps} == {(torch.float64, "before", "to cpu", "after")}


def test_data_that_can_be_gone_through_only_once_is_refused() -> None:
    with pytest.raises(InputError, match="DataLoader"):
        fit(Module(), PoECallback(find=FIND), data=iter([*loader()]))


def test_a_training_step_may_take_the_batch_alone() -> None:
    class BatchAlone(Module):
        def training_step(self, batch: Any) -> dict[str, Tensor]:  # type: ignore[override]
            return super().training_step(batch, 0)

    callback = PoECallback(find=FIND)
    fit(BatchAlone(), callback, epochs=1)
    assert callback.estimate is not None


def test_l_is_that_of_the_batches_that_the_trainer_accumulates() -> None:
    found = []
    for accumulated, find in ((2, {}), (1, {"accumulate": 2}), (1, {})):
        torch.manual_seed(0)
        callback = PoECallback(find=FIND | find, record=False)
        fit(Module(), callback, epochs=1, accumulate_grad_batches=accumulated)
        assert callback.estimate is not None
        found.append(callback.estimate.constant)
    assert found[0] == found[1] != found[2]


class Counting(Module):
    """With metrics of every kind: sums, lists, a group that is formed by the first update, one that holds another."""

    def __init__(self) -> None:
        super().__init__(schedule=False)
        three = {"task": "multiclass", "num_classes": 3}
        self.accuracy = torchmetrics.Accuracy(**three)
        self.examples = torchmetrics.CatMetric()
        self.group = torchmetrics.MetricCollection([torchmetrics.Precision(**three), torchmetrics.Recall(**three)])
        self.running = torchmetrics.wrappers.Running(torchmetrics.MeanMetric(), window=2)
        self.found: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        outputs = self.net(batch[0])
        loss = cross_entropy(outputs, batch[1])
        self.accuracy(outputs, batch[1])
        self.examples.update(batch[0][:, 0])
        self.group.update(outputs, batch[1])
        self.running.update(loss.detach())
        return {"loss": loss}

    def on_train_epoch_end(self) -> None:
        computed = {"accuracy": self.accuracy.compute(), "running": self.running.compute(), **self.group.compute()}
        self.found.append((self.accuracy.update_count, len(self.examples.compute()), computed))
        for metric in (self.accuracy, self.examples, self.group, self.running):
            metric.reset()


def test_metrics_count_only_what_is_trained_on() -> None:
    torch.manual_seed(0)
    watched, callback = Counting(), PoECallback(find=FIND)
    fit(watched, callback, epochs=2)
    assert callback.estimate is not None
    torch.manual_seed(0)
    plain = Counting()
    plain.lr = callback.estimate.learning_rate()
    fit(plain, epochs=2)
    assert [each[:2] for each in watched.found] == [(6, 96), (6, 96)]
    torch.testing.assert_close(watched.found, plain.found)


class Diverging(Module):
    """From its second epoch on, all weights are NaN."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            for parameter in self.parameters():
                parameter.data.fill_(float("nan"))


def test_a_training_that_diverges_is_not_stopped_by_the_callback(tmp_path: Path) -> None:
    callback = PoECallback(find=FIND)
    trainer = fit(Diverging(), callback, logger=CSVLogger(tmp_path))
    assert trainer.current_epoch == 4
    assert callback.trace is not None
    assert len(callback.trace) == 4


def test_clipping_by_value_is_refused() -> None:
    with pytest.raises(InputError, match="gradient_clip_algorithm"):
        fit(Module(), PoECallback(find=FIND), gradient_clip_val=0.5, gradient_clip_algorithm="value")
    fit(Module(), PoECallback(find=FIND, record=False), epochs=1, gradient_clip_val=0)  # which clips nothing


def test_a_resumed_run_keeps_its_estimate_and_rates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    callback = PoECallback(find=FIND)
    trainer = fit(Module(), callback, epochs=2)
    trainer.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    module, again = Module(), PoECallback(find={"budget": -1})  # would fail if it searched
    fit(module, again, epochs=4, resume=tmp_path / "last.ckpt")
    assert callback.estimate is not None
    assert again.estimate == callback.estimate
    assert module.rates == pytest.approx([callback.estimate.learning_rate() / 2] * 2)


def test_a_callback_that_is_used_again_searches_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    callback = PoECallback(find=FIND)
    trainer = fit(Module(), callback, epochs=1)
    checkpoint = tmp_path / "last.ckpt"
    trainer.save_checkpoint(checkpoint, weights_only=False)
    first = callback.estimate
    trainer.validate(Validated(), loader(), ckpt_path=checkpoint, weights_only=False, verbose=False)  # loads it
    module = Steeper(schedule=False)
    fit(module, callback, epochs=1)
    assert first is not None
    assert callback.estimate is not None
    assert callback.estimate.constant > 3 * first.constant
    assert module.rates == [pytest.approx(callback.estimate.learning_rate())]


class Validated(Module):
    def validation_step(self, batch: Any, batch_idx: int) -> None: ...


class Steeper(Module):
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"loss": 10 * super().training_step(batch, batch_idx)["loss"]}


def ordered(examples: int = 96) -> DataLoader[Any]:
    inputs = torch.randn(examples, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16)


class Following(Module):
    """Notes the rate of every batch; its scheduler sets the rate, at each step or at the end of an epoch."""

    def __init__(self, interval: str) -> None:
        super().__init__()
        self.interval = interval
        self.taken: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.taken.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_the_rate_found_on_the_way_is_that_of_a_plain_loop(interval: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, callback = Following(interval), OnlineRateCallback(rung=4)
    torch.manual_seed(0)
    plain = Following(interval)
    fit(module, callback, data=ordered(), epochs=12, logger=CSVLogger(tmp_path))

    found = plain.configure_optimizers()
    optimizer, scheduler = found["optimizer"], found["lr_scheduler"]["scheduler"]
    optimizer.param_groups[0]["lr"] *= 0.2
    scheduler.base_lrs = [0.2 * rate for rate in scheduler.base_lrs]
    online = OnlineRate(plain, optimizer, steps=72, rung=4, schedulers=[scheduler])
    for _ in range(12):
        for inputs, labels in ordered():
            optimizer.zero_grad()
            loss = cross_entropy(plain.net(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            plain.on_before_optimizer_step(optimizer)
            optimizer.step()
            online.after_step(loss)
            if interval == "step":
                scheduler.step()
        if interval == "epoch":
            scheduler.step()

    assert module.taken == pytest.approx(plain.taken)
    assert callback.online is not None
    assert callback.online.ladder.good == pytest.approx(online.ladder.good)
    assert callback.online.ladder.breaks == pytest.approx(online.ladder.breaks)
    assert callback.estimate is not None
    assert callback.estimate.constant == pytest.approx(online.estimate.constant)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value)
    (metrics,) = tmp_path.rglob("metrics.csv")
    assert "excite/L" in metrics.read_text().splitlines()[0].split(",")


def test_a_step_of_accumulated_batches_has_their_mean_loss() -> None:
    callback = OnlineRateCallback(rung=6)
    module = Seen()
    initial = cross_entropy(module.net.eval()(ordered().dataset[:32][0]), ordered().dataset[:32][1])
    fit(module.train(), callback, data=ordered(80), epochs=3, accumulate_grad_batches=2)  # the last step has one batch
    assert callback.online is not None
    ladder = callback.online.ladder
    assert ladder.rungs == 1
    assert len(ladder.losses) == 3
    assert ladder.initial == pytest.approx(initial.item(), rel=0.3)  # batch-norm sees batches of 16


@pytest.mark.parametrize("epochs", [3, 7])
def test_a_rate_found_on_the_way_is_found_again_after_a_checkpoint(tmp_path: Path, epochs: int) -> None:
    def started() -> tuple[Module, OnlineRateCallback]:
        torch.manual_seed(0)
        return Module(), OnlineRateCallback(rung=4)

    whole, callback = started()
    fit(whole, callback, data=ordered(), epochs=10)
    stopped, first = started()
    trainer = fit(stopped, first, StopAfter(epochs), data=ordered(), epochs=10)
    trainer.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    resumed, again = started()
    fit(resumed, again, data=ordered(), epochs=10, resume=tmp_path / "last.ckpt")
    assert first.online is not None
    assert callback.online is not None
    assert again.online is not None
    assert first.online.ladder.losses  # in the middle of a rung
    assert again.online.ladder == callback.online.ladder
    assert resumed.rates == whole.rates[epochs:]
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value)


class StopAfter(lightning.Callback):  # type: ignore[name-defined]
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = trainer.current_epoch + 1 == self.epochs


class WarmUp(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer)]


class Plateau(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}


def test_a_rate_found_on_the_way_needs_a_schedule_without_warm_up_and_a_length() -> None:
    with pytest.raises(InputError, match="warm-up"):
        fit(WarmUp(), OnlineRateCallback())
    with pytest.raises(InputError, match="ReduceLROnPlateau"):
        fit(Plateau(), OnlineRateCallback())
    with pytest.raises(InputError, match="max_steps"):
        fit(Module(), OnlineRateCallback(), epochs=-1)


TWO_PROCESSES = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lightning.pytorch as lightning
from excite.integrations.lightning import OnlineRateCallback, PoECallback

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
inputs = torch.randn(96, 8)
online = sys.argv[1:] == ["online"]
callback = OnlineRateCallback(2, rung=4) if online else PoECallback(find={"budget": 200, "steps": 20})
epochs = 30 if online else 1
trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback],
                            logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Module(), DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16, shuffle=True))
rate = trainer.optimizers[0].param_groups[0]["lr"]
found = callback.online.rate if online else callback.estimate.learning_rate()
words = f"RANK {trainer.global_rank} {rate:.12g} {found:.12g}\\n"
sys.stdout.flush()
os.write(1, words.encode())  # at once, so that no other process writes into the line
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["before", "online"])
def test_two_processes_agree_on_l(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES, encoding="utf-8")
    command = [sys.executable, str(script), kind]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    ranks = [line.split()[1:] for line in process.stdout.splitlines() if line.startswith("RANK")]
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1"]
    assert len({number for _, *numbers in ranks for number in numbers}) == 1
