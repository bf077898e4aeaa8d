"""Every network by its name: `create("resnet20", num_classes=100)`; images in [0, 1] in, logits out.

To add one: a file with its class, a line in `MODELS`, a row in tests/models/test_models.py. What a class leaves open
as keyword-only arguments, besides the number of classes and the shape of an image, are the model's options.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial

from torch import nn

from excite.errors import InputError, unknown
from excite.models import resnet
from excite.models.densenet import DenseNet
from excite.models.lenet import LeNet5
from excite.models.normalize import Normalize
from excite.models.resnet import ResNet
from excite.models.wide_resnet import WideResNet
from excite.quantities import check_whole
from excite.registry import build, named_options

__all__ = ["MODELS", "DenseNet", "LeNet5", "Normalize", "ResNet", "WideResNet", "create"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "resnet8": partial(ResNet, resnet.cifar(8)),
    "resnet20": partial(ResNet, resnet.cifar(20)),
    "resnet50": partial(ResNet, resnet.cifar(50)),
    "resnet110": partial(ResNet, resnet.cifar(110)),
    "resnet18": partial(ResNet, resnet.RESNET18),
    "resnet50-bottleneck": partial(ResNet, resnet.RESNET50_BOTTLENECK),
    "densenet40": partial(DenseNet, 40, 12),
    "wrn-16-4": partial(WideResNet, 16, 4),
    "wrn-28-10": partial(WideResNet, 28, 10),
    "wrn-34-10": partial(WideResNet, 34, 10),
}

OWN_OPTIONS = ("num_classes", "input_shape", "normalize")  # of `create`; all others are the model's


@named_options
def create(
    name: str,
    *,
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    normalize: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
    **options: bool | str,
) -> nn.Module:
    """Build the network called `name`, its weights drawn from torch's global generator.

    Args:
        name: a key of `MODELS`.
        num_classes: the number of logits.
        input_shape: channels, height and width of one image.
        normalize: (mean, std), one number per channel each; becomes the first layer, so inputs stay in [0, 1].
        options: for instance `activation="tanh"` for `lenet5` or `batch_norm=False` for the ResNets.

    Returns:
        The network, in train mode, on the CPU.

    >>> sum(parameter.numel() for parameter in create("lenet5", input_shape=(1, 28, 28)).parameters())
    44426
    """
    check_whole("num_classes", num_classes)
    for side in input_shape:
        check_whole("A side of input_shape", side)
    if len(input_shape) != 3 or min(input_shape) < 1 or num_classes < 1:
        raise InputError(
            f"num_classes={num_classes} and input_shape={input_shape} do not describe a classifier of images; "
            "give a positive number and a shape such as (3, 32, 32)."
        )
    for option in options:
        if get_close_matches(option, OWN_OPTIONS, cutoff=0.8):
            raise unknown("option of create", option, OWN_OPTIONS)
    network = build("model", MODELS, name, options, num_classes=num_classes, input_shape=input_shape)
    if normalize is None:
        return network
    layer = Normalize(*normalize)
    if len(layer.mean) != input_shape[0]:
        raise InputError(
            f"The images have {input_shape[0]} channels, the normalisation {len(layer.mean)}; give one each."
        )
    model = nn.Sequential()
    model.add_module("normalize", layer)
    model.add_module("network", network)
    return model
