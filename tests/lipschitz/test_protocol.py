"""What a trace holds, said in the same words as what a run will record."""

import numpy as np

from excite.lipschitz.protocol import Recording
from excite.trace import Trace


def test_a_recording_counts_what_estimators_can_use() -> None:
    trace = Trace(
        np.zeros((4, 4)),
        np.zeros((4, 4)),
        steps=np.arange(3),
        slopes=np.ones(5),
        curvatures=np.array([1.0, np.nan, 2.0, 0.0]),
    )
    found = Recording.of(trace)
    assert (found.moments, found.input_gradients, found.slopes, found.curvatures) == (3, False, 5, 2)
    assert found.says == "The trace holds"
    assert Recording(3).says == "The run will record"
