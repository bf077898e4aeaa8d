"""An experiment is a frozen description of the whole procedure, read from a TOML file."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from excite.errors import InputError, unknown
from excite.lipschitz import ESTIMATORS, Estimator, Recording, estimator
from excite.registry import check_choice, check_name, lookup
from excite.runs.arms import OWN, arm_named

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1e6)]  # excludes infinity
Options = dict[str, Any]
STANDARD = "standard"  # the objective without an attack
GENERAL = ("method", "shared", "wanted")  # keys of [lipschitz] that are not options of the estimator
PLAN = ("summary", "arms", "sweep", "estimators", "allow_unidentified")  # keys that say which parts of it to run
STUDY_MAY_VARY = (*PLAN, "seed", "lipschitz.wanted")  # a sweep sets lipschitz.wanted in one of its runs only
RETIRED = frozenset({"runs", "ratio", "seeds", "statistic"})  # options of estimators in older run folders


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file. Unknown keys and wrong types are errors."""


class Data(Section, frozen=True):
    name: str  # one of `excite data list`, or [your own](own-data.md)
    fingerprint: str | None = None  # SHA-256 of your images
    train_examples: Count | None = None  # training images, chosen by the seed; default: all
    test_examples: Count | None = None  # test images; default: all
    augment: str = "none"  # augmentation of training images
    unlabelled: str | None = None  # images for RST: a data set with hidden labels, or a file
    epoch_samples: Count = 50_000  # images per epoch, if there are pseudo-labelled ones


class Model(Section, frozen=True):
    name: str  # network, such as `resnet20`, or `package.module:factory`
    normalize: bool = False  # normalize by the training images' mean and deviation
    options: Options = {}  # the network's own options


class Training(Section, frozen=True):
    epochs: Count  # epochs
    batch_size: Count  # images per step
    schedule: Options  # the baseline's learning rates γᵏ: kind, rate and options
    objective: str | Options = STANDARD  # the loss: its kind, or kind and options
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # momentum of SGD
    weight_decay: Share = 0.0  # weight decay of SGD
    nesterov: bool = False  # Nesterov
    steps: Count | None = None  # steps per epoch; default: all batches
    precision: Literal["float32", "tf32", "bf16"] = "float32"  # of layers
    accumulate: Count = 1  # parts of a batch; one is in memory at a time
    compile: bool = False  # use torch.compile
    kernels: Literal["default", "deterministic", "fastest"] = "default"  # on GPUs; `deterministic` repeats exactly
    threads: Count | None = None  # CPU threads; default: torch's


class Teacher(Section, frozen=True):
    """Learns from the labelled images and labels the others."""

    model: Model | None = None  # keys as in [model]; default: the arms' model
    training: Training | None = None  # as [training], default precision: the arms'; default: theirs, standard objective
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0  # minimum confidence of a label
    balance: bool = False  # keep equally many labels per class


class Record(Section, frozen=True):
    """What is recorded during every training: slopes, curvatures on a probe of training images, and accuracies."""

    slopes_per_epoch: Natural = 8  # local slopes measured per epoch
    curvature_every: Natural = 0  # epochs between curvatures; 0: never
    probe_examples: Count = 512  # training images for curvatures and probe gradients
    noise_examples: Natural = 0  # training images per epoch for batch noise; 0: never
    gradient: Literal["epoch_mean", "probe"] = "epoch_mean"  # gradient stored per epoch
    input_gradients: bool = False  # also store gradients of pixels, as the released code does
    test_examples: Count = 1000  # test images classified after every epoch
    attacked_examples: Natural = 0  # test images attacked after every epoch (first attack)
    best_every: Natural = 0  # epochs between searches for the best weights (first attack); 0: never
    held_out_examples: Count = 500  # training images that choose the best weights
    average: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # final part of training with averaged weights; 0: none


class Experiment(Section, frozen=True):
    name: str  # name of the experiment and of its run folder
    data: Data
    model: Model
    training: Training
    attacks: dict[str, Options]  # attacks by the name that tables show: kind and options
    decides: str = ""  # attack that the verdict uses; default: the first
    summary: str = ""  # a sentence for `excite list`
    attack_batch: Count = 128  # images attacked together
    attack_precision: Literal["float32", "tf32", "bf16"] = "float32"  # of searches; float32 decides
    seed: int = 0  # random seed of initial weights, data order and subsets
    teacher: Teacher | None = None
    record: Record = Record()
    lipschitz: Options = msgspec.field(default_factory=lambda: {"method": "edge"})  # method of finding L, and options
    estimators: dict[str, Options] = {}  # more methods by name: `--estimator NAME`, arms such as `poe@NAME`
    allow_unidentified: bool = False  # train at 1/L and 2/L even if L is not identified
    arms: tuple[str, ...] = ("baseline", "poe", "largest")  # arms to train
    sweep: dict[str, list[Any]] = {}  # values that `excite sweep` combines, by dotted key

    @property
    def network(self) -> str:
        """The model's name and options: `lenet5 tanh`, `resnet8 without batch norm`."""
        return " ".join([self.model.name, *(_in_words(*option) for option in self.model.options.items())])

    @property
    def data_set(self) -> str:
        """The name of the data, and the number of training images if it is not all of them."""
        examples = self.data.train_examples
        return self.data.name if examples is None else f"{self.data.name}, {examples:,} images"

    @property
    def objective(self) -> str:
        """The name of the objective."""
        given = self.training.objective
        return given if isinstance(given, str) else str(given["kind"])

    @property
    def trains_plainly(self) -> bool:
        """Whether it trains without attacks."""
        return self.objective == STANDARD

    @property
    def deciding(self) -> str:
        """The attack under which arms are compared, or "clean"."""
        return self.decides or next(iter(self.attacks), "clean")

    def attack_title(self, name: str) -> str:
        """The name of an attack with its radius ε, the largest of several; other names stay as they are."""
        options = self.attacks.get(name, {})
        radius, norm = options.get("eps"), options.get("norm", "linf")
        if radius is None or "ε" in name:
            return name
        largest = radius[-1] if isinstance(radius, list) else radius
        return f"{name}, {'' if norm == 'linf' else f'{norm.upper()} '}ε = {largest}"

    @property
    def mixes(self) -> bool:
        """Whether it also trains on pseudo-labelled images."""
        return self.data.unlabelled is not None or self.teacher is not None

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def with_values(self, changes: Mapping[str, Any]) -> "Experiment":
        """Return the experiment with other values for some dotted keys, checked again."""
        values = self.to_json()
        for key, value in changes.items():
            _place(values, key, value)
        return from_values(values)

    def settings(self, *, without: Iterable[str] = PLAN) -> dict[str, Any]:
        """Return its values by dotted key, without some keys and the tables of these names."""
        values = flattened(self.to_json())
        return {key: value for key, value in values.items() if not any(f"{key}.".startswith(f"{a}.") for a in without)}

    def options_of(self, name: str = OWN) -> Mapping[str, Any]:
        """Return the options of the own estimator, of a preset, or of the estimator `name` with its defaults."""
        if name == OWN:
            return self.lipschitz
        if name in self.estimators:
            return self.estimators[name]
        if name in ESTIMATORS:
            return {"method": name}
        raise unknown("estimator", name, [*self.estimators, *ESTIMATORS])

    @property
    def own_name(self) -> str:
        """Return the name of the experiment's own estimator: of its preset if it is one, or else of its method."""
        same = (
            name for name, options in self.estimators.items() if without_wish(options) == without_wish(self.lipschitz)
        )
        return next(same, str(self.lipschitz["method"]))

    def every_estimator(self) -> dict[str, str]:
        """Return the own estimator (OWN), the presets and all estimators that measure, by name, with their titles."""
        measuring = (name for name, kind in ESTIMATORS.items() if kind.needs != "nothing")
        return {OWN: self.own_name} | {name: name for name in (*self.estimators, *measuring) if name != self.own_name}

    def estimator_of(self, name: str = OWN) -> Estimator[Any]:
        """Build the experiment's own estimator, described under [lipschitz], or another one by name."""
        options = self.options_of(name)
        if not isinstance(options.get("method"), str):
            raise InputError(f'The preset "{name}" needs a method: one of {", ".join(ESTIMATORS)}.')
        given = {key: value for key, value in options.items() if key not in GENERAL and value is not None}
        return estimator(options["method"], **given)

    def wanted_estimators(self) -> list[str]:
        """Return the estimators whose L is wanted even if no arm needs it, as for Figure 2, or beside a published L."""
        wanted = [name for name in (OWN, *self.estimators) if self.options_of(name).get("wanted")]
        return list(dict.fromkeys(OWN if name == self.own_name else name for name in wanted))

    def needed_estimators(self, arms: Iterable[str]) -> list[str]:
        """Return the names of the estimators whose L the arms need, and of the own one if its L is wanted."""
        names = [arm_named(arm).estimator for arm in arms] + [OWN] * bool(self.lipschitz.get("wanted"))
        return list(dict.fromkeys(name for name in names if name is not None))

    def check_estimators(self, arms: Iterable[str]) -> None:
        """Refuse estimators that need more than this experiment records, before anything trains."""
        record, epochs = self.record, self.training.epochs
        recording = Recording(
            moments=epochs,
            input_gradients=record.input_gradients,
            slopes=epochs * record.slopes_per_epoch,
            curvatures=epochs // record.curvature_every if record.curvature_every else 0,
        )
        for name in self.needed_estimators(arms):
            self.estimator_of(name).check(recording)


def catalogue() -> dict[str, Traversable]:
    """Return the experiments shipped with the package, by name."""
    folder = resources.files("excite.runs") / "experiments"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file for file in sorted(files, key=lambda file: file.name)}


def load(name_or_path: str, *, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment from the catalogue or a TOML file; `overrides` are strings such as `training.epochs=3`."""
    path = Path(name_or_path)
    shipped = catalogue()
    if name_or_path in shipped:
        text = shipped[name_or_path].read_text(encoding="utf-8")
    elif path.suffix == ".toml":
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            raise InputError(
                f"Cannot read {path} ({error}). Name a TOML file in UTF-8, or an experiment of `excite list`."
            ) from error
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


def from_values(values: Mapping[str, Any]) -> Experiment:
    """Check plain values and make an experiment of them."""
    _check_keys(values, Experiment, "")
    if isinstance(values.get("sweep"), Mapping):  # nested tables mean the same as dotted keys
        values = {**values, "sweep": flattened(values["sweep"])}
    if isinstance(values.get("lipschitz"), Mapping):
        values = {**values, "lipschitz": {"method": "edge"} | values["lipschitz"]}
    match values:
        case {"training": {"precision": precision}, "teacher": {"training": {} as training} as teacher}:
            values = {**values, "teacher": {**teacher, "training": {"precision": precision, **training}}}
    try:
        experiment = msgspec.convert(values, Experiment)
    except msgspec.ValidationError as error:
        raise InputError(f"The experiment is not valid: {str(error).replace('`$.', '`')}.") from error
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
        raise InputError("training.nesterov needs momentum: set training.momentum, or training.nesterov = false.")
    return experiment


def from_recorded(values: Mapping[str, Any]) -> Experiment:
    """Make an experiment of a run folder's values, which an older version may have written."""
    estimators = {name: renamed(options) for name, options in values.get("estimators", {}).items()}
    return from_values({**values, "lipschitz": renamed(values.get("lipschitz", {})), "estimators": estimators})


def renamed(options: Mapping[str, Any]) -> Options:
    """Return an estimator's options as today's version calls them."""
    kept = {key: value for key, value in options.items() if key not in RETIRED}
    if kept.get("method") == "epochs" and options.get("statistic") == "scale" and kept.get("protocol") != "authors":
        kept["protocol"] = "text"
    elif kept.get("protocol") == "paper":
        kept["protocol"] = "fitted"
    return kept


def differences(first: Experiment, second: Experiment, *, without: Iterable[str] = PLAN) -> list[str]:
    """Return the settings in which two experiments differ, as `training.epochs: 20 → 3`."""
    before, after = first.settings(without=without), second.settings(without=without)
    pairs = {key: (before.get(key), after.get(key)) for key in sorted(before.keys() | after.keys())}
    changes = {
        key: " → ".join("not set" if value is None else str(value) for value in pair)
        for key, pair in pairs.items()
        if pair[0] != pair[1]
    }
    if "data.fingerprint" in changes:
        changes["data.fingerprint"] = "these are other images"  # says more than two hashes
    return [f"{key}: {change}" for key, change in changes.items()]


def choose_estimator(values: dict[str, Any]) -> None:
    """If `lipschitz` is a name, replace it by the preset of that name, or else by the estimator with its defaults."""
    name, presets = values.get("lipschitz"), values.get("estimators", {})
    if isinstance(name, str):
        values["lipschitz"] = dict(lookup("estimator", {key: {"method": key} for key in ESTIMATORS} | presets, name))


def _override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise InputError(f'"{override}" is not a setting; write key=value, for instance training.epochs=3.')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()  # a bare word: --set model.name=resnet8
    _place(values, path.strip(), value)


def _place(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path; missing tables are created."""
    *tables, key = path.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise InputError(f'"{path}": "{table}" is a value, not a table.')
    if path == "lipschitz.method" and values.get(key) != value:  # the other options belong to another method
        for option in values.keys() - {"shared"}:
            del values[option]
    values[key] = value


def _check_keys(values: Mapping[str, Any], section: type[Section], path: str) -> None:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    for key, value in values.items():
        if key not in fields:
            raise unknown("key of an experiment", f"{path}{key}", [f"{path}{field}" for field in fields])
        if get_origin(fields[key]) is Literal and isinstance(value, str):
            check_choice(f"{path}{key}", fields[key], value)
        for kind in (fields[key], *get_args(fields[key])):  # for optional sections
            if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, Mapping):
                _check_keys(value, kind, f"{path}{key}.")


def _in_words(key: str, value: Any) -> str:
    """An option of the model, as a title shows it."""
    words = key.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"without {words}"
    return value if isinstance(value, str) else f"{words} {value}"


def flattened(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flattened(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return flat


def without_wish(options: Mapping[str, Any]) -> Options:
    """Return an estimator's options but `wanted`, which changes no L."""
    return {key: value for key, value in options.items() if key != "wanted"}
