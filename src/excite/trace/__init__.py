"""Record a run, keep numbers instead of vectors: a `Recorder` fills a `Trace`."""

from excite.trace.hessian import Curvature, largest_curvature
from excite.trace.probe import Probe
from excite.trace.recorder import Recorder
from excite.trace.trace import Trace

__all__ = ["Curvature", "Probe", "Recorder", "Trace", "largest_curvature"]
