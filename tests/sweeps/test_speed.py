import json
from pathlib import Path

import pytest
import torch

from excite import models
from excite.runs.experiment import catalogue, load
from excite.sweeps import speed
from excite.sweeps.costs import networks, sweep_runs
from excite.sweeps.speed import Network, passes_per_second

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


def test_the_counts_that_are_kept_are_those_of_the_catalogue() -> None:
    kept = json.loads((Path(speed.__file__).parent / "flops.json").read_text())
    experiments = [load(name) for name in catalogue()]
    runs = [run for experiment in experiments for run in (experiment, *sweep_runs(experiment))]
    wanted = {*networks(runs), *speed.MEASURED}
    counted = {str(network): {"flops": network.count_flops(), "factory": network.factory} for network in wanted}
    assert kept == counted, "run tools/count_flops.py"


def test_a_model_of_another_s_under_a_name_of_ours_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Network("resnet20").flops()
    monkeypatch.setitem(models.MODELS, "resnet20", models.MODELS["resnet8"])
    assert Network("resnet20").flops() == Network("resnet8").flops() < before


def test_a_larger_network_is_slower_and_the_generator_is_left_alone() -> None:
    small, large = Network("resnet8"), Network("resnet50")
    before = torch.get_rng_state()
    speeds = passes_per_second([small, large], CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert speeds.keys() >= {small, large}
    assert speeds[small] > 2 * speeds[large] > 0


def test_networks_of_a_size_are_judged_by_their_flops() -> None:
    one, other = Network("resnet20"), Network("wrn-16-4")
    speeds = passes_per_second([one, other], CPU)
    assert speeds[one] / speeds[other] == pytest.approx(other.flops() / one.flops())
