"""Plain functions are attacks: what they say of themselves is understood, what they lack is named."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks.given import as_attack, as_attacks
from excite.errors import InputError
from excite.evaluation import evaluate


def test_partial_pgd_is_an_attack(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    same: dict[str, Any] = {
        "function": partial(attacks.pgd, eps=0.02, step=0.005, steps=5),
        "object": attacks.create("pgd", eps=0.02, step=0.005, steps=5),
    }
    result = evaluate(convnet, images, labels, same, batch_size=16, checks=False)
    assert np.array_equal(result.outcomes("function"), result.outcomes("object"))
    assert 0 < result.robust["function"].correct < len(images)
    assert "pgd(eps=0.02, step=0.005, steps=5)" in result.attacks["function"].description
    assert as_attack(same["function"]).norm == "linf"


def test_a_random_start_comes_from_the_generator(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    attack = as_attack(partial(attacks.pgd, eps=0.02, step=0.005, steps=1, random_start=True))
    one, again, other = (attack(convnet, images, labels, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_functions_with_and_without_a_generator(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    def darker(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 0.9 * x

    def noisy(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return (x + 0.1 * torch.rand(x.shape, generator=generator)).clamp(0, 1)

    result = evaluate(convnet, images, labels, {"darker": darker, "noisy": noisy}, checks=False)
    assert result.attacks["darker"].description.endswith("darker")
    assert as_attack(noisy).eps is None
    with pytest.raises(InputError, match="passes"):
        as_attack(darker).passes(10)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="ep"):
        as_attack(partial(attacks.pgd, ep=0.1, step=0.1))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="eps"):
        as_attack(partial(attacks.pgd, step=0.1))


def test_a_name_is_no_attack() -> None:
    with pytest.raises(InputError, match="pgd"):
        as_attack("pgd")  # type: ignore[arg-type]


def test_a_radius_is_the_functions_own_or_given_and_never_a_generator(
    convnet: nn.Module, images: Tensor, labels: Tensor
) -> None:
    def own(model: nn.Module, x: Tensor, y: Tensor, eps: float = 0.1) -> Tensor:
        return (x + eps).clamp(0, 1)

    def needed(model: nn.Module, x: Tensor, y: Tensor, *, eps: float) -> Tensor:
        return (x + eps).clamp(0, 1)

    def fixed(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        assert generator is not None
        return x

    def options(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor = torch.zeros(2), **more: float) -> Tensor:  # noqa: B008
        return x + mask.sum() + sum(more.values())

    given = as_attacks({"own": own, "needed": needed}, eps="8/255")
    assert {name: attack.eps for name, attack in given.items()} == {"own": 0.1, "needed": 8 / 255}
    for attack in (*given.values(), as_attack(fixed), as_attack(options)):
        assert attack(convnet, images, labels, torch.Generator()).shape == images.shape
    with pytest.raises(InputError, match="parameter `eps`"):
        as_attacks(fixed, eps=0.03)


@pytest.mark.parametrize("eps", [0.1, [0.1], [0.1, 0.2]])
def test_an_attack_without_a_radius_is_told_how_to_get_one(eps: Any) -> None:
    """One error that leads to no other: without eps it runs, and with the parameter it takes one."""

    def own(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x

    def with_radius(model: nn.Module, x: Tensor, y: Tensor, *, eps: float) -> Tensor:
        return x

    with pytest.raises(InputError, match="parameter `eps`"):
        as_attacks(own, eps=eps)
    assert as_attacks(own)
    assert as_attacks(with_radius, eps=eps)


class Fixed(attacks.Attack):
    eps, norm = None, None

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return x


@pytest.mark.parametrize("eps", [0.1, [0.1]])
def test_so_is_a_class(eps: Any) -> None:
    with pytest.raises(InputError, match="parameter `eps`"):
        as_attacks(Fixed(), eps=eps)


def brighter(model: nn.Module, x: Tensor, y: Tensor, *, eps: float, by: float = 0.3, norm: str = "linf") -> Tensor:
    return (x + by).clamp(0, 1)


def test_a_function_keeps_its_norm_at_another_radius(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    (attack,) = as_attacks(brighter, eps=0.1).values()
    assert attack.norm == attack.at(0.2).norm == "linf"
    with pytest.raises(InputError, match=r"eps=0\.1"):
        evaluate(convnet, images, labels, attack)


def test_a_radius_of_numpy_is_one() -> None:
    assert as_attack(partial(brighter, eps=np.float32(0.5))).eps == 0.5  # type: ignore[arg-type]


def test_a_radius_in_another_unit_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="8/255"):
        as_attack(partial(brighter, eps=8))


class Shift:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (x + self.by).clamp(0, 1)


def shifting(by: float) -> Any:
    return lambda _, x, __: (x + by).clamp(0, 1)


@pytest.mark.parametrize("kind", [Shift, shifting])
def test_what_an_attack_knows_tells_it_from_another(kind: Any) -> None:
    """A journal is resumed by this; what people read is the name alone."""
    one, same, other = (as_attack(kind(by)) for by in (0.1, 0.1, 0.2))
    assert repr(one) == repr(same) != repr(other)
    assert str(one) == str(other)


def a_patch(model: nn.Module, x: Tensor, y: Tensor, *, patch: Any) -> Tensor:
    return x


@pytest.mark.parametrize(
    "as_known", [lambda patch: patch, lambda patch: [patch], lambda patch: patch.numpy(), nn.Parameter]
)
@pytest.mark.parametrize("kind", [Shift, shifting, lambda patch: partial(a_patch, patch=patch)])
def test_large_tensors_are_told_apart_where_their_words_are_not(kind: Any, as_known: Any) -> None:
    one = torch.zeros(3, 28, 28)
    other = one.clone()
    other[1, 14, 14] = 1
    first, again, second = (repr(as_attack(kind(as_known(patch)))) for patch in (one, one.clone(), other))
    assert repr(one) == repr(other)
    assert first == again != second


def test_models_that_an_attack_knows_are_told_apart_by_their_weights() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert repr(as_attack(Shift(one))) != repr(as_attack(Shift(other)))  # type: ignore[arg-type]


def test_where_an_option_lies_in_memory_does_not_count() -> None:
    one, other = (partial(a_patch, patch=object()) for _ in range(2))
    assert repr(one) != repr(other)
    assert repr(as_attack(one)) == repr(as_attack(other))
