"""The shell completes commands, options, experiments and arms."""

import pytest
from click.shell_completion import ShellComplete

from excite.cli import cli


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        ([], "est", ["estimate"]),
        (["run"], "mnist-s", ["mnist-sample"]),
        (["train", "--arm"], "po", ["poe"]),
        (["run"], "--see", ["--seeds"]),
    ],
)
def test_shell_completion(words: list[str], begun: str, expected: list[str]) -> None:
    found = ShellComplete(cli, {}, "excite", "_EXCITE_COMPLETE").get_completions(words, begun)
    assert [item.value for item in found][: len(expected)] == expected
