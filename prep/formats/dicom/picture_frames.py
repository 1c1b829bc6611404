"""Frames of one DICOM file, each read by its place in the file.

A cine of 300 frames has 300 records, in the order of their ids and perhaps in several processes. Reading the complete
file for each of them reads the square of its size.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from halofeed.prep.formats.dicom.headers import DEFLATED, HEAD_BYTES, HeaderContinuesError
from halofeed.prep.formats.dicom.picture_header import PictureHeader, read_picture_header
from halofeed.prep.formats.dicom.pixels import SLICE_BIT_DEPTHS, FrameReader, read_frames
from halofeed.prep.formats.volume.streams import GZIP_MAGIC
from halofeed.prep.sources.files import SourceFiles, Stamp, settled_stamp
from halofeed.prep.sources.members import parse_member
from halofeed.system.addresses import is_remote

BIT_DEPTHS = (1, *SLICE_BIT_DEPTHS)
_KEPT_FILES = 64
"""Files whose header and places of frames are kept: a header with groups of frames may have a megabyte."""


class FileBytes:
    """Bytes of a file that are read where they are sliced.

    Args:
        files: files that hold it.
        path: its path.
        size: number of its bytes.
    """

    def __init__(self, files: SourceFiles, path: str, size: int) -> None:
        self._files, self._path, self._size = files, path, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return self._files.read_range(self._path, start, stop) if start < stop else b""


@dataclass(frozen=True, kw_only=True)
class FramesOfFile:
    """Header of a file of frames, and the reader of its pixels.

    Args:
        header: its header.
        reader: reader of its frames.
    """

    header: PictureHeader
    reader: FrameReader


_KEPT: OrderedDict[tuple[str, str, Stamp], FramesOfFile] = OrderedDict()
_KEPT_LOCK = threading.Lock()


def frames_of_file(files: SourceFiles, path: str) -> FramesOfFile | None:
    """Return the frames of a DICOM picture; None where the complete file has to be read.

    The latter are deflated and gzip files, members of archives, and files elsewhere, of which each range is a request.

    Raises:
        SourceError: the file holds no picture, or is damaged or truncated.
    """
    size = files.size(path)
    if is_remote(files.root) or parse_member(path) is not None or size is None:
        return None
    stamp, body = settled_stamp(files, path), FileBytes(files, path, size)
    key = None if stamp is None else (files.root, path, stamp)
    with _KEPT_LOCK:
        found = None if key is None else _KEPT.get(key)
        if found is not None and key is not None:
            _KEPT.move_to_end(key)
    if found is None:
        found = _read(files, path, body)
        if found is not None and key is not None:
            _keep(key, found)
    return None if found is None else FramesOfFile(header=found.header, reader=found.reader.on(body))


def _keep(key: tuple[str, str, Stamp], found: FramesOfFile) -> None:
    # Without the file: it belongs to one conversion, whose memory is counted.
    with _KEPT_LOCK:
        _KEPT[key] = FramesOfFile(header=found.header, reader=found.reader.on(b""))
        while len(_KEPT) > _KEPT_FILES:
            _KEPT.popitem(last=False)


def _read(files: SourceFiles, path: str, body: FileBytes) -> FramesOfFile | None:
    head_bytes = HEAD_BYTES
    while True:
        head = files.head(path, head_bytes)
        if head.startswith(GZIP_MAGIC):
            return None
        try:
            header, _ = read_picture_header(head, complete=len(head) >= len(body))
        except HeaderContinuesError:
            # A deflated data set has no beginning that can be read alone.
            if len(head) < head_bytes:
                return None
            head_bytes *= 8
            continue
        if header.syntax == DEFLATED:
            return None
        return FramesOfFile(header=header, reader=read_frames(body, header, BIT_DEPTHS))
