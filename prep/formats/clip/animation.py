"""Readers of animated GIF, WebP and PNG files: their blocks are parsed here, Pillow composes the frames."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import GifImagePlugin, Image, ImageFile, PngImagePlugin, WebPImagePlugin

from halofeed.prep.formats.clip.opened_clip import (
    Clip,
    FrameOptions,
    RgbFrame,
    check_frame_count,
    missing_frames,
    normalize_times,
    reserve_memory,
)
from halofeed.prep.formats.picture import FORMATS, ReadOptions
from halofeed.prep.formats.picture.gif_webp_bmp import (
    EXTENSION,
    GRAPHIC_CONTROL,
    TRAILER,
    after_sub_blocks,
    frame_end,
    next_frame,
    palette_bytes,
    riff_chunks,
    webp_size,
)
from halofeed.prep.formats.picture.image import (
    Size,
    check_pixel_count,
    check_sample_bits,
    convert_pixels,
    damaged_error,
    levels_of,
    truncated_error,
)
from halofeed.prep.formats.picture.picture_formats import matches_start
from halofeed.prep.formats.picture.pillow import decoder_failures, open_with_plugin
from halofeed.prep.formats.picture.png import PngHeader, read_png_header
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE
from halofeed.prep.voxels.levels import Levels
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

DEFAULT_DURATION_MS = 100
"""Duration of a frame without one, as in browsers."""
_PIXEL_BYTES = 40
"""Maximum bytes per pixel that Pillow holds: the canvas, its previous state, the frame, and all three with alpha."""


@dataclass(frozen=True, kw_only=True)
class Animation:
    """Animation as described by its blocks.

    Args:
        data: the file up to its last complete frame.
        size: (height, width) of the canvas.
        durations_ms: duration of every complete frame; 0 if the file has none.
        skipped: number of pictures before the first frame.
        missing: see `Clip`.
    """

    data: bytes
    size: Size
    durations_ms: list[float]
    skipped: int = 0
    missing: SourceError | None = None


def read_gif(data: bytes) -> Animation:
    """Read the blocks of a GIF file. A frame without a graphic control extension has no duration.

    Source: GIF89a specification, sections 17 to 23.
    """
    if len(data) < 13:
        raise truncated_error("no room for the screen descriptor")
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    size, end = (height, width), 13 + palette_bytes(flags)
    durations: list[float] = []
    lacks_end = False
    try:
        for frame in _gif_frames(data, end, size):
            size, end = frame.canvas, frame.end
            durations.append(frame.duration_ms)
            check_frame_count(len(durations))
        lacks_end = bytes([TRAILER]) not in data[end:]
    except SourceError as error:
        # What is damaged is refused; what only ends early has its complete frames.
        if not durations or error.reason != truncated_error("").reason:
            raise
        lacks_end = True
    missing = truncated_error(f"{plural(len(durations), 'frame')}, its end is missing")
    return Animation(
        data=data[:end] + bytes([TRAILER]) if lacks_end else data,
        size=size,
        durations_ms=durations,
        missing=missing if lacks_end else None,
    )


@dataclass(frozen=True, kw_only=True)
class _GifFrame:
    """Frame of a GIF: its duration, its end in the file, and the (height, width) of the canvas that holds it."""

    duration_ms: float
    end: int
    canvas: Size


def _gif_frames(data: bytes, at: int, canvas: Size) -> Iterator[_GifFrame]:
    """Yield the frames whose blocks begin at a position."""
    number = 0
    while (begin := next_frame(data, at)) is not None:
        left, top, width, height = _fields(data, begin + 1, "<HHHH")
        needed = max(canvas[0], top + height), max(canvas[1], left + width)
        # The first frame may enlarge the canvas, as in Pillow and browsers. A later one would resize the clip.
        if number and needed != canvas:
            raise damaged_error(
                f"frame {number} ends at {top + height} x {left + width} of {canvas[0]} x {canvas[1]}"
            )
        end = frame_end(data, begin)
        canvas = needed
        yield _GifFrame(duration_ms=_gif_duration_ms(data, at, begin), end=end, canvas=canvas)
        at, number = end, number + 1


def _gif_duration_ms(data: bytes, at: int, begin: int) -> float:
    duration = 0
    while at < begin:
        # Each frame may have one of these extensions; other extensions hold comments and programs' data.
        if data[at] == EXTENSION and data[at + 1] == GRAPHIC_CONTROL:
            (duration,) = _fields(data, at + 4, "<H")
        at = after_sub_blocks(data, at + 2)
    return 10.0 * duration


def _fields(data: bytes, at: int, form: str) -> tuple[int, ...]:
    if at + struct.calcsize(form) > len(data):
        raise truncated_error(f"no room for a frame's header at byte {at}")
    return struct.unpack_from(form, data, at)


def read_webp(data: bytes) -> Animation:
    """Read the chunks of a WebP file; a picture that is not animated has one frame.

    Source: RFC 9649, section 2.7.1.1.
    """
    size, durations = (0, 0), []
    for number, (kind, payload) in enumerate(riff_chunks(data)):
        if number == 0:  # VP8X, or the only picture
            size = webp_size(kind, payload)
        if kind == b"ANMF":
            if len(payload) < 16:
                raise truncated_error("no room for a frame's header")
            durations.append(float(int.from_bytes(payload[12:15], "little")))
            check_frame_count(len(durations))
        elif kind in (b"VP8 ", b"VP8L"):
            durations.append(0.0)
    return Animation(data=data, size=size, durations_ms=durations)


def read_apng(data: bytes) -> Animation:
    """Read the chunks of a PNG file; a picture that is not animated has one frame.

    The default image is a frame only if a frame control chunk precedes its pixels.

    Source: Portable Network Graphics, third edition, 11.3.6.
    """
    header = read_png_header(data)  # checks all chunks and checksums
    pixels_at = next(at for kind, at, _ in header.chunks if kind == b"IDAT")
    promised = _promised_frames(data, header, pixels_at)
    controls = list(_frame_controls(data))
    if not promised or not controls:
        return Animation(data=data, size=header.size, durations_ms=[0.0])
    if promised < len(controls):
        raise damaged_error(f"it says it has {plural(promised, 'frame')} and has {len(controls)}")
    return Animation(
        data=data,
        size=header.size,
        durations_ms=[_apng_duration_ms(data, at) for at in controls],
        skipped=controls[0] > pixels_at,
        missing=missing_frames(len(controls), promised) if len(controls) < promised else None,
    )


def _promised_frames(data: bytes, header: PngHeader, pixels_at: int) -> int:
    """Return the frames that the animation control chunk promises; one after the pixels has no effect (11.3.6.1)."""
    counts = [at for kind, at, size in header.chunks if kind == b"acTL" and size >= 4 and at < pixels_at]
    return int.from_bytes(data[counts[-1] : counts[-1] + 4], "big") if counts else 0


def _frame_controls(data: bytes) -> Iterator[int]:
    """Yield the position of the payload of each frame control chunk."""
    at = len(PNG_SIGNATURE)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        # fcTL has 26 bytes (11.3.6.2).
        if kind == b"fcTL" and length >= 26:
            yield at + 8
        at += 12 + length


def _apng_duration_ms(data: bytes, at: int) -> float:
    numerator, denominator = struct.unpack_from(">HH", data, at + 20)
    return float(1000 * numerator / (denominator or 100))  # 0 means hundredths of a second (11.3.6.2)


Plugin = Callable[[io.BytesIO], ImageFile.ImageFile]
READERS: dict[str, tuple[Callable[[bytes], Animation], Plugin]] = {
    "gif": (read_gif, GifImagePlugin.GifImageFile),
    "webp": (read_webp, WebPImagePlugin.WebPImageFile),
    "png": (read_apng, PngImagePlugin.PngImageFile),
}


def animation_format(data: bytes) -> str | None:
    """Return the name in READERS of a file's format from its first bytes; None if it is not an animation."""
    return next((name for name in READERS if matches_start(data, FORMATS[name][0])), None)


def open_animation(
    data: bytes,
    format: str,
    options: FrameOptions,
    pixels_of: Callable[[Image.Image, ReadOptions], NDArray[Any]] | None = None,
) -> Clip:
    """Open an animation from its blocks; `read` composes the frames. The number of repetitions is ignored.

    Args:
        data: bytes of the file.
        format: gif, webp or png.
        options: conversion of the frames.
        pixels_of: function from a composed frame to its pixels; default: the colors with the options applied.

    Raises:
        SourceError: there is no frame, or the file is damaged or too large. A truncated GIF has its complete frames; in
            the other formats checksums and lengths detect the truncation.
    """
    read, plugin = READERS[format]
    animation = read(data)
    count = len(animation.durations_ms)
    check_frame_count(count)
    check_pixel_count(animation.size, options.picture.max_pixels)
    held_bytes = 2 * len(data) + (len(animation.data) if animation.data is not data else 0)
    held_bytes += _PIXEL_BYTES * animation.size[0] * animation.size[1]
    reserve_memory(options, animation.size, held_bytes)
    durations = np.asarray(animation.durations_ms)
    # The last duration says when the clip ends, which no time stamp needs.
    lacks_durations = count > 1 and not durations[:-1].all()
    durations[durations == 0] = DEFAULT_DURATION_MS
    times_s, findings = normalize_times(np.cumsum(np.append(0, durations[:-1])) / 1000)
    if lacks_durations:
        findings = (f"frames without a duration are shown for {DEFAULT_DURATION_MS} ms", *findings)

    take = pixels_of or partial(_colors, note_levels=options.note_levels)

    def decode(indices: Iterable[int]) -> Iterator[RgbFrame]:
        image = open_with_plugin(plugin, animation.data)
        for index in indices:
            with decoder_failures():
                image.seek(index + animation.skipped)
                image.load()
                if image.size[::-1] != animation.size:
                    raise damaged_error(f"frame {index} is {image.size[::-1]}, not {animation.size}")
                pixels = take(image, options.picture)
            yield pixels

    return Clip(
        frames=count,
        height=animation.size[0],
        width=animation.size[1],
        times_s=times_s,
        findings=findings,
        missing=animation.missing,
        held_bytes=held_bytes,
        decode=decode,
    )


def has_alpha(image: Image.Image) -> bool:
    """Return whether a frame may be transparent."""
    return image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info


def _colors(image: Image.Image, options: ReadOptions, note_levels: Callable[[Levels], None]) -> RgbFrame:
    if image.mode.startswith("I;16"):
        # Pillow 12 clips 16-bit gray to 255 where it becomes color, so that nearly every value is white.
        pixels = np.asarray(image).astype(np.uint16)[..., None]
        check_sample_bits(pixels, options)
        levels = levels_of(pixels, options)
        if levels is not None:
            note_levels(levels)
        return convert_pixels(pixels, options)[0]
    return convert_pixels(np.asarray(image.convert("RGBA" if has_alpha(image) else "RGB")), options)[0]
