"""Masks of FiftyOne: packed in its JSON or in files, of objects and of complete pictures.

The rules are those of `core/labels.py` and `utils/data/exporters.py` of FiftyOne. The mask of an object covers its box,
and every value but 0 is inside. The values of a segmentation are classes, which `mask_targets` of metadata.json names
by number or by `#rrggbb`.
"""

from __future__ import annotations

import base64
import io
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from halofeed.prep.annotations.class_rows import ClassRow
from halofeed.prep.annotations.documents import as_list, as_mapping, parse_json_document, read_limited
from halofeed.prep.annotations.written_boxes import declared_size
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_MAX_MASK_BYTES = 1 << 28
"""Largest unpacked mask (estimate): 16,000 x 16,000 pixels."""
_MAX_METADATA_BYTES = 64 << 20
_METADATA = "metadata.json"
_COLOR = re.compile(r"#[0-9A-Fa-f]{6}")
_NO_SIZE = "call dataset.compute_metadata() before the export, which writes the size of pictures"


@dataclass(frozen=True, kw_only=True)
class FiftyOneExport:
    """Files of an export, and what it says of its fields.

    Args:
        files: files of the source.
        folder: folder of the JSON file.
        described: metadata.json beside it; {} without one.
    """

    files: SourceFiles
    folder: str
    described: Mapping[str, Any]

    @classmethod
    def of(cls, files: SourceFiles, path: str) -> FiftyOneExport:
        """Return the export of a JSON file; raise SourceError if its metadata.json is damaged."""
        folder = posixpath.dirname(path)
        metadata = posixpath.join(folder, _METADATA)
        described: Mapping[str, Any] = {}
        if files.size(metadata) is not None:
            data = read_limited(files, metadata, _METADATA, _MAX_METADATA_BYTES)
            described = as_mapping(parse_json_document(data))
        return cls(files=files, folder=folder, described=described)

    def stated(self, name: str, shared: str, field: str) -> Any:
        """Return what the export states of a field by one key, or of all fields by another; None for nothing.

        Exports of older versions have it in `info`.
        """
        for place in (self.described, as_mapping(self.described.get("info"))):
            if found := as_mapping(place.get(name)).get(field) or place.get(shared):
                return found
        return None

    def path_of(self, written: str) -> str | None:
        """Return the file that a path means: relative to the JSON, or an absolute one by its end; None if missing."""
        parts = [one for one in written.replace("\\", "/").split("/") if one not in ("", ".")]
        for start in range(len(parts)):
            path = posixpath.normpath(posixpath.join(self.folder, *parts[start:]))
            if not path.startswith("..") and self.files.size(path) is not None:
                return path
        return None


def mask_files(sample: Mapping[str, Any], export: FiftyOneExport) -> tuple[str, ...]:
    """Return the files of masks and heat maps of a sample, which are no pictures of the data set."""
    written = [
        one.get(key)
        for value in map(as_mapping, sample.values())
        for one in (value, *map(as_mapping, chain(*(as_list(inner) for inner in value.values()))))
        for key in ("mask_path", "map_path")
    ]
    found = (export.path_of(one) for one in written if isinstance(one, str) and one)
    return tuple(path for path in found if path is not None)


def label_rows(export: FiftyOneExport, field: str, place: str) -> Iterator[ClassRow]:
    """Yield the classes of the values or colors of a field of segmentations, as mask_targets names them."""
    for key, name in as_mapping(export.stated("mask_targets", "default_mask_targets", field)).items():
        if key.isdecimal() and len(key) < len(str(1 << 31)):
            yield ClassRow(value=int(key), name=str(name), place=place)
        elif _COLOR.fullmatch(key):
            yield ClassRow(value=0, name=str(name), color=int(key[1:], 16), place=place)


def runs_of_segmentation(
    mask: Any, size: tuple[Any, Any], names: Mapping[int, str], what: str
) -> tuple[tuple[tuple[str, Any], ...], tuple[int, int]]:
    """Return (class, run lengths) of each value but 0 of a packed segmentation, and the size of the picture.

    Raises:
        SourceError: the mask is damaged, in color, or of another size than the picture.
    """
    import numpy as np

    from halofeed.prep.voxels.masks import encode_run_lengths

    values = unpacked_array(mask, what)
    if values.ndim != 2 or values.dtype.kind not in "biu":
        detail = f"{what}: shape {values.shape}; fiftyone.utils.labels.export_segmentations writes files"
        raise SourceError("annotation", "segmentation is no picture of classes", detail)
    height, width = (int(side) for side in values.shape)
    if declared_size(*size) not in (None, (height, width)):
        detail = f"{what}: {width} x {height}, and the picture {size[1]} x {size[0]}; resize it in FiftyOne"
        raise SourceError("annotation", "segmentation has another size than its picture", detail)
    present = [int(value) for value in np.unique(values) if value]
    runs = (
        (names.get(one, str(one)), encode_run_lengths((values == one).astype(np.uint8))) for one in present
    )
    return tuple(runs), (height, width)


def mask_of_object(
    written: Mapping[str, Any],
    sides: Sequence[float],
    size: tuple[Any, Any],
    export: FiftyOneExport,
    what: str,
) -> dict[str, Any]:
    """Return the mask of an object as run lengths of the picture; raise SourceError if there is none.

    Args:
        written: object with `mask` or `mask_path`.
        sides: x, y, width and height of its box, as shares of the picture.
        size: height and width of the picture as written.
        export: files of the export.
        what: description of the object, for messages.
    """
    import numpy as np

    from halofeed.prep.voxels.masks import encode_run_lengths

    pixels = _pixels_of(written, export, what)
    picture = declared_size(*size)
    if picture is None:
        raise SourceError("annotation", "size of the picture is missing", f"{what}: {_NO_SIZE}")
    drawn = np.zeros(picture, np.uint8)
    (top, height), (left, width) = (
        (round(sides[axis] * length), max(1, round(sides[axis + 2] * length)))
        for axis, length in ((1, picture[0]), (0, picture[1]))
    )
    # The mask covers the box; by rounding it may have a row or a column more or less.
    if abs(pixels.shape[0] - height) <= 1 and abs(pixels.shape[1] - width) <= 1:
        height, width = pixels.shape
    rows = np.arange(max(0, top), min(picture[0], top + height))
    columns = np.arange(max(0, left), min(picture[1], left + width))
    source = (rows - top) * pixels.shape[0] // height, (columns - left) * pixels.shape[1] // width
    drawn[np.ix_(rows, columns)] = pixels[np.ix_(*source)]
    return encode_run_lengths(drawn)


def _pixels_of(written: Mapping[str, Any], export: FiftyOneExport, what: str) -> Any:
    """Return the mask of an object, uint8 [row, column], 0 or 1."""
    from halofeed.prep.annotations.drawn_objects import read_drawing

    path = written.get("mask_path")
    if written.get("mask") is not None or not isinstance(path, str) or not path:
        pixels = unpacked_array(written.get("mask"), what)
        if pixels.ndim != 2 or not pixels.size:
            raise SourceError("annotation", "mask is no packed array", f"{what}: shape {pixels.shape}")
        return (pixels != 0).astype("uint8")
    found = export.path_of(path)
    if found is None:
        detail = f"{what}: {path}; export the data set with its media (export_media=True)"
        raise SourceError("annotation", "file of the mask is missing", detail)
    return (read_drawing(export.files, found) != 0).astype("uint8")


def unpacked_array(mask: Any, what: str) -> Any:
    """Return the values of a mask, which FiftyOne packs as a NumPy file in zlib and base64."""
    import numpy as np

    if isinstance(mask, dict):
        mask = as_mapping(mask.get("$binary")).get("base64")
    if not isinstance(mask, str):
        raise SourceError("annotation", "object has no segmentation", what)
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(mask, validate=True), _MAX_MASK_BYTES)
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, zlib.error) as error:
        raise SourceError("annotation", "mask is no packed array", f"{what}: {error}") from error
