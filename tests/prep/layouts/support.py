"""What the tests of layouts share: files without content, and what a layout makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.layouts import LayoutOptions, Reference, find_layout
from halofeed.prep.layouts.dicom import FoundSeries, find_series, series_below
from halofeed.prep.sources.files import LocalFiles


def make(root: Path, *paths: str) -> LocalFiles:
    """Files that hold one byte each; the folder."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return LocalFiles(root)


def list_references(
    layout: str, root: Path, file: str | None = None, images: Path | None = None, **options: Any
) -> list[Reference]:
    """What the layout finds, the images in a folder of their own where one is given."""
    listing = find_layout(layout).list_references
    return list(listing(LocalFiles(root), LocalFiles(images or root), file or None, LayoutOptions(**options)))


def by_source(
    layout: str,
    source: LocalFiles | Path,
    file: str | None = None,
    images: Path | None = None,
    **options: Any,
) -> dict[str, Reference]:
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


def outcome(references: dict[str, Reference]) -> dict[str, str | None]:
    """For each source the label's file, None for prediction only, or the reason of its problem."""
    return {source: one.problem[1] if one.problem else one.mask for source, one in references.items()}


def series_at(root: Path, source: str, options: LayoutOptions) -> FoundSeries:
    """The DICOM series that a table means by a path below a folder."""
    files = LocalFiles(root)
    listings = series_below(files, (source.partition("#")[0],), options)
    return find_series(files, source, listings, options)
