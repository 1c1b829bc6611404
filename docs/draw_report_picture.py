"""Draw docs/report.png from the reports of `./run demo`: `python docs/draw_report_picture.py [demo]`.

The picture shows samples of three reports side by side. All pictures and scans in it are drawn by the demo, so they may
be published. Needs Chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

FILE = Path(__file__).with_name("report.png")
WIDTH, HEIGHT, MARGIN = 1200, 1000, 20
COLUMNS = {
    "Pictures: source and record": ("report.html", (5, 1)),
    "Scans: three planes, with organs": ("report-volumes.html", (3,)),
    "Predictions after 100 steps": ("runs/detector/report.html", (-1, -3)),
}
"""Head of each column, the report in the demo's folder, and the numbers of its samples."""
STYLE = (
    "main{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:1.2rem;max-width:none;padding:1.2rem}"
    "main h2{font-size:1rem;margin:0 0 .8rem}.sample{margin-bottom:1rem}"
)


def main() -> None:
    """Write the picture."""
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    styles, columns = dict[str, None](), []
    for head, (name, numbers) in COLUMNS.items():
        report = (demo / name).read_text("utf-8")
        styles |= dict.fromkeys(re.findall(r"<style>(.*?)</style>", report, re.DOTALL))
        samples = re.findall(r'<article class="sample">.*?</article>', report, re.DOTALL)
        columns.append(f"<section><h2>{head}</h2>{''.join(samples[number] for number in numbers)}</section>")
    page = f"<!doctype html><meta charset=utf-8><style>{''.join(styles)}{STYLE}</style><main>{''.join(columns)}</main>"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(page, "utf-8")
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder}/profile",
        ]
        command += ["--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={folder}/page.png"]
        subprocess.run([*command, f"file://{folder}/page.html"], check=True, capture_output=True)  # noqa: S603 - no shell
        with Image.open(f"{folder}/page.png") as opened:
            picture = opened.convert("RGB")
    # Beside the samples the page has only its background.
    background = Image.new("RGB", picture.size, picture.getpixel((0, HEIGHT - 1)))
    _, top, _, bottom = ImageChops.difference(picture, background).getbbox()
    shown = picture.crop((0, max(0, top - MARGIN), WIDTH, min(HEIGHT, bottom + MARGIN)))
    shown.quantize(256, dither=Image.Dither.NONE).save(FILE, optimize=True)


if __name__ == "__main__":
    main()
