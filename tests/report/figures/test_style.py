"""Colours that can be seen on white and on a dark page, and an ink that follows the reader."""

from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from excite.report.figures import style
from excite.runs.arms import ARMS, Arm

DARK_PAGE = "#16181a"


def luminance(color: str) -> float:
    """As WCAG 2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("color", style.COLORS)
@pytest.mark.parametrize("page", ["#ffffff", DARK_PAGE])
def test_line_colors_have_contrast_in_both_themes(color: str, page: str) -> None:
    assert contrast(color, page) >= 3


def test_text_has_contrast_in_both_themes() -> None:
    assert contrast(style.INK, "#ffffff") >= 4.5
    assert contrast(style.LIGHT_INK, DARK_PAGE) >= 4.5


def test_arms_differ_in_color_and_marker() -> None:
    looks = [style.look(arm) for arm in (*ARMS, "grid-5")]
    assert len({color for color, _ in looks}) == len({marker for _, marker in looks}) == len(ARMS) + 1


def test_new_arm_has_its_own_look(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {arm: style.look(arm) for arm in ARMS}
    monkeypatch.setitem(ARMS, "new", Arm("new", "new", "new"))
    assert {arm: style.look(arm) for arm in before} == before
    assert len({*before.values(), style.look("new"), style.look("poe@stated"), style.look("grid-5")}) == len(before) + 3


def test_svg_follows_the_theme_and_keeps_text() -> None:
    with style.settings():
        figure = Figure()
        figure.subplots().set_title("a <title>")
    text = style.svg(figure, "name", 'what "it" shows')
    assert text.startswith("<svg ")
    assert style.INK not in text.split(">", 1)[1]
    assert f'color="{style.INK}"' in text
    assert "prefers-color-scheme: dark" in text
    assert "a &lt;title&gt;</text>" in text
    assert "aria-label='what \"it\" shows'" in text


@pytest.mark.parametrize("length", [5, 40, 100])
def test_no_legend_and_no_title_is_cut(length: int) -> None:
    with style.settings():
        figure, (axes,) = style.panels(1, 1, width=4.8, height=3.6)
        for number in range(7):
            axes.plot([0, 1], [0, number], label=f"{number} {'attack ' * (length // 7)}")
        style.label(axes, "rate (no unit)", "accuracy (%)", "network " * (length // 8))
        style.legend_below(figure, [axes], columns=4)
        figure.canvas.draw()
        (legend,) = figure.legends
        for box in (legend.get_window_extent(), axes.title.get_window_extent()):
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.width
            assert box.y1 <= figure.bbox.height


def test_a_title_stays_above_its_panel() -> None:
    with style.settings():
        figure, panels = style.panels(1, 3, width=3.4)
        for axes in panels:
            style.label(axes, "epoch", "accuracy (%)", "a long title of a panel " * 6)
        figure.canvas.draw()
        boxes = [axes.title.get_window_extent() for axes in panels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert boxes[-1].x1 <= figure.bbox.width
