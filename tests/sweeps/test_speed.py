import pytest
import torch

from excite.sweeps.speed import STAND_IN, TOO_LARGE, Network, passes_per_second

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("network", "millions"),
    [
        (Network("lenet5", (1, 28, 28)), 0.172800 + 0.307200 + 0.061440 + 0.020160 + 0.001680),
        (Network("resnet20"), 81.63),  # 40.8 million multiply-adds, shortcuts included
        (Network("wrn-16-4"), 784.8),
    ],
    ids=lambda value: value.name if isinstance(value, Network) else "",
)
def test_flops_are_twice_the_multiply_adds(network: Network, millions: float) -> None:
    assert network.flops() / 1e6 == pytest.approx(millions, rel=1e-3)


def test_the_stand_in_is_not_too_large_itself() -> None:
    assert TOO_LARGE / 2 < STAND_IN.flops() <= TOO_LARGE


def test_a_larger_network_is_slower_and_the_generator_is_left_alone() -> None:
    small, large = Network("resnet8"), Network("resnet50")
    before = torch.get_rng_state()
    speeds = passes_per_second([small, large], CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert speeds.keys() == {small, large}
    assert speeds[small] > 2 * speeds[large] > 0


def test_a_very_large_network_is_judged_by_its_flops() -> None:
    large = Network("resnet18")
    speeds = passes_per_second([STAND_IN, large], CPU)
    assert speeds[large] / speeds[STAND_IN] == pytest.approx(STAND_IN.flops() / large.flops())
