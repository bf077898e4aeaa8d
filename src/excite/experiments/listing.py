"""Every name an experiment file can use."""

from excite import data, models
from excite.attacks import ATTACKS
from excite.data.augment import AUGMENTATIONS
from excite.experiments.experiment import catalogue
from excite.schedules import SCHEDULES
from excite.training import OBJECTIVES


def everything() -> dict[str, list[str]]:
    return {
        "experiments": list(catalogue()),
        "data": list(data.names()),
        "augmentations": list(AUGMENTATIONS),
        "models": list(models.MODELS),
        "objectives": list(OBJECTIVES),
        "schedules": list(SCHEDULES),
        "attacks": list(ATTACKS),
    }
