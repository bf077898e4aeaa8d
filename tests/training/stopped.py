"""Trainings that are stopped on their way, and what they are held against."""

import os
import signal

import torch
from torch import nn


class StopAfter:
    """Send this process a real signal at a given step of the run."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def __call__(self, done: int, total: int) -> None:
        if done == self.step:
            os.kill(os.getpid(), self.number)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)
