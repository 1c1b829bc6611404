"""Folders of frames as clips, and the list of all clips below a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from posixpath import basename, splitext

import numpy as np

from halofeed.errors import SourceError
from halofeed.prep.formats.clip.clip import (
    Clip,
    ClipOptions,
    Frame,
    admit,
    check_frame_count,
    other_size,
    time_stamps,
)
from halofeed.prep.formats.picture import Footprint, read_image
from halofeed.prep.formats.picture.png import SIGNATURE
from halofeed.prep.sources.file_names import is_image_name, is_video_name
from halofeed.prep.sources.files import SourceFiles, Stamp
from halofeed.prep.sources.reference import FileSelection, SourceExample
from halofeed.system.memory import with_margin

_NUMBER = re.compile(r"(\d+)")


def natural_order(paths: Iterable[str]) -> list[str]:
    """Paths by the numbers in them, not by their digits.

    >>> natural_order(["a/frame10.png", "a/frame9.png", "a/frame009.png"])
    ['a/frame009.png', 'a/frame9.png', 'a/frame10.png']
    """

    def key(path: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(path)]

    return sorted(paths, key=lambda path: (key(path), path))


def open_frame_folder(files: SourceFiles, members: Sequence[str], options: ClipOptions) -> Clip:
    """Open a clip of picture files; the first is decoded, the others when they are read.

    Args:
        members: the frames' paths, in any order.

    Raises:
        SourceError: there is none, or the first cannot be read; when read, also that one is of another size.
    """
    paths = natural_order(members)
    check_frame_count(len(paths))
    peak_bytes = 0

    def needed(footprint: Footprint) -> None:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, footprint.peak_bytes)
        options.need(with_margin(file_bytes + footprint.peak_bytes))

    def frame(path: str) -> Frame:
        try:
            image = read_image(read_still(files, path), options.picture, admit=needed)
            if options.refuse_turned and image.orientation != 1:
                raise turned()
            return image.pixels
        except SourceError as error:
            raise error.at(f"frame {path!r}") from error

    def decode(indices: Sequence[int]) -> Iterator[Frame]:
        for index in indices:
            pixels = frame(paths[index])
            if pixels.shape[:2] != size:
                raise other_size(f"frame {paths[index]!r}", pixels.shape[:2], size)
            yield pixels

    file_bytes = max(files.size(path) or 0 for path in paths)
    size = frame(paths[0]).shape[:2]
    times_s = None
    if options.frame_rate is not None:
        times_s, _ = time_stamps(np.arange(len(paths)) / options.frame_rate)
    held_bytes = file_bytes + peak_bytes
    admit(options, size, held_bytes)
    return Clip(
        frames=len(paths),
        height=size[0],
        width=size[1],
        times_s=times_s,
        findings=(),
        missing=_numbers_left_out(paths),
        held_bytes=held_bytes,
        decode=decode,
    )


def moves(head: bytes) -> bool:
    """Whether a PNG or WebP file holds several pictures, by its first bytes.

    Source: Portable Network Graphics, third edition, 11.3.6.1; RFC 9649, section 2.7.1.
    """
    if head.startswith(SIGNATURE):
        at = head.find(b"acTL", 0, head.find(b"IDAT"))
        return at >= 0 and head[at + 4 : at + 8] != b"\0\0\0\1"
    return head[8:16] == b"WEBPVP8X" and bool(head[20:21] and head[20] & 2)


def read_still(files: SourceFiles, path: str) -> bytes:
    """The bytes of a frame, or of the mask of one; SourceError where it is an animation itself."""
    data = files.read(path)
    if moves(data):
        detail = "it may be a clip, or one of the frames beside it; put animations into a folder of their own"
        raise SourceError("selection", "an animation lies among frames", detail)
    return data


def turned() -> SourceError:
    """The error of a frame that its EXIF orientation turns, of which masks may be drawn before or after it."""
    return SourceError(
        "annotation",
        "frame has an EXIF orientation",
        "its masks may lie on its pixels as stored or as displayed; if as displayed, say --annotation-grid displayed, "
        "else turn the files first",
    )


def _numbers_left_out(paths: Sequence[str]) -> SourceError | None:
    """What is said of a gap in the numbers of the frames; each second or each tenth frame has none.

    Where more than one number differs from name to name, none of them is known to count frames.
    """
    numbers = zip(*(_NUMBER.findall(basename(path).rpartition(".")[0]) for path in paths), strict=False)
    counting = [column for column in numbers if len(set(column)) > 1]
    if len(counting) != 1 or len(paths) < 3:
        return None
    steps = [int(after) - int(before) for before, after in pairwise(counting[0])]
    least, largest = min(steps), max(steps)
    if largest < 2 * least:
        return None
    at = steps.index(largest)
    return SourceError(
        "selection",
        "frame numbers have gaps",
        f"{basename(paths[at])!r} is followed by {basename(paths[at + 1])!r}, a step of {largest} where the least is "
        f"{least}; frames are missing, or those of several clips lie in one folder",
    )


_CAN_MOVE = frozenset((".png", ".apng", ".webp"))
_HEAD_BYTES = 1 << 12


def list_clips(files: SourceFiles) -> FileSelection:
    """The clips of a folder.

    A video file is a clip, and so are GIF files, and WebP and PNG files where the first of their folder, the last or
    the one in the middle is seen to move. All other pictures of one folder are the frames of one clip, called by the
    folder, unless clips in files of their own lie beside them: then they are no clips.
    """
    clips = _ClipFiles(files)
    return FileSelection(files=clips, takes=clips.takes, takes_scan=clips.takes, complete=clips.complete)


class _ClipFiles:
    """The files below a folder, with a folder of frames in the place of its frames."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        # What is asked of a single file or folder needs no clips.
        self.root, self.read, self.open, self.head = files.root, files.read, files.open, files.head
        self.faults, self.refusal, self.has_folder = files.faults, files.refusal, files.has_folder

    @cached_property
    def _clips(self) -> Mapping[str, tuple[str, ...]]:
        """The frames of each clip by its path; of a clip in one file none."""
        by_folder: dict[str, list[str]] = {}
        for path in self._files.sizes():
            if is_video_name(path) or is_image_name(path) or path.lower().endswith(".apng"):
                by_folder.setdefault(path.rpartition("/")[0], []).append(path)
        clips: dict[str, tuple[str, ...]] = {}
        for folder, paths in by_folder.items():
            moving = self._moving_extensions(paths)
            whole = [path for path in paths if is_video_name(path) or splitext(path)[1].lower() in moving]
            clips |= dict.fromkeys(whole, ())
            if not whole and folder:
                clips[folder] = tuple(natural_order(paths))
        return clips

    def _moving_extensions(self, paths: list[str]) -> set[str]:
        """The extensions whose pictures move in a folder, as three of each show."""
        by_extension: dict[str, list[str]] = {}
        for path in paths:
            by_extension.setdefault(splitext(path)[1].lower(), []).append(path)
        moving = {".gif"} & by_extension.keys()
        for extension in _CAN_MOVE & by_extension.keys():
            alike = by_extension[extension]
            if any(self._moves(alike[at]) for at in {0, len(alike) // 2, len(alike) - 1}):
                moving.add(extension)
        return moving

    def _moves(self, path: str) -> bool:
        try:
            return moves(self._files.head(path, _HEAD_BYTES))
        except SourceError:
            return False

    def takes(self, path: str) -> bool:
        """Whether a path is that of a clip."""
        return path in self._clips

    def complete(self, reference: SourceExample) -> SourceExample:
        """The reference with the frames of its clip, and of its masks, that are folders."""
        frames = self._clips.get(reference.source, ())
        masks = tuple((path, found) for path in reference.mask_paths if (found := self._clips.get(path)))
        return replace(reference, members=frames, mask_members=masks) if frames or masks else reference

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        inner = self._files.sizes()
        frames = {path for members in self._clips.values() for path in members}
        listed = {path: size for path, size in inner.items() if path not in frames}
        folders = {
            path: sum(inner[frame] for frame in members) for path, members in self._clips.items() if members
        }
        return dict(sorted({**listed, **folders}.items()))

    @cached_property
    def _by_folder(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self._sizes:
            found.setdefault(path.rpartition("/")[0], []).append(path)
        return found

    def sizes(self) -> Mapping[str, int]:
        return self._sizes

    def size(self, path: str) -> int | None:
        size = self._files.size(path)
        return self._sizes.get(path) if size is None else size

    def stamp(self, path: str) -> Stamp | None:
        return self._files.stamp(path)

    def files_in(self, folder: str) -> list[str]:
        return self._by_folder.get(folder, [])
