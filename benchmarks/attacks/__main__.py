"""Are our attacks faster than foolbox and pyautoattack, with the same outcomes?

    python -m benchmarks.attacks              shards, autoattack, curve and trust, one after the other
    python -m benchmarks.attacks quick        every headline ratio, float32 and bfloat16 (under five minutes)
    python -m benchmarks.attacks shards       two processes compared with one, and with two threads
    python -m benchmarks.attacks autoattack   AutoAttack compared with the package, on robust and other networks
    python -m benchmarks.attacks curve        four radii in one evaluation compared with four evaluations
    python -m benchmarks.attacks trust        cost of the trust checks of an evaluation
    python -m benchmarks.attacks weakest      flags lost or gained by checking the weakest examples first
    python -m benchmarks.attacks speed        PGD compared with foolbox, a tenth of AutoAttack with the package
    python -m benchmarks.attacks strength     verdicts of searches in bfloat16 and in float32 (over an hour; resumes)
    python -m benchmarks.attacks tricks       gain from folding, channels_last and torch.compile, one by one
    python -m benchmarks.attacks verdicts     compare the outcome of every example with a direct call (over an hour)

Requires CIFAR-10 and, for `speed`, foolbox (`pip install excite[bench]`). The ResNet-18 comes with pyautoattack.
"""

import argparse

import torch

from benchmarks.attacks import autoattack, curve, quick, shards, speed, strength, tricks, trust, verdicts, weakest

QUESTIONS = {
    "quick": quick.main,
    "shards": shards.main,
    "autoattack": autoattack.main,
    "curve": curve.main,
    "trust": trust.main,
    "speed": speed.main,
    "strength": strength.main,
    "tricks": tricks.main,
    "verdicts": verdicts.main,
    "weakest": weakest.main,
}
DEFAULT = ("shards", "autoattack", "curve", "trust")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=DEFAULT, metavar="|".join(QUESTIONS))
    parser.add_argument("--only", default="", help="part of a case's name, e.g. APGD-T or 'ResNet-18, a tenth'")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; idle ones use CPU time, too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for what in arguments.what:
        QUESTIONS[what](arguments.only)
