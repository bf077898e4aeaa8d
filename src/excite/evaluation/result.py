"""The result of an evaluation: accuracies with intervals, every example's outcome, cost, and trust flags."""

import csv
import dataclasses
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excite.errors import InputError
from excite.files import expected, read_json, write_json
from excite.html import table
from excite.quantities import pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Z95 = 1.959963984540054  # standard deviations that hold 95% of a normal distribution
HARDLY_BETTER = 1.1  # ratio to a constant answer below which accuracy, or error rate, counts as chance
TRAIN_MODE = "train mode"  # flags a model that was passed in train mode; it was evaluated in eval mode


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """`correct` out of `total`, with Wilson's 95% interval.

    >>> print(Accuracy(8, 10))
    80.00% (49.02 to 94.33)
    """

    correct: int
    total: int

    @property
    def value(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """All rates p for which `correct` is within 1.96 standard deviations of its mean, total × p (Wilson, 1927)."""
        share, width = self.value, 2 * (self.total + Z95**2)
        center = (2 * self.total * share + Z95**2) / width
        half = Z95 / width * math.sqrt(4 * self.total * share * (1 - share) + Z95**2)
        return center - half if self.correct else 0.0, center + half if self.correct < self.total else 1.0

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2%} ({100 * low:.2f} to {100 * high:.2f})"


def pack(outcomes: ArrayLike) -> str:
    """Eight examples to a byte, written in hexadecimal.

    >>> pack([True, False, True])
    'a0'
    """
    return np.packbits(np.asarray(outcomes)).tobytes().hex()


def unpack(text: str, total: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))
    if not total <= len(bits) < total + 8:
        raise ValueError(f"{len(bits)} packed outcomes for {total} examples")
    return bits[:total].astype(bool)


@dataclasses.dataclass(frozen=True)
class MedianRadius:
    """The radius at which half of the images are wrong, with a 95% interval; ∞ if none was large enough."""

    value: float
    interval: tuple[float, float]
    eps: tuple[float, ...]

    def words(self, radius: float) -> str:
        """In steps of 1/255 if the curve's radii are."""
        if math.isinf(radius):
            return f"> {pixels(self.eps[-1])}"
        levels = all("/" in pixels(eps) for eps in self.eps if eps > 0)
        return f"{255 * radius:.2f}/255" if levels else f"{radius:.3g}"

    def to_json(self) -> dict[str, Any]:
        """JSON has no ∞; it becomes null."""
        value, *interval = (None if math.isinf(radius) else radius for radius in (self.value, *self.interval))
        return {"eps": value, "interval": interval}

    def __str__(self) -> str:
        low, high = map(self.words, self.interval)
        return f"{self.words(self.value)} ({low} to {high})"


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy at increasing radii: an example that falls at one radius counts as fallen at all larger ones.

    >>> print(Curve((1 / 255, 2 / 255), np.array([0, 1, 2, 3])))
    ε = 1/255 50.00% (15.00 to 85.00), 2/255 25.00% (4.56 to 69.94); median minimal ε 1.00/255 (0.00/255 to > 2/255)
    """

    eps: tuple[float, ...]
    fell_at: NDArray[np.int64]  # per example: 0 if wrong without attack, i if fallen at the i-th radius, n + 1 if never

    def robust(self, eps: float) -> NDArray[np.bool_]:
        """Per example, whether it withstood the attack at radius `eps`."""
        standing: NDArray[np.bool_] = self.fell_at > 1 + self.eps.index(eps)
        return standing

    @property
    def accuracies(self) -> tuple[Accuracy, ...]:
        return tuple(Accuracy(int(self.robust(eps).sum()), len(self.fell_at)) for eps in self.eps)

    @property
    def minimal_eps(self) -> NDArray[np.float64]:
        """Per example, the smallest radius at which it fell: 0 if wrong without an attack, ∞ if it never fell."""
        return np.array([0.0, *self.eps, math.inf])[self.fell_at]

    @property
    def median(self) -> MedianRadius:
        """The median of the minimal radii of all images; those wrong without an attack count as 0.

        Between two radii the accuracy is interpolated linearly. The interval holds all radii whose accuracy is within
        1.96 standard deviations of ½.
        """
        spread = Z95 / 2 / math.sqrt(len(self.fell_at))
        low, middle, high = (self._falls_to(0.5 + away) for away in (spread, 0.0, -spread))
        return MedianRadius(middle, (low, high), self.eps)

    def _falls_to(self, level: float) -> float:
        """The radius at which the accuracy falls to `level`."""
        before, above = 0.0, float((self.fell_at > 0).mean())
        if above <= level:
            return 0.0
        for eps, accuracy in zip(self.eps, self.accuracies, strict=True):
            if accuracy.value <= level:
                return before + (eps - before) * (above - level) / (above - accuracy.value)
            before, above = eps, accuracy.value
        return math.inf

    def to_json(self) -> dict[str, Any]:
        return {
            "eps": list(self.eps),
            "accuracy": [accuracy.value for accuracy in self.accuracies],
            "interval": [list(accuracy.interval) for accuracy in self.accuracies],
            "median": self.median.to_json(),
            "outcomes": [pack(self.robust(eps)) for eps in self.eps],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], correct: ArrayLike) -> "Curve":
        """`correct` says which examples are right without an attack."""
        fell_at = np.asarray(correct).astype(np.int64)
        for row in value["outcomes"]:
            fell_at += unpack(row, len(fell_at))
        return Curve(tuple(value["eps"]), fell_at)

    def __str__(self) -> str:
        points = zip(self.eps, self.accuracies, strict=True)
        accuracies = ", ".join(f"{pixels(eps)} {accuracy}" for eps, accuracy in points)
        return f"ε = {accuracies}; median minimal ε {self.median}"


@dataclasses.dataclass(frozen=True)
class Cost:
    """Wall time, summed over processes, and images passed forward and backward through the model."""

    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds + other.seconds, self.forwards + other.forwards, self.backwards + other.backwards)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds - other.seconds, self.forwards - other.forwards, self.backwards - other.backwards)


@dataclasses.dataclass(frozen=True)
class Flag:
    """A reason to distrust the accuracies: its name, and what was observed."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """One attack of a cascade: how many examples were still right after it, and its cost."""

    name: str
    standing: int
    cost: Cost


@dataclasses.dataclass(frozen=True, eq=False)
class AttackResult:
    description: str
    robust: NDArray[np.bool_]  # per example: right on the clean image and still right under attack
    stages: tuple[Stage, ...]
    curve: Curve | None = None  # where the attack ran at several radii; `robust` is at the largest

    @property
    def cost(self) -> Cost:
        return sum((stage.cost for stage in self.stages), Cost())


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Outcomes of one model on one set of examples, clean and under each attack.

    `clean`, `robust[name]` and `worst` are accuracies with 95% intervals; `outcomes(name)` gives them per example;
    `flags` are reasons to distrust them.

    >>> clean, standing = np.array([True, True, True, False]), np.array([True, False, True, False])
    >>> evaluation = Evaluation(clean, {"PGD": AttackResult("PGD-20", standing, ())}, (), Cost(), examples="")
    >>> evaluation.clean.value, evaluation.worst.value
    (0.75, 0.5)
    """

    correct: NDArray[np.bool_]  # per example: right on the clean image
    attacks: Mapping[str, AttackResult]
    flags: tuple[Flag, ...]
    cost: Cost  # of everything: clean accuracy, attacks, trust checks
    examples: str  # hash of images and labels: only evaluations of the same examples can be compared
    chance: float | None = None  # accuracy of always answering the most common class; None in older files

    @property
    def learned_nothing(self) -> bool:
        """Whether the model is hardly better than a constant answer, in accuracy and in error rate."""
        if self.chance is None:
            return False
        accuracy = self.clean.value
        return accuracy <= HARDLY_BETTER * self.chance and HARDLY_BETTER * (1 - accuracy) >= 1 - self.chance

    @property
    def clean(self) -> Accuracy:
        return self.accuracy("clean")

    @property
    def robust(self) -> dict[str, Accuracy]:
        """Accuracy under each attack alone."""
        return {name: self.accuracy(name) for name in self.attacks}

    @property
    def worst(self) -> Accuracy:
        """Accuracy when each example meets the strongest of the attacks."""
        return self.accuracy("worst")

    @property
    def curves(self) -> dict[str, Curve]:
        """Accuracy against ε, for each attack that ran at several radii."""
        return {name: result.curve for name, result in self.attacks.items() if result.curve is not None}

    @property
    def distrusted(self) -> bool:
        """Whether a flag casts doubt on the accuracies; a model passed in train mode does not."""
        return any(flag.name != TRAIN_MODE for flag in self.flags)

    def outcomes(self, name: str) -> NDArray[np.bool_]:
        """Per example, whether the model was right: `"clean"`, `"worst"` or an attack's name."""
        if name == "clean":
            return self.correct
        if name == "worst":
            robust = [result.robust for result in self.attacks.values()]
            worst: NDArray[np.bool_] = np.all([self.correct, *robust], axis=0)
            return worst
        if name not in self.attacks:
            raise InputError(f"This evaluation has no {name!r}; it has {', '.join(['clean', *self.attacks, 'worst'])}.")
        return self.attacks[name].robust

    def accuracy(self, name: str) -> Accuracy:
        """`"clean"`, `"worst"` or under an attack."""
        outcomes = self.outcomes(name)
        return Accuracy(int(outcomes.sum()), len(outcomes))

    def to_json(self) -> dict[str, Any]:
        """Plain values; outcomes are packed, eight examples to a byte, written in hexadecimal."""
        return {
            "examples": self.examples,
            "total": len(self.correct),
            "chance": self.chance,
            "clean": _accuracy_json(self.clean, self.correct),
            "attacks": {
                name: {
                    "description": result.description,
                    **_accuracy_json(self.robust[name], result.robust),
                    "stages": [dataclasses.asdict(stage) for stage in result.stages],
                    **({} if result.curve is None else {"curve": result.curve.to_json()}),
                }
                for name, result in self.attacks.items()
            },
            "worst": _accuracy_json(self.worst, None),
            "flags": [dataclasses.asdict(flag) for flag in self.flags],
            "cost": dataclasses.asdict(self.cost),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], what: object = "This evaluation") -> "Evaluation":
        """The inverse of `to_json`. Accuracies that contradict the outcomes are an error, which names `what`."""
        with expected(what):
            total = value["total"]
            correct = unpack(value["clean"]["outcomes"], total)
            evaluation = Evaluation(
                correct=correct,
                attacks={
                    name: AttackResult(
                        description=result["description"],
                        robust=unpack(result["outcomes"], total),
                        stages=tuple(Stage(s["name"], s["standing"], Cost(**s["cost"])) for s in result["stages"]),
                        curve=Curve.from_json(result["curve"], correct) if "curve" in result else None,
                    )
                    for name, result in value["attacks"].items()
                },
                flags=tuple(Flag(**flag) for flag in value["flags"]),
                cost=Cost(**value["cost"]),
                examples=value["examples"],
                chance=value.get("chance"),
            )
            evaluation._check_consistency(value)
        return evaluation

    def _check_consistency(self, stored: Mapping[str, Any]) -> None:
        for name, accuracy in {"clean": self.clean, "worst": self.worst, **self.robust}.items():
            stated = stored["attacks"].get(name, stored.get(name))["accuracy"]
            if stated != accuracy.value:
                raise ValueError(f"the {name} accuracy is stated as {stated}, but its outcomes give {accuracy.value}")
        for name, result in self.attacks.items():
            if bool((result.robust & ~self.correct).any()):
                raise ValueError(f"some images withstand {name} but are wrong without it")
            standing = [len(self.correct), *(stage.standing for stage in result.stages)]
            left = int(result.robust.sum()) if result.stages else standing[-1]
            if standing != sorted(standing, reverse=True) or standing[-1] != left:
                raise ValueError(f"the last stage of {name} does not leave as many images as withstand it")
            curve = result.curve
            if curve is not None and not np.array_equal(curve.robust(curve.eps[-1]), result.robust):
                raise ValueError(f"the curve of {name} does not end at the images that withstand it")

    def csv(self) -> str:
        """One line per example: whether the model was right on it, clean, under each attack and in the worst case.

        An attack at several radii has a second column: the smallest radius at which the example fell; inf if at none.
        """
        columns = {name: self.outcomes(name).astype(int).tolist() for name in ("clean", *self.attacks, "worst")}
        columns |= {f"{name}: minimal eps": curve.minimal_eps.tolist() for name, curve in self.curves.items()}
        text = io.StringIO()
        rows = zip(range(len(self.correct)), *columns.values(), strict=True)
        csv.writer(text, lineterminator="\n").writerows([["example", *columns], *rows])
        return text.getvalue()

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw accuracy against ε, with 95% intervals, for every attack that ran at several radii."""
        from matplotlib import pyplot

        if not self.curves:
            raise InputError("There is no curve to plot; evaluate at several radii: evaluate(…, eps=[1/255, 2/255]).")
        axes = axes or pyplot.subplots()[1]
        for name, curve in self.curves.items():
            eps, points = [0.0, *curve.eps], [self.clean, *curve.accuracies]
            low, high = zip(*(point.interval for point in points), strict=True)
            axes.plot(eps, [100 * point.value for point in points], marker="o", label=name)
            axes.fill_between(eps, 100 * np.array(low), 100 * np.array(high), alpha=0.2)
        axes.set(xlabel="ε", ylabel="accuracy (%)", ylim=(0, 100))
        axes.legend()
        return axes

    def save(self, path: Path | str) -> None:
        write_json(Path(path), self.to_json())

    @staticmethod
    def load(path: Path | str) -> "Evaluation":
        if not Path(path).exists():
            raise InputError(f"There is no evaluation at {path}. Save one there: evaluate(…).save(path).")
        return Evaluation.from_json(read_json(Path(path)), path)

    def __repr__(self) -> str:
        accuracies = ", ".join(f"{name} {accuracy.value:.2%}" for name, accuracy in self.accuracies.items())
        return f"Evaluation({accuracies}; {len(self.correct)} examples, {len(self.flags)} flags)"

    @property
    def accuracies(self) -> dict[str, Accuracy]:
        """As tables show them: clean, under each attack, and in the worst case if there are several attacks."""
        names = ["clean", *self.attacks, *(["worst"] if len(self.attacks) > 1 else [])]
        return {name: self.accuracy(name) for name in names}

    def html(self) -> str:
        """A table of the accuracies, with the reasons to distrust them; notebooks show it."""
        words = {name: result.description for name, result in self.attacks.items()}
        rows = [[name, str(accuracy), words.get(name, "")] for name, accuracy in self.accuracies.items()]
        notes = [f"{name}: {curve}" for name, curve in self.curves.items()]
        notes += [f"Do not trust this yet: {flag}" for flag in self.flags]
        return table(["images", "accuracy in % (95% interval)", "attack"], rows, notes)

    _repr_html_ = html

    def __str__(self) -> str:
        lines = [f"clean {self.clean} on {len(self.correct)} examples"]
        for name, accuracy in self.robust.items():
            lines.append(f"{name} {accuracy}, {self.attacks[name].description}")
            lines += [f"  {curve}" for other, curve in self.curves.items() if other == name]
            stages = self.attacks[name].stages if len(self.attacks[name].stages) > 1 else ()
            lines += [f"  after {stage.name} {stage.standing / len(self.correct):.2%}" for stage in stages]
        if len(self.attacks) > 1:
            lines.append(f"worst case {self.worst}")
        lines += [f"do not trust this yet: {flag}" for flag in self.flags]
        lines.append(f"{self.cost.seconds:.1f} s, {self.cost.forwards} images forward, {self.cost.backwards} backward")
        return "\n".join(lines)


def _accuracy_json(accuracy: Accuracy, outcomes: ArrayLike | None) -> dict[str, Any]:
    summary: dict[str, Any] = {"accuracy": accuracy.value, "interval": list(accuracy.interval)}
    return summary if outcomes is None else {**summary, "outcomes": pack(outcomes)}
