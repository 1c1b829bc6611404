"""How tests take a report's page apart, and have a browser show it."""

import base64
import hashlib
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SCRIPT = (Path(__file__).parents[2] / "inspection/html/records.js").read_text("utf-8")
"""The only script of a report."""
VOID = {"img", "meta", "br", "input"}
PROBE = """
<script>
addEventListener("load", () => {
  const clash = (a, b) => a.width && b.width && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1
    && b.top < a.bottom - 1;
  const check = (page) => {
    let overlaps = [];
    const named = ".bars, .row, .where, .split, .tiles div, .legend, .chips";
    const groups = [...page.querySelectorAll(named)].map(g => [...g.children])
      .concat([...page.querySelectorAll("svg.chart")].map(g => [...g.querySelectorAll("text")]));
    for (const group of groups) for (let i = 0; i < group.length; i++) for (let j = i + 1; j < group.length; j++)
      if (clash(group[i].getBoundingClientRect(), group[j].getBoundingClientRect()))
        overlaps.push(group[i].textContent + " | " + group[j].textContent);
    const images = [...page.images];
    return {images: images.length, broken: images.filter(i => !i.naturalWidth).length, overlaps,
      scroll: page.documentElement.scrollWidth, width: page.documentElement.clientWidth};
  };
  const found = [...document.querySelectorAll("iframe")].map(f => check(f.contentDocument));
  document.body.innerHTML = "";
  document.body.dataset.found = JSON.stringify(found);
});
</script>
"""


class Page(HTMLParser):
    """A page taken apart; refuses elements that are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.placed: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.texts: list[tuple[list[str], str]] = []
        self.feed(source)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.placed.append((tag, dict(attrs), [given.get("id") or "" for _, given in self.open]))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop()[0] == tag, tag

    def handle_data(self, data: str) -> None:
        self.texts.append(([given.get("id") or "" for _, given in self.open], data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [given for name, given in self.elements if name == tag]

    def words(self, section: str | None = None) -> str:
        return "".join(data for ids, data in self.texts if section is None or section in ids)


def part_of(source: str, section: str) -> str:
    start = source.index(f'<section id="{section}">')
    return source[start : source.index("</section>", start)]


def rows(source: str, section: str) -> list[list[str]]:
    """The table rows of a section, as plain texts."""
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(<td.*?)</tr>", part_of(source, section))
    ]


def code_blocks(source: str) -> list[str]:
    """The commands and programs that the last section shows, as plain texts."""
    blocks = re.findall(r"<pre><code>(.*?)</code></pre>", part_of(source, "use"), re.S)
    return [html.unescape(block) for block in blocks]


def assert_self_contained(source: str, page: Page) -> None:
    """Nothing is loaded, no script but ours runs, and nothing that is not known is written as a number."""
    assert source.startswith("<!doctype html>") and not page.all("link")
    assert_only_our_script(source, page)
    loaded = [given[key] for _, given in page.elements for key in ("src", "href", "srcset") if key in given]
    assert loaded and all(str(where).startswith("data:image/") for where in loaded)
    assert not re.search(r"https?:|@import|url\(", source) and len(source) < 5_000_000
    # None: only where it begins a sentence.
    assert not re.search(r"\bnan\b|\binf\b|None\b(?!:)", page.words())


def assert_only_our_script(source: str, page: Page) -> None:
    """A page has no script, or ours alone, to which its content security policy holds the browser."""
    scripts = re.findall(r"<script>(.*?)</script>", source, re.S)
    assert scripts in ([], [SCRIPT]) and len(page.all("script")) == len(scripts)
    policies = [given["content"] for given in page.all("meta") if given.get("http-equiv")]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    allowed = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policies == [allowed] * len(scripts)


def images(page: Page, section: str) -> list[dict[str, str | None]]:
    """The pictures of a section of a page."""
    return [given for name, given, ids in page.placed if name == "img" and section in ids]


def picture(uri: object) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(str(uri).partition(",")[2]))) as opened:
        return np.asarray(opened)


def find_chromium() -> str:
    """The program of a headless Chromium; skips the test where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium here; install it to check pages in a browser")
    return found


def load_in_browser(address: str, folder: Path) -> tuple[str, str]:
    """The document of a page after its script ran, and the browser's log."""
    done = subprocess.run(
        [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run", f"--user-data-dir={folder / 'profile'}",
         "--window-size=1400,4000", "--enable-logging=stderr", "--v=0", "--dump-dom", address],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def run_probe(address: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """What the script of a page found, which leaves it in `document.body.dataset.found`, and the browser's log."""
    document, log = load_in_browser(address, folder)
    found = re.search(r'data-found="(.*?)"', document)
    assert found, document[:500] + log[-2000:]
    return json.loads(html.unescape(found[1])), log


def browse(page: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """What headless Chromium finds of a page in frames as wide as a phone, a tablet and a desk's screen."""
    inside = f'height="4000" srcdoc="{html.escape(page)}"'
    frames = "".join(f'<iframe width="{width}" {inside}></iframe>' for width in (375, 820, 1280))
    file = folder / "probe.html"
    file.write_text(f'<!doctype html><meta charset="utf-8"><body>{frames}{PROBE}</body>')
    return run_probe(file.as_uri(), folder)


def assert_a_browser_shows(page: str, images: int, folder: Path) -> None:
    """Every picture is shown, nothing overlaps and nothing scrolls sideways, on a phone, a tablet and a desk."""
    found, log = browse(page, folder)
    for frame in found:
        assert frame["images"] == images and frame["broken"] == 0
        assert frame["overlaps"] == []
        assert frame["scroll"] <= frame["width"]
    assert "CONSOLE" not in log, log
