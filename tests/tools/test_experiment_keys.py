"""The pages of experiment keys and options are up to date, and every key is explained."""

from pathlib import Path

import msgspec

from excite.runs import experiment
from tests.tools.loading import loaded

TOOL = loaded(Path(__file__).parents[2] / "tools/experiment_keys.py")


def test_pages_are_up_to_date() -> None:
    for file, text in TOOL.pages().items():
        assert file.read_text(encoding="utf-8") == text, "run: python tools/experiment_keys.py"


def test_every_key_is_explained() -> None:
    for section in experiment.Section.__subclasses__():
        notes = TOOL.comments(section)
        for field in msgspec.structs.fields(section):
            assert notes[field.name] or TOOL._section_in(field.type), f"{section.__name__}.{field.name} needs a comment"
