"""Reader of folders of frames as clips, and the list of all clips below a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from posixpath import basename, splitext

import numpy as np

from halofeed.prep.formats.clip.opened_clip import (
    Clip,
    FrameOptions,
    RgbFrame,
    check_frame_count,
    normalize_times,
    reserve_memory,
    size_mismatch,
)
from halofeed.prep.formats.picture import Footprint, read_image
from halofeed.prep.sources.example import FileSelection, SourceExample
from halofeed.prep.sources.file_names import is_still_name, is_video_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE
from halofeed.system.errors import SourceError

_NUMBER = re.compile(r"(\d+)")


def natural_order(paths: Iterable[str]) -> list[str]:
    """Sort paths by the numbers in them instead of their digits.

    >>> natural_order(["a/frame10.png", "a/frame9.png", "a/frame009.png"])
    ['a/frame009.png', 'a/frame9.png', 'a/frame10.png']
    """

    def key(path: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(path)]

    return sorted(paths, key=lambda path: (key(path), path))


def open_frame_folder(files: SourceFiles, members: Sequence[str], options: FrameOptions) -> Clip:
    """Open a clip of picture files; only the first is decoded before `read`.

    Args:
        files: source files.
        members: paths of the frames, in any order.
        options: conversion of the frames.

    Raises:
        SourceError: there is no frame, or the first is unreadable. `read` also reports frames of another size.
    """
    paths = natural_order(members)
    check_frame_count(len(paths))
    peak_bytes = 0

    def reserve(footprint: Footprint) -> None:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, footprint.peak_bytes)
        options.reserve(file_bytes + footprint.peak_bytes)

    def frame(path: str) -> RgbFrame:
        try:
            image = read_image(read_still(files, path), options.picture, reserve=reserve)
            # Nothing says whether a mask fits the stored or the displayed pixels, see `turned_frame`.
            if options.refuse_turned and image.orientation != 1:
                raise turned_frame()
            if image.levels is not None:
                options.note_levels(image.levels)
            return image.pixels
        except SourceError as error:
            raise error.at(f"frame {path!r}") from error

    def decode(indices: Iterable[int]) -> Iterator[RgbFrame]:
        for index in indices:
            pixels = frame(paths[index])
            if pixels.shape[:2] != size:
                raise size_mismatch(f"frame {paths[index]!r}", pixels.shape[:2], size)
            yield pixels

    file_bytes = max(files.size(path) or 0 for path in paths)
    size = frame(paths[0]).shape[:2]
    times_s = None
    if options.frame_rate is not None:
        times_s, _ = normalize_times(np.arange(len(paths)) / options.frame_rate)
    held_bytes = file_bytes + peak_bytes
    reserve_memory(options, size, held_bytes)
    return Clip(
        frames=len(paths),
        height=size[0],
        width=size[1],
        times_s=times_s,
        findings=(),
        missing=_number_gap(paths),
        held_bytes=held_bytes,
        decode=decode,
    )


def is_animated(head: bytes) -> bool:
    """Return whether a PNG or WebP file holds several pictures, from its first bytes.

    Source: Portable Network Graphics, third edition, 11.3.6.1; RFC 9649, section 2.7.1.
    """
    if head.startswith(PNG_SIGNATURE):
        # After the pixels the chunk has no effect, and a count of 1 is a still picture.
        at = head.find(b"acTL", 0, head.find(b"IDAT"))
        return at >= 0 and head[at + 4 : at + 8] != b"\0\0\0\1"
    return head[8:16] == b"WEBPVP8X" and bool(head[20:21] and head[20] & 2)


def read_still(files: SourceFiles, path: str) -> bytes:
    """Read a frame or its mask; SourceError if it is an animation."""
    data = files.read(path)
    if is_animated(data):
        detail = "it may be a clip, or a frame next to others; put animations into a separate folder"
        raise SourceError("selection", "an animation lies among frames", detail)
    return data


def turned_frame() -> SourceError:
    """Return the error of a frame with an EXIF orientation, because its masks may fit the stored or displayed grid."""
    return SourceError(
        "annotation",
        "frame has an EXIF orientation",
        "its masks may fit its stored or its displayed pixels; if the displayed ones, use --annotation-grid displayed, "
        "else turn the files first",
    )


def _number_gap(paths: Sequence[str]) -> SourceError | None:
    """Return the error of a gap in the frame numbers; names with every second or tenth number have no gap.

    If several numbers vary between the names, the function cannot identify the frame number and returns None.
    """
    numbers = zip(*(_NUMBER.findall(basename(path).rpartition(".")[0]) for path in paths), strict=False)
    counting = [column for column in numbers if len(set(column)) > 1]
    if len(counting) != 1 or len(paths) < 3:  # two frames have one step, with which none can be compared
        return None
    steps = [int(after) - int(before) for before, after in pairwise(counting[0])]
    smallest, largest = min(steps), max(steps)
    # Names with every second or tenth number have equal steps; a missing frame doubles one.
    if largest < 2 * smallest:
        return None
    at = steps.index(largest)
    return SourceError(
        "selection",
        "frame numbers have gaps",
        f"{basename(paths[at])!r} is followed by {basename(paths[at + 1])!r}, a step of {largest}, and the smallest "
        f"step is {smallest}; frames are missing, or the folder has frames of several clips",
    )


_MAYBE_ANIMATED = frozenset((".png", ".apng", ".webp"))
_HEAD_BYTES = 1 << 12


def list_clips(files: SourceFiles) -> FileSelection:
    """List the clips of a folder.

    A video file is a clip, and so is a GIF file. WebP and PNG files are clips if the first, last or middle one of
    their folder is animated. All other pictures of a folder are the frames of one clip, which has the path of the
    folder. If the folder also contains clips in single files, these pictures are not a clip.
    """
    clips = _ClipFiles(files)
    return FileSelection(files=clips, takes=clips.takes, takes_scan=clips.takes, complete=clips.complete)


class _ClipFiles:
    """Files below a folder, in which each folder of frames replaces its frames."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        # These methods read a single file or folder, and do not depend on the clips.
        self.root, self.read, self.open, self.head = files.root, files.read, files.open, files.head
        self.read_range, self.open_ranges = files.read_range, files.open_ranges
        self.faults, self.refusal, self.has_folder = files.faults, files.refusal, files.has_folder
        self.stamp = files.stamp

    @cached_property
    def _clips(self) -> Mapping[str, tuple[str, ...]]:
        """Frames of each clip by its path; () for a clip in one file."""
        by_folder: dict[str, list[str]] = {}
        for path in self._files.sizes():
            # .apng is no extension of pictures, because such a file is always a clip.
            if is_video_name(path) or is_still_name(path) or path.lower().endswith(".apng"):
                by_folder.setdefault(path.rpartition("/")[0], []).append(path)
        clips: dict[str, tuple[str, ...]] = {}
        for folder, paths in by_folder.items():
            animated = self._animated_extensions(paths)
            single = [path for path in paths if is_video_name(path) or splitext(path)[1].lower() in animated]
            clips |= dict.fromkeys(single, ())
            # Pictures beside clips are posters or previews; those at the top have no folder that could name a clip.
            if not single and folder:
                clips[folder] = tuple(natural_order(paths))
        return clips

    def _animated_extensions(self, paths: list[str]) -> set[str]:
        """Return the extensions whose pictures are animated in a folder; three files of each are checked."""
        by_extension: dict[str, list[str]] = {}
        for path in paths:
            by_extension.setdefault(splitext(path)[1].lower(), []).append(path)
        animated = {".gif"} & by_extension.keys()
        for extension in _MAYBE_ANIMATED & by_extension.keys():
            # Reading each file's head would take a request per frame; the frames of one folder are alike.
            alike = by_extension[extension]
            if any(self._is_animated(alike[at]) for at in {0, len(alike) // 2, len(alike) - 1}):
                animated.add(extension)
        return animated

    def _is_animated(self, path: str) -> bool:
        try:
            return is_animated(self._files.head(path, _HEAD_BYTES))
        except SourceError:  # the file itself is refused when its clip is converted
            return False

    def takes(self, path: str) -> bool:
        """Return whether a path is that of a clip."""
        return path in self._clips

    def complete(self, example: SourceExample) -> SourceExample:
        """Return the example with the frames of its clip and its masks if these are folders."""
        frames = self._clips.get(example.source, ())
        masks = tuple((path, found) for path in example.mask_paths if (found := self._clips.get(path)))
        return replace(example, members=frames, mask_members=masks) if frames or masks else example

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

    def files_in(self, folder: str) -> list[str]:
        return self._by_folder.get(folder, [])
