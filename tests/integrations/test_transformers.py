"""The callback in the real Trainer, with a tiny model made here: the rate becomes 1/L, the schedule keeps its shape."""

from pathlib import Path
from typing import Any

import pytest
import torch

from excite.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate themselves
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from excite.integrations.transformers import PoETrainerCallback  # noqa: E402

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
