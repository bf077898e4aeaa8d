"""What do the scripts in examples/ reach at the customary rate, at 1/L and at 2/L, and what does the search cost?

    python benchmarks/scripts.py [--seeds 0 1 2] [--budget 2000] [cnn tabular transformer fine_tuning]

A search is the script's own line, with seeds of the script from 0 on; a training is the script without the added lines,
at `--lr`. CPU time of one thread. A rate of an L that is not identified is not trained at.
"""

import argparse
import contextlib
import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from excite import LipschitzEstimate

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = ("cnn", "tabular", "transformer", "fine_tuning")


def run(source: str, *arguments: str) -> tuple[dict[str, Any], float]:
    """The variables that the script leaves behind, and its CPU seconds."""
    sys.argv = ["script", *arguments]
    variables: dict[str, Any] = {"__name__": "script"}
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, "script", "exec"), variables)  # noqa: S102
    return variables, time.process_time() - began


def search(name: str, seed: int, budget: int | None) -> tuple[LipschitzEstimate, float]:
    """The estimate of the script's own call, and the CPU seconds that the call takes."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    before, _, after = source.partition("estimate = ")
    call = after.partition("  # +")[0]
    call = call.removesuffix(")") + f", seed={seed}, budget={budget})"
    variables, _ = run(before, "--seed", str(seed))
    began = time.process_time()
    estimate: LipschitzEstimate = eval(call, variables)  # noqa: S307
    return estimate, time.process_time() - began


def plain(name: str) -> str:
    """The script without the lines that excite adds."""
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.endswith("# +"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=SCRIPTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names:
        (customary,) = re.findall(r'"--lr", type=float, default=([\d.]+)', plain(name))
        for seed in arguments.seeds:
            estimate, cost = search(name, seed, arguments.budget)
            rates = {"customary": float(customary)}
            if estimate.identified:
                rates |= {"1/L": estimate.learning_rate(), "2/L": estimate.learning_rate(2)}
            print(
                f"{name}, seed {seed}: search {cost:.1f} s, {estimate.details['spent']} steps. {estimate}", flush=True
            )
            for arm, rate in rates.items():
                variables, seconds = run(plain(name), "--seed", str(seed), "--lr", repr(rate))
                print(f"  {arm} {rate:.3g}: {variables['accuracy']:.1%} in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
