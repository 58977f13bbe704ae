"""Take the screenshots of the console in docs/images, from a filled cluster in this process.

    python scripts/console_screenshots.py [FOLDER]

Needs Chromium (scripts/ensure_browser.py), the extra `console`, and a font with Chinese characters
(Debian: fonts-wqy-microhei).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.driver import NARROW, WIDE, browser, console, prefer, resize  # noqa: E402
from tests.browser.shop import Shop  # noqa: E402

#: Name -> path, theme, size, language.
PICTURES = {
    "console-overview": ("/", "light", WIDE, "en"),
    "console-overview-dark": ("/", "dark", WIDE, "en"),
    "console-topics": ("/topics", "light", WIDE, "en"),
    "console-topic": ("/topics/orders", "light", WIDE, "en"),
    "console-messages": ("/messages?topic=orders", "light", WIDE, "en"),
    "console-message": ("MESSAGE", "dark", WIDE, "en"),
    "console-group": ("/groups/billing", "light", WIDE, "en"),
    "console-dead-letters": ("/dead-letters/booking", "light", WIDE, "en"),
    "console-waiting": ("/waiting", "dark", WIDE, "en"),
    "console-traces": ("/traces", "light", WIDE, "en"),
    "console-broker": ("/brokers/broker-a", "dark", WIDE, "en"),
    "console-groups-chinese": ("/groups", "light", WIDE, "zh"),
    "console-narrow": ("/", "light", NARROW, "en"),
}
#: How long the charts are filled before the first picture.
SECONDS = 45.0


def main() -> None:
    """Take all pictures."""
    _check_fonts()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    with Shop(is_busy=True) as shop, console(shop.name_server) as address, browser() as driver:
        driver.get(f"{address}/")
        time.sleep(seconds)
        for name, (path, theme, size, language) in PICTURES.items():
            if path == "MESSAGE":
                driver.get(f"{address}/messages?topic=orders&text=o-7&lang=en")
                link = driver.find_element("css selector", "td.code a").get_attribute("href")
                path = str(link).removeprefix(address)
            prefer(driver, theme)
            resize(driver, size)
            driver.get(f"{address}{path}{'&' if '?' in path else '?'}lang={language}")
            time.sleep(3.0)  # the charts are drawn, and the first events are in
            _save(driver.get_screenshot_as_png(), folder / f"{name}.png")
            print(folder / f"{name}.png")


def _check_fonts() -> None:
    """End if Chinese would be boxes; every picture has the button of that language."""
    command = ["fc-list", ":lang=zh"]
    if shutil.which(command[0]) and not subprocess.check_output(command):
        sys.exit("no font has Chinese characters; on Debian: apt-get install fonts-wqy-microhei")


def _save(picture: bytes, path: Path) -> None:
    """Write a picture with a palette, which makes it three times smaller."""
    from io import BytesIO

    from PIL import Image

    image = Image.open(BytesIO(picture)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


if __name__ == "__main__":
    main()
