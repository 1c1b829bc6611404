"""How video files are decoded: by OpenCV's own FFmpeg, from memory, one frame at a time in one thread.

FFmpeg guesses formats by their content and would follow what a playlist names. So only what `table.CONTAINERS` knows by
its first bytes comes here, its boxes are read before FFmpeg sees them, and it gets the bytes and no name or path.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import cv2
import numpy as np

from halofeed.prep.formats.clip.clip import (
    MOST_FRAMES,
    Clip,
    ClipOptions,
    Frame,
    admit,
    check_frame_count,
    frames_missing,
    time_stamps,
)
from halofeed.prep.formats.clip.container import Container
from halofeed.prep.formats.clip.interlaced import interlaced, is_interlaced
from halofeed.prep.formats.picture.image import Size, check_pixel_count, damaged, truncated, undecodable
from halofeed.prep.formats.picture.pixels import apply_orientation
from halofeed.prep.geometry.resize import displayed_size
from halofeed.prep.sources.memory import TOO_MUCH, lacks_memory
from halofeed.schemas.errors import SourceError

os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # read once, when the first video is opened

PIXEL_BYTES = 48
"""The most that FFmpeg and OpenCV hold for each pixel of a frame: 18 frames of 8 bits and a quarter of the chroma that
others refer to, the frame in colors and what turns it."""
TRIES = 3
"""So often the next frame is asked for after the last; a damaged one in the middle shows by one behind it."""
_ALPHA = (b"RGBA", b"BGRA", b"ARGB", b"ABGR", b"RBA@", b"BRA@")
"""Formats of pixels that may be transparent; the others begin with Y4, Y2 or G4, for four and for two planes."""

# OpenCV 5 has moved it.
_set_log_level = (getattr(cv2.utils, "logging", None) or cv2).setLogLevel
_silencing = threading.Lock()
_silenced = 0
_level_before = 0


@contextmanager
def _silence() -> Iterator[None]:
    """Keep OpenCV from writing to the process's standard error, whichever threads decode."""
    global _silenced, _level_before
    with _silencing:
        if not _silenced:
            _level_before = _set_log_level(0)
        _silenced += 1
    try:
        yield
    finally:
        with _silencing:
            _silenced -= 1
            if not _silenced:
                _set_log_level(_level_before)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (cv2.error, MemoryError) as error:
        if lacks_memory(error):
            raise undecodable(TOO_MUCH, "this machine has too little left") from error
        raise damaged("FFmpeg cannot decode it") from error


class _Stream(io.BytesIO):
    """The bytes of a file. What raises while FFmpeg asks for them ends the process; so nothing does."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):  # a place before the beginning, as a damaged file may name it
            return -1


@contextmanager
def _decoder(data: bytes, end: int) -> Iterator[cv2.VideoCapture]:
    """A decoder of the first bytes of a file; it turns nothing."""
    stream = _Stream(data)
    if end < len(data):
        stream.truncate(end)
    with _failures(), _silence():
        # OpenCV takes any io.BufferedIOBase; its annotations know a class of its own.
        capture = cv2.VideoCapture(cast("Any", stream), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        try:
            if not capture.isOpened():
                raise undecodable("video cannot be decoded", "FFmpeg finds no video in it")
            capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
            yield capture
        finally:
            capture.release()


def open_video(data: bytes, read_container: Callable[[bytes], Container], options: ClipOptions) -> Clip:
    """Open a video: its frames are decoded once to count them and to get their time stamps.

    Args:
        read_container: one of `read_mp4`, `read_avi` and `read_matroska`.

    Raises:
        SourceError: no video, none of its frames can be decoded, damaged in the middle, or too large. A file that was
            cut off has the frames that are whole.
    """
    container = read_container(data)
    check_pixel_count(container.size, options.picture.max_pixels)
    held_bytes = _held_bytes(data, container, container.size)
    admit(options, container.size, held_bytes)
    if not container.packets:
        is_empty = not container.is_cut and not container.declared
        raise undecodable(
            "clip has no frames", "its video track is empty" if is_empty else _cut_words(container, 0)
        )
    with _decoder(data, container.end) as capture:
        size = _property(capture, cv2.CAP_PROP_FRAME_HEIGHT), _property(capture, cv2.CAP_PROP_FRAME_WIDTH)
        check_pixel_count(size, options.picture.max_pixels)
        held_bytes = max(held_bytes, _held_bytes(data, container, size))
        admit(options, size, held_bytes)
        pixel_format = _property(capture, cv2.CAP_PROP_CODEC_PIXEL_FORMAT)
        stretch = capture.get(cv2.CAP_PROP_SAR_NUM), capture.get(cv2.CAP_PROP_SAR_DEN)
        stamps_ms = _stamps(capture, container.codec)
    if container.is_interlaced or is_interlaced(*_first_packet(data, container.end)):
        raise interlaced()
    if options.picture.alpha == "blend" and (container.has_alpha or _has_alpha(pixel_format)):
        raise undecodable(
            "transparency of videos is not read", "--alpha drop leaves it out; or export it opaque"
        )
    orientation = container.orientation
    stamps_s = container.times_s or ()
    if len(stamps_s) != len(stamps_ms):
        stamps_s = tuple(stamp / 1000 for stamp in stamps_ms)
    times_s, findings = time_stamps(stamps_s)
    height, width = displayed_size(orientation, size)
    return Clip(
        frames=len(stamps_ms),
        height=height,
        width=width,
        times_s=times_s,
        findings=(*_findings(container, size, len(stamps_ms), orientation, stretch), *findings),
        held_bytes=held_bytes,
        missing=_missing(container, len(stamps_ms)),
        decode=lambda indices: _decode(data, container.end, indices, size, orientation),
    )


def _property(capture: cv2.VideoCapture, name: int) -> int:
    return round(capture.get(name))


def _has_alpha(pixel_format: int) -> bool:
    name = (pixel_format & 0xFFFFFFFF).to_bytes(4, "little")
    return name in _ALPHA or (name[:2] in (b"Y4", b"Y2", b"G4") and name[2] < 32)


def _first_packet(data: bytes, end: int) -> tuple[bytes, bytes]:
    """How OpenCV names the codec; and its headers and the first compressed frame."""
    with _decoder(data, end) as capture, _failures(), _silence():
        codec = (_property(capture, cv2.CAP_PROP_FOURCC) & 0xFFFFFFFF).to_bytes(4, "little")
        capture.set(cv2.CAP_PROP_FORMAT, -1)
        capture.grab()
        found = [
            capture.retrieve(flag=flag)[1]
            for flag in (_property(capture, cv2.CAP_PROP_CODEC_EXTRADATA_INDEX), 0)
        ]
    return codec, b"".join(part.tobytes() for part in found if part is not None)


def _held_bytes(data: bytes, container: Container, size: Size) -> int:
    copied = container.end if container.end < len(data) else 0
    return len(data) + copied + PIXEL_BYTES * size[0] * size[1]


def _stamps(capture: cv2.VideoCapture, codec: str) -> list[float]:
    """The time stamp of every frame in milliseconds."""
    stamps: list[float] = []
    failed = 0
    while failed < TRIES:
        if not capture.grab():
            failed += 1
            continue
        if failed and stamps:
            raise damaged(f"frame {len(stamps)} cannot be decoded, and frames behind it can; export it again")
        failed = 0
        stamps.append(capture.get(cv2.CAP_PROP_POS_MSEC))
        if len(stamps) > MOST_FRAMES:
            check_frame_count(len(stamps))
    if not stamps:
        raise undecodable(
            "video cannot be decoded",
            f"none of its frames: it is damaged, or its codec {codec!r} is none that OpenCV's FFmpeg has; export it as "
            "H.264 (AV1 and others are not read)",
        )
    return stamps


def _cut_words(container: Container, frames: int) -> str:
    return f"whole frames: {frames}" + (f" of {container.declared}" if container.declared else "")


def _missing(container: Container, frames: int) -> SourceError | None:
    """What says that a file has lost frames, those that it hides itself apart."""
    expected = max(container.packets, container.declared or 0)
    if container.is_cut and not (container.declared and frames >= expected):
        return truncated(_cut_words(container, frames))
    if frames < expected and not container.hides_frames:
        return frames_missing(frames, expected)
    return None


def _findings(
    container: Container, size: Size, frames: int, orientation: int, stretch: tuple[float, float]
) -> tuple[str, ...]:
    found = []
    if container.hides_frames and frames < container.packets:
        found.append(f"its edit list hides {container.packets - frames} of {container.packets} frames")
    if orientation != 1:
        found.append("orientation applied")
    if size != container.size:
        said = container.size
        found.append(f"its header says {said[0]} x {said[1]}, decoded are {size[0]} x {size[1]}")
    if min(stretch) > 0 and stretch[0] != stretch[1]:
        found.append(f"pixels are not square: {stretch[0]:g}:{stretch[1]:g}; taken as they are stored")
    return tuple(found)


def _decode(data: bytes, end: int, indices: Sequence[int], size: Size, orientation: int) -> Iterator[Frame]:
    if not indices:
        return
    with _decoder(data, end) as capture:
        at = -1
        for index in indices:
            if not all(capture.grab() for _ in range(index - at)):
                raise _undecoded(index)
            at = index
            done, pixels = capture.retrieve()
            if not done or pixels.shape != (*size, 3) or pixels.dtype != np.uint8:
                raise _undecoded(index)
            colors = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
            yield np.ascontiguousarray(apply_orientation(colors, orientation))


def _undecoded(index: int) -> SourceError:
    return damaged(f"frame {index} cannot be decoded")
