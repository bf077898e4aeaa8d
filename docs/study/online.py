"""Where the rate settles that finds its edge during the one training, and what that costs.

    OMP_NUM_THREADS=1 python docs/study/online.py --multiple 1 --seeds 5

One line per seed on `mnist-sample`: the rungs that held, those that broke, the rate in the end, steps that were rolled
back, the last epoch's loss and the clean accuracy on the test images.
"""

import argparse

import torch

from excite.data.batches import epoch_batches
from excite.lipschitz.online import OnlineRate
from excite.runs import load
from excite.runs.assemble import assemble
from excite.training import descend

RUNG = 0.025  # of the training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--multiple", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        print(f"seed {seed}: {train_once(seed, arguments.multiple)}", flush=True)


def train_once(seed: int, multiple: float) -> str:
    parts = assemble(load("mnist-sample", overrides=[f"seed={seed}"]), device="cpu")
    training, whole = parts.experiment.training, parts.whole_training
    model = parts.new_model().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = parts.new_optimizer(model, parts.schedule(0))
    online = OnlineRate(model, optimizer, rung=int(RUNG * whole), multiple=multiple)
    losses: list[float] = []
    for epoch in range(training.epochs):
        batches = epoch_batches(
            parts.training_set,
            batch_size=training.batch_size,
            seed=seed,
            epoch=epoch,
            augment=parts.augment,
            memory_format=torch.channels_last,
        )
        losses = []
        for loss in descend(model, batches, parts.objective, optimizer):
            losses.append(loss.item())
            online.after_step(loss)
    with torch.no_grad():
        right = model.eval()(parts.test.floats()).argmax(1) == parts.test.labels
    ladder = online.ladder
    return (
        f"held {_rates(ladder.good)}; broke {_rates(ladder.breaks)}; in the end {ladder.rate:.3g}; "
        f"{ladder.lost} of {whole} steps rolled back; loss {sum(losses) / len(losses):.4f}; "
        f"clean {float(right.double().mean()):.1%}"
    )


def _rates(rates: list[float]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates) or "none"


if __name__ == "__main__":
    main()
