"""Make docs/images/report.png: the top of a run's page in Debian's chromium, in light colours, 1200 pixels wide.

Run as `python tools/screenshot_page.py RUN docs/images/report.png [--dark] [--width 360] [--height 1500 | --whole]`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from excite.report.page import write_page
from excite.runs.folder import collect


def screenshot(run: Path, image: Path, *, width: int, height: int, dark: bool, whole: bool) -> None:
    browser_path = shutil.which("chromium")
    if browser_path is None:
        raise SystemExit("There is no chromium on the PATH; Debian has it: apt install chromium.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = write_page(collect([run]), Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        page.goto(page_file.as_uri())
        image.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=image, full_page=whole)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--whole", action="store_true", help="the page from top to bottom")
    options = parser.parse_args()
    screenshot(
        options.run,
        options.image,
        width=options.width,
        height=options.height,
        dark=options.dark,
        whole=options.whole,
    )


if __name__ == "__main__":
    main()
