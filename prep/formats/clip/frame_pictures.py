"""Frames of videos as picture files: a view of source files in which a frame is a BMP file.

The ids of frames ascend in their video (`frame_key`), so that the records of a shard ask for its frames in this order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.opened_clip import Clip, FrameOptions, RgbFrame
from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_MAX_DECODERS = 3
"""Decoders of a video, which share its bytes; each holds some frames."""


class FrameFiles:
    """Source files, and the frame of an example as one more file, whose path is `SourceExample.source`."""

    def __init__(self, files: SourceFiles, example: SourceExample, options: FrameOptions) -> None:
        assert example.video_frame is not None
        self._files, self._source, self._options = files, example.source, options
        self._video, self._number = example.video_frame
        self._held: bytes | None = None
        self.root, self.sizes, self.faults = files.root, files.sizes, files.faults
        self.refusal, self.files_in, self.has_folder = files.refusal, files.files_in, files.has_folder
        self.open, self.stamp = files.open, files.stamp
        self.read_range, self.open_ranges = files.read_range, files.open_ranges

    def size(self, path: str) -> int | None:
        return len(self._bytes()) if path == self._source else self._files.size(path)

    def read(self, path: str) -> bytes:
        return self._bytes() if path == self._source else self._files.read(path)

    def head(self, path: str, size: int) -> bytes:
        return self._bytes()[:size] if path == self._source else self._files.head(path, size)

    def _bytes(self) -> bytes:
        if self._held is None:
            pixels = _VIDEOS.frame(self._files, self._video, self._number, self._options)
            # BMP is written and read without compression, which a frame needs only once.
            done, encoded = cv2.imencode(".bmp", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
            assert done
            self._held = encoded.tobytes()
        return self._held


class _Videos:
    """Decoder of the last video, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[Any, ...] = ()
        self._video: _Video | None = None

    def frame(self, files: SourceFiles, path: str, number: int, options: FrameOptions) -> RgbFrame:
        """Return a frame of a video; raise SourceError if it cannot be read."""
        with self._lock:
            key = (files.root, path, files.size(path), files.stamp(path), options.picture, options.incomplete)
            if self._video is None or key != self._key:
                self._video = None  # frees the video before
                self._key, self._video = key, _Video(open_clip(files, path, options=options))
            else:
                options.reserve(self._video.clip.held_bytes + self._video.clip.frame_bytes)
            return self._video.frame(number)


class _Video:
    """Opened video with a few decoders, which only go forward.

    Threads ask for frames that are a little out of order. The last decoder that is behind a frame goes on to it, so
    that each of them decodes the video once.
    """

    def __init__(self, clip: Clip) -> None:
        self.clip = clip
        self._decoders: list[_Decoder] = []

    def frame(self, number: int) -> RgbFrame:
        """Return a frame; raise SourceError if the video does not have it or it is damaged."""
        if number >= self.clip.frames:
            detail = f"frame {number}, and the video has {self.clip.frames}"
            raise decode_error("video has fewer frames", detail)
        decoder = max(
            (one for one in self._decoders if one.at < number), key=lambda one: one.at, default=None
        )
        if decoder is None:
            if len(self._decoders) == _MAX_DECODERS:
                self._decoders.remove(min(self._decoders, key=lambda one: one.at))
            decoder = _Decoder(self.clip)
            self._decoders.append(decoder)
        try:
            return decoder.frame(number)
        except SourceError:
            self._decoders.remove(decoder)
            raise


class _Decoder:
    """Decoder of a video; `at` is the last frame that it returned, -1 at the beginning."""

    def __init__(self, clip: Clip) -> None:
        self.at = self._wanted = -1
        self._frames = clip.decode(self._requests())

    def _requests(self) -> Iterator[int]:
        while True:
            yield self._wanted

    def frame(self, number: int) -> RgbFrame:
        """Return a frame after the last one."""
        self._wanted = number
        pixels = next(self._frames)
        self.at = number
        return np.ascontiguousarray(pixels)


_VIDEOS = _Videos()
