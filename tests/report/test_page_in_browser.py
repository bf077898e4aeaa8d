"""The page in Debian's chromium: it renders, sorts, follows light and dark, and fits a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from excite.report.page import write_page
from excite.runs.folder import RunFolder

CHROMIUM = shutil.which("chromium")
DESK: ViewportSize = {"width": 1200, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium")


@pytest.fixture(scope="module")
def address(small_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page([small_run], tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page on a desk, in light colours; whatever it complains about or asks for fails the test."""
    context = browser.new_context(viewport=DESK, color_scheme="light", reduced_motion="reduce")
    opened = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(address)
    yield opened
    context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [address]


def column(page: Page, number: int) -> list[str]:
    cells = page.locator(f".results tbody td:nth-child({number})").all()
    return [cell.inner_text() for cell in cells]


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_renders_the_verdict_first(page: Page, tmp_path: Path) -> None:
    assert page.title() == "small · excite"
    verdict = page.locator(".verdict .headline")
    assert verdict.is_visible()
    box = verdict.bounding_box()
    assert box
    assert box["y"] < DESK["height"] / 2
    assert fits(page)
    image = page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert len(image) > 50_000


def test_every_image_is_decoded_and_shown_pixel_by_pixel(page: Page) -> None:
    images = page.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.width, getComputedStyle(i).imageRendering])"
    )
    assert len(images) == 4 * (1 + 2 * 3)
    assert all(done and size == 28 and width > 28 and how == "pixelated" for done, size, width, how in images)


def test_the_table_sorts_by_mouse_and_by_keyboard(page: Page) -> None:
    rate = page.locator(".results th").nth(1)
    before = column(page, 2)
    assert len(before) == 3
    rate.locator("button").click()
    assert rate.get_attribute("aria-sort") == "ascending"
    assert column(page, 2) == sorted(before, key=float)
    rate.locator("button").focus()
    page.keyboard.press("Enter")
    assert rate.get_attribute("aria-sort") == "descending"
    assert column(page, 2) == sorted(before, key=float, reverse=True)
    page.locator(".results th").first.locator("button").focus()
    page.keyboard.press("Space")
    assert column(page, 1) == sorted(column(page, 1), key=str.lower)
    assert rate.get_attribute("aria-sort") is None


def test_sorts_cells_without_numbers_last(page: Page) -> None:
    headings = page.locator("section[aria-labelledby=l] th")
    button = headings.nth(1).locator("button")
    for _ in range(2):
        button.click()
        values = page.locator("section[aria-labelledby=l] tbody td:nth-child(2)").all_inner_texts()
        assert values[-1] == "–"


def test_charts_follow_the_theme_of_the_page(page: Page) -> None:
    charts = page.locator("figure svg")
    assert charts.count() >= 6
    ink = "getComputedStyle(document.querySelector('figure svg')).color"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ink) != light


def test_light_and_dark_by_system_and_by_button(page: Page) -> None:
    light = ground(page)
    page.emulate_media(color_scheme="dark")
    dark = ground(page)
    assert light == "rgb(250, 249, 247)"
    assert dark == "rgb(20, 23, 26)"
    button = page.locator("#theme")
    assert button.inner_text() == "Light page"
    button.click()
    assert (ground(page), button.inner_text()) == (light, "Dark page")
    page.emulate_media(color_scheme="light")
    button.click()
    assert ground(page) == dark


def test_keyboard_reaches_the_verdict_first(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("width", [320, 360, 768])
def test_it_fits_a_phone(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": PHONE["height"]})
    assert fits(page)
    wide = page.evaluate("[...document.querySelectorAll('.wide')].map(box => box.getBoundingClientRect().right)")
    assert max(wide) <= width


def test_it_reads_without_scripts(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    assert opened.locator(".verdict .headline").is_visible()
    assert opened.locator("figure svg").first.is_visible()
    assert opened.locator("#theme").is_hidden()
    context.close()
