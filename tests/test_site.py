"""The site of the pages is read on a phone without scrolling sideways."""

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import find_chromium, run_probe

ROOT = Path(__file__).parents[1]
WIDTHS = (360, 412)
"""Of usual phones, in CSS pixels."""
SENTENCE_CHARACTERS = 30
SCRIPT = """
<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument.documentElement;
    const boxes = [...page.querySelectorAll(".md-typeset__scrollwrap")];
    const scrolled = boxes.filter((box) => box.scrollWidth > box.clientWidth)
      .flatMap((box) => [...box.querySelectorAll("td")].map((cell) => cell.textContent));
    return {page: frame.dataset.page, scroll: page.scrollWidth, width: page.clientWidth, cells: scrolled,
      tables: page.querySelectorAll("article table").length, boxes: boxes.length};
  });
  document.body.innerHTML = "";
  document.body.dataset.found = JSON.stringify(found);
});
</script>
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A copy of the site, and the address of its server: frames of files may not be looked into."""
    find_chromium()
    done = subprocess.run([ROOT / "run", "docs"], capture_output=True, text=True, check=False)
    if not (ROOT / "build/docs-venv/made-from").is_file():
        pytest.skip(f"the builder of the site cannot be installed: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    folder = tmp_path / "site"
    shutil.copytree(ROOT / "build/site", folder)
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.long
def test_no_page_and_no_table_of_sentences_scrolls_sideways_on_a_phone(site, tmp_path):
    folder, address = site
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("index.html"))
    assert len(pages) > 40
    frame = '<iframe data-page="{0}" src="/{0}" width="{1}" height="800" style="border: 0"></iframe>'
    frames = "".join(frame.format(page, width) for width in WIDTHS for page in pages)
    (folder / "probe.html").write_text(f'<!doctype html><meta charset="utf-8"><body>{frames}{SCRIPT}</body>')
    found, _ = run_probe(f"{address}/probe.html", tmp_path)
    assert [one["page"] for one in found] == pages * len(WIDTHS)
    assert not [one for one in found if one["scroll"] > one["width"]]
    # Each table is in a box that scrolls. Figures may scroll in it, because their columns are compared.
    assert not [one for one in found if one["tables"] != one["boxes"]]
    sentences = [
        (one["page"], cell) for one in found for cell in one["cells"] if len(cell) > SENTENCE_CHARACTERS
    ]
    assert not sentences
