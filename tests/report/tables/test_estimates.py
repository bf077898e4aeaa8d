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


def test_estimates_that_are_each_sure_and_disagree_are_said_to() -> None:
    large = LipschitzEstimate(6.8, (0.6, 6.9), "curvature", True, "a Hessian")
    small = LipschitzEstimate(0.5, (0.45, 0.55), "epochs", True, "25 maxima")
    shown = estimates_table({"curvature": large, "epochs": small})
    assert "curvature, epochs do not agree, so that not all of them are right" in " ".join(shown.split())
    assert "the one to believe" not in shown
    for identified in (True, False):
        edge = LipschitzEstimate(20.0, (10.0, 40.0), "edge", identified, "8 runs")
        shown = estimates_table({"curvature": large, "epochs": small, "edge": edge})
        assert ("the one to believe is edge" in " ".join(shown.split())) == identified
    vague = LipschitzEstimate(0.5, (0.45, 0.55), "epochs", False, "25 maxima")
    assert "do not agree" not in estimates_table({"curvature": large, "epochs": vague})
