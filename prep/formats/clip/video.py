"""Reader of video files with OpenCV's FFmpeg, and the check for interlaced video in the codec headers."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import cv2
import numpy as np

from halofeed.prep.formats.clip.opened_clip import (
    MAX_FRAMES,
    Clip,
    FrameOptions,
    RgbFrame,
    check_frame_count,
    missing_frames,
    normalize_times,
    reserve_memory,
)
from halofeed.prep.formats.clip.video_containers import Container
from halofeed.prep.formats.picture.image import (
    Size,
    apply_orientation,
    check_pixel_count,
    damaged_error,
    decode_error,
    truncated_error,
)
from halofeed.prep.geometry.resize import displayed_size
from halofeed.system.errors import SourceError
from halofeed.system.memory import TOO_MUCH_MEMORY, is_out_of_memory
from halofeed.system.wording import plural

os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # read once, when the first video is opened

_PIXEL_BYTES = 48
"""Maximum bytes per pixel of a frame that FFmpeg and OpenCV hold: 18 reference frames of 8 bits with a quarter of the
chroma, the frame in RGB, and the rotated frame."""
MAX_FAILED_GRABS = 3
"""Failed attempts after which the video ends. If a later attempt succeeds, a frame in the middle is damaged."""
_ALPHA = (b"RGBA", b"BGRA", b"ARGB", b"ABGR", b"RBA@", b"BRA@")
"""Pixel formats with alpha; the planar ones begin with Y4, Y2 or G4."""

# OpenCV 5 has moved this function.
_set_log_level = (getattr(cv2.utils, "logging", None) or cv2).setLogLevel
_silencing = threading.Lock()
_silenced = 0
_level_before = 0


@contextmanager
def _silence() -> Iterator[None]:
    """Stop OpenCV from writing to standard error while any thread decodes."""
    global _silenced, _level_before
    with _silencing:
        # The level is one for the process: the first thread saves it, the last restores it.
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
        # OpenCV reports missing memory as cv2.error -4 too, which says nothing about the file.
        if is_out_of_memory(error):
            raise decode_error(TOO_MUCH_MEMORY, "the free memory of this machine is too small") from error
        raise damaged_error("FFmpeg cannot decode it") from error


class _Stream(io.BytesIO):
    """Bytes of a file. An exception in a callback of FFmpeg would end the process, so `seek` does not raise."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):  # a negative position in a damaged file
            return -1


@contextmanager
def _decoder(data: bytes, end: int) -> Iterator[cv2.VideoCapture]:
    """Open a decoder of the bytes before `end`; it does not apply the orientation."""
    stream = _Stream(data)
    # FFmpeg would decode part of the last, incomplete frame and fill up the rest.
    if end < len(data):
        stream.truncate(end)
    with _failures(), _silence():
        # OpenCV accepts any io.BufferedIOBase, but its annotations require its own class.
        capture = cv2.VideoCapture(cast("Any", stream), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        try:
            if not capture.isOpened():
                raise decode_error("video cannot be decoded", "FFmpeg finds no video in it")
            # OpenCV knows turns but no mirroring, so `open_video` applies the container's orientation.
            capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
            yield capture
        finally:
            capture.release()


def open_video(data: bytes, read_container: Callable[[bytes], Container], options: FrameOptions) -> Clip:
    """Open a video, and decode its frames once to count them and to read their time stamps.

    Args:
        data: bytes of the file.
        read_container: one of `read_mp4`, `read_avi` and `read_matroska`.
        options: checks and conversion of the frames.

    Raises:
        SourceError: there is no video, no frame can be decoded, or the file is damaged in the middle or too large. A
            truncated file has its complete frames.
    """
    container = read_container(data)
    check_pixel_count(container.size, options.picture.max_pixels)
    held_bytes = _held_bytes(data, container, container.size)
    reserve_memory(options, container.size, held_bytes)
    if not container.packets:
        raise _no_frames(container)
    with _decoder(data, container.end) as capture:
        size = _property(capture, cv2.CAP_PROP_FRAME_HEIGHT), _property(capture, cv2.CAP_PROP_FRAME_WIDTH)
        check_pixel_count(size, options.picture.max_pixels)
        held_bytes = max(held_bytes, _held_bytes(data, container, size))
        reserve_memory(options, size, held_bytes)
        pixel_format = _property(capture, cv2.CAP_PROP_CODEC_PIXEL_FORMAT)
        stretch = capture.get(cv2.CAP_PROP_SAR_NUM), capture.get(cv2.CAP_PROP_SAR_DEN)
        stamps_ms = _read_stamps_ms(capture, container.codec)
    # Not every container states it, so the headers of the codec are read too.
    if container.is_interlaced or is_interlaced(*_first_packet(data, container.end)):
        raise interlaced_error()
    # OpenCV converts every frame to BGR, without alpha.
    if options.picture.alpha == "blend" and (container.has_alpha or _has_alpha(pixel_format)):
        raise decode_error(
            "transparency of videos is not read", "--alpha drop leaves it out; or export it opaque"
        )
    orientation = container.orientation
    times_s, findings = normalize_times(_times_s(container, stamps_ms))
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


def _no_frames(container: Container) -> SourceError:
    is_empty = not container.is_cut and not container.declared
    return decode_error(
        "clip has no frames", "its video track is empty" if is_empty else _complete_frames(container, 0)
    )


def _times_s(container: Container, stamps_ms: Sequence[float]) -> Sequence[float]:
    """Return the times of the container if it has one for each decoded frame, else those of the decoder.

    An empty chunk of an AVI file shows the frame before it for longer, which only the count of chunks tells.
    """
    if container.times_s and len(container.times_s) == len(stamps_ms):
        return container.times_s
    return [stamp / 1000 for stamp in stamps_ms]


def _property(capture: cv2.VideoCapture, name: int) -> int:
    return round(capture.get(name))


def _has_alpha(pixel_format: int) -> bool:
    name = (pixel_format & 0xFFFFFFFF).to_bytes(4, "little")
    return name in _ALPHA or (name[:2] in (b"Y4", b"Y2", b"G4") and name[2] < 32)


def _first_packet(data: bytes, end: int) -> tuple[bytes, bytes]:
    """Return OpenCV's code of the codec, and the codec headers with the first compressed frame."""
    with _decoder(data, end) as capture, _failures(), _silence():
        codec = (_property(capture, cv2.CAP_PROP_FOURCC) & 0xFFFFFFFF).to_bytes(4, "little")
        capture.set(cv2.CAP_PROP_FORMAT, -1)  # compressed packets instead of pictures
        capture.grab()
        found = [
            capture.retrieve(flag=flag)[1]
            for flag in (_property(capture, cv2.CAP_PROP_CODEC_EXTRADATA_INDEX), 0)
        ]
    return codec, b"".join(part.tobytes() for part in found if part is not None)


def _held_bytes(data: bytes, container: Container, size: Size) -> int:
    copied = container.end if container.end < len(data) else 0
    return len(data) + copied + _PIXEL_BYTES * size[0] * size[1]


def _read_stamps_ms(capture: cv2.VideoCapture, codec: str) -> list[float]:
    """Return the time stamp of every frame in milliseconds."""
    stamps: list[float] = []
    failed = 0
    while failed < MAX_FAILED_GRABS:
        if not capture.grab():
            failed += 1
            continue
        # A frame after a failure is one in the middle that is damaged; FFmpeg skips it, so later frames would move.
        if failed and stamps:
            raise damaged_error(
                f"frame {len(stamps)} cannot be decoded, but later frames can; export it again"
            )
        failed = 0
        stamps.append(capture.get(cv2.CAP_PROP_POS_MSEC))
        # The headers may declare fewer frames than the decoder returns.
        if len(stamps) > MAX_FRAMES:
            check_frame_count(len(stamps))
    if not stamps:
        raise decode_error(
            "video cannot be decoded",
            f"none of its frames: it is damaged, or OpenCV's FFmpeg lacks its codec {codec!r}; export it as "
            "H.264 (AV1 and others are not supported)",
        )
    return stamps


def _complete_frames(container: Container, frames: int) -> str:
    return f"whole frames: {frames}" + (f" of {container.declared}" if container.declared else "")


def _missing(container: Container, frames: int) -> SourceError | None:
    """Return the error of a file with missing frames; frames hidden by its edit list do not count."""
    expected = max(container.packets, container.declared or 0)
    # A cut after the last frame, such as in an index at the end, loses nothing.
    if container.is_cut and not (container.declared and frames >= expected):
        return truncated_error(_complete_frames(container, frames))
    # An edit list may hide frames, which FFmpeg then does not return.
    if frames < expected and not container.hides_frames:
        return missing_frames(frames, expected)
    return None


def _findings(
    container: Container, size: Size, frames: int, orientation: int, stretch: tuple[float, float]
) -> tuple[str, ...]:
    found = []
    if container.hides_frames and frames < container.packets:
        found.append(
            f"its edit list hides {container.packets - frames} of {plural(container.packets, 'frame')}"
        )
    if orientation != 1:
        found.append("orientation applied")
    # H.264 and others state a cropped size in their own headers.
    if size != container.size:
        height, width = container.size
        found.append(f"its header says {height} x {width}, decoded are {size[0]} x {size[1]}")
    if min(stretch) > 0 and stretch[0] != stretch[1]:
        found.append(f"pixels are not square: {stretch[0]:g}:{stretch[1]:g}; taken as they are stored")
    return tuple(found)


def _decode(
    data: bytes, end: int, indices: Iterable[int], size: Size, orientation: int
) -> Iterator[RgbFrame]:
    with _decoder(data, end) as capture:
        at = -1
        for index in indices:
            # OpenCV's own seek goes to key frames and may miss the frame by some.
            if not all(capture.grab() for _ in range(index - at)):
                raise _undecodable_frame(index)
            at = index
            done, pixels = capture.retrieve()
            # The size may change within a stream, and OpenCV then returns frames of another size.
            if not done or pixels.shape != (*size, 3) or pixels.dtype != np.uint8:
                raise _undecodable_frame(index)
            colors = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
            yield np.ascontiguousarray(apply_orientation(colors, orientation))


def _undecodable_frame(index: int) -> SourceError:
    return damaged_error(f"frame {index} cannot be decoded")


_WITH_CHROMA_FORMAT = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_ESCAPED = (b"h264", b"hevc")
"""Codecs that insert a 3 after two zeros to avoid start codes."""
_HEADER_BYTES = 1 << 16


def interlaced_error() -> SourceError:
    """Return the error of an interlaced video.

    FFmpeg 8 does not convert its frames, and OpenCV then returns random memory.
    """
    return decode_error(
        "interlaced video is not read",
        "the rows of a frame alternate, or may alternate, between two times; deinterlace it first (ffmpeg -vf bwdif)",
    )


def is_interlaced(codec: bytes, packet: bytes) -> bool:
    """Return whether the frames of a video are, or may be, interlaced.

    Args:
        codec: OpenCV's four-character code of the codec.
        packet: codec headers and first packet, with start codes for H.264 and H.265.

    Source: ITU-T H.262, 6.2.2.3, H.264, 7.3.2.1.1, H.265, 7.3.3; ISO/IEC 14496-2, 6.2.3; SMPTE RDD 36, 6.1.1.
    """
    # DV video is interlaced (IEC 61834).
    if codec == b"dvsd":
        return True
    # ProRes: bits 2 and 3 of the flags in the frame header are `interlace_mode` (SMPTE RDD 36, 6.1.1).
    if codec == b"apch":
        return len(packet) > 20 and packet[20] & 0x0C != 0
    if codec not in _HEADERS:
        return False
    is_header, read = _HEADERS[codec]
    # The headers of a sequence precede its first frame, so they are in the first bytes.
    for unit in packet[:_HEADER_BYTES].split(b"\0\0\x01")[1:]:
        try:
            if is_header(unit):
                return read(_Bits(unit.replace(b"\0\0\x03", b"\0\0") if codec in _ESCAPED else unit))
        except IndexError:
            continue
    return False


class _Bits:
    """Reader of single bits; IndexError after the last."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError
        return self._value >> self._left & ((1 << count) - 1)

    def golomb(self) -> int:
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)

    def golombs(self, count: int) -> None:
        for _ in range(count):
            self.golomb()


def _h264(bits: _Bits) -> bool:
    """Read a sequence parameter set up to `frame_mbs_only_flag` (H.264, 7.3.2.1.1)."""
    bits.take(8)  # header of the unit
    profile = bits.take(8)
    bits.take(16)  # constraints and level
    bits.golomb()  # seq_parameter_set_id
    if profile in _WITH_CHROMA_FORMAT:
        chroma = bits.golomb()
        bits.take(chroma == 3)  # separate_colour_plane_flag
        bits.golombs(2)  # bit depths
        bits.take(1)
        if bits.take(1):
            _skip_scaling_matrix(bits, lists=12 if chroma == 3 else 8)
    bits.golomb()  # log2_max_frame_num_minus4
    _skip_picture_order(bits)
    bits.golomb()  # max_num_ref_frames
    bits.take(1)
    bits.golombs(2)  # width and height
    return not bits.take(1)


def _skip_scaling_matrix(bits: _Bits, lists: int) -> None:
    """Skip the scaling lists: 6 of 4 x 4 numbers, the others of 8 x 8 (H.264, 7.3.2.1.1.1)."""
    for number in range(lists):
        if bits.take(1):
            _skip_scaling_list(bits, 16 if number < 6 else 64)


def _skip_scaling_list(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:  # 0 ends the list
            code = bits.golomb()
            following = (last + (code + 1) // 2 * (1 if code % 2 else -1)) % 256
            last = following or last


def _skip_picture_order(bits: _Bits) -> None:
    """Skip `pic_order_cnt_type` and the fields that depend on it."""
    order = bits.golomb()
    if order == 0:
        bits.golomb()
    elif order == 1:
        bits.take(1)
        bits.golombs(2)
        bits.golombs(bits.golomb())


def _h265(bits: _Bits) -> bool:
    """Read `general_progressive_source_flag` and `general_interlaced_source_flag` (H.265, 7.3.3)."""
    bits.take(64)
    return bits.take(2) == 1


def _mpeg2(bits: _Bits) -> bool:
    """Read `progressive_sequence` of a sequence extension (H.262, 6.2.2.3)."""
    bits.take(20)
    return not bits.take(1)


def _mpeg4(bits: _Bits) -> bool:
    """Read a video object layer up to `interlaced` (ISO/IEC 14496-2, 6.2.3)."""
    bits.take(17)
    bits.take(7 if bits.take(1) else 0)  # is_object_layer_identifier
    bits.take(16 if bits.take(4) == 15 else 0)  # aspect_ratio_info: 15 is a ratio that follows
    if bits.take(1):  # vol_control_parameters
        bits.take(3)
        bits.take(79 if bits.take(1) else 0)  # vbv_parameters
    is_rectangle = bits.take(2) == 0
    bits.take(1)
    ticks = bits.take(16)  # vop_time_increment_resolution
    bits.take(1)
    # fixed_vop_rate: a time increment follows, with as many bits as the resolution needs
    bits.take(max(1, (ticks - 1).bit_length()) if bits.take(1) else 0)
    bits.take(29 if is_rectangle else 0)  # width and height, each between marker bits
    return bits.take(1) == 1


_HEADERS: dict[bytes, tuple[Callable[[bytes], bool], Callable[[_Bits], bool]]] = {
    b"h264": (lambda unit: unit[0] & 0x1F == 7, _h264),
    b"hevc": (lambda unit: unit[0] >> 1 == 33, _h265),
    b"mpg2": (lambda unit: unit[0] == 0xB5 and unit[1] >> 4 == 1, _mpeg2),
    b"FMP4": (lambda unit: 0x20 <= unit[0] <= 0x2F, _mpeg4),
}
"""Codec: (test for the header unit after a start code, function that reads from it whether frames are interlaced)."""
