"""Drawing of batches and contact sheets: rows with labels, boxes, masks, names and the lines between cores' parts."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import COUNT, ID, LABELLED, LABELS, VALID, Batch, join_id
from halofeed.loader.planes import with_colors
from halofeed.loader.reading import BOXES, CORNERS, IMAGE, LABEL, REGIONS
from halofeed.schemas.kinds import Kind

_CLASS_COLORS = (
    "#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#06b6d4",
    "#ec4899", "#84cc16", "#f97316", "#6366f1", "#14b8a6", "#eab308",
)  # fmt: skip


def color_of(rank: int) -> str:
    """Return a class's color and text color by its rank, as CSS custom properties.

    Black has a contrast of 4.7 or more on each color; white has less than 4.5, which WCAG 2.2 asks for (1.4.3).
    """
    return f"--k:{_CLASS_COLORS[rank % len(_CLASS_COLORS)]};--on:#000"


def rgb_of(rank: int) -> tuple[int, int, int]:
    """Return a class's color by its rank as red, green, blue."""
    red, green, blue = bytes.fromhex(_CLASS_COLORS[rank % len(_CLASS_COLORS)][1:])
    return red, green, blue


Number = TypeVar("Number", bound=np.generic)
MAX_SHEET_FRAMES = 16
_GAP = 2
_SHEET_BACKGROUND = 128


def shown_frames(count: int, most: int = MAX_SHEET_FRAMES) -> NDArray[np.int64]:
    """Return the frames that a contact sheet shows: all, or `most` spread evenly from the first to the last.

    >>> shown_frames(3).tolist(), shown_frames(31).tolist()[:4]
    ([0, 1, 2], [0, 2, 4, 6])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def contact_sheet(
    frames: NDArray[Number], *, gap: int = _GAP, background: int = _SHEET_BACKGROUND
) -> NDArray[Number]:
    """Arrange frames [frame, height, width, channel] in one picture [height, width, channel], about square.

    >>> contact_sheet(np.zeros((3, 10, 20, 3), np.uint8)).shape
    (34, 20, 3)
    """
    count, height, width, channels = frames.shape
    columns = max(1, min(count, round(math.sqrt(count * (height + gap) / (width + gap)))))
    rows = -(-count // columns)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, channels)
    sheet = np.full(shape, background, frames.dtype)
    for number, frame in enumerate(frames):
        row, column = divmod(number, columns)
        top, left = row * (height + gap), column * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def frame_contact_sheet(frames: NDArray[Number]) -> NDArray[Number]:
    """Return the contact sheet of a clip [frame, height, width, channel]."""
    return contact_sheet(frames[shown_frames(len(frames))])


def class_contact_sheet(label: NDArray[Number]) -> NDArray[Number]:
    """Return the contact sheet of a clip's class indices [frame, height, width], with 0 between the frames."""
    return contact_sheet(label[shown_frames(len(label))][..., None], background=0)[..., 0]


Canvas = NDArray[np.uint8]
"""A picture [height, width, channel] in red, green, blue."""
SOURCE = "source"
_MARGIN = 6
_BACKGROUND = 24
_INK, _LINE = (235, 235, 235), (255, 255, 0)
_FILL = 0.35
_FONT = cv2.FONT_HERSHEY_PLAIN
_MAX_FRAMES = 3
_MAX_NAME = 48
_REGION = (128, 128, 128)
_HATCH = (210, 210, 210)
_HATCH_STEP = 8


def draw_batch(
    batch: Batch,
    kind: Kind,
    class_names: Sequence[str],
    *,
    split: Sequence[int] | None = None,
    side: int = 320,
) -> Canvas:
    """Draw the rows of a batch as one picture.

    A volume is shown by its middle plane along each axis, a clip by some of its frames. Values that are not uint8 are
    stretched between the percentiles 1 and 99 of each row.

    Args:
        batch: a batch of a `Loader`.
        kind: kind of its images.
        class_names: the name of each label.
        split: number of parts of each axis of `image`, the batch axis first; None draws no lines.
        side: the longer side of each pane, in pixels.

    >>> from halofeed.schemas.kinds import KINDS
    >>> batch = {"image": np.zeros((3, 10, 20, 3), np.uint8), "valid": np.ones(3, bool)}
    >>> batch["id"] = np.zeros((3, 2), np.uint32)
    >>> draw_batch(batch, KINDS["picture"], (), side=100).shape[1:]
    (112, 3)
    """
    batch = with_colors(batch, IMAGE)
    cells = [_cell(batch, row, kind, class_names, split, side) for row in range(len(batch[IMAGE]))]
    height, width = (max(cell.shape[axis] for cell in cells) for axis in (0, 1))
    padded = np.stack([blank_canvas(height, width)] * len(cells))
    for target, cell in zip(padded, cells, strict=True):
        target[: cell.shape[0], : cell.shape[1]] = cell
    sheet = contact_sheet(padded, gap=_MARGIN, background=_BACKGROUND)
    return np.pad(sheet, ((_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0)), constant_values=_BACKGROUND)


def blank_canvas(height: int, width: int) -> Canvas:
    """Return a canvas in the color of the background."""
    return np.full((height, width, 3), _BACKGROUND, np.uint8)


def _cell(
    batch: Batch, row: int, kind: Kind, class_names: Sequence[str], split: Sequence[int] | None, side: int
) -> Canvas:
    """Draw one row: its panes, and a line of text below them."""
    image = _to_rgb(batch[IMAGE][row])
    label = _label_of(batch, row)
    parts = (1,) * image.ndim if split is None else tuple(split[1:])
    panes = []
    is_volume = kind.axes[0] == "depth"
    planes = _planes(kind, image.shape, _largest_box(batch, row) if is_volume else None)
    for axis, at in planes:
        where = (slice(None),) * axis + (at,) if axis >= 0 else ()
        pane_parts = [count for number, count in enumerate(parts[:-1]) if number != axis]
        panes.append(_pane(image[where], None if label is None else label[where], pane_parts, side))
    if BOXES in batch and is_volume:
        for pane, (axis, at) in zip(panes, planes, strict=True):
            _draw_cut_boxes(pane, batch, row, class_names, (axis, (at + 0.5) / image.shape[axis]))
    elif BOXES in batch:
        _draw_objects(panes[0], batch, row, class_names)
    return add_caption(join_panes(panes), _caption(batch, row, class_names))


def _label_of(batch: Batch, row: int) -> NDArray[Any] | None:
    """Return a row's label on the image's grid, one class per pixel or voxel; None if there is none."""
    if LABEL not in batch or batch[LABEL].ndim == 1:  # a class of the whole picture
        return None
    label = batch[LABEL][row]
    if label.ndim == batch[IMAGE].ndim - 1:  # a channel per class: show one of a voxel's classes
        return np.asarray(np.where(label.any(-1), label.argmax(-1) + 1, 0))
    return np.asarray(label)


def _largest_box(batch: Batch, row: int) -> NDArray[Any] | None:
    """Return the largest box of a row, [6]; None without boxes."""
    if BOXES not in batch or not batch[COUNT][row]:
        return None
    boxes = batch[BOXES][row, : int(batch[COUNT][row])]
    return np.asarray(boxes[int(np.argmax((boxes[:, 3:] - boxes[:, :3]).prod(axis=1)))])


def _planes(kind: Kind, shape: Sequence[int], box: NDArray[Any] | None = None) -> list[tuple[int, int]]:
    """Return (axis, index) of each plane that is shown; axis -1 is the image itself.

    Args:
        kind, shape: kind and shape of the image.
        box: box of a volume, [6], through whose center the planes pass; None for the middle.
    """
    if len(kind.axes) == 2:
        return [(-1, 0)]
    if kind.axes[0] == "depth":  # the middle of a scan shows most of it
        at = [0.5] * 3 if box is None else ((box[:3] + box[3:]) / 2).tolist()
        return [(axis, min(int(at[axis] * shape[axis]), shape[axis] - 1)) for axis in range(3)]
    return [(0, at) for at in shown_frames(shape[0], _MAX_FRAMES).tolist()]


def _to_rgb(image: NDArray[Any]) -> Canvas:
    """Convert an image to uint8 with three channels: the first three, or the first one repeated."""
    chosen = image[..., :3] if image.shape[-1] >= 3 else image[..., :1]
    if chosen.dtype != np.uint8:
        values = chosen.astype(np.float32)
        finite = values[np.isfinite(values)]
        low, high = np.percentile(finite, (1, 99)) if finite.size else (0.0, 1.0)
        scaled = (np.nan_to_num(values) - low) * (255 / max(high - low, 1e-6))
        chosen = np.clip(scaled, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(chosen, (*chosen.shape[:-1], 3)))


def _pane(plane: Canvas, label: NDArray[Any] | None, parts: Sequence[int], side: int) -> Canvas:
    """Resize a plane, and draw its label and the lines between parts over it."""
    scale = side / max(plane.shape[:2])
    height, width = (max(1, round(length * scale)) for length in plane.shape[:2])
    pane: Canvas = cv2.resize(  # type: ignore[assignment]
        plane, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    )
    if label is not None:
        shown = cv2.resize(label.astype(np.float32), (width, height), interpolation=cv2.INTER_NEAREST)
        for value in np.unique(shown[shown > 0]).astype(int).tolist():
            _tint(pane, shown == value, rgb_of(value - 1))
    for part in range(1, parts[0]):
        pane[round(part * height / parts[0]) - 1] = _LINE
    for part in range(1, parts[1]):
        pane[:, round(part * width / parts[1]) - 1] = _LINE
    return pane


def _tint(pane: Canvas, where: NDArray[np.bool_], color: tuple[int, int, int]) -> None:
    pane[where] = (pane[where] * (1 - _FILL) + np.array(color) * _FILL).astype(np.uint8)


def _draw_objects(pane: Canvas, batch: Batch, row: int, class_names: Sequence[str]) -> None:
    height, width = pane.shape[:2]
    for region in batch.get(REGIONS, np.zeros((row + 1, 0, 4)))[row]:
        top, left, bottom, right = (region * [height, width, height, width]).round().astype(int).tolist()
        _hatch(pane[top:bottom, left:right])
    for number in range(int(batch[COUNT][row])):
        label = int(batch["classes"][row, number])
        color = rgb_of(label - 1)
        if "masks" in batch:
            mask = cv2.resize(batch["masks"][row, number], (width, height), interpolation=cv2.INTER_NEAREST)
            _tint(pane, mask > 0, color)
        ymin, xmin, ymax, xmax = (
            (batch[BOXES][row, number] * [height, width, height, width]).round().astype(int)
        )
        if CORNERS in batch:
            points = batch[CORNERS][row, number].reshape(4, 2) * [height, width]
            # OpenCV draws with the centers of pixels at whole numbers, in x and y.
            outline = np.rint(points[:, ::-1] - 0.5).astype(np.int32)
            cv2.polylines(pane, [outline], isClosed=True, color=color, thickness=1)
        else:
            cv2.rectangle(pane, (int(xmin), int(ymin)), (int(xmax) - 1, int(ymax) - 1), color, 1)
        write_text(pane, _name(class_names, label), (int(xmin) + 2, max(10, int(ymin) - 2)), color)


def _hatch(part: Canvas) -> None:
    """Tint a part of a pane gray, with diagonal lines."""
    rows, columns = np.indices(part.shape[:2])
    _tint(part, np.ones(part.shape[:2], np.bool_), _REGION)
    part[(rows + columns) % _HATCH_STEP == 0] = _HATCH


def _draw_cut_boxes(
    pane: Canvas, batch: Batch, row: int, class_names: Sequence[str], plane: tuple[int, float]
) -> None:
    """Draw the boxes of a volume that a plane passes.

    Args:
        plane: the fixed axis, and the position along it, 0 to 1.
    """
    axis, place = plane
    height, width = pane.shape[:2]
    down, across = (one for one in range(3) if one != axis)
    for number in range(int(batch[COUNT][row])):
        box, label = batch[BOXES][row, number], int(batch["classes"][row, number])
        if not box[axis] <= place <= box[axis + 3]:
            continue
        color = rgb_of(label - 1)
        low = round(float(box[across]) * width), round(float(box[down]) * height)
        high = round(float(box[across + 3]) * width) - 1, round(float(box[down + 3]) * height) - 1
        cv2.rectangle(pane, low, high, color, 1)
        write_text(pane, _name(class_names, label), (low[0] + 2, max(10, low[1] - 2)), color)


def _name(class_names: Sequence[str], label: int) -> str:
    return class_names[label] if label < len(class_names) else str(label)


def _name_of_file(value: Any) -> str:
    """Return the end of a file's name, which may be long."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_NAME else f"...{text[3 - _MAX_NAME :]}"


def _caption(batch: Batch, row: int, class_names: Sequence[str]) -> str:
    if not batch[VALID][row]:
        return "padding"
    words = [_name_of_file(batch[SOURCE][row]) if SOURCE in batch else f"id {join_id(batch[ID][row])}"]
    if LABEL in batch and batch[LABEL].ndim == 1:
        words.append(_name(class_names, int(batch[LABEL][row])))
    if LABELS in batch:
        words += [_name(class_names, at) for at in np.flatnonzero(batch[LABELS][row]).tolist()] or [
            "no class"
        ]
    if LABELLED in batch and not batch[LABELLED][row]:
        words.append("no label")
    return ", ".join(words)


def join_panes(panes: Sequence[Canvas]) -> Canvas:
    """Place panes side by side."""
    height = max(len(pane) for pane in panes)
    row = blank_canvas(height, sum(pane.shape[1] for pane in panes) + _MARGIN * (len(panes) - 1))
    left = 0
    for pane in panes:
        row[: len(pane), left : left + pane.shape[1]] = pane
        left += pane.shape[1] + _MARGIN
    return row


def add_caption(cell: Canvas, text: str) -> Canvas:
    """Add a line of text below a picture, which becomes wider for a longer text."""
    (wide, high), below = cv2.getTextSize(text, _FONT, 1, 1)
    height, width = cell.shape[:2]
    added = blank_canvas(height + high + below + 4, max(width, wide + 4))
    added[:height, :width] = cell
    write_text(added, text, (2, height + high + 2), _INK)
    return added


def write_text(canvas: Canvas, text: str, at: tuple[int, int], color: tuple[int, int, int]) -> None:
    """Draw text on the background color; characters that OpenCV does not have become question marks."""
    text = text.encode("ascii", "replace").decode()
    (width, height), below = cv2.getTextSize(text, _FONT, 1, 1)
    left, bottom = max(1, min(at[0], canvas.shape[1] - width - 1)), at[1]
    cv2.rectangle(
        canvas,
        (left - 1, bottom - height - 1),
        (left + width, bottom + below - 2),
        (_BACKGROUND,) * 3,
        cv2.FILLED,
    )
    cv2.putText(canvas, text, (left, bottom), _FONT, 1, color, 1, cv2.LINE_AA)


def notebook_html(rows: Mapping[str, tuple[Any, Any]], picture: bytes, heading: str) -> str:
    """Return a table of (shape, dtype) by name with a PNG below it, as HTML."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(shape))}</td><td>{html.escape(str(dtype))}</td></tr>"
        for name, (shape, dtype) in rows.items()
    )
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return (
        f"<p>{html.escape(heading)}</p><table><tr><th>array</th><th>shape</th><th>dtype</th></tr>{cells}</table>"
        f'<img src="{source}" alt="the first batch">'
    )
