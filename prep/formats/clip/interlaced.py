"""Whether the rows of a video's frames are of two moments in turn, by the headers in its first packet."""

from __future__ import annotations

from collections.abc import Callable

from halofeed.prep.formats.picture.image import undecodable
from halofeed.schemas.errors import SourceError

_WITH_CHROMA_FORMAT = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_ESCAPED = (b"h264", b"hevc")
"""Of which a 3 keeps two zeros from becoming a start code."""
_MOST_BYTES = 1 << 16


def interlaced() -> SourceError:
    """The error of such a video: FFmpeg 8 converts none of its frames, and OpenCV gives what lay in memory."""
    return undecodable(
        "interlaced video is not read",
        "the rows of each frame are, or may be, of two moments in turn; make whole frames of it (ffmpeg -vf bwdif)",
    )


def is_interlaced(codec: bytes, packet: bytes) -> bool:
    """Whether the frames of a video are, or may be, interlaced.

    Args:
        codec: the four characters by which OpenCV names the codec.
        packet: the codec's headers and the first packet, of H.264 and H.265 with start codes.

    Source: ITU-T H.262, 6.2.2.3, H.264, 7.3.2.1.1, H.265, 7.3.3; ISO/IEC 14496-2, 6.2.3; SMPTE RDD 36, 5.3.1.
    """
    if codec == b"dvsd":
        return True
    if codec == b"apch":
        return len(packet) > 20 and packet[20] & 0x0C != 0
    if codec not in _HEADERS:
        return False
    is_header, read = _HEADERS[codec]
    for unit in packet[:_MOST_BYTES].split(b"\0\0\x01")[1:]:
        try:
            if is_header(unit):
                return read(_Bits(unit.replace(b"\0\0\x03", b"\0\0") if codec in _ESCAPED else unit))
        except IndexError:
            continue
    return False


class _Bits:
    """Bits that are taken one after the other; IndexError behind the last."""

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
    bits.take(8)
    profile = bits.take(8)
    bits.take(16)
    bits.golomb()
    if profile in _WITH_CHROMA_FORMAT:
        chroma = bits.golomb()
        bits.take(chroma == 3)
        bits.golombs(2)
        bits.take(1)
        for number in range((12 if chroma == 3 else 8) if bits.take(1) else 0):
            last = following = 8
            for _ in range((16 if number < 6 else 64) if bits.take(1) else 0):
                if following:
                    code = bits.golomb()
                    following = (last + (code + 1) // 2 * (1 if code % 2 else -1)) % 256
                    last = following or last
    bits.golomb()
    order = bits.golomb()
    if order == 0:
        bits.golomb()
    elif order == 1:
        bits.take(1)
        bits.golombs(2)
        bits.golombs(bits.golomb())
    bits.golomb()
    bits.take(1)
    bits.golombs(2)
    return not bits.take(1)


def _h265(bits: _Bits) -> bool:
    bits.take(64)
    return bits.take(2) == 1


def _mpeg2(bits: _Bits) -> bool:
    bits.take(20)
    return not bits.take(1)


def _mpeg4(bits: _Bits) -> bool:
    bits.take(17)
    bits.take(7 if bits.take(1) else 0)
    bits.take(16 if bits.take(4) == 15 else 0)
    if bits.take(1):
        bits.take(3)
        bits.take(79 if bits.take(1) else 0)
    is_rectangle = bits.take(2) == 0
    bits.take(1)
    ticks = bits.take(16)
    bits.take(1)
    bits.take(max(1, (ticks - 1).bit_length()) if bits.take(1) else 0)
    bits.take(29 if is_rectangle else 0)
    return bits.take(1) == 1


_HEADERS: dict[bytes, tuple[Callable[[bytes], bool], Callable[[_Bits], bool]]] = {
    b"h264": (lambda unit: unit[0] & 0x1F == 7, _h264),
    b"hevc": (lambda unit: unit[0] >> 1 == 33, _h265),
    b"mpg2": (lambda unit: unit[0] == 0xB5 and unit[1] >> 4 == 1, _mpeg2),
    b"FMP4": (lambda unit: 0x20 <= unit[0] <= 0x2F, _mpeg4),
}
"""By codec: which unit behind a start code says it, and how that is read."""
