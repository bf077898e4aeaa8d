"""An experiment is a frozen description of one whole procedure, read from TOML."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from excite.errors import InputError, unknown
from excite.lipschitz import ESTIMATORS, Estimator, Recording, estimator
from excite.registry import check_name, named_options
from excite.runs.arms import OWN, arm_named

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1e6)]  # infinity is no setting
Options = dict[str, Any]
STANDARD = "standard"  # the objective that attacks nothing
LARGEST_FILE = 1_000_000  # bytes
HOUSE = ("method", "shared", "wanted")  # keys that are not the estimator's
RETIRED = frozenset({"runs", "ratio", "seeds"})  # of [lipschitz], from when the edge was bisected


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file: unknown keys and wrong types are errors."""


class Data(Section, frozen=True):
    name: str
    train_examples: Count | None = None  # a seeded subset; all of them where left out
    test_examples: Count | None = None
    augment: str = "none"
    unlabelled: str | None = None  # a data set with hidden labels, or a file: see excite.data.load_unlabelled
    epoch_samples: Count = 50_000  # of labelled and pseudo-labelled images, where there are any of the latter


class Model(Section, frozen=True):
    name: str
    normalize: bool = False  # put the training images' mean and deviation inside the model
    options: Options = {}


class Training(Section, frozen=True):
    epochs: Count
    batch_size: Count
    schedule: Options  # kind, rate, and what that kind takes: the baseline's γᵏ
    objective: str | Options = STANDARD  # a name, or kind and what that kind takes
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: Share = 0.0
    nesterov: bool = False
    steps: Count | None = None  # per epoch; all of them where left out
    threads: Count | None = None  # of a CPU; another number changes the last digits. By default torch decides


class Teacher(Section, frozen=True):
    """Learns from the labelled images and labels the others; where left out, as the arms, but the standard objective.

    Of its labels it keeps those of at least the confidence `threshold`, with `balance` equally many of each class.
    """

    model: Model | None = None
    training: Training | None = None
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0
    balance: bool = False


class Record(Section, frozen=True):
    """What a recorder notes of every training: local slopes, and curvatures on a probe of training images."""

    slopes_per_epoch: Natural = 8
    curvature_every: Natural = 0  # epochs; 0: never
    probe_examples: Count = 512
    gradient: Literal["epoch_mean", "probe"] = "epoch_mean"
    input_gradients: bool = False  # the released code's too, with respect to the probe's pixels
    test_examples: Count = 1000  # that are classified after every epoch, the first ones; all where there are no more
    attacked_examples: Natural = 0  # test images that meet the first attack after every epoch
    best_every: Natural = 0  # epochs between looks for the best weights under the first attack; 0: only the last count
    held_out_examples: Count = 500  # training images kept out of training, on which the best is chosen


class Experiment(Section, frozen=True):
    name: str
    data: Data
    model: Model
    training: Training
    attacks: dict[str, Options]  # by the name the table shows: kind, and what that kind takes
    decides: str = ""  # the attack that the verdict is under; the first where none is named
    summary: str = ""
    seed: int = 0
    teacher: Teacher | None = None
    record: Record = Record()
    lipschitz: Options = msgspec.field(default_factory=lambda: {"method": "edge"})  # see `estimator_of`
    estimators: dict[str, Options] = {}  # other ways to, by the name that --estimator and arms such as poe@stated take
    allow_unidentified: bool = False  # train at 1/L and 2/L even if L is not identified
    arms: tuple[str, ...] = ("baseline", "poe", "largest")
    sweep: dict[str, list[Any]] = {}  # by dotted key, the values that `excite sweep` tries, in every combination

    @property
    def network(self) -> str:
        """Its name and its options: `lenet5 tanh`."""
        options = (value if isinstance(value, str) else f"{key} {value}" for key, value in self.model.options.items())
        return " ".join([self.model.name, *options])

    @property
    def data_set(self) -> str:
        """Its name, and how many training images where it is not all of them."""
        examples = self.data.train_examples
        return self.data.name if examples is None else f"{self.data.name}, {examples:,} images"

    @property
    def objective(self) -> str:
        """The name of the training's loss, whether it was given alone or with its options."""
        given = self.training.objective
        return given if isinstance(given, str) else str(given["kind"])

    @property
    def trains_plainly(self) -> bool:
        """On images as they are."""
        return self.objective == STANDARD

    @property
    def deciding(self) -> str:
        """Under which of its attacks arms are compared, or "clean"."""
        return self.decides or next(iter(self.attacks), "clean")

    @property
    def mixes(self) -> bool:
        """Whether pseudo-labelled images are trained on beside the labelled ones."""
        return self.data.unlabelled is not None or self.teacher is not None

    def epoch_images(self, labelled: int) -> int:
        """How many images an epoch counts, where so many are labelled."""
        return self.data.epoch_samples if self.mixes else labelled

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


def catalogue() -> dict[str, Traversable]:
    """The experiments shipped with the package, by name."""
    folder = resources.files("excite.runs") / "experiments"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file for file in sorted(files, key=lambda file: file.name)}


@named_options
def load(name_or_path: str, *, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment of the catalogue, or a TOML file; `overrides` are strings such as `training.epochs=3`."""
    path = Path(name_or_path)
    shipped = catalogue()
    if name_or_path in shipped:
        text = shipped[name_or_path].read_text(encoding="utf-8")
    elif path.suffix == ".toml" and path.is_file():
        text = _text(path)
    elif path.suffix == ".toml":
        raise InputError(f"There is no file {path}. Name a TOML file, or one of: {', '.join(shipped)}.")
    else:
        raise unknown("experiment", name_or_path, shipped)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name_or_path} is not valid TOML: {error}.") from error
    try:
        choose_estimator(values)
        for override in overrides:
            _override(values, override)
            choose_estimator(values)
        return from_values(values)
    except InputError as error:
        raise error if name_or_path in shipped else InputError(f"{name_or_path}: {error}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} has more than {LARGEST_FILE:,} bytes; that is no description of an experiment.")
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read as text ({error}). Name a TOML file in UTF-8.") from error


def from_values(values: Mapping[str, Any]) -> Experiment:
    """Check plain values, key by key, and freeze them."""
    _check_keys(values, Experiment, "")
    if isinstance(values.get("sweep"), Mapping):  # a table in a table means what a dotted key does
        values = {**values, "sweep": flattened(values["sweep"])}
    if isinstance(values.get("lipschitz"), Mapping):
        values = {**values, "lipschitz": {"method": "edge"} | values["lipschitz"]}
    try:
        experiment = msgspec.convert(values, Experiment)
    except msgspec.ValidationError as error:
        raise InputError(f"The experiment does not fit: {str(error).replace('`$.', '`')}.") from error
    check_name("experiment", experiment.name)
    for name in experiment.estimators:
        check_name("estimator", name)
    for name in experiment.attacks:
        check_name("attack", name, for_files=False)
    if experiment.decides and experiment.decides not in experiment.attacks:
        raise unknown("attack of the experiment", experiment.decides, experiment.attacks)
    for arm in experiment.arms:
        arm_named(arm)
    if experiment.training.nesterov and not experiment.training.momentum:
        raise InputError("Nesterov's momentum needs a momentum: set training.momentum, or training.nesterov = false.")
    return experiment


def from_recorded(values: Mapping[str, Any]) -> Experiment:
    """An experiment as a run folder has it; what earlier versions asked for and nothing reads any more is skipped."""
    kept = {key: value for key, value in values.get("lipschitz", {}).items() if key not in RETIRED}
    return from_values({**values, "lipschitz": kept})


def with_values(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """The same experiment with other values at some dotted keys, checked again."""
    values = experiment.to_json()
    for key, value in changes.items():
        _place(values, key, value)
    return from_values(values)


def without_plan(experiment: Experiment) -> Experiment:
    """What makes a run folder this experiment's: all but its summary and what of it is asked for."""
    return msgspec.structs.replace(experiment, summary="", arms=(), sweep={}, estimators={}, allow_unidentified=False)


def differences(one: Experiment, other: Experiment) -> list[str]:
    """The keys in which two experiments differ, as `training.epochs: 20 → 3`."""
    before, after = flattened(one.to_json()), flattened(other.to_json())
    keys = sorted(before.keys() | after.keys())
    return [f"{key}: {before.get(key)} → {after.get(key)}" for key in keys if before.get(key) != after.get(key)]


def choose_estimator(values: dict[str, Any]) -> None:
    """Where `lipschitz` is a name, put what the preset of that name says in its place, or the bare estimator."""
    name, presets = values.get("lipschitz"), values.get("estimators", {})
    if isinstance(name, str):
        values["lipschitz"] = dict(presets.get(name, {"method": name}))


def _override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise InputError(f'"{override}" sets nothing; write key=value, for instance training.epochs=3.')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()  # a bare word: --set model.name=resnet8
    _place(values, path.strip(), value)


def _place(values: dict[str, Any], path: str, value: Any) -> None:
    """Put `value` where the dotted `path` leads, through tables that are made on the way."""
    *tables, key = path.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise InputError(f'"{path}": "{table}" is a value, not a table.')
    if path == "lipschitz.method" and values.get(key) != value:  # the options were another method's
        for option in values.keys() - {"shared"}:
            del values[option]
    values[key] = value


def _check_keys(values: Mapping[str, Any], section: type[Section], path: str) -> None:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    for key, value in values.items():
        if key not in fields:
            raise unknown("key of an experiment", f"{path}{key}", [f"{path}{field}" for field in fields])
        for kind in (fields[key], *get_args(fields[key])):  # the latter for a section that may be left out
            if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, Mapping):
                _check_keys(value, kind, f"{path}{key}.")


def flattened(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flattened(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return flat


def options_of(experiment: Experiment, name: str = OWN) -> Mapping[str, Any]:
    """What the experiment says of one: its own, a preset, or an estimator of this name with nothing set."""
    if name == OWN:
        return experiment.lipschitz
    if name in experiment.estimators:
        return experiment.estimators[name]
    if name in ESTIMATORS:
        return {"method": name}
    raise unknown("estimator", name, [*experiment.estimators, *ESTIMATORS])


def own_name(experiment: Experiment) -> str:
    """What the experiment's own way is called: a preset's name if it is one, else its method's."""
    presets = (name for name, options in experiment.estimators.items() if options == experiment.lipschitz)
    return next(presets, str(experiment.lipschitz["method"]))


def every_name(experiment: Experiment) -> list[str]:
    """Of each way to know L: the experiment's own, its presets, and the estimators that measure something."""
    measuring = (name for name, kind in ESTIMATORS.items() if kind.needs != "nothing")
    return list(dict.fromkeys([own_name(experiment), *experiment.estimators, *measuring]))


def estimator_of(experiment: Experiment, name: str = OWN) -> Estimator[Any]:
    """The experiment's own under [lipschitz], or another by name under [estimators].

    `method` is a name in `lipschitz.ESTIMATORS`, `shared` means one L for all seeds of a study, `wanted` an L that is
    estimated though no arm trains at it, all else are the estimator's own options.
    """
    options = options_of(experiment, name)
    if not isinstance(options.get("method"), str):
        raise InputError(f'The preset "{name}" needs a method: one of {", ".join(ESTIMATORS)}.')
    own = {key: value for key, value in options.items() if key not in HOUSE and value is not None}
    return estimator(options["method"], **own)


def is_shared(experiment: Experiment, name: str = OWN) -> bool:
    """Whether all seeds of a study use one L."""
    return bool(options_of(experiment, name).get("shared", False))


def is_wanted(experiment: Experiment) -> bool:
    """Whether L is a result by itself: Figure 2 marks it beside trainings at rates that are not 1/L."""
    return bool(experiment.lipschitz.get("wanted", False))


def check_estimators(experiment: Experiment, arms: tuple[str, ...]) -> None:
    """Refuse what no baseline of this experiment could be estimated from, before anything trains."""
    record, epochs = experiment.record, experiment.training.epochs
    recording = Recording(
        moments=epochs,
        input_gradients=record.input_gradients,
        slopes=epochs * record.slopes_per_epoch,
        curvatures=epochs // record.curvature_every if record.curvature_every else 0,
    )
    needed = {arm_named(arm).estimator for arm in arms} - {None} | ({OWN} if is_wanted(experiment) else set())
    for name in {OWN, *needed}:
        chosen = estimator_of(experiment, name or OWN)
        if name in needed:
            chosen.check(recording)
