"""Are our attacks faster than foolbox and pyautoattack called directly, at the same verdicts?

    python -m benchmarks.attacks              shards, autoattack, curve and trust, one after the other
    python -m benchmarks.attacks shards       two processes against one, and against one with two threads
    python -m benchmarks.attacks autoattack   the whole of it against the package, where most fall and where few do
    python -m benchmarks.attacks curve        four radii in one evaluation against four evaluations
    python -m benchmarks.attacks trust        what the trust checks add to an evaluation of 1,000 images
    python -m benchmarks.attacks weakest      which flags the checks lose by asking the weakest examples first
    python -m benchmarks.attacks speed        PGD against foolbox, a tenth of AutoAttack against the package
    python -m benchmarks.attacks tricks       what folding, channels_last and torch.compile bring, one by one
    python -m benchmarks.attacks verdicts     every example's verdict against the direct call (an hour and more)

Needs CIFAR-10 and, for `speed`, foolbox (`pip install excite[bench]`). The ResNet-18 is the one pyautoattack ships.
"""

import argparse

import torch

from benchmarks.attacks import autoattack, curve, shards, speed, tricks, trust, verdicts, weakest

QUESTIONS = {
    "shards": shards.main,
    "autoattack": autoattack.main,
    "curve": curve.main,
    "trust": trust.main,
    "speed": speed.main,
    "tricks": tricks.main,
    "verdicts": verdicts.main,
    "weakest": weakest.main,
}
ASKED_BY_DEFAULT = ("shards", "autoattack", "curve", "trust")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=ASKED_BY_DEFAULT, metavar="|".join(QUESTIONS))
    parser.add_argument("--only", default="", help="a part of a case's name, e.g. APGD-T or 'ResNet-18, a tenth'")
    parser.add_argument("--threads", type=int, default=1, help="of torch; waiting threads burn CPU time too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for what in arguments.what:
        QUESTIONS[what](arguments.only)
