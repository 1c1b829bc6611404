"""Evidence of what the DICOM files of a source are: slices of volumes, slides, or single pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from halofeed.prep.annotations.layout_hints import HEAD_BYTES, Hint, ListedFiles, hint_of_layout
from halofeed.prep.sources.file_names import is_dicom_name, is_image_name
from halofeed.system.errors import SourceError

SLICE, SLIDE, PICTURE = "slice", "slide", "picture"
_OTHER = "other"
"""Kind of an object without pixels, and of a damaged file."""
_UNNAMED = re.compile(r"(^|/)[^./]+$|\.(\d+|img)$", re.IGNORECASE)
"""Names of DICOM files without an extension: names of exports, and UIDs, whose last part is a number."""
_META_BYTES, _LONG_HEADER_BYTES = 1024, 1 << 22
_STATIC_SHAPE = " with --depth, --height and --width"
_MAX_UNNAMED, _MAX_FOLDERS, _MAX_OF_FOLDER = 8, 16, 4


def find_dicom(files: ListedFiles) -> tuple[str, str] | None:
    """Return the path and the kind of a DICOM file that shows what the files of a source are; None without any.

    One slice or slide among a few files decides, because series often have pictures beside them.
    """
    found: dict[str, str] = {}
    for path in _sampled(files.sizes()):
        kind = _kind_of(files, path)
        if kind in (SLICE, SLIDE):
            return path, kind
        if kind is not None:
            found.setdefault(kind, path)
    if PICTURE in found:
        return found[PICTURE], PICTURE
    # A layout of series names the kinds of other objects, and the faults of damaged ones.
    return (found[_OTHER], SLICE) if found else None


def holds_pictures(files: ListedFiles) -> bool:
    """Return whether the DICOM files of a source are single pictures."""
    found = find_dicom(files)
    return found is not None and found[1] == PICTURE


def images_of(files: ListedFiles) -> Iterable[str]:
    """Return the paths of the images by their names; DICOM files count if they are single pictures."""
    named = list(filter(is_image_name, files.sizes()))
    dicom = [path for path in named if is_dicom_name(path)]
    if not dicom or holds_pictures(files):
        return named
    return [path for path in named if not is_dicom_name(path)]


def _sampled(paths: Iterable[str]) -> list[str]:
    """Return the first two and the last file with an extension of DICOM, and some without an extension."""
    named, unnamed = list[str](), list[str]()
    for path in paths:
        if is_dicom_name(path):
            named.append(path)
        elif len(unnamed) < _MAX_UNNAMED and _UNNAMED.search(path):
            unnamed.append(path)
    return [*dict.fromkeys((*named[:2], *named[-1:])), *islice(unnamed, _MAX_UNNAMED)]


def _kind_of(files: ListedFiles, path: str) -> str | None:
    """Return the kind of a DICOM file; None for another file, or one that cannot be read."""
    try:
        head = files.head(path, HEAD_BYTES)
        # A file without the prefix counts if its name says that it is DICOM.
        if head[128:132] != b"DICM" and not is_dicom_name(path):
            return None
        return _kind_of_head(files, path, head)
    except SourceError:
        return None


def _kind_of_head(files: ListedFiles, path: str, head: bytes) -> str:
    from halofeed.prep.formats.dicom.header_fields import place_of_pixels  # takes 0.1 s
    from halofeed.prep.formats.dicom.headers import HeaderContinuesError
    from halofeed.prep.formats.dicom.sop_classes import SLIDE_CLASS

    # The class is in the file meta information (PS3.10, 7.1), before any text that could hold the same digits.
    if re.search(rb"%b(?![\d.])" % re.escape(SLIDE_CLASS).encode(), head[:_META_BYTES]):
        return SLIDE
    # Headers with tables of values are longer than others.
    for size in (HEAD_BYTES, _LONG_HEADER_BYTES):
        try:
            is_placed = place_of_pixels(head if size == HEAD_BYTES else files.head(path, size))
        except HeaderContinuesError:
            continue
        except SourceError:
            return _OTHER
        return {None: _OTHER, True: SLICE, False: PICTURE}[is_placed]
    return _OTHER


def one_patient_each(files: ListedFiles, by_folder: Mapping[str, Sequence[str]]) -> bool:
    """Return whether folders hold the DICOM pictures of one patient each, so that they are patients and no classes.

    Two folders of one patient each may be classes of a tiny set. Of many, a sample is read.
    """
    patients: set[bytes] = set()
    sampled = list(islice(by_folder.values(), _MAX_FOLDERS))
    for paths in sampled:
        own = {_patient_of(files, path) for path in islice(filter(is_dicom_name, paths), _MAX_OF_FOLDER)}
        if len(own) != 1 or not (found := own.pop()) or found in patients:
            return False
        patients.add(found)
    return len(sampled) > 2


def _patient_of(files: ListedFiles, path: str) -> bytes:
    """Return the patient's id of a DICOM file; b"" if it has none or is damaged."""
    from halofeed.prep.formats.dicom.picture_header import patient_of_head

    try:
        return patient_of_head(files.head(path, HEAD_BYTES))
    except SourceError:
        return b""


def hint_of_dicom(files: ListedFiles, path: str) -> Hint:
    """Return the hint for a DICOM file: the layout dicom reads series, and layouts of pictures read single pictures."""
    from halofeed.prep.formats.dicom.sop_classes import SINGLE_PICTURE_ADVICE

    kind = _kind_of(files, path)
    if kind == SLIDE:
        return Hint(
            what=f"{path} is a DICOM slide",
            layouts=("folders",),
            fix="take --fit tiles --height 1024 --width 1024, which cuts it into records",
        )
    # A radiograph or photograph in DICOM has no position, so that it is no slice of a volume.
    if kind == PICTURE:
        return Hint(
            what=f"{path} is a DICOM picture, no slice",
            layouts=("folders",),
            fix=SINGLE_PICTURE_ADVICE,
        )
    return hint_of_layout(f"{path} is DICOM", "dicom", more=_STATIC_SHAPE)
