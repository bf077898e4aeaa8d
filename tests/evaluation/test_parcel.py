"""What travels to another process arrives as it was: to the bit, in its layout, shared where it was shared."""

import copy
import pickle
from collections.abc import Callable

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from excite import attacks, models
from excite.evaluation.batch import Judge
from excite.evaluation.parcel import STRUCTURE, opened, pack, parcel, unpack


class Tied(nn.Module):
    """Two layers with one weight, of which a buffer is a view, beside a list that holds it once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight
        self.corner: Tensor
        self.register_buffer("corner", self.first.weight.detach()[1:, ::2])
        self.register_buffer("not_kept", torch.tensor([True, False]), persistent=False)
        self.beside = [self.first.weight]


def same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_tied_weights_stay_tied_and_views_stay_views() -> None:
    model = Tied()
    arrived = unpack(pack(model))
    assert arrived.first.weight is arrived.last.weight is arrived.beside[0]
    assert isinstance(arrived.first.weight, nn.Parameter)
    assert arrived.first.weight.requires_grad
    assert same_memory(arrived.corner, arrived.first.weight)
    assert not same_memory(arrived.first.bias, arrived.last.bias)
    assert arrived.state_dict().keys() == model.state_dict().keys()
    assert arrived.not_kept.equal(model.not_kept)
    assert all(arrived.state_dict()[name].equal(tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        arrived.first.weight.zero_()
    assert not arrived.corner.any()
    assert model.corner.any()  # a copy of its own


LAYOUTS: list[Callable[[], Tensor]] = [
    lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    lambda: torch.rand(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
    lambda: torch.rand(6, 4).T,
    lambda: torch.rand(6, 4)[1::2, 1:],
    lambda: torch.rand(3, 1).expand(3, 7),
    lambda: torch.rand(0, 3),
    lambda: torch.tensor(0.1),
    lambda: torch.rand(4, dtype=torch.complex64).conj(),
]
DTYPES = [
    torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int8,
    torch.uint8, torch.uint16, torch.int64,
]  # fmt: skip


@pytest.mark.parametrize("make", LAYOUTS)
def test_layouts(make: Callable[[], Tensor]) -> None:
    tensor = make()
    arrived = unpack(pack(tensor))
    assert arrived.equal(tensor)
    assert (arrived.stride(), arrived.storage_offset()) == (tensor.stride(), tensor.storage_offset())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_number_formats(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, 1.0, 1.5, 3.0]).to(dtype)
    arrived = unpack(pack([tensor, tensor]))
    assert arrived[0].dtype == dtype
    assert arrived[0].view(torch.uint8).equal(tensor.view(torch.uint8))
    assert arrived[1] is arrived[0]


def test_no_number_is_lost() -> None:
    tensor = torch.tensor([-0.0, torch.inf, torch.nan, 1e-45])
    assert unpack(pack(tensor)).view(torch.int32).equal(tensor.view(torch.int32))


def test_temporary_tensors_do_not_stand_in_for_each_other() -> None:
    """Memory that is freed while the rest is packed may be given to the next tensor."""

    class Fresh:
        def __init__(self, number: int) -> None:
            self.number = number

        def __reduce__(self) -> tuple[Callable[[Tensor], Tensor], tuple[Tensor]]:
            return torch.neg, (torch.full((1000,), float(self.number)),)

    arrived = unpack(pack([Fresh(number) for number in range(20)]))
    assert [float(tensor[0]) for tensor in arrived] == [-float(number) for number in range(20)]


def test_tensors_are_in_safetensors_and_only_there() -> None:
    model = models.create("resnet8")
    contents = pack(model)
    sizes = {name: tensor.numel() for name, tensor in safetensors.torch.load(contents).items()}
    of_tensors = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert sum(size for name, size in sizes.items() if name != STRUCTURE) == of_tensors
    assert sizes[STRUCTURE] < 40_000 < of_tensors
    assert len(contents) < len(pickle.dumps(model))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_same_answers_to_the_bit(memory_format: torch.memory_format) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.create("resnet8").to(memory_format=memory_format).eval()  # type: ignore[call-overload]
        x, y = torch.rand(6, 3, 32, 32), torch.arange(6)
    judge = Judge(model, x, y, {"pgd": attacks.create("pgd", eps=0.01, step=0.002)}, seed=3, fast=True)
    there = opened(parcel(judge), "cpu")
    assert (there.attacks, there.seed, there.fast) == (judge.attacks, judge.seed, judge.fast)
    assert not there.model.training
    for mine, theirs in zip(model.parameters(), there.model.parameters(), strict=True):
        assert mine.stride() == theirs.stride()
    here = x.clone().requires_grad_()
    far = there.x.clone().requires_grad_()
    for one, other in ((model, there.model), (judge.attacked, there.attacked)):
        mine, theirs = one(here), other(far)
        assert mine.equal(theirs)
        (gradient,), (their_gradient,) = (
            torch.autograd.grad(logits.sum(), images) for logits, images in ((mine, here), (theirs, far))
        )
        assert gradient.equal(their_gradient)


def test_packing_leaves_the_model_as_it_is() -> None:
    model = Tied()
    before = copy.deepcopy(model.state_dict())
    unpack(pack(model)).first.weight.data.fill_(7)
    assert all(model.state_dict()[name].equal(tensor) for name, tensor in before.items())
