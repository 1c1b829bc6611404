"""A drawn example of the gallery as one picture file: its pictures side by side, with boxes, classes and a caption."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.html.run_gallery import DrawnExample, ExamplePicture
from halofeed.inspection.thumbnails import PlacedBox
from halofeed.inspection.words import percent
from halofeed.loader.contact_sheet import (
    Canvas,
    add_caption,
    blank_canvas,
    join_panes,
    rgb_of,
    write_text,
)
from halofeed.prep.voxels.encode import encode_jpeg

_QUALITY = 90
_LEAST_SIDE = 240
"""Smaller pictures are enlarged by a whole number, so that boxes and names are readable."""
_LINE_WIDTH = 2
_DASH = 6


def example_jpeg(drawn: DrawnExample, lines: Sequence[str]) -> bytes:
    """Return a drawn example as a JPEG file, with lines of text below it."""
    rows = []
    for heading, frames in drawn.rows:
        panes = [add_caption(draw_frame(frame), frame.caption) for frame in frames]
        row = join_panes(panes)
        rows.append(add_caption(row, heading) if heading else row)
    width = max(row.shape[1] for row in rows)
    canvas = blank_canvas(sum(len(row) for row in rows), width)
    top = 0
    for row in rows:
        canvas[top : top + len(row), : row.shape[1]] = row
        top += len(row)
    for line in (*lines, *_words_of(drawn)):
        canvas = add_caption(canvas, line)
    return bytes(encode_jpeg(canvas, _QUALITY))


def _words_of(drawn: DrawnExample) -> list[str]:
    """Return the lines below the pictures of an example."""
    found = [", ".join(f"{words}{name}" for words, name, _ in drawn.verdicts)]
    found += [
        f"{percent(share)} {name}{' (true)' if is_true else ''}" for name, share, is_true in drawn.guesses
    ]
    found.append(", ".join(f"{name} {more}".strip() for name, _, more in drawn.chips))
    return [line for line in (*found, ", ".join(drawn.remarks)) if line]


def draw_frame(frame: ExamplePicture) -> Canvas:
    """Draw a picture of the gallery with its layers, uint8 [height, width, 3] in red, green, blue."""
    canvas = _decoded(frame.uri)[..., :3]
    enlarged = -(-_LEAST_SIDE // max(canvas.shape[:2]))
    if enlarged > 1:
        canvas = canvas.repeat(enlarged, axis=0).repeat(enlarged, axis=1)
    canvas = np.ascontiguousarray(canvas)
    height, width = canvas.shape[:2]
    if frame.mask is not None:
        mask = _decoded(frame.mask)
        mask = np.asarray(cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST))
        share = mask[..., 3:].astype(np.float32) / 255
        canvas = np.rint(canvas * (1 - share) + mask[..., :3] * share).astype(np.uint8)
    scale = (height / frame.size[0], width / frame.size[1])
    for box in frame.boxes:
        _draw_box(canvas, box, scale)
    # Names come last, so that no line crosses them.
    for box in filter(_has_tag, frame.boxes):
        at = (int(box.x * scale[1]) + _LINE_WIDTH + 1, max(10, int(box.y * scale[0]) - _LINE_WIDTH))
        write_text(canvas, box.name, at, rgb_of(box.rank))
    return canvas


def _has_tag(box: PlacedBox) -> bool:
    """Return whether the tag of a box has room."""
    return bool(box.tag)


def _draw_box(canvas: Canvas, box: PlacedBox, scale: tuple[float, float]) -> None:
    """Draw the outline of a box inside of its borders."""
    height, width = canvas.shape[:2]
    top, bottom = (round(at * scale[0]) for at in (box.y, box.y + box.height))
    left, right = (round(at * scale[1]) for at in (box.x, box.x + box.width))
    outline = np.zeros((height, width), np.uint8)
    inset = _LINE_WIDTH // 2
    cv2.rectangle(
        outline,
        (left + inset, top + inset),
        (max(left + inset, right - inset - 1), max(top + inset, bottom - inset - 1)),
        1,
        _LINE_WIDTH,
    )
    is_line = outline > 0
    if box.dashed:
        rows, columns = np.arange(height)[:, None], np.arange(width)
        is_line &= (rows + columns) // _DASH % 2 == 0
    canvas[is_line] = rgb_of(box.rank)


def _decoded(uri: str) -> NDArray[np.uint8]:
    """Return the pixels of a data: URI, [height, width, 3 or 4] in red, green, blue, alpha."""
    data = base64.b64decode(uri.partition(",")[2])
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    if pixels.ndim == 2:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB), np.uint8)
    code = cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB
    return np.asarray(cv2.cvtColor(pixels, code), np.uint8)
