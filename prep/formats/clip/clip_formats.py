"""Table of the video containers, and the function that opens a clip of any format.

To add a container, add one line to CONTAINERS and its extensions to `VIDEO_EXTENSIONS` (`prep/sources/file_names.py`).
Animations (GIF, WebP, PNG) are recognized by the table of pictures, and `READERS` in `animation.py` reads their frames.
OpenCV's decoder is loaded with the first video.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from halofeed.prep.formats.clip.animation import READERS, animation_format, open_animation
from halofeed.prep.formats.clip.frame_folder import open_frame_folder
from halofeed.prep.formats.clip.opened_clip import Clip, FrameOptions
from halofeed.prep.formats.clip.video_containers import Container, read_avi, read_matroska, read_mp4
from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.formats.picture.picture_formats import (
    FORMATS,
    UNSUPPORTED_PICTURES,
    matches_start,
    recognize,
)
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

# Name: (first bytes of a file, reader of its container). A "." matches any byte.
CONTAINERS: dict[str, tuple[tuple[bytes, ...], Callable[[bytes], Container]]] = {
    "mp4": (
        tuple(b"...." + kind for kind in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")),
        read_mp4,
    ),
    "avi": ((b"RIFF....AVI ",), read_avi),
    "matroska": ((b"\x1a\x45\xdf\xa3",), read_matroska),
}

# Formats that people keep with clips and that halofeed cannot read. The error message names them.
UNSUPPORTED_CLIPS = {
    "a playlist, which names other files; take these": (b"#EXTM3U", b"ffconcat", b"v=0"),
    "a Flash video": (b"FLV",),
    "a Windows Media video": (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",),
    "an Ogg file": (b"OggS",),
    "an MPEG stream": (b"\0\0\x01\xba", b"\0\0\x01\xb3", b"\x47\x40"),
    "a raw H.264 or H.265 stream; put it into an MP4 file": (b"\0\0\0\x01", b"\0\0\x01"),
    "sound": (b"RIFF....WAVE", b"ID3", b"fLaC", b"\xff\xfb"),
}


def open_clip(
    files: SourceFiles, path: str, members: Sequence[str] = (), options: FrameOptions | None = None
) -> Clip:
    """Open a clip; its `read` decodes the frames. The first bytes determine the format, not the name.

    Args:
        files: source files.
        path: path of a video or an animation, or of a folder of frames.
        members: paths of the frames of a folder of frames, in any order; the numbers in their names order them.
        options: conversion of the frames and handling of incomplete clips; default: `FrameOptions()`.

    Raises:
        SourceError: stage `read` or `decode`: the file is unreadable, not a supported clip, damaged, without frames or
            too large; or it is truncated and `options.incomplete` is "refuse".
    """
    options = options or FrameOptions()
    clip = _open(files, path, members, options)
    if clip.missing is None:
        return clip
    stage, reason, detail = clip.missing.args
    if options.incomplete == "refuse":
        raise SourceError(stage, reason, f"{detail}; --incomplete-clips keep takes what is there")
    return replace(clip, findings=(f"{reason}: {detail}", *clip.findings))


def _open(files: SourceFiles, path: str, members: Sequence[str], options: FrameOptions) -> Clip:
    if members:  # only a folder of frames has them
        return open_frame_folder(files, members, options)
    options.reserve(files.size(path) or 0)
    data = files.read(path)
    if not data:
        raise decode_error("file is empty")
    # GIF, WebP and PNG come first: a still picture of these formats is a clip of one frame.
    if name := animation_format(data):
        return open_animation(data, name, options)
    # These come before CONTAINERS, because AVIF and HEIC begin as MP4 does ("....ftyp").
    pictures = {f"a {name} picture, which does not move": patterns for name, (patterns, _) in FORMATS.items()}
    other = recognize(data, {**pictures, **UNSUPPORTED_PICTURES, **UNSUPPORTED_CLIPS})
    for patterns, read_container in CONTAINERS.values():
        if other is None and matches_start(data, patterns):
            from halofeed.prep.formats.clip.video import open_video

            return open_video(data, read_container, options)
    kind = other or f"begins with {data[:8].hex(' ')}"
    known = ", ".join((*CONTAINERS, *READERS))
    raise decode_error("not a clip format that is read", f"{kind}; read are {known}")
