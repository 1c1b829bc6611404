"""Drawn clips: each frame shows its own number in blocks that survive compression, and a color in each corner."""

import os
import struct
import wave
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.opened_clip import Clip, FrameOptions
from halofeed.prep.sources.files import LocalFiles

os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")

HEIGHT, WIDTH = 48, 96
CORNERS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))
"""Top left, top right, bottom left, bottom right."""
VIDEOS = (("mp4", "mp4v"), ("mov", "mp4v"), ("mov", "MJPG"), ("avi", "MJPG"), ("avi", "XVID"))
VIDEOS += (("avi", "FFV1"), ("webm", "VP80"), ("webm", "VP90"), ("mkv", "FFV1"))


def draw(number: int) -> np.ndarray:
    """uint8 [48, 96, 3]: a corner's color in each quarter of the outer rows, the number's bits in the middle ones."""
    frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    half = WIDTH // 2
    frame[:16, :half], frame[:16, half:], frame[32:, :half], frame[32:, half:] = CORNERS
    for bit in range(8):
        frame[16:32, 12 * bit : 12 * bit + 12] = 255 * (number >> bit & 1)
    return frame


def number_in(frame: np.ndarray) -> int:
    return sum(int(frame[22:26, 12 * bit + 3 : 12 * bit + 9].mean() > 128) << bit for bit in range(8))


def corners_of(frame: np.ndarray) -> list[tuple[int, ...]]:
    """The colors of a frame's corners, each channel 0 or 255."""
    height, width = frame.shape[:2]
    places = [(y, x) for y in (4, height - 5) for x in (4, width - 5)]
    return [tuple(255 * (frame[y, x] > 128).astype(int)) for y, x in places]


def opened(folder: Path, data: bytes, options: FrameOptions | None = None, name: str = "clip") -> Clip:
    (folder / name).write_bytes(data)
    return open_clip(LocalFiles(folder), name, options=options)


def rejected(folder: Path, data: bytes, options: FrameOptions | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        opened(folder, data, options)
    return caught.value


def numbers_in(clip: Clip) -> list[int]:
    return [number_in(frame) for frame in clip.read(range(clip.frames))]


def write_video(path: Path, codec: str, count=20, frame_rate=25.0, numbers: Iterable[int] = ()) -> bytes:
    return write_frames(path, codec, [draw(number) for number in list(numbers) or range(count)], frame_rate)


def write_frames(path: Path, codec: str, frames: Sequence[np.ndarray], frame_rate: float = 25) -> bytes:
    """Write a video of frames of one size; returns its bytes."""
    set_level = cv2.utils.logging.setLogLevel if hasattr(cv2.utils, "logging") else cv2.setLogLevel
    level = set_level(0)
    size = frames[0].shape[1::-1]
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*codec), frame_rate, size)
    assert writer.isOpened(), (path, codec)
    for frame in frames:
        writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    writer.release()
    set_level(level)
    return path.read_bytes()


def boxes(data: bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end) of each box of an MP4 file, those in others among them."""
    end = len(data) if end is None else end
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, at, at + size
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
            yield from boxes(data, at + 8, at + size)
        at += size


def box(data: bytes, wanted: bytes) -> tuple[int, int]:
    """(start, end) of the first box of a type."""
    return next((start, end) for kind, start, end in boxes(data) if kind == wanted)


def with_matrix(data: bytes, a: int, b: int, c: int, d: int) -> bytes:
    """An MP4 file whose display matrix turns so."""
    start = box(data, b"tkhd")[0] + 8 + 40
    turned = bytearray(data)
    struct.pack_into(">9i", turned, start, a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    return bytes(turned)


def with_index_first(data: bytes) -> bytes:
    """An MP4 file whose index stands before its frames, as phones and web sites write it."""
    (moov, moov_end), (mdat, mdat_end) = box(data, b"moov"), box(data, b"mdat")
    index = bytearray(data[moov:moov_end])
    table = bytes(index).index(b"stco")
    count = struct.unpack_from(">I", index, table + 8)[0]
    for at in range(table + 12, table + 12 + 4 * count, 4):
        struct.pack_into(">I", index, at, struct.unpack_from(">I", index, at)[0] + len(index))
    return data[:mdat] + bytes(index) + data[mdat:mdat_end] + data[mdat_end:moov]


def with_durations(data: bytes, ticks: Sequence[int]) -> bytes:
    """An MP4 file of a constant frame rate, each frame shown for so many ticks of its time scale."""
    moov_end = box(data, b"moov")[1]
    start, end = box(data, b"stts")
    entries = np.array([(1, shown) for shown in ticks], ">u4").tobytes()
    table = struct.pack(">I4sII", 16 + len(entries), b"stts", 0, len(ticks)) + entries
    grown = bytearray(data[:start] + table + data[end:])
    assert moov_end == len(data), "the index has to be at the end"
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        at = box(data, kind)[0]
        struct.pack_into(">I", grown, at, struct.unpack_from(">I", grown, at)[0] + len(table) - (end - start))
    edits = bytes(grown).find(b"elst")
    if edits >= 0:  # the movie is longer now; an edit list would cut it off
        struct.pack_into(">I", grown, edits + 12, 0x7FFFFFFF)
    return bytes(grown)


def write_sound(path: Path) -> bytes:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(1600))
    return path.read_bytes()


def avi_of_sound() -> bytes:
    numbers = (0, 0, 0, 0, 1, 8000, 0, 800, 0, 0, 2, 0, 0, 0, 0)
    header = struct.pack("<4s4sIHHIIIIIIII4H", b"auds", bytes(4), *numbers)
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    stream = _list(b"strl", _chunk(b"strh", header) + _chunk(b"strf", form))
    main = _chunk(b"avih", struct.pack("<14I", *([0] * 6), 1, *([0] * 7)))
    movie = _list(b"movi", _chunk(b"00wb", bytes(1600)))
    return _chunk(b"RIFF", b"AVI " + _list(b"hdrl", main + stream) + movie)


def _chunk(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack("<I", len(payload)) + payload + bytes(len(payload) % 2)


def _list(kind: bytes, payload: bytes) -> bytes:
    return _chunk(b"LIST", kind + payload)


def mp4_of_sound(video: bytes) -> bytes:
    """An MP4 file whose only track says that it is sound."""
    start = box(video, b"hdlr")[0] + 16
    return video[:start] + b"soun" + video[start + 4 :]


def write_animation(path: Path, numbers: Sequence[int], durations_ms=40, **how: object) -> bytes:
    """Write an animated GIF, WebP or PNG of drawn frames, lossless; returns its bytes."""
    images = [Image.fromarray(draw(number)) for number in numbers]
    if path.suffix == ".webp":
        how = {"lossless": True, **how}
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations_ms, **how)
    return path.read_bytes()
