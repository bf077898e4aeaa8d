"""The callback in the real Trainer, with a tiny model made here: the rate becomes 1/L, the schedule keeps its shape."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from excite import OnlineRate
from excite.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate themselves
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from excite.integrations.transformers import OnlineRateTrainerCallback, PoETrainerCallback  # noqa: E402

FIND = {"budget": 200, "steps": 20, "start": 0.01}
BRIEF = FIND | {"budget": 40}
EPOCHS = 4
EXAMPLES = 64


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Token sequences whose label is whether they begin with a large token."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 32, (EXAMPLES, 6), generator=generator)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": (self.tokens[index, 0] > 15).long()}


def trainer_of(folder: Path, *, kind: Any = transformers.Trainer, epochs: int = EPOCHS, **options: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **{"save_strategy": "no", "learning_rate": 1e-3, **options},
    )
    return kind(model=transformers.BertForSequenceClassification(config), args=arguments, train_dataset=Texts())


def train(folder: Path, callback: PoETrainerCallback | None, *, resume: str | None = None, **options: Any) -> Any:
    trainer = trainer_of(folder, **options)
    if callback:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_the_rate_begins_at_one_over_l_and_falls_as_it_would(tmp_path: Path) -> None:
    callback = PoETrainerCallback(find=FIND)
    trainer = train(tmp_path, callback, logging_steps=1)
    assert callback.estimate is not None
    first = callback.estimate.learning_rate()
    steps = EPOCHS * EXAMPLES // 16
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([first * (1 - step / steps) for step in range(steps)], abs=1e-9)
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert {"excite/L", "excite/acuteness", "excite/certified"} <= logged
    assert callback.trace is not None
    assert len(callback.trace) == EPOCHS


def test_training_is_as_without_the_callback_at_that_rate(tmp_path: Path) -> None:
    callback = PoETrainerCallback(find=FIND, record=False)
    watched = train(tmp_path, callback, epochs=1)
    assert callback.estimate is not None
    plain = train(tmp_path, None, epochs=1, learning_rate=callback.estimate.learning_rate())
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(watched.model.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_a_resumed_run_keeps_its_rates(tmp_path: Path) -> None:
    callback = PoETrainerCallback(find=FIND)
    train(tmp_path, callback, epochs=2, save_strategy="epoch", logging_steps=1)
    assert callback.estimate is not None
    again = PoETrainerCallback(find={"budget": -1})  # would fail if it searched
    trainer = train(
        tmp_path, again, epochs=2, save_strategy="epoch", logging_steps=1, resume=str(tmp_path / "checkpoint-4")
    )
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    first = callback.estimate.learning_rate()
    assert rates == pytest.approx([first * (1 - step / 8) for step in range(8)], abs=1e-9)


def test_the_peak_of_a_warm_up_is_rescaled(tmp_path: Path) -> None:
    callback = PoETrainerCallback(2, find=FIND)
    trainer = train(tmp_path, callback, epochs=2, warmup_steps=4, logging_steps=1)
    assert callback.estimate is not None
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    shape = (0, 1 / 4, 1 / 2, 3 / 4, 1, 3 / 4, 1 / 2, 1 / 4)
    assert rates == pytest.approx([callback.estimate.learning_rate(2) * share for share in shape], abs=1e-9)


class Steeper(transformers.Trainer):  # type: ignore[name-defined]
    """Ten times the model's loss, and a line in the log for each."""

    def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
        self.log({"computed": 1.0})
        return 10 * super().compute_loss(model, inputs, **options)


def smoothed(model: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(**batch).logits, batch["labels"], label_smoothing=0.5)


@pytest.mark.parametrize(
    ("options", "step", "start"),
    [
        pytest.param({"kind": Steeper}, lambda model, batch: 10 * model(**batch).loss, 0.01, id="compute_loss"),
        pytest.param({"label_smoothing_factor": 0.5}, smoothed, 0.1, id="label smoothing", marks=pytest.mark.slow),
    ],
)
def test_l_is_that_of_the_loss_of_a_trainer_that_is_handed_over(
    tmp_path: Path, options: Any, step: Any, start: float
) -> None:
    def losses(find: Any, *, hand_over: bool = False) -> Any:
        trainer = trainer_of(tmp_path, epochs=1, optim="sgd", max_grad_norm=0.0, **options)
        callback = PoETrainerCallback(
            find=BRIEF | {"start": start} | find,
            record=False,
            trainer=trainer if hand_over else None,
            allow_unidentified=True,
        )
        trainer.add_callback(callback)
        trainer.train()
        assert callback.estimate is not None
        return [*callback.estimate.details["initial"], *callback.estimate.details["final"]]

    of_the_model = losses({"step": lambda model, batch: model(**batch).loss})
    of_the_trainer = losses({"step": step})
    assert losses({}, hand_over=True) == pytest.approx(of_the_trainer)
    assert of_the_trainer != pytest.approx(of_the_model)


def test_what_compute_loss_logs_in_the_search_is_not_logged(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, kind=Steeper, epochs=1)
    trainer.add_callback(PoETrainerCallback(find=BRIEF, record=False, trainer=trainer, allow_unidentified=True))
    trainer.train()
    assert sum("computed" in entry for entry in trainer.state.log_history) == EXAMPLES // 16


def test_label_smoothing_is_refused_without_the_trainer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trainer=trainer"):
        train(tmp_path, PoETrainerCallback(find=FIND), label_smoothing_factor=0.1)


ONLINE: dict[str, Any] = {"epochs": 12, "logging_steps": 1, "learning_rate": 0.05, "max_grad_norm": 0.0}


def online(folder: Path, *, resume: str | None = None, **options: Any) -> tuple[Any, OnlineRateTrainerCallback]:
    trainer = trainer_of(folder, **ONLINE | options)
    callback = OnlineRateTrainerCallback(trainer, rung=4)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, callback


def rates(trainer: Any) -> list[float]:
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


class InOrder(transformers.Trainer):  # type: ignore[name-defined]
    """Without shuffling and dropout, so that a plain loop can do the same."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.model_accepts_loss_kwargs = False  # the loss of accumulated batches is their mean
        self.taken: list[float] = []

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, model: Any, *arguments: Any, **options: Any) -> Any:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        self.taken.append(self.optimizer.param_groups[0]["lr"])
        return super().training_step(model, *arguments, **options)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_rate_found_on_the_way_is_that_of_a_plain_loop(tmp_path: Path, accumulated: int) -> None:
    options: Any = {"kind": InOrder, "gradient_accumulation_steps": accumulated}
    model = trainer_of(tmp_path, **ONLINE | options).model.eval()  # no dropout
    trainer, callback = online(tmp_path, **options)
    found = callback.online
    assert found is not None

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    steps = 48 // accumulated
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    plain = OnlineRate(model, optimizer, steps=steps, rung=4, schedulers=[scheduler])
    batches = [*torch.utils.data.DataLoader(Texts(), batch_size=16 * accumulated)] * 12
    taken = []
    for batch in batches:
        taken += [optimizer.param_groups[0]["lr"]] * accumulated
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        plain.after_step(loss)
        scheduler.step()
    assert found.ladder.good == pytest.approx(plain.ladder.good)
    assert found.ladder.breaks == pytest.approx(plain.ladder.breaks)
    assert found.ladder.initial == pytest.approx(plain.ladder.initial)
    assert len(found.ladder.good) > 3
    assert trainer.taken == pytest.approx(taken)
    for name, value in model.state_dict().items():
        if not name.endswith("key.bias"):  # softmax ignores it, so its gradient is rounding, which Adam scales up
            torch.testing.assert_close(trainer.model.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_l_is_logged_once_the_rate_has_settled(tmp_path: Path) -> None:
    trainer, callback = online(tmp_path, epochs=18)  # enough steps for all rungs of the climb
    assert callback.estimate is not None
    logged = [entry for entry in trainer.state.log_history if "excite/L" in entry]
    assert [entry["excite/L"] for entry in logged] == [callback.estimate.constant]


@pytest.mark.parametrize("step", [pytest.param(10, marks=pytest.mark.slow), 30])
def test_a_rate_found_on_the_way_is_found_again_after_a_checkpoint(tmp_path: Path, step: int) -> None:
    options: Any = {"save_strategy": "steps", "save_steps": 10}
    whole, callback = online(tmp_path, **options)
    again, resumed = online(tmp_path, **options, resume=str(tmp_path / f"checkpoint-{step}"))
    assert callback.online is not None
    assert resumed.online is not None
    assert resumed.online.ladder == callback.online.ladder
    assert rates(again) == rates(whole)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


def test_a_checkpoint_without_a_search_is_refused(tmp_path: Path) -> None:
    train(tmp_path, None, save_strategy="epoch")
    with pytest.raises(InputError, match="checkpoint"):
        online(tmp_path, resume=str(tmp_path / "checkpoint-4"))


def test_a_rate_found_on_the_way_needs_no_warm_up(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="warm-up"):
        online(tmp_path, warmup_steps=4)


TWO_PROCESSES = """
import json, sys
from pathlib import Path
import torch
from tests.integrations.test_transformers import online

folder = Path(sys.argv[1])
trainer, callback = online(folder, ddp_backend="gloo")
weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
ladder = callback.online.ladder
found = [ladder.good, ladder.breaks, ladder.rate, weights.double().sum().item()]
(folder / f"rank{trainer.args.process_index}.json").write_text(json.dumps([trainer.args.world_size, *found]))
torch.distributed.destroy_process_group()  # a process that exits while its threads still run may abort
"""


@pytest.mark.slow
def test_two_processes_find_one_rate(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES, encoding="utf-8")
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    alone = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env=os.environ | alone | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    first, last = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == last
    world_size, good, *_ = first
    assert world_size == 2
    assert len(good) > 1
