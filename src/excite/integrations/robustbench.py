"""RobustBench's `benchmark` function, and the record for its leaderboard."""

import json
import warnings
from pathlib import Path

import torch
from torch import nn

from excite import attacks, data
from excite.attacks import AttackWarning
from excite.data import Dataset
from excite.errors import InputError, unknown
from excite.evaluation import Evaluation, evaluate
from excite.files import write_text
from excite.quantities import check_whole, number, pixels
from excite.randomness import usable_device

__all__ = ["benchmark"]

NORMS = {"Linf": "linf", "L2": "l2"}
FULL_TEST_SET = 10_000  # images; a smaller evaluation gets a footnote


def benchmark(  # noqa: PLR0917 - RobustBench's order
    model: nn.Module,
    n_examples: int = 10_000,
    dataset: str | Dataset = "cifar10",
    threat_model: str = "Linf",
    to_disk: bool = False,
    model_name: str | None = None,
    data_dir: str | Path | None = None,
    corruptions_data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    eps: float | str | None = None,
    log_path: str | Path | None = None,
    preprocessing: object = None,
    aa_state_path: str | Path | None = None,
) -> tuple[float, float]:
    """Clean accuracy and accuracy under AutoAttack, with the arguments and the return value of `robustbench.benchmark`.

    Warns about reasons to distrust the accuracies. The model is restored, but stays on `device`.

    Args:
        model: returns logits for images in [0, 1]; it does its own normalization.
        n_examples: number of test images, from the start of the test set.
        dataset: "cifar10", "cifar100", another name of `excite.data.names()`, or a `Dataset`.
        threat_model: "Linf" or "L2".
        to_disk: write the leaderboard row to model_info/<dataset>/<threat model>/<model_name>.json.
        model_name: required with `to_disk`, for example "Sridhar2022Improving".
        data_dir: folder of the data sets; by default excite's own.
        corruptions_data_dir: must be None, because corruptions are not evaluated.
        device: where to compute; by default the model's device.
        batch_size: larger batches are faster on a GPU.
        eps: radius of the ball, for example 8/255.
        log_path: a file to write the whole evaluation to, as text.
        preprocessing: must be None; the model does it.
        aa_state_path: a file, written after every batch, from which an interrupted evaluation resumes.

    Returns:
        (clean accuracy, robust accuracy), both between 0 and 1.

    >>> import excite
    >>> digits = excite.data.load("mnist-sample")
    >>> model = excite.models.create("lenet5", input_shape=(1, 28, 28))
    >>> clean, robust = benchmark(model, 4, digits, eps=0.0)
    >>> clean == robust
    True
    """
    threat_model = str(getattr(threat_model, "value", threat_model))
    if threat_model not in NORMS:
        raise unknown("threat model", threat_model, NORMS)
    if eps is None:
        raise InputError("Pass the radius of the ball, for example eps=8/255.")
    if corruptions_data_dir is not None or preprocessing is not None:
        raise InputError(
            "corruptions_data_dir and preprocessing would be ignored: leave them out, and preprocess in the model."
        )
    if to_disk and model_name is None:
        raise InputError("to_disk=True needs a name for the file; pass model_name.")
    eps = number(eps)
    check_whole("n_examples", n_examples, least=1)
    if not isinstance(dataset, Dataset):
        dataset = data.load(str(getattr(dataset, "value", dataset)), data_dir=data_dir)
    images, labels = dataset.test.images[:n_examples], dataset.test.labels[:n_examples]
    if device is not None:
        model.to(usable_device(device))
    attack = attacks.create("autoattack", eps=eps, norm=NORMS[threat_model])
    x, given = images.float() / 255, {"AutoAttack": attack}
    evaluation = evaluate(model, x, labels, given, batch_size=batch_size, journal=aa_state_path)
    if log_path is not None:
        write_text(Path(log_path), f"{evaluation}\n")
    for flag in evaluation.flags:
        warnings.warn(AttackWarning(str(flag)), stacklevel=2)
    if to_disk:
        _write_row(str(model_name), evaluation, dataset=dataset.name, threat_model=threat_model, eps=eps)
    return evaluation.clean.value, evaluation.robust["AutoAttack"].value


def _write_row(model_name: str, evaluation: Evaluation, *, dataset: str, threat_model: str, eps: float) -> None:
    """Write the record of the leaderboard where RobustBench does. What only the authors know is None."""
    n_images = len(evaluation.correct)
    row = {
        "link": None,
        "name": None,
        "authors": None,
        "additional_data": None,
        "number_forward_passes": 1,
        "dataset": dataset,
        "venue": None,
        "architecture": None,
        "eps": pixels(eps),
        "clean_acc": f"{100 * evaluation.clean.value:.2f}",
        "reported": None,
        "autoattack_acc": f"{100 * evaluation.robust['AutoAttack'].value:.2f}",
        "footnote": f"on {n_images} test images" if n_images < FULL_TEST_SET else None,
        "unreliable": evaluation.distrusted,
    }
    path = Path("model_info") / dataset / threat_model / f"{model_name}.json"
    write_text(path, json.dumps(row, indent=2) + "\n")
