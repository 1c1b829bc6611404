"""How several pictures are shown as one: side by side, in reading order."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)
MOST_FRAMES = 16
_GAP = 2
_GROUND = 128


def shown_frames(count: int, most: int = MOST_FRAMES) -> NDArray[np.int64]:
    """Which of so many frames a sheet shows: all, or the first, the last and some evenly between.

    >>> shown_frames(3).tolist(), shown_frames(31).tolist()[:4]
    ([0, 1, 2], [0, 2, 4, 6])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def contact_sheet(frames: NDArray[T], *, gap: int = _GAP, ground: int = _GROUND) -> NDArray[T]:
    """Frames [frame, height, width, channel] as one picture [height, width, channel], about as wide as high.

    >>> contact_sheet(np.zeros((3, 10, 20, 3), np.uint8)).shape
    (34, 20, 3)
    """
    count, height, width, channels = frames.shape
    columns = max(1, min(count, round(math.sqrt(count * (height + gap) / (width + gap)))))
    rows = -(-count // columns)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, channels)
    sheet = np.full(shape, ground, frames.dtype)
    for number, frame in enumerate(frames):
        row, column = divmod(number, columns)
        top, left = row * (height + gap), column * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def sheet_of_frames(frames: NDArray[T]) -> NDArray[T]:
    """The sheet of some frames of a clip [frame, height, width, channel]."""
    return contact_sheet(frames[shown_frames(len(frames))])


def sheet_of_classes(label: NDArray[T]) -> NDArray[T]:
    """The same of the classes [frame, height, width] at their pixels, the background between the frames."""
    return contact_sheet(label[shown_frames(len(label))][..., None], ground=0)[..., 0]
