"""A trained model, or a trained arm of a run, labels images that have no labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from excite.attacks.fast_model import fast_inference
from excite.data.pseudo_labels import Labelling, Unlabelled, check_shape, load_unlabelled, pseudo_label
from excite.errors import InputError
from excite.randomness import device_of, undisturbed
from excite.runs.missing import needed_model

if TYPE_CHECKING:
    from excite.runs.procedure import Run


def label_with_run(
    run: "Run", arm: str, source: str, out: Path, *, threshold: float = 0.0, balance: bool = False
) -> Labelling:
    """Label the images of `source` with a trained arm of a run, and write the pseudo-labels to `out`, an .npz file."""
    if out.suffix != ".npz":
        raise InputError(f"Pseudo-labels are an .npz file; {out} does not end so. Write --out {out}.npz.")
    trained = needed_model(run.files, arm)
    unlabelled = load_unlabelled(source)
    check_shape(unlabelled, run.parts.test.images.shape[1:])
    with run.console.task(f"labelling {len(unlabelled):,} images with {run.folder.name}/{arm}") as progress:
        labelling = label_with(
            trained.load_into(run.parts.new_model()),
            unlabelled,
            source=source,
            teacher={"run": run.folder.name, "arm": arm, "experiment": run.experiment.to_json()},
            threshold=threshold,
            balance=balance,
            on_progress=progress,
        )
    labelling.kept.save(out)
    return labelling


def label_with(model: nn.Module, unlabelled: Unlabelled, **how: Any) -> Labelling:
    """`pseudo_label` by the model, which answers in eval mode and is left as it was."""
    device = device_of(model)
    with undisturbed(model, device):
        answer = fast_inference(model.eval())
        return pseudo_label(lambda images: answer(images.to(device)), unlabelled, **how)
