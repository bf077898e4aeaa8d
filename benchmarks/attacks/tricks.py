"""How much faster do folding, channels_last and torch.compile make an attack, one by one?"""

import copy
from functools import partial

import torch
from torch import nn

from benchmarks.attacks.networks import gradient, resnet18, test_images
from benchmarks.attacks.timing import in_turn, print_ratios
from excite import models
from excite.attacks import fast_inference
from excite.attacks.fast_model import fold


def main(only: str) -> None:
    for name, model, count in (("ResNet-18", resnet18(), 32), ("ResNet-20", models.create("resnet20").eval(), 100)):
        if only not in name:
            continue
        x, y = test_images(count)
        folded = fold(model)
        assert isinstance(folded, nn.Module)
        for parameter in folded.parameters():
            parameter.data = parameter.data.contiguous()
        last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x_last = x.contiguous(memory_format=torch.channels_last)
        compiled = fast_inference(model)
        compiled.compile()
        gradient(compiled, x, y)
        print_ratios(
            f"{name}, forward and input gradient of {count} images",
            in_turn(
                {
                    "plain": partial(gradient, model, x, y),
                    "folded": partial(gradient, folded, x, y),
                    "channels_last": partial(gradient, last, x_last, y),
                    "folded and channels_last": partial(gradient, fast_inference(model), x, y),
                    "and compiled": partial(gradient, compiled, x, y),
                },
                rounds=4,
            ),
        )
