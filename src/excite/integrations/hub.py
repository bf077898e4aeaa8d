"""A trained network as a folder that the Hugging Face Hub takes: weights, configuration and model card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

import excite
from excite import models
from excite.data.catalog import load_once
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation
from excite.files import expected, read_json, sha256, write_bytes, write_json, write_text
from excite.integrations import needs
from excite.runs.assemble import assemble
from excite.runs.experiment import Experiment
from excite.runs.folder import RunFolder

__all__ = ["export", "from_pretrained", "model_card", "save_model"]

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


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
    """Write a network of `excite.models` to a folder for `from_pretrained`: weights, configuration and model card."""
    folder = Path(folder)
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    normalize = [state[f"normalize.{key}"].flatten().tolist() for key in ("mean", "std") if f"normalize.{key}" in state]
    write_bytes(folder / WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
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


def from_pretrained(name: str | Path, network: nn.Module | None = None, *, revision: str | None = None) -> nn.Module:
    """Load an exported network, in eval mode and on the CPU: images in [0, 1] in, logits out.

    Args:
        name: a folder written by `excite export` or by `save_model`, or else a repository of the Hub.
        network: needed for your own network, whose code a folder does not hold: one with any weights.
        revision: a branch, tag or commit of the repository.

    Returns:
        The network. Weights that do not match their SHA-256 raise a CorruptFileError.
    """
    folder = Path(name) if Path(name).is_dir() else _downloaded(str(name), revision)
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder} has no {CONFIG}; pass a folder that `excite export` wrote.")
    config = read_json(folder / CONFIG)
    with expected(folder / CONFIG):
        normalize = tuple(config["normalize"]) if config["normalize"] else None
        if network is not None:
            model = models.normalized(network, normalize)
        elif ":" in config["model"]:  # a file from elsewhere must not choose what is imported
            raise InputError(f"{folder} has weights of {config['model']}. Pass it: from_pretrained(…, network=…).")
        else:
            model = models.create(
                config["model"],
                num_classes=config["num_classes"],
                input_shape=tuple(config["input_shape"]),
                normalize=normalize,
                **config["options"],
            )
        digest = config["weights_sha256"]
    if not (folder / WEIGHTS).exists() or sha256(folder / WEIGHTS) != digest:
        raise CorruptFileError(
            f"{folder / WEIGHTS} is missing or does not match the SHA-256 in {CONFIG}. Export the model again."
        )
    model.load_state_dict(safetensors.torch.load((folder / WEIGHTS).read_bytes()))
    return model.eval()


def _downloaded(name: str, revision: str | None) -> Path:
    with needs("excite[transformers]"):
        import huggingface_hub
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=[WEIGHTS, CONFIG]))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is neither a folder nor a readable repository of the Hub ({error}).") from error


def export(run: RunFolder, arm: str, destination: Path | None = None) -> Path:
    """Write a trained arm as a model folder with its card, by default to exports/<experiment>-<arm>; return it."""
    experiment, trained = run.experiment, run.needed_model(arm)
    parts, dataset = assemble(experiment, device="cpu"), load_once(experiment.data.name)
    estimate = run.estimate_of(arm)
    folder = destination or Path("exports") / f"{experiment.name}-{arm}"
    about = (
        f"{experiment.model.name}, trained on {dataset.name} by `excite` {excite.__version__}, experiment "
        f"`{experiment.name}`, arm {trained.title}: first learning rate {trained.rate:.4g}."
    )
    return save_model(
        folder,
        trained.load_into(parts.new_model()),
        experiment.model.name,
        options=experiment.model.options,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        card=model_card(
            f"{experiment.name}, {trained.title}",
            about if estimate is None else f"{about} {estimate}",
            trained.evaluation,
            dataset=dataset.name,
            load=loading(experiment, folder),
        ),
    )


def loading(experiment: Experiment, folder: Path) -> str:
    """Return the call that loads an export. Your own network is an argument, because its code is not exported."""
    return f'from_pretrained("{folder}"{", network" if ":" in experiment.model.name else ""})'


def model_card(title: str, about: str, evaluation: Evaluation | None, *, dataset: str, load: str) -> str:
    """A model card in Markdown: what the model is, its measured accuracies, and its intended use."""
    results = "The model was not evaluated."
    if evaluation:
        rows = [f"| clean | {evaluation.clean} | {len(evaluation.correct)} |"]
        for name, accuracy in evaluation.robust.items():
            rows.append(f"| {name} | {accuracy} | {evaluation.attacks[name].description} |")
        flags = [f"- **Do not trust this yet:** {flag}" for flag in evaluation.flags]
        head = ["| | accuracy (95% interval) | images or attack |", "|---|---|---|"]
        results = "\n".join([*head, *rows, "", *flags])
    return f"""---
library_name: excite
pipeline_tag: image-classification
tags: [adversarial-robustness, persistency-of-excitation]
---
# {title}

{about}

```python
from excite.integrations.hub import from_pretrained

model = {load}  # images in [0, 1] in, logits out, eval mode
```

## Results

{results}

## Intended use

Research on adversarial robustness: comparing training methods, and attacking the model. The accuracies under attack
hold for these attacks, at this radius and norm, on images of {dataset}. They are not guarantees: a stronger attack may
be more successful. Do not use the model where a wrong prediction causes harm, or on other images.
"""
