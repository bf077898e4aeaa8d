"""The theorem's certificate along one arm's path, from its trace."""

import math

from excite.excitation import certify as certify_path
from excite.excitation.along_path import FEWEST_MOMENTS, smoothness
from excite.files import write_json
from excite.runs.certified import Certified
from excite.runs.folder import ArmFolder


def certify(arm: ArmFolder) -> None:
    """Leave it in the arm's folder; a training that diverged, or of fewer than three epochs, has none."""
    trace = arm.trace()
    if trace is None or len(trace) < FEWEST_MOMENTS:
        return
    path = certify_path(trace)
    slopes = smoothness(trace, math.inf)
    found = path.excitation
    certified = Certified(
        steps=len(path.spans),
        certified=int(path.certified.sum()),
        acute=int(path.angles.holds.sum()),
        slopes=slopes.slopes,
        largest_slope=slopes.largest if slopes.slopes else None,
        slowest=found.smallest if found else None,
        fastest=found.largest if found else None,
        mean_rate=found.mean_rate if found else None,
        conclusion=str(path),
    )
    write_json(arm.certificate_file, certified.to_json())
