"""RobustBench's arguments and answer, its leaderboard's records, and model folders that attack to the same verdicts."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
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
from excite.registry import named_options, with_named_options
from excite.runs.assemble import Parts, assemble
from excite.runs.folder import RunFolder, needed_model

__all__ = ["Record", "benchmark", "export", "load_model", "model_card", "save_model"]

NORMS = {"Linf": "linf", "L2": "l2"}
THREAT_MODELS = {norm: name for name, norm in NORMS.items()}
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"

# Our names for what AutoAttack's documentation of its flags warns of, too.
AUTOATTACK_FLAGS = {
    "random outputs": "Randomized defenses",
    "probabilities instead of logits": "Softmax output is given",
    "vanishing gradients": "Zero gradient",
    "black box beats white box": "Square Attack improves the robustness evaluation",
    "optimises at inference": "Optimization at inference time",
}


@named_options
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
    *,
    version: str = "standard",
    journal: Path | None = None,
) -> tuple[float, float]:
    """Clean accuracy and accuracy under AutoAttack, with the arguments and the answer of `robustbench.benchmark`.

    Reasons to distrust the figures are warned of, by AutoAttack's names where it has one. The model comes back as it
    was, on the device it was moved to.

    Args:
        model: logits from images in [0, 1]; normalisation belongs inside it.
        n_examples: the first so many test images.
        dataset: "cifar10", "cifar100", another name of `excite.data.names()`, or a `Dataset`.
        threat_model: "Linf" or "L2".
        to_disk: write the leaderboard's record to model_info/<dataset>/<threat model>/<model_name>.json.
        model_name: needed with `to_disk`, for instance "Sridhar2022Improving".
        data_dir: where data sets are kept; by default excite's own place.
        device: where to compute; by default where the model is.
        batch_size: larger is faster, on a GPU.
        eps: the radius of the ball, for instance 8/255.
        version: AutoAttack's "standard", "plus" or "rand".
        journal: a file to go on from when the benchmark was stopped.

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
        raise unknown("threat model (corruptions are not measured here)", threat_model, NORMS)
    if eps is None:
        raise InputError(f"A {threat_model} ball needs its radius; pass eps, for instance eps=8/255.")
    if to_disk and model_name is None:
        raise InputError("to_disk=True names the file after the model; pass model_name.")
    eps = number(eps)
    check_whole("n_examples", n_examples, least=1)
    if not isinstance(dataset, Dataset):
        dataset = data.load(str(getattr(dataset, "value", dataset)), data_dir=data_dir)
    images, labels = dataset.test.images[:n_examples], dataset.test.labels[:n_examples]
    if device is not None:
        model.to(device)
    attack = attacks.create("autoattack", eps=eps, norm=NORMS[threat_model], version=version)
    evaluation = evaluate(
        model, images.float() / 255, labels, {"AutoAttack": attack}, batch_size=batch_size, journal=journal
    )
    for flag in evaluation.flags:
        known = f" (AutoAttack: {AUTOATTACK_FLAGS[flag.name]})" if flag.name in AUTOATTACK_FLAGS else ""
        warnings.warn(AttackWarning(f"{flag}{known}"), stacklevel=2)
    record = Record(
        dataset=dataset.name,
        threat_model=threat_model,
        eps=eps,
        clean=evaluation.clean.value,
        autoattack=evaluation.robust["AutoAttack"].value if version == "standard" else None,
        unreliable=evaluation.distrusted,
        footnote=f"on the first {len(labels)} test images" if len(labels) < len(dataset.test) else None,
    )
    if to_disk:
        record.write(Path("model_info"), str(model_name))
    return record.clean, evaluation.robust["AutoAttack"].value


@with_named_options
@dataclass(frozen=True)
class Record:
    """A row of the leaderboard. What only its author knows (title, authors, venue, link) is left to be filled in."""

    dataset: str
    threat_model: str
    eps: float
    clean: float
    autoattack: float | None  # None: it was not attacked with AutoAttack
    unreliable: bool = False
    additional_data: bool | None = None
    architecture: str | None = None
    footnote: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "link": None,
            "name": None,
            "authors": None,
            "additional_data": self.additional_data,
            "number_forward_passes": 1,
            "dataset": self.dataset,
            "venue": None,
            "architecture": self.architecture,
            "eps": pixels(self.eps),
            "clean_acc": f"{100 * self.clean:.2f}",
            "reported": None,
            "autoattack_acc": None if self.autoattack is None else f"{100 * self.autoattack:.2f}",
            "footnote": self.footnote,
            "unreliable": self.unreliable,
        }

    def write(self, folder: Path, model_name: str) -> Path:
        """To <folder>/<dataset>/<threat model>/<model_name>.json, where RobustBench looks for it."""
        path = folder / self.dataset / self.threat_model / f"{model_name}.json"
        write_text(path, json.dumps(self.to_json(), indent=2) + "\n")
        return path


@named_options
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
    """Write a network of `excite.models` so that `load_model` builds it again: weights, configuration, model card."""
    folder = Path(folder)
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    normalize = [state[f"normalize.{key}"].flatten().tolist() for key in ("mean", "std") if f"normalize.{key}" in state]
    write_bytes(folder / WEIGHTS, safetensors.torch.save(state))
    write_json(
        folder / CONFIG,
        {
            "excite": excite.__version__,
            "model": name,
            "options": dict(options),
            "num_classes": num_classes,
            "input_shape": list(input_shape),
            "normalize": normalize or None,
            "weights_sha256": sha256(folder / WEIGHTS),
        },
    )
    write_text(folder / CARD, card)
    return folder


@named_options
def load_model(folder: str | Path) -> nn.Module:
    """The network that an exported folder holds, in eval mode: images in [0, 1] in, logits out.

    Args:
        folder: what `excite export RUN --to robustbench` wrote.

    Returns:
        The network on the CPU. A changed weight file is refused.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder} has no {CONFIG}: name a folder that `excite export` wrote.")
    config = read_json(folder / CONFIG)
    with expected(folder / CONFIG):
        model = models.create(
            config["model"],
            num_classes=config["num_classes"],
            input_shape=tuple(config["input_shape"]),
            normalize=tuple(config["normalize"]) if config["normalize"] else None,
            **config["options"],
        )
        weights = config["weights_sha256"]
    if not (folder / WEIGHTS).exists() or sha256(folder / WEIGHTS) != weights:
        raise CorruptFileError(
            f"{folder / WEIGHTS} is missing or does not match the SHA-256 in {CONFIG}; export it again."
        )
    model.load_state_dict(safetensors.torch.load((folder / WEIGHTS).read_bytes()))
    return model.eval()


@named_options
def export(run: RunFolder, arm: str, destination: Path | None = None) -> Path:
    """Write a trained arm as a model folder with its card, and its row for the leaderboard under model_info/.

    Args:
        run: the run folder.
        arm: baseline, poe, largest or grid-K.
        destination: the folder to write; by default exports/<experiment>-<arm>.

    Returns:
        The folder, which `load_model` reads. `autoattack_acc` of the row is null where the experiment has no
        AutoAttack of the standard version, at its full length; there is no row where no attack says its ball.
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
    save_model(
        folder,
        trained.load_into(parts.new_model()),
        experiment.model.name,
        options=experiment.model.options,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        card=model_card(
            f"{experiment.name}, {trained.title}",
            about=about,
            evaluation=trained.evaluation,
            dataset=experiment.data.name,
            folder=str(folder),
        ),
    )
    if trained.evaluation is not None and (record := _record(parts, trained.evaluation)):
        record.write(folder / "model_info", f"{experiment.name}-{arm}")
    return folder


def _record(parts: Parts, evaluation: Evaluation) -> Record | None:
    """The row of an evaluated arm, at the radius of its AutoAttack, or of its first attack where it met none."""
    balls = [
        (_is_standard(attack), name, eps, threat_model)
        for name, attack in parts.attacks.items()
        if (eps := attack.eps) is not None and (threat_model := THREAT_MODELS.get(attack.norm or ""))
    ]
    if not balls:
        return None
    standard, name, eps, threat_model = max(balls, key=lambda ball: ball[0])
    experiment, images = parts.experiment, len(evaluation.correct)
    return Record(
        dataset=experiment.data.name,
        threat_model=threat_model,
        eps=eps,
        clean=evaluation.clean.value,
        autoattack=evaluation.robust[name].value if standard else None,
        unreliable=evaluation.distrusted,
        additional_data=experiment.data.unlabelled is not None,
        architecture=experiment.model.name,
        footnote=f"on {images} test images" if images < 10_000 else None,
    )


def _is_standard(attack: Attack) -> bool:
    """Whether it is the leaderboard's AutoAttack, whatever its seed: nothing left out, nothing shortened."""
    largest = attack.rungs[-1]
    return isinstance(largest, AutoAttack) and largest == AutoAttack(largest.eps, largest.norm, seed=largest.seed)


@named_options
def model_card(title: str, *, about: str, evaluation: Evaluation | None, dataset: str, folder: str) -> str:
    """What a stranger must know before using the model: what it is, what was measured, what it is for."""
    rows = [f"| clean | {evaluation.clean} | {len(evaluation.correct)} |"] if evaluation else []
    if evaluation:
        rows += [
            f"| {name} | {accuracy} | {evaluation.attacks[name].description} |"
            for name, accuracy in evaluation.robust.items()
        ]
    flags = [f"- **Do not trust this yet:** {flag}" for flag in (evaluation.flags if evaluation else ())]
    results = "\n".join(["| | accuracy (95% interval) | images or attack |", "|---|---|---|", *rows])
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

{results if rows else "It has not been evaluated."}

{chr(10).join(flags)}

## Intended use

Research on adversarial robustness: to compare ways of training, and to be attacked. The accuracies under attack hold
for these attacks, at this radius and norm, on images of {dataset}; a stronger attack may leave less, and they are no
guarantee. Do not use it where a wrong answer harms somebody, nor on other images.
"""
