"""What `evaluate` accepts: arrays, loaders, attacks in every customary form; the rest is refused with a cure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excite import attacks as registry
from excite.attacks.from_foolbox import FromFoolbox, of_foolbox
from excite.attacks.function import as_attack
from excite.attacks.ladder import on_ladder
from excite.attacks.protocol import Attack, AttackFunction
from excite.errors import InputError
from excite.quantities import number

Array = Tensor | NDArray[Any]
Batches = Iterable[tuple[Array, Array]]  # a DataLoader
Radius = float | str | Sequence[float | str]
OneAttack = Attack | AttackFunction | str | Mapping[str, Any]
Attacks = OneAttack | Mapping[str, OneAttack] | Sequence[OneAttack]

FGSM = "fgsm"
DEFAULT_STEP = 2.5  # times ε, over the number of steps


def examples(model: nn.Module, x: Array | Batches, y: Array | None) -> tuple[Tensor, Tensor]:
    """Images in the model's own floating-point type, and whole labels; a loader is read to its end."""
    if y is None:
        x, y = _loaded(x)
    images, labels = _tensor(x, "Images"), _tensor(y, "Labels")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InputError(
            f"Inputs of type {images.dtype} have no ball around them to search: for text, attack the embeddings "
            "(a model that takes them, scaled to [0, 1]); images are floating-point numbers in [0, 1]."
        )
    if images.is_floating_point():
        dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        images = images.to(dtypes.pop()) if len(dtypes) == 1 else images
    if not labels.is_floating_point() and labels.dtype != torch.bool:
        labels = labels.long()
    return images, labels


def _loaded(batches: Any) -> tuple[Tensor, Tensor]:
    try:
        pairs = [(_tensor(images, "Images"), _tensor(labels, "Labels")) for images, labels in batches]
        return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Without labels, the second argument must give batches (images, labels), as a DataLoader does ({error})."
        ) from error


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ndarray | list | tuple):
        try:
            return torch.as_tensor(np.asarray(values))
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} must be numbers: {error}.") from error
    raise InputError(f"{what} must be a tensor or an array, not {type(values).__name__}.")


def attacks(given: Attacks, eps: Radius | None) -> dict[str, Attack]:
    """The attacks by name. `eps` is the radius of those that have none of their own, or radii for all of them.

    An attack is one of ours, a function (model, x, y[, generator]) -> x_adv, a foolbox attack, a name such as "pgd" or
    "fgsm", or a mapping with its `kind` and options, as in an experiment's TOML file; one, a list, or a mapping.
    """
    radii = _radii(eps)
    one = radii[-1] if radii else None
    if isinstance(given, Mapping) and "kind" not in given:
        known = {str(name): _attack(value, one) for name, value in given.items()}
    else:
        single = isinstance(given, Attack | str | Mapping) or callable(given) or not isinstance(given, Sequence)
        known = {}
        for value in [given] if single else given:  # type: ignore[union-attr]
            name = value if isinstance(value, str) else str(value["kind"]) if isinstance(value, Mapping) else ""
            attack = _attack(value, one)
            known[_unused(name or str(attack), known)] = attack
    if _several(eps):
        return {name: on_ladder(attack, radii) for name, attack in known.items()}
    return known


def _radii(eps: Radius | None) -> list[float]:
    if eps is None:
        return []
    return [_radius(eps)] if isinstance(eps, str | int | float) else [_radius(one) for one in eps]


def _several(eps: Radius | None) -> bool:
    return isinstance(eps, Sequence) and not isinstance(eps, str)


def _radius(eps: float | str) -> float:
    radius = number(eps) if isinstance(eps, str) else float(eps)
    if not 0 <= radius < float("inf"):
        raise InputError(f"eps={eps} is no radius; pass a number such as 8/255 (images lie in [0, 1]).")
    return radius


def _unused(name: str, taken: Mapping[str, object]) -> str:
    return next(one for one in (name, *(f"{name} ({n})" for n in range(2, 1000))) if one not in taken)


def _attack(value: Any, eps: float | None) -> Attack:
    if isinstance(value, Attack):
        return value
    if isinstance(value, str):
        return _named(value, {}, eps)
    if isinstance(value, Mapping):
        options = {key: option for key, option in value.items() if key != "kind"}
        return _named(str(value.get("kind", "")), options, eps)
    if of_foolbox(value):
        if eps is None:
            raise InputError("A foolbox attack needs its radius: pass eps, for instance eps=8/255.")
        return FromFoolbox(value, eps)
    return as_attack(value)


def _named(kind: str, options: Mapping[str, Any], eps: float | None) -> Attack:
    """With ε as text, and the customary step where none is given; FGSM is PGD's one whole step."""
    chosen = {key: number(value) if key in ("eps", "step") and isinstance(value, str) else value
              for key, value in options.items()}  # fmt: skip
    chosen.setdefault("eps", eps)
    if chosen["eps"] is None:
        raise InputError(f'The attack "{kind}" needs its radius: pass eps, for instance eps="8/255".')
    if kind == FGSM:
        kind, chosen = "pgd", {"steps": 1, "step": chosen["eps"], **chosen}
    fields = getattr(registry.ATTACKS.get(kind), "__dataclass_fields__", {})
    if "step" in fields and "step" not in chosen and not isinstance(chosen["eps"], list | tuple):
        steps = chosen.get("steps", fields["steps"].default)
        chosen["step"] = DEFAULT_STEP * chosen["eps"] / steps if fields["step"].default is dataclasses.MISSING else 0.0
    return registry.create(kind, **chosen)
