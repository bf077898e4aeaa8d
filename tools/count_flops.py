"""Count the FLOPs of every network of the catalogue again, into src/excite/sweeps/flops.json.

    python tools/count_flops.py

`excite list` reads them there: counting takes torch's compiler seconds to be imported. tests/sweeps/test_speed.py fails
where the file is not what this would write.
"""

import json
from pathlib import Path
from typing import Any

from excite.runs.experiment import catalogue, load
from excite.sweeps import speed
from excite.sweeps.costs import networks, sweep_runs


def counts() -> dict[str, dict[str, Any]]:
    experiments = [load(name) for name in catalogue()]
    runs = [run for experiment in experiments for run in (experiment, *sweep_runs(experiment))]
    return {
        str(network): {"flops": network.count_flops(), "factory": network.factory}
        for network in sorted({*networks(runs), *speed.MEASURED}, key=str)
    }


if __name__ == "__main__":
    (Path(speed.__file__).parent / "flops.json").write_text(json.dumps(counts(), indent=1) + "\n")
