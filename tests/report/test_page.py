"""The page as text: it stands alone, names its sources, escapes what it is given, and can be read."""

import re
import shutil
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from excite.evaluation import Evaluation
from excite.files import write_json
from excite.lipschitz import ESTIMATORS
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.figures import style
from excite.report.page import page
from excite.report.rows import tidy
from excite.report.verdict import conclude
from excite.runs.folder import EXPERIMENT, RunFolder
from excite.runs.records import StoredEstimate
from excite.runs.stages.attack import certify
from excite.trace import Trace

WriteRun = Callable[..., RunFolder]
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onmouseover='alert(1)"


class Structure(HTMLParser):
    """Every tag with its attributes, the text outside style and script, and that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def structure(html: str) -> Structure:
    parsed = Structure()
    parsed.feed(html)
    parsed.close()
    assert parsed.stack == []
    return parsed


@pytest.fixture(scope="module")
def html(small_run: RunFolder) -> str:
    return page([small_run])


def test_page_is_self_contained(html: str) -> None:
    assert html.startswith("<!doctype html>")
    assert len(html.encode()) < 5_000_000
    parsed = structure(html)
    for tag, attributes in parsed.tags:
        for name in ("src", "href", "data", "action", "srcset"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#")), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|WebSocket", html)


def test_page_has_all_sections_in_order(html: str, small_run: RunFolder) -> None:
    sections = re.findall(r'<h2 id="([^"]*)"', html)
    assert sections == [
        *("verdict-title", "done", "results", "curves", "confounders", "trust", "images", "l", "theorem", "repeat"),
        "machine",
    ]
    words = " ".join("".join(structure(html).text).split())
    assert conclude(tidy([small_run])).evidence in words
    for chart in ("Training loss (nats, log scale)", "Clean test accuracy (%)", "Robust test accuracy (%)"):
        assert chart in words
    assert "excite run experiment.toml" in words
    assert "train_examples = 320" in words
    assert small_run.estimate
    assert f"{small_run.estimate.constant:.4g}" in words
    assert small_run.estimate.basis in words


def test_sections_name_files_and_rows_name_folders(html: str, small_run: RunFolder) -> None:
    titles = [str(attributes.get("title") or "") for attributes in structure(html).all("tr")]
    named = {file for title in titles for file in title.split(", ") if file}
    assert {f"{arm.name}/" for arm in small_run.arms} | {"estimate.json", "poe/certificate.json"} <= named
    assert all((small_run.path / file).exists() for file in named), named
    for section in re.findall(r"<section(?! class=\"verdict)(.*?)</section>", html, re.DOTALL)[1:]:
        assert 'class="source"' in section or "<small>estimate.json</small>" in section


def test_backticks_become_code(write_run: WriteRun, evaluated: Callable[..., Evaluation]) -> None:
    text = page([write_run({name: {"evaluation": evaluated(95, 40)} for name in ("baseline", "poe")})])
    assert "<code>--seeds 3</code> and another" in text
    assert "`" not in re.sub(r"<script>.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL)


def test_images_have_alternatives_and_tables_real_buttons(html: str) -> None:
    parsed = structure(html)
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in parsed.all("svg"))
    pictures = parsed.all("img")
    assert len(pictures) == 4 * (1 + 2 * 3)
    assert all(picture["alt"] for picture in pictures)
    assert html.count('<th scope="col"') == len(parsed.all("th"))
    assert len(parsed.all("main")) == len(parsed.all("header")) == len(parsed.all("footer")) == 1
    identifiers = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    for _, attributes in parsed.tags:
        for reference in ("aria-labelledby", "href"):
            target = str(attributes.get(reference) or "")
            if target and not target.startswith("data:"):
                assert target.removeprefix("#") in identifiers


def test_escapes_everything_in_an_experiment(write_run: WriteRun) -> None:
    arms = {"baseline": {"problem": HOSTILE, "epochs": [{"test_accuracy": 0.5}]}}
    run = write_run(arms)
    values = run.experiment.to_json() | {"name": HOSTILE.replace("/", ""), "summary": HOSTILE}
    values["attacks"] = {HOSTILE: values["attacks"].popitem()[1]}
    values["model"]["options"]["activation"] = HOSTILE
    write_json(run.path / EXPERIMENT, values)
    html = page([RunFolder(run.path)])
    parsed = structure(html)
    assert len(parsed.all("script")) == 1
    assert parsed.all("img") == []
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert HOSTILE in unescape(html)


def test_page_without_illustration_says_so(small_run: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(small_run.path, copy, ignore=shutil.ignore_patterns("illustration.json"))
    html = page([RunFolder(copy)])
    assert "no images under attack" in html
    assert "<img" not in html


@pytest.mark.parametrize("arms", [{}, {"baseline": {}}, {"baseline": {"problem": "Training diverged"}}])
def test_page_of_an_unfinished_run(write_run: WriteRun, arms: dict[str, dict[str, object]]) -> None:
    html = page([write_run(arms)])
    structure(html)
    assert conclude(tidy([write_run(arms)])).headline in html


def test_several_seeds_and_settings_on_one_page(small_run: RunFolder, tmp_path: Path) -> None:
    for folder, changes in {
        "a/seed-0": {"seed": 0},
        "a/seed-1": {"seed": 1},
        "b": {"training.batch_size": 16},
    }.items():
        shutil.copytree(small_run.path, tmp_path / folder)
        write_json(tmp_path / folder / EXPERIMENT, small_run.experiment.with_values(changes).to_json())
    runs = [RunFolder(tmp_path / folder) for folder in ("a/seed-0", "a/seed-1", "b")]
    html = page(runs)
    structure(html)
    assert conclude(tidy(runs)).headline in unescape(html)
    assert html.count("<h3>training.batch_size 16</h3>") == 3
    assert 'title="a/seed-0/poe/, a/seed-1/poe/"' in html


def colours(theme: int) -> dict[str, tuple[int, int, int]]:
    """The style sheet's colours, 0 for light and 1 for dark."""
    sheet = (resources.files("excite.report") / "templates" / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\);", sheet)
    return {name: tuple(bytes.fromhex((light, dark)[theme])) for name, light, dark in found}  # type: ignore[misc]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""

    def luminance(colour: tuple[int, int, int]) -> float:
        linear = [
            share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
            for share in (level / 255 for level in colour)
        ]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(theme: int) -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    known = colours(theme)
    for ground in ("paper", "panel"):
        for text in ("ink", "soft", "accent", "good", "bad", "warn"):
            assert contrast(known[text], known[ground]) >= 4.5, (text, ground)
    for color in style.COLORS:
        assert contrast(tuple(bytes.fromhex(color[1:])), known["panel"]) >= 3, color  # type: ignore[arg-type]  # graphics, WCAG 1.4.11


def test_page_of_a_baseline_does_not_mention_l(write_run: WriteRun) -> None:
    text = page([write_run({"baseline": {}})])
    assert "Estimate <strong>L</strong>" not in text
    assert "1/L" not in text.partition('<h2 id="results">')[0].partition("<main>")[2]
    assert "how robust is a network?" in text


def test_page_explains_methods_and_doubts(write_run: WriteRun) -> None:
    off = LipschitzEstimate(4.0, (3.0, 5.0), "edge", True, "8 short trainings")
    text = page([write_run({"baseline": {}, "largest": {"rate": 0.2, "problem": "Training diverged"}}, estimate=off)])
    assert ESTIMATORS["edge"].about in unescape(text)
    assert "no: training diverged at 0.2" in text
    assert "L is in doubt" in text
    assert "largest convergent, 2/L" not in text


def test_page_shows_the_l_of_each_preset(write_run: WriteRun) -> None:
    own = LipschitzEstimate(3.0, (3.0, 3.0), "edge", True, "8 short trainings")
    authors = LipschitzEstimate(7.0, (3.0, 9.0), "epochs (authors' protocol)", False, "164 epochs")
    preset = 'estimators={authors={method="epochs",protocol="authors"}}'
    arms = {"baseline": {}, "poe": {"rate": 1 / 3}, "poe@authors": {"rate": 1 / 7}}
    run = write_run(arms, changes=[preset], estimate=own, estimates={"authors": authors, "local": own})
    text = page([run])
    told = re.sub(r"<[^>]+>|&nbsp;", "", text)
    assert "1/L=0.333 and at 1/L (authors)=0.143" in told
    section = unescape(text.partition('<h2 id="l">')[2].partition("</section>")[0])
    assert "come from <strong>edge, authors</strong>" in section
    assert section.count("used here") == 2
    assert "<small>estimates/authors.json</small>" in section
    assert ESTIMATORS["epochs"].about in section


def test_page_reads_stored_certificates(write_run: WriteRun, descent: Callable[..., Trace]) -> None:
    given = LipschitzEstimate(3.0, (3.0, 3.0), "stated", False, "an example")
    trace = descent(12, noise=0.05)
    run = write_run({"baseline": {"trace": trace}, "poe": {"trace": trace, "rate": 1 / 3}}, estimate=given)
    assert "Does the theorem hold" not in page([run])
    for arm in run.arms:
        certify(arm)
    run = RunFolder(run.path)
    found = run.arm("poe").certified
    assert found
    assert found.largest_slope
    assert found.largest_slope > 3
    text = page([run])
    structure(text)
    section = text.partition('<h2 id="theorem">')[2].partition("</section>")[0]
    assert section.count(">not met</td>") == 1  # by slopes above 1/η
    assert f"<td>{found.steps}</td><td>{found.certified}</td><td>{found.acute}</td>" in section
    assert section.count('title="poe/certificate.json"') == 1
    assert f": {found.conclusion}</li>" in unescape(section)


def test_a_rate_may_be_a_fraction(write_run: WriteRun) -> None:
    runs = [write_run({"baseline": {"rate": rate}}, changes=[f"training.schedule.rate={rate:g}/1"]) for rate in (1, 2)]
    assert "report" in page(runs)


def test_page_reads_a_preset_added_later(write_run: WriteRun, evaluated: Callable[..., Evaluation]) -> None:
    later = LipschitzEstimate(7.0, (3.0, 9.0), "epochs", False, "164 epochs")
    arms = {name: {"rate": 1 / 7, "evaluation": evaluated(95, 60)} for name in ("baseline", "poe@later")}
    runs = [write_run(arms, changes=[f"seed={seed}"], estimates={"later": later}) for seed in (0, 1)]
    for run in runs:
        stored = StoredEstimate(later, 1.0, options={"method": "epochs", "shared": True})
        stored.save(run.estimate_file("later"))
    assert "one for all seeds" in page(runs)
