"""Assemble the pages of the site in build/pages: README, docs/, examples/, with links between pages.

On a code host the same links lead to the files. The README is the site's first page, and each example is a page
with its code. `./run docs` runs this before it builds the site.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TOP = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/dataflow/README.md"),
    *("tests/readings.md", "tests/guarantees.md"),
)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)


def assemble(folder: Path) -> list[str]:
    """Write all pages below the folder, and return the links that lead to no page, each as "file: link"."""
    sources = [*_TOP, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    sources += [f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.*"))]
    pages = {source: _page_of(source) for source in sources}
    shutil.rmtree(folder, ignore_errors=True)
    dead = []
    for source, page in pages.items():

        def target(found: re.Match[str], source: str = source, page: str = page) -> str:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
            if path in pages:
                return posixpath.relpath(pages[path], posixpath.dirname(page) or ".") + found[2]
            if not (path.startswith("docs/") and path.endswith(".png") and (ROOT / path).is_file()):
                dead.append(f"{source}: {found[1]}")
            return posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(page) or ".") + found[2]

        text = _FENCE.sub(r'```\1 title="\2"', _LINK.sub(target, _markdown(ROOT / source)))
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text)
    for path in (ROOT / "docs").glob("*.*"):
        if path.suffix in (".png", ".css", ".js"):
            shutil.copy(path, folder)
    return dead


def _page_of(source: str) -> str:
    if source == "README.md":
        return "index.md"
    return str(Path(source.removeprefix("docs/")).with_suffix(".md"))


def _markdown(path: Path) -> str:
    """Return a page's text: Markdown as it is, a program's code, or a notebook's texts and code."""
    text = path.read_text()
    if path.suffix == ".py":
        return f"# {path.name}\n\n```python\n{text}```\n"
    if path.suffix == ".ipynb":
        cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
        return "\n\n".join(cell if kind == "markdown" else f"```python\n{cell}\n```" for kind, cell in cells)
    return text


if __name__ == "__main__":
    sys.exit("".join(f"dead link in {link}\n" for link in assemble(ROOT / "build/pages")) or 0)
