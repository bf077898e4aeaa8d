"""What does single-step adversarial training (N-FGSM) cost and bring beside PGD-AT with ten steps?

    OMP_NUM_THREADS=1 python benchmarks/single_step.py 5000 4      training images and epochs

ResNet-8 on CIFAR-10, batches of 128, rate 0.1 with momentum 0.9; CPU seconds of this process.
"""

import sys
import time

import torch

from excite import attacks, data, models
from excite.data.augment import crop_flip
from excite.evaluation import evaluate
from excite.objectives import NFGSM, PGDAT, Objective, Standard
from excite.schedules import constant
from excite.training import train

OBJECTIVES: dict[str, Objective] = {"standard": Standard(), "N-FGSM": NFGSM(), "PGD-AT-10": PGDAT()}
TEST_IMAGES = 500
PGD20 = attacks.create("pgd", eps="8/255", step="2/255", loss="margin", random_start=True)


def main(images: int, epochs: int) -> None:
    cifar = data.load("cifar10")
    split, test = cifar.train.subset(images), cifar.test.subset(TEST_IMAGES)
    for name, objective in OBJECTIVES.items():
        torch.manual_seed(0)
        model = models.create("resnet8")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        schedule, began = constant(0.1), time.process_time()
        history = train(
            model,
            split,
            objective,
            optimizer,
            schedule,
            epochs=epochs,
            batch_size=128,
            augment=crop_flip,
            on_epoch=print,
        )
        seconds = time.process_time() - began
        robust = evaluate(model, test.floats(), test.labels, PGD20)
        print(
            f"{name}: {seconds / epochs:.1f} s per epoch, loss {history.epochs[-1].loss:.2f}, "
            f"clean {robust.clean}, {PGD20}: {robust.worst}",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
