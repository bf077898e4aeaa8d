"""RobustBench's `benchmark` function, rows for its leaderboard, and exported models that load with one line."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

import excite
from excite import attacks, data, models
from excite.attacks import Attack, AttackWarning, AutoAttack
from excite.data import Dataset
from excite.errors import CorruptFileError, InputError, unknown
from excite.evaluation import Evaluation, evaluate
from excite.files import expected, read_json, sha256, write_bytes, write_json, write_text
from excite.quantities import check_whole, number, pixels
from excite.runs.assemble import Parts, assemble
from excite.runs.folder import RunFolder, needed_model

__all__ = ["benchmark", "export", "leaderboard_row", "load_model", "model_card", "save_model"]

NORMS = {"Linf": "linf", "L2": "l2"}
THREAT_MODELS = {norm: name for name, norm in NORMS.items()}
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FULL_TEST_SET = 10_000  # images; a smaller evaluation gets a footnote

AUTOATTACK_FLAGS = {  # our flag: AutoAttack's name for it
    "random outputs": "Randomized defenses",
    "probabilities instead of logits": "Softmax output is given",
    "vanishing gradients": "Zero gradient",
    "black box beats white box": "Square Attack improves the robustness evaluation",
    "optimises at inference": "Optimization at inference time",
}


def benchmark(  # noqa: PLR0917 - RobustBench's order
    model: nn.Module,
    n_examples: int = 10_000,
    dataset: str | Dataset = "cifar10",
    threat_model: str = "Linf",
    to_disk: bool = False,
    model_name: str | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    eps: float | str | None = None,
) -> tuple[float, float]:
    """Clean accuracy and accuracy under AutoAttack, with the arguments and the return value of `robustbench.benchmark`.

    Warns about reasons to distrust the accuracies, with AutoAttack's name for each if it has one. The model is
    restored, but stays on `device`.

    Args:
        model: returns logits for images in [0, 1]; it does its own normalization.
        n_examples: number of test images, from the start of the test set.
        dataset: "cifar10", "cifar100", another name of `excite.data.names()`, or a `Dataset`.
        threat_model: "Linf" or "L2".
        to_disk: write the leaderboard row to model_info/<dataset>/<threat model>/<model_name>.json.
        model_name: required with `to_disk`, for example "Sridhar2022Improving".
        data_dir: folder of the data sets; by default excite's own.
        device: where to compute; by default the model's device.
        batch_size: larger batches are faster on a GPU.
        eps: radius of the ball, for example 8/255.

    Returns:
        (clean accuracy, robust accuracy), both between 0 and 1.

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
    if to_disk and model_name is None:
        raise InputError("to_disk=True needs a name for the file; pass model_name.")
    eps = number(eps)
    check_whole("n_examples", n_examples, least=1)
    if not isinstance(dataset, Dataset):
        dataset = data.load(str(getattr(dataset, "value", dataset)), data_dir=data_dir)
    images, labels = dataset.test.images[:n_examples], dataset.test.labels[:n_examples]
    if device is not None:
        model.to(device)
    attack = attacks.create("autoattack", eps=eps, norm=NORMS[threat_model])
    evaluation = evaluate(model, images.float() / 255, labels, {"AutoAttack": attack}, batch_size=batch_size)
    for flag in evaluation.flags:
        known = f" (AutoAttack: {AUTOATTACK_FLAGS[flag.name]})" if flag.name in AUTOATTACK_FLAGS else ""
        warnings.warn(AttackWarning(f"{flag}{known}"), stacklevel=2)
    robust = evaluation.robust["AutoAttack"].value
    if to_disk:
        row = leaderboard_row(evaluation, dataset=dataset.name, eps=eps, autoattack=robust)
        _write_row(Path("model_info"), row, threat_model, str(model_name))
    return evaluation.clean.value, robust


def leaderboard_row(
    evaluation: Evaluation,
    *,
    dataset: str,
    eps: float,
    autoattack: float | None,
    additional_data: bool | None = None,
    architecture: str | None = None,
) -> dict[str, Any]:
    """RobustBench's keys for a model. What only its authors know (title, authors, venue, link) is None.

    `autoattack` is the accuracy under standard AutoAttack, None if it was not run.
    """
    n_images = len(evaluation.correct)
    return {
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
        "autoattack_acc": None if autoattack is None else f"{100 * autoattack:.2f}",
        "footnote": f"on {n_images} test images" if n_images < FULL_TEST_SET else None,
        "unreliable": evaluation.distrusted,
    }


def _write_row(folder: Path, row: dict[str, Any], threat_model: str, model_name: str) -> None:
    """Write the row where RobustBench expects it."""
    path = folder / row["dataset"] / threat_model / f"{model_name}.json"
    write_text(path, json.dumps(row, indent=2) + "\n")


def save_model(
    folder: Path | str,
    model: nn.Module,
    name: str,
    *,
    options: Mapping[str, Any],
    num_classes: int,
    input_shape: tuple[int, int, int],
    card: str,
) -> Path:
    """Write a network of `excite.models` to a folder for `load_model`: weights, configuration and model card."""
    folder = Path(folder)
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    normalize = [state[f"normalize.{key}"].flatten().tolist() for key in ("mean", "std") if f"normalize.{key}" in state]
    write_bytes(folder / WEIGHTS, safetensors.torch.save(state))
    config = {
        "excite": excite.__version__,
        "model": name,
        "options": dict(options),
        "num_classes": num_classes,
        "input_shape": list(input_shape),
        "normalize": normalize or None,
        "weights_sha256": sha256(folder / WEIGHTS),
    }
    write_json(folder / CONFIG, config)
    write_text(folder / CARD, card)
    return folder


def load_model(folder: str | Path) -> nn.Module:
    """Load an exported network, in eval mode and on the CPU: images in [0, 1] in, logits out.

    Args:
        folder: a folder written by `excite export RUN --to robustbench` or by `save_model`.

    Returns:
        The network. Weights that do not match their SHA-256 raise a CorruptFileError.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder} has no {CONFIG}; pass a folder that `excite export` wrote.")
    config = read_json(folder / CONFIG)
    with expected(folder / CONFIG):
        model = models.create(
            config["model"],
            num_classes=config["num_classes"],
            input_shape=tuple(config["input_shape"]),
            normalize=tuple(config["normalize"]) if config["normalize"] else None,
            **config["options"],
        )
        digest = config["weights_sha256"]
    if not (folder / WEIGHTS).exists() or sha256(folder / WEIGHTS) != digest:
        raise CorruptFileError(
            f"{folder / WEIGHTS} is missing or does not match the SHA-256 in {CONFIG}. Export the model again."
        )
    model.load_state_dict(safetensors.torch.load((folder / WEIGHTS).read_bytes()))
    return model.eval()


def export(run: RunFolder, arm: str, destination: Path | None = None) -> Path:
    """Write a trained arm as a model folder with its card, and its leaderboard row to model_info/.

    Args:
        run: the run folder.
        arm: baseline, poe, largest or grid-K.
        destination: the folder to write; by default exports/<experiment>-<arm>.

    Returns:
        The folder, for `load_model`. `autoattack_acc` of the row is null if the experiment did not run AutoAttack in
        its full standard version. There is no row if no attack has a radius and a norm.
    """
    experiment, trained = run.experiment, needed_model(run, arm)
    parts = assemble(experiment, device="cpu")
    dataset = data.load(experiment.data.name)
    folder = destination or Path("exports") / f"{experiment.name}-{arm}"
    about = (
        f"{experiment.model.name}, trained on {experiment.data.name} by `excite` {excite.__version__}, experiment "
        f"`{experiment.name}`, arm {trained.title}: first learning rate {trained.rate:.4g}."
    )
    if (estimate := run.estimate_of(arm)) is not None:
        about += f" {estimate}"
    title = f"{experiment.name}, {trained.title}"
    save_model(
        folder,
        trained.load_into(parts.new_model()),
        experiment.model.name,
        options=experiment.model.options,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        card=model_card(title, about, trained.evaluation, dataset=experiment.data.name, folder=str(folder)),
    )
    if trained.evaluation is not None:
        _write_arm_row(folder / "model_info", parts, trained.evaluation, f"{experiment.name}-{arm}")
    return folder


def _write_arm_row(folder: Path, parts: Parts, evaluation: Evaluation, model_name: str) -> None:
    """Write the row of an arm for its standard AutoAttack, otherwise for its first attack with a radius and a norm."""
    for name, attack in sorted(parts.attacks.items(), key=lambda item: not _is_standard(item[1])):
        if attack.eps is not None and attack.norm in THREAT_MODELS:
            row = leaderboard_row(
                evaluation,
                dataset=parts.experiment.data.name,
                eps=attack.eps,
                autoattack=evaluation.robust[name].value if _is_standard(attack) else None,
                additional_data=parts.experiment.data.unlabelled is not None,
                architecture=parts.experiment.model.name,
            )
            _write_row(folder, row, THREAT_MODELS[attack.norm], model_name)
            return


def _is_standard(attack: Attack) -> bool:
    """Whether it is the leaderboard's AutoAttack, complete and at full length; the seed does not matter."""
    largest = attack.rungs[-1]
    return isinstance(largest, AutoAttack) and largest == AutoAttack(largest.eps, largest.norm, seed=largest.seed)


def model_card(title: str, about: str, evaluation: Evaluation | None, *, dataset: str, folder: str) -> str:
    """A model card in Markdown: what the model is, its measured accuracies, and its intended use."""
    results = ["The model was not evaluated."]
    if evaluation:
        results = [
            "| | accuracy (95% interval) | images or attack |",
            "|---|---|---|",
            f"| clean | {evaluation.clean} | {len(evaluation.correct)} |",
            *(
                f"| {name} | {accuracy} | {evaluation.attacks[name].description} |"
                for name, accuracy in evaluation.robust.items()
            ),
            "",
            *(f"- **Do not trust this yet:** {flag}" for flag in evaluation.flags),
        ]
    return f"""---
library_name: excite
pipeline_tag: image-classification
tags: [adversarial-robustness, persistency-of-excitation]
datasets: [{dataset}]
metrics: [accuracy]
---
# {title}

{about}

```python
from excite.integrations.robustbench import load_model

model = load_model("{folder}")  # images in [0, 1] in, logits out, eval mode
```

## Results

{chr(10).join(results)}

## Intended use

Research on adversarial robustness: comparing training methods, and attacking the model. The accuracies under attack
hold for these attacks, at this radius and norm, on images of {dataset}. They are not guarantees: a stronger attack may
be more successful. Do not use the model where a wrong prediction causes harm, or on other images.
"""
