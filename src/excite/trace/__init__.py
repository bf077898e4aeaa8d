"""Record a training run as a few kilobytes of distances and slopes: a `Recorder` fills a `Trace`."""

from typing import TYPE_CHECKING

from excite.lazy import lazily
from excite.trace.trace import Trace

if TYPE_CHECKING:
    from excite.trace.probe import Curvature, Probe, largest_curvature
    from excite.trace.recorder import Recorder

__all__ = ["Curvature", "Probe", "Recorder", "Trace", "largest_curvature"]

__getattr__ = lazily(
    __name__, {"Curvature": "probe", "largest_curvature": "probe", "Probe": "probe", "Recorder": "recorder"}
)
