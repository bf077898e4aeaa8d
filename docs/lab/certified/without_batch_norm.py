"""Three estimates of L for ResNet-8 without batch-norm, a network whose loss hardly falls at first.

OMP_NUM_THREADS=1 python docs/lab/certified/without_batch_norm.py FOLDER MOMENTUM
"""

import sys
from pathlib import Path

from excite.console import Console
from excite.runs import load
from excite.runs.procedure import Run

SETTINGS = [
    *("data.name=cifar10", "data.train_examples=10000", "data.augment=crop-flip", "attacks={}"),
    *("model.name=resnet8", "model.options={ batch_norm = false }"),
    *("training.epochs=4", "training.batch_size=128"),
    'training.schedule={ kind = "step", rate = 0.1, milestones = [3] }',
    'lipschitz={ method = "edge" }',
]

if __name__ == "__main__":
    folder, momentum = Path(sys.argv[1]), float(sys.argv[2])
    for seed in range(3):
        experiment = load("mnist-sample", overrides=[*SETTINGS, f"training.momentum={momentum}", f"seed={seed}"])
        found = Run(folder / f"seed-{seed}", experiment, console=Console()).estimate()
        print(found, found.interval, f"{found.details['spent']} steps", flush=True)
