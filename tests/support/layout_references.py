"""What the tests of layouts share: files without content, and what a layout makes of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.layouts import LayoutOptions, SourceExample, find_layout
from halofeed.prep.layouts.detect import detect_layout
from halofeed.prep.layouts.dicom import find_series, series_below
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles

Found = dict[str, SourceExample]


def write_files(root: Path, contents: Mapping[str, str | bytes]) -> LocalFiles:
    """Files by their paths below a folder; the folder."""
    for path, content in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return LocalFiles(root)


def make(root: Path, *paths: str, content: str = "x") -> LocalFiles:
    """Files that all hold the same, one byte; the folder."""
    return write_files(root, dict.fromkeys(paths, content))


def list_references(layout: str, root: Path, file=None, images=None, **options: Any) -> list[SourceExample]:
    """What the layout finds, the images in a folder of their own where one is given."""
    listing = find_layout(layout).list_references
    return list(listing(LocalFiles(root), LocalFiles(images or root), file or None, LayoutOptions(**options)))


def by_source(layout: str, source: LocalFiles | Path, file=None, images=None, **options) -> Found:
    """The same by source: each once, as its text says it, of files that are there unless it has a problem."""
    root = source if isinstance(source, Path) else Path(source.root)
    references = list_references(layout, root, file, images, **options)
    present = set(LocalFiles(images or root).sizes())
    for reference in references:
        assert reference_from_json(reference_to_json(reference)) == reference
        assert reference.problem is None or not reference.is_labelled
        assert reference.problem is not None or set(reference.paths) <= present
    found = {reference.source: reference for reference in references}
    assert len(found) == len(references)
    assert list(found) == sorted(found) or layout in ("lits", "pairs")
    return found


def outcome(references: Mapping[str, SourceExample] | Iterable[SourceExample]) -> dict[str, str | None]:
    """For each source the label's file, None for prediction only, or the reason of its problem."""
    found = references.values() if isinstance(references, Mapping) else references
    return {one.source: one.problem[1] if one.problem else one.mask for one in found}


def series_at(root: Path, source: str, options: LayoutOptions) -> SourceExample:
    """The DICOM series that a table means by a path below a folder."""
    files = LocalFiles(root)
    listings = series_below(files, (source.partition("#")[0],), options)
    return find_series(files, source, listings, options)


def detected(folder):
    """Return the name of the layout that `--layout auto` chooses for a folder."""
    files = LocalFiles(folder)
    return detect_layout(files, files, None, lambda name: Recipe(layout=name).layout_options()).name
