"""Whatever stands at a key of an experiment, in a file, or after --set: it fits, or it is an error of ours."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from excite import attacks, schedules
from excite.errors import CorruptFileError, ExciteError, InputError
from excite.evaluation import Evaluation
from excite.files import read_as, read_json, write_json
from excite.runs.assemble import look_up
from excite.runs.experiment import flattened, from_values, load
from excite.runs.records import Illustration, StoredEstimate
from tests.faults.conftest import EVERY_FILE

MANY = 50
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KEYS = sorted(flattened(from_values(EVERY_FILE).to_json()))


@settings(max_examples=MANY)
@given(key=st.sampled_from(KEYS), value=VALUES)
@example(key="seed", value=2**70)
@example(key="data.name", value="a\x00b")
def test_any_value_at_any_key(key: str, value: Any) -> None:
    with contextlib.suppress(InputError):
        look_up(from_values(EVERY_FILE).with_values({key: value}))


@settings(max_examples=MANY)
@given(setting=st.text(max_size=30) | st.tuples(st.sampled_from(KEYS), st.text(max_size=20)).map("=".join))
def test_any_setting(setting: str) -> None:
    with contextlib.suppress(InputError):
        load("mnist-sample", overrides=[setting])


@settings(max_examples=MANY)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load(str(path))
    path.with_suffix(".json").write_bytes(content)
    with pytest.raises(CorruptFileError):
        read_json(path.with_suffix(".json"))


@settings(max_examples=MANY)
@given(data=st.data(), kind=st.sampled_from(["evaluation.json", "estimate.json", "illustration.json"]))
def test_any_value_in_a_sealed_file(data: st.DataObject, kind: str, finished: Path, tmp_path_factory: Any) -> None:
    """What is read is what was written, or refused: never another error."""
    kinds: dict[str, type] = {"estimate.json": StoredEstimate, "illustration.json": Illustration}
    source = finished / kind if kind != "evaluation.json" else finished / "poe" / kind
    values = json.loads(json.dumps(read_json(source)))
    place = values
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(VALUES)
            break
        place = place[key]
    path = tmp_path_factory.getbasetemp() / kind
    write_json(path, values)
    with contextlib.suppress(ExciteError):
        read_as(path, kinds[kind]) if kind in kinds else Evaluation.load(path)


@settings(max_examples=MANY)
@given(eps=st.floats(), step=st.floats(), steps=st.integers(-3, 3), kind=st.sampled_from(sorted(attacks.ATTACKS)))
def test_any_radius(eps: float, step: float, steps: int, kind: str) -> None:
    with contextlib.suppress(InputError):
        made = attacks.create(kind, eps=eps, **({"step": step, "steps": steps} if kind == "pgd" else {}))
        assert made.eps is not None
        assert 0 <= made.eps < math.inf


@settings(max_examples=MANY)
@given(rate=st.floats(), first=st.floats(), milestones=st.lists(st.integers(-3, 9), max_size=3))
def test_any_schedule(rate: float, first: float, milestones: list[int]) -> None:
    with contextlib.suppress(InputError):
        schedule = schedules.rescale(schedules.step(rate, milestones=milestones), first, horizon=10)
        assert all(0 < schedule(epoch) < math.inf for epoch in range(10))
