"""Experiments, described in TOML, and the paper's procedure, which runs them in a folder."""

from excite.runs.experiment import Experiment, catalogue, load

__all__ = ["Experiment", "catalogue", "load"]
