"""How much does one evaluation at four radii cost, compared with four evaluations?"""

import time
from functools import partial

from benchmarks.attacks.networks import test_images, trained
from benchmarks.attacks.timing import print_ratios
from excite import attacks
from excite.evaluation import evaluate


def main(only: str) -> None:
    model = trained("resnet20", epochs=2)
    for title, radii in (
        ("ResNet-20, large radii, ε = 1, 2, 4, 8/255", (1 / 255, 2 / 255, 4 / 255, 8 / 255)),
        ("ResNet-20, small radii, ε = 0.1, 0.2, 0.4, 0.8/255", (0.1 / 255, 0.2 / 255, 0.4 / 255, 0.8 / 255)),
    ):
        effort = {"iterations": 10, "queries": 500}
        for kind, count, attack in (
            ("PGD-20", 200, attacks.create("pgd", eps=radii[-1], step=radii[-1] / 8)),
            ("a tenth of AutoAttack standard", 24, attacks.create("autoattack", eps=radii[-1], **effort)),
        ):
            if only not in f"{title}, {kind}":
                continue
            judge = partial(evaluate, model, *test_images(count), batch_size=100, checks=False)
            seconds, apart = [], []
            for eps in radii:
                began = time.process_time()
                apart.append(judge({"attack": attack.at(eps)}).outcomes("attack"))
                seconds.append(time.process_time() - began)
            began = time.process_time()
            together = judge({"attack": attack}, eps=radii).curves["attack"]
            spent = time.process_time() - began
            print_ratios(f"{title}, {kind}", {"four evaluations": sum(seconds), "a curve": spent})
            print(f"  {spent / max(seconds):.2f} times the most expensive of the four")
            verdicts = [together.robust(eps) for eps in radii]
            counts, separately = ([int(v.sum()) for v in outcomes] for outcomes in (verdicts, apart))
            print(f"  robust of {count}: {counts}, in separate evaluations {separately}")
            fewer, more = (
                [int((a & ~b).sum()) for a, b in pairs]
                for pairs in (zip(apart, verdicts, strict=True), zip(verdicts, apart, strict=True))
            )
            print(f"  robust only in separate evaluations: {fewer}, only in the curve: {more}", flush=True)
