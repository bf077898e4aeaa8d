"""Rounded products: the settings that decide on them are read, switched off and restored. And the choice of kernels."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from excite import precision
from excite.errors import InputError
from excite.precision import check_precision, choose_kernels, exact_products, rounding, rounding_of_products
from excite.runs import load
from excite.runs.assemble import assemble
from tests.tf32 import tf32

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BACKENDS: Any = torch.backends


def test_float32_is_exact_until_torch_is_told_otherwise() -> None:
    assert rounding_of_products(CPU) == 0
    with tf32():
        assert rounding_of_products(CPU) == 2**-10
        with exact_products(CPU):
            assert rounding_of_products(CPU) == 0
        assert rounding_of_products(CPU) == 2**-10
    assert rounding_of_products(CPU) == 0


@pytest.mark.parametrize("switch", [BACKENDS.cudnn.conv, BACKENDS.cuda.matmul])
@pytest.mark.parametrize(("name", "rounding"), [("ieee", 0), ("none", 0), ("tf32", 2**-10)])
def test_convolutions_and_products_on_cuda(switch: Any, name: str, rounding: float) -> None:
    assert rounding_of_products(CUDA) == 2**-10  # torch's default
    both = BACKENDS.cudnn.conv, BACKENDS.cuda.matmul
    before = [each.fp32_precision for each in both]
    try:
        for each in both:
            each.fp32_precision = name if each is switch else "ieee"
        assert rounding_of_products(CUDA) == rounding
        with exact_products(CUDA):
            assert rounding_of_products(CUDA) == 0
        assert switch.fp32_precision == name
    finally:
        for each, precision in zip(both, before, strict=True):
            each.fp32_precision = precision


def test_tf32_is_in_force_inside_only() -> None:
    before = [each.fp32_precision for each in (BACKENDS.cudnn.conv, BACKENDS.cuda.matmul)]
    with rounding("tf32", CUDA):
        assert BACKENDS.cudnn.conv.fp32_precision == BACKENDS.cuda.matmul.fp32_precision == "tf32"
    assert [each.fp32_precision for each in (BACKENDS.cudnn.conv, BACKENDS.cuda.matmul)] == before
    with rounding("bf16", CPU), rounding("float32", CPU):
        assert rounding_of_products(CPU) == 0


@pytest.mark.parametrize(
    ("precision", "device", "cure"),
    [("tf32", CPU, "bf16"), ("bf16", torch.device("meta"), "float32"), ("x", CPU, "tf32")],
)
def test_a_precision_that_a_device_does_not_have_is_refused(precision: Any, device: torch.device, cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        check_precision(precision, device)
    check_precision("float32", device)


@pytest.mark.parametrize("key", ["training.precision", "attack_precision"])
def test_an_experiment_is_refused_before_it_is_trained(key: str) -> None:
    with pytest.raises(InputError, match="tf32"):
        assemble(load("mnist-sample", overrides=[f"{key}=tf32"]), device="cpu")


@pytest.fixture
def former_kernels() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    precision._former_kernels.cache_clear()
    yield
    precision._former_kernels.cache_clear()
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.benchmark = before[1]


@pytest.mark.usefixtures("former_kernels")
@pytest.mark.parametrize("benchmark", [False, True])
def test_an_experiment_chooses_its_kernels_and_the_next_one_its_own(
    *, monkeypatch: pytest.MonkeyPatch, benchmark: bool
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.backends.cudnn.benchmark = benchmark
    for kernels, deterministic in (("deterministic", True), ("fastest", False)):
        assemble(load("mnist-sample", overrides=[f"training.kernels={kernels}"]), device="cpu")
        assert torch.are_deterministic_algorithms_enabled() is deterministic
        assert torch.backends.cudnn.benchmark is not deterministic
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    choose_kernels("deterministic")
    assemble(load("mnist-sample"), device="cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark is benchmark  # as the user had it
