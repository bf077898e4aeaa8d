from excite.lipschitz.protocol import LipschitzEstimate
from excite.report import estimates_table


def test_methods_side_by_side_and_why_one_has_no_answer() -> None:
    found: dict[str, LipschitzEstimate | str] = {
        "local": LipschitzEstimate(4.0, (3.0, 5.0), "local", False, "25 maxima", p_value=0.5),
        "curvature": "The trace holds no curvatures.",
    }
    lines = estimates_table(found).splitlines()
    assert lines[2].split() == [
        "local",
        "4",
        "3",
        "to",
        "5",
        "0.25",
        "0.5",
        "0.5",
        *["no:", "the", "data", "do", "not", "identify", "it"],
    ]
    assert lines[-2:] == ["local: 25 maxima.", "curvature: The trace holds no curvatures."]
