"""Write docs/experiment-keys.md and docs/experiment-options.md from the schema and the registries.

    python tools/experiment_keys.py

Types and defaults come from the classes in `excite.runs.experiment`, meanings from the comment behind each field.
"""

import inspect
import io
import json
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as schema

from excite.attacks import ATTACKS
from excite.data import AUGMENTATIONS
from excite.files import write_text
from excite.lipschitz import ESTIMATORS
from excite.models import MODELS
from excite.objectives import OBJECTIVES
from excite.runs.experiment import Experiment, Section
from excite.schedules import SCHEDULES

DOCS = Path(__file__).parents[1] / "docs"
NOT_OPTIONS = {"num_classes", "input_shape"}  # of a model: the data decide
KINDS: dict[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "training.schedule": ("kind", SCHEDULES),
    "training.objective": ("kind", OBJECTIVES),
    "attacks.NAME": ("kind", ATTACKS),
    "lipschitz": ("method", ESTIMATORS),
    "model.options": ("model", MODELS),
}
KEYS = """# Which keys does an experiment have?

An experiment is a TOML file such as [quickstart.toml](../src/excite/runs/experiments/quickstart.toml).
`--set training.epochs=3` changes a key on the command line. An unknown key or a wrong type is an error. Keys that hold
a kind and its options have [a page of their own](experiment-options.md).

Written by `python tools/experiment_keys.py` from the schema in `src/excite/runs/experiment.py`.
"""
OPTIONS = """# Which options do schedules, objectives, attacks, estimators and models have?

Some [keys of an experiment](experiment-keys.md) hold a table of a kind and its options:
`schedule = { kind = "step", rate = 0.1, milestones = [81, 122] }`. An option without a default must be given; `…` means
that the default depends on other options. Numbers may be text such as "8/255". `lipschitz` and every entry of
`estimators` also take `shared` (one L for all seeds) and `wanted` (estimate L even if no arm needs it).

Written by `python tools/experiment_keys.py` from the registries.
"""


def pages() -> dict[Path, str]:
    return {
        DOCS / "experiment-keys.md": "\n".join([KEYS, *_sections(Experiment, "")]),
        DOCS / "experiment-options.md": "\n".join([OPTIONS, *_kinds()]),
    }


def _kinds() -> Iterator[str]:
    """A heading and a table for each key that holds a kind; kinds with the same options share a row."""
    for key, (kind, registry) in KINDS.items():
        names: dict[str, list[str]] = {}
        for name, factory in registry.items():
            names.setdefault(_options(factory), []).append(f"`{name}`")
        rows = [(", ".join(same), options) for options, same in names.items()]
        yield f"## `{key}`\n\n{_table((kind, 'options'), rows)}\n"
    augmentations = ", ".join(f"`{name}`" for name in AUGMENTATIONS)
    yield f"## `data.augment`\n\nOne of {augmentations}.\n"


def _sections(section: type[Section], path: str) -> Iterator[str]:
    """A heading and a table for the section, then for the sections in it."""
    notes, rows, below = comments(section), [], []
    for field in msgspec.structs.fields(section):
        inner = _section_in(field.type)
        if inner and not path:
            below.append((inner, f"{field.name}."))
        else:
            kind = "table" if inner else _type(schema.type_info(field.type))
            rows.append((f"`{path}{field.name}`", kind, _default(field), notes[field.name]))
    title = f"`[{path.rstrip('.')}]`" if path else "Top level"
    yield f"## {title}\n\n{_table(('key', 'type', 'default', 'meaning'), rows)}\n"
    for section_below, path_below in below:
        yield from _sections(section_below, path_below)


def comments(section: type[Section]) -> dict[str, str]:
    """The comment behind each field of a section."""
    source = io.StringIO(inspect.getsource(section)).readline
    lines: dict[int, list[tokenize.TokenInfo]] = {}
    for token in tokenize.generate_tokens(source):
        lines.setdefault(token.start[0], []).append(token)
    names = {field.name for field in msgspec.structs.fields(section)}
    notes = {}
    for tokens in lines.values():
        words = [token for token in tokens if token.type not in (tokenize.INDENT, tokenize.DEDENT)]
        note = next((token.string for token in words if token.type == tokenize.COMMENT), "")
        if words and words[0].string in names and words[1].string == ":":
            notes[words[0].string] = note.lstrip("# ")
    return notes


def _section_in(kind: Any) -> type[Section] | None:
    """The section that a field holds, also if it may be left out."""
    for part in (kind, *getattr(kind, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _type(kind: schema.Type) -> str:
    match kind:
        case schema.UnionType(types=types):
            return " or ".join(_type(part) for part in types if not isinstance(part, schema.NoneType))
        case schema.IntType() | schema.FloatType():
            word = "integer" if isinstance(kind, schema.IntType) else "number"
            bounds = [("≥", kind.ge), ("<", kind.lt), ("≤", kind.le)]
            return ", ".join([word, *(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)])
        case schema.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case schema.DictType():
            return "table"
        case schema.VarTupleType() | schema.ListType():
            return "list"
    return {schema.StrType: "text", schema.BoolType: "true or false"}[type(kind)]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default_factory() if field.default is NODEFAULT else field.default
    return "" if default in (None, "", {}) else f"`{_toml(default)}`"


def _options(factory: Callable[..., Any]) -> str:
    parameters = inspect.signature(factory).parameters.values()
    return ", ".join(
        f"`{each.name}`" if each.default is each.empty else f"`{each.name} = {_toml(each.default)}`"
        for each in parameters
        if each.name not in NOT_OPTIONS and each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    )


def _toml(value: object) -> str:
    """A default as a TOML file writes it.

    >>> _toml({"method": "edge"}), _toml((True, 0.1)), _toml(8 / 255), _toml(None)
    ('{ method = "edge" }', '[true, 0.1]', '"8/255"', '…')
    """
    if value is None:
        return "…"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, float) and len(str(value)) > 8 and (255 * value).is_integer():
        return f'"{255 * value:g}/255"'
    return json.dumps(value)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows))


if __name__ == "__main__":
    for file, text in pages().items():
        write_text(file, text)
