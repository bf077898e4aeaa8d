"""RobustBench's `benchmark` function, rows for its leaderboard, and exported models that load with one line."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excite import attacks, data
from excite.attacks import Attack, AttackWarning, AutoAttack
from excite.attacks.given import as_attacks
from excite.data import Dataset
from excite.data.catalog import is_own
from excite.errors import InputError, unknown
from excite.evaluation import Evaluation, evaluate
from excite.files import write_text
from excite.integrations import hub
from excite.quantities import check_whole, number, pixels
from excite.randomness import usable_device
from excite.runs.folder import RunFolder

__all__ = ["benchmark", "export", "write_row"]

NORMS = {"Linf": "linf", "L2": "l2"}
THREAT_MODELS = {norm: name for name, norm in NORMS.items()}
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
        row: dict[str, Any] = {"dataset": dataset.name, "threat_model": threat_model, "eps": eps}
        write_row(Path("model_info"), str(model_name), evaluation, autoattack="AutoAttack", **row)
    return evaluation.clean.value, evaluation.robust["AutoAttack"].value


def write_row(
    folder: Path,
    model_name: str,
    evaluation: Evaluation,
    *,
    dataset: str,
    threat_model: str,
    eps: float,
    autoattack: str,
    additional_data: bool | None = None,
    architecture: str | None = None,
) -> None:
    """Write a model's row of the leaderboard where RobustBench expects it.

    What only its authors know (title, authors, venue, link) is None. `autoattack` names the attack in `evaluation`.
    """
    n_images = len(evaluation.correct)
    row = {
        "link": None,
        "name": None,
        "authors": None,
        "additional_data": additional_data,
        "number_forward_passes": 1,
        "dataset": dataset,
        "venue": None,
        "architecture": architecture,
        "eps": pixels(eps),
        "clean_acc": f"{100 * evaluation.clean.value:.2f}",
        "reported": None,
        "autoattack_acc": f"{100 * evaluation.robust[autoattack].value:.2f}",
        "footnote": f"on {n_images} test images" if n_images < FULL_TEST_SET else None,
        "unreliable": evaluation.distrusted,
    }
    write_text(folder / dataset / threat_model / f"{model_name}.json", json.dumps(row, indent=2) + "\n")


def export(run: RunFolder, arm: str, destination: Path | None = None) -> Path:
    """Write a trained arm as a model folder with its card, and its leaderboard row to model_info/.

    Args:
        run: the run folder.
        arm: baseline, poe, largest or grid-K.
        destination: the folder to write; by default exports/<experiment>-<arm>.

    Returns:
        The folder, for `hub.from_pretrained`. There is no row for your own images, or if the experiment did not run
        AutoAttack in its full standard version, searched in float32.
    """
    folder, experiment, evaluation = hub.export(run, arm, destination), run.experiment, run.arm(arm).evaluation
    if evaluation is None or is_own(experiment.data.name) or experiment.attack_precision != "float32":
        return folder
    for name, attack in as_attacks(experiment.attacks).items():
        if _is_standard(attack) and attack.eps is not None and attack.norm in THREAT_MODELS:
            write_row(
                folder / "model_info",
                f"{experiment.name}-{arm}",
                evaluation,
                dataset=experiment.data.name,
                threat_model=THREAT_MODELS[attack.norm],
                eps=attack.eps,
                autoattack=name,
                additional_data=experiment.data.unlabelled is not None,
                architecture=experiment.model.name,
            )
    return folder


def _is_standard(attack: Attack) -> bool:
    """Whether it is the leaderboard's AutoAttack, complete and at full length; the seed does not matter."""
    largest = attack.rungs[-1]
    return isinstance(largest, AutoAttack) and largest == AutoAttack(largest.eps, largest.norm, seed=largest.seed)
