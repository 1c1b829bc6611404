"""Reader of LUNA16: annotations.csv with spheres in millimeters, and scans as MetaImage in subset0 to subset9.

The rules are those of the challenge (luna16.grand-challenge.org/Data): `seriesuid` is the name of a scan's file,
`coordX`, `coordY` and `coordZ` are the center of a nodule in world coordinates, which are ITK's (to the left, to
posterior and to superior), and `diameter_mm` is its diameter. All scans were searched, so that a scan without a row has
no nodule. The ten subsets are the folds of the challenge's cross-validation: a subset is a group, so that --folds 10
makes each subset a fold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.scan_box_columns import is_luna16
from halofeed.prep.annotations.scan_box_rows import MM_LPS
from halofeed.prep.layouts.scan_boxes import ScanTableRules, list_scan_table
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError

_SUBSET = re.compile(r"(?:^|/)(subset[0-9]+)/", re.IGNORECASE)


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every scan with its nodules; one without a row has none.

    Rows of scans in subsets that are not there are listed and skipped.

    Raises:
        AnnotationsError: there is no such table, or none of its scans.
    """
    named = annotation_file or _find(annotations)
    rules = ScanTableRules(
        unit=MM_LPS,
        label="nodule",
        unlisted=None,
        missing=("selection", "scan of a row is not there", "its subset may not have been downloaded"),
        group_of=_subset_of,
    )
    yield from list_scan_table(annotations, images, named, options, rules)


def _find(annotations: SourceFiles) -> str:
    """Return the table of nodules, in any folder: the challenge has it beside the subsets or in CSVFILES."""
    paths = [path for path in annotations.sizes() if path.lower().endswith(".csv")]
    found = []
    for path in sorted(paths, key=lambda one: (one.count("/"), one)):
        head = annotations.head(path, 4096).decode("utf-8-sig", "replace")
        if is_luna16(head.partition("\n")[0].split(",")):
            found.append(path)
    if not found:
        listed = ", ".join(paths[:5]) or "no .csv file"
        raise AnnotationsError(
            f"{annotations.root}: expected annotations.csv with the columns "
            f"seriesuid,coordX,coordY,coordZ,diameter_mm; found {listed}; other tables of boxes: --layout scan-boxes"
        )
    # annotations_excluded.csv has the findings that are neither right nor wrong, with a diameter of -1.
    plain = [path for path in found if "excluded" not in path.rpartition("/")[2].lower()]
    if len(plain) != 1:
        raise AnnotationsError(
            f"{annotations.root}: {', '.join(found[:5])} are tables of nodules; name one of them with --source"
        )
    return plain[0]


def _subset_of(path: str) -> str | None:
    found = _SUBSET.search(path)
    return found[1].lower() if found else None
