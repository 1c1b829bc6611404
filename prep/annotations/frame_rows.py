"""Files with the boxes of all frames of a sequence, one box in each line that begins with the number of its frame."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.prep.annotations.annotation_tools import FilePicture
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

_LINE = re.compile(r"\s*\d+(\s*,\s*-?[\d.]+(?:[eE][-+]?\d+)?)+\s*,?\s*")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_MAX_FRAMES = 2_000_000
"""Frames of a sequence: 18 hours at 30 frames per second, as for videos."""
_BY_ORDER = "frames have other numbers than the names of their files: the first frame is the first file"


@dataclass(frozen=True, kw_only=True)
class FrameSequence:
    """Frames of one sequence.

    Args:
        path: file of the boxes, relative to which `folder` is.
        folder: folder of the frames.
        digits: digits of the name of a frame, where the folder cannot be listed.
        length: number of frames that the format states; 0 without one.
        size: height and width of the frames as written.
        notes: remarks on how the file was read.
        fault: error that makes all frames unusable.
    """

    path: str
    folder: str
    digits: int
    length: int = 0
    size: tuple[Any, Any] = (None, None)
    notes: tuple[str, ...] = ()
    fault: SourceError | None = None


def refuse_single_file(annotation_file: str | None) -> None:
    """Raise AnnotationsError for a named file, which does not tell where the frames of its sequence are."""
    if annotation_file is not None:
        raise AnnotationsError(
            f"{annotation_file}: the frames of a sequence are in a folder beside that of its file; name the folder "
            "above both with --source"
        )


def read_rows(data: bytes, values: Collection[int]) -> dict[int, list[list[str]]] | None:
    """Return the cells of the lines of each frame; None for a file of another form.

    Args:
        data: content of the file.
        values: numbers of cells that a line may have.

    Raises:
        SourceError: some lines have the form and others do not, or a number of a frame is too large.

    >>> read_rows(b"1,7,10,20,30,40\\n3,7,11,20,30,40,\\n", (6,))
    {1: [['1', '7', '10', '20', '30', '40']], 3: [['3', '7', '11', '20', '30', '40']]}
    >>> read_rows(b"a cat\\n", (6,)) is None
    True
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return None  # other text files need not be UTF-8
    written = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    rows: dict[int, list[list[str]]] = {}
    wrong = ""
    for number, line in written:
        cells = [cell.strip() for cell in line.strip().removesuffix(",").split(",")]
        if _LINE.fullmatch(line) is None or len(cells) not in values:
            wrong = wrong or f"line {number}: {line.strip()[:60]!r}"
            continue
        frame = int(cells[0]) if len(cells[0]) < len(str(_MAX_FRAMES)) + 1 else _MAX_FRAMES + 1
        if frame > _MAX_FRAMES:
            raise SourceError("annotation", "frame number is too large", f"line {number}: {cells[0]:.20}")
        rows.setdefault(frame, []).append(cells)
    # No line has the form: another format. One of a thousand lines is damage.
    if wrong and rows:
        expected = " or ".join(map(str, sorted(values)))
        raise SourceError("annotation", "line is no box of a frame", f"{wrong}; expected {expected} numbers")
    return None if wrong else rows


def pictures_of_sequence(
    files: SourceFiles,
    sequence: FrameSequence,
    rows: Mapping[int, Sequence[Any]],
    options: LayoutOptions,
) -> Iterator[FilePicture]:
    """Yield the pictures of all frames of a sequence, also of those without a row, which show no object.

    All frames are one group. With --frame-stride N, all but every N-th frame have a fault.

    Args:
        files: files among which the frames are, in a folder of the same path.
        sequence: facts of the sequence.
        rows: objects of each frame.
        options: options of the layout.
    """
    listed, notes = _stems(files, sequence, rows)
    numbers = sorted({*listed, *rows})
    for place, number in enumerate(numbers):
        stem = listed.get(number) or f"{number:0{sequence.digits}d}"
        yield FilePicture(
            name="",
            stem=stem,
            folders=(posixpath.relpath(sequence.folder or ".", posixpath.dirname(sequence.path) or "."),),
            size=sequence.size,
            objects=rows.get(number, ()),
            group=sequence.folder,
            fault=sequence.fault or fault_of_stride(place, options),
            optional=number not in rows,
            notes=(*sequence.notes, *notes),
        )


def fault_of_stride(place: int, options: LayoutOptions) -> SourceError | None:
    """Return the reason why --frame-stride leaves a frame out; None for a frame that it takes.

    Args:
        place: number of the frame among those of its sequence, from 0.
    """
    stride = options.frame_stride or 1
    if not place % stride:
        return None
    return SourceError(
        "selection", "frame is left out", f"--frame-stride {stride} takes one of {stride} frames"
    )


def _stems(
    files: SourceFiles, sequence: FrameSequence, rows: Mapping[int, object]
) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return the name of each frame's file without its extension, by the number of the frame, and remarks."""
    # Without a listing the number of frames, or the last one with a row, is all that is known.
    names = [posixpath.basename(path) for path in files.files_in(sequence.folder) if is_image_name(path)]
    if not names:
        last = min(sequence.length or max(rows, default=0), _MAX_FRAMES)
        return {number: f"{number:0{sequence.digits}d}" for number in range(1, last + 1)}, ()
    stems = [posixpath.splitext(name)[0] for name in names]
    numbered = {int(found[1]): stem for stem in stems if (found := _LAST_NUMBER.search(stem))}
    # Two files of one number, or names without numbers, have no order that would be certain.
    if len(numbered) == len(stems) and rows.keys() <= numbered.keys():
        return numbered, ()
    first = min(numbered, default=1)
    is_whole = len(numbered) == len(stems) == max(numbered, default=0) - first + 1
    # Frames count from 1, and tools name their files from 0.
    if is_whole and first != 1 and max(rows, default=0) <= len(stems):
        in_order = [numbered[number] for number in sorted(numbered)]
        return dict(enumerate(in_order, start=1)), (_BY_ORDER,)
    return numbered, ()
