"""Rounded products: the settings that decide on them are read, switched off and restored."""

from typing import Any

import pytest
import torch

from excite.precision import exact_products, rounding_of_products
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
