"""What is said of files among DICOM series that are no slices, and what helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from halofeed.prep.sources.volume_files import extension_of, is_volume_name

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series import Apart

CURES: Mapping[str, str] = {
    "secondary capture": "--secondary-captures take takes such images where they are slices",
    "survey by its description": "--series-description takes a series by its description",
    "mosaic": "Siemens' many slices in one image: make NIfTI of them with dcm2niix, then --layout pairs",
    "image without position": "a slice must say where it lies: export the original series",
    "segmentation": "masks need the series that they were drawn on below the same folder",
    "structure set": "contours need the series that they were drawn on below the same folder",
    "DICOMDIR": "it lists files that must lie beside it",
}
"""What helps with files of a kind."""


def kind_and_cure(kind: str) -> str:
    """A kind of file, with what helps where something does.

    >>> kind_and_cure("report"), kind_and_cure("survey by its description")
    ('report', 'survey by its description; --series-description takes a series by its description')
    """
    return f"{kind}; {CURES[kind]}" if kind in CURES else kind


def nothing_found(root: str, apart: Iterable[Apart], named: Sequence[str]) -> str:
    """Why there is no series below a folder, and what helps.

    Args:
        root: the folder.
        apart: the files that are no slices.
        named: the volumes and pictures by their names.
    """
    apart = list(apart)
    kinds = Counter(one.kind for one in apart)
    endings = Counter(extension_of(path).lower() for path in named)
    found = [f"{count} x {kind}" for kind, count in sorted(kinds.items())]
    found += [f"{count} x {ending}" for ending, count in sorted(endings.items())]
    cures = [f"{kind}: {CURES[kind]}" for kind in sorted(kinds) if kind in CURES]
    cures += [
        f"damaged: {one.path}: {one.error.reason}; copy it again"
        for one in [one for one in apart if one.kind == "damaged" and one.error is not None][:1]
        if one.error is not None
    ]
    if any(map(is_volume_name, named)):
        cures.append("NIfTI, NRRD or MetaImage volumes: take --layout pairs, msd, nnunet or class-masks")
    elif named:
        cures.append("pictures: take --layout folders, coco, voc or csv, without --depth")
    if not cures:
        cures.append("name with --source the folder that holds the series' files")
    return f"{root}: no DICOM series lies below it; found {', '.join(found) or 'no file'}; {'; '.join(cures)}"
