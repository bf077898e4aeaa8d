"""Record a run, keep numbers instead of vectors: a `Recorder` fills a `Trace`."""

from typing import TYPE_CHECKING

from excite.lazy import lazily
from excite.trace.trace import Trace

if TYPE_CHECKING:
    from excite.trace.hessian import Curvature, largest_curvature
    from excite.trace.probe import Probe
    from excite.trace.recorder import Recorder

__all__ = ["Curvature", "Probe", "Recorder", "Trace", "largest_curvature"]

__getattr__ = lazily(
    __name__, {"Curvature": "hessian", "largest_curvature": "hessian", "Probe": "probe", "Recorder": "recorder"}
)
