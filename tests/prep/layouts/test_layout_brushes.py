"""Brush masks of CVAT and Label Studio become the pixels that were painted."""

import json
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.annotations.resolve_boxes import scale_to_pixels
from halofeed.prep.voxels.masks import draw_mask
from halofeed.prep.voxels.run_lengths import mask_in_rectangle, mask_of_brush
from halofeed.system.errors import SourceError
from tests.support.annotation_writer import draw
from tests.support.layout_references import list_references, write_files

SIZE = (24, 40)
KINDS = (3, 4, 8, 16)
"""Bits of the lengths that Label Studio writes."""


def pack(values: list[int], pieces: list[tuple[int, bool]]) -> list[int]:
    """The bytes of values in pieces of (length, whether a run of equal values is written as one), bit by bit."""
    text = f"{len(values):032b}{7:05b}" + "".join(f"{kind - 1:04b}" for kind in KINDS)
    at = 0
    for length, is_run in pieces:
        part = values[at : at + length]
        is_run = is_run and len(set(part)) == 1
        kind = next(number for number, bits in enumerate(KINDS) if length <= 1 << bits)
        text += f"{int(is_run)}{kind:02b}{length - 1:0{KINDS[kind]}b}"
        text += "".join(f"{value:08b}" for value in (part[:1] if is_run else part))
        at += length
    text += "0" * (-len(text) % 8)
    return [int(text[start : start + 8], 2) for start in range(0, len(text), 8)]


def painted(mask: NDArray[np.bool_], color: tuple[int, int, int, int] = (255, 90, 0, 178)) -> list[int]:
    """A brush as Label Studio's canvas has it: colors where it painted, and runs of equal values."""
    pixels = np.zeros((*mask.shape, 4), np.uint8)
    pixels[mask] = color
    values = pixels.reshape(-1).tolist()
    return pack(values, [(len(list(run)), True) for _, run in groupby(values)])


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_brush_has_the_pixels_with_any_alpha(data):
    height, width = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    values = data.draw(
        st.lists(st.sampled_from([0, 0, 0, 1, 255]), min_size=4 * height * width, max_size=4 * height * width)
    )
    pieces, rest = [], len(values)
    while rest:
        length = data.draw(st.integers(1, min(rest, 20)))
        pieces.append((length, data.draw(st.booleans())))
        rest -= length
    found = mask_of_brush(bytes(pack(values, pieces)), (height, width))
    expected = np.array(values).reshape(height, width, 4)[..., 3] > 0
    assert (found is None) == (not expected.any())
    if found is not None:
        assert np.array_equal(draw_mask(found.code, (height, width)), expected)
        assert found.area == expected.sum()


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_mask_of_cvat_has_the_pixels_of_its_rectangle(data):
    height, width = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    top, left = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    size = (top + height + data.draw(st.integers(0, 2)), left + width + data.draw(st.integers(0, 2)))
    inside = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    runs = [(value, len(list(run))) for value, run in groupby(inside)]
    counts = [length for _, length in ([(False, 0)] if inside[0] else []) + runs]
    if data.draw(st.booleans()) and not inside[-1]:
        counts = counts[:-1]  # zeros at the end
    found = mask_in_rectangle(counts, (left, top, width, height), size)
    expected = np.zeros(size, bool)
    expected[top : top + height, left : left + width] = np.reshape(inside, (height, width))
    assert (found is None) == (not expected.any())
    if found is not None:
        rows, columns = np.nonzero(expected)
        assert np.array_equal(draw_mask(found.code, size), expected)
        assert found.box == (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (painted(np.ones(SIZE, bool))[:-2], "brush ends early"),
        ([1, 2], "brush ends early"),
        (painted(np.ones((5, 5), bool)), "brush is not of the size of the picture"),
    ],
)
def test_a_damaged_brush_is_named(packed, reason):
    with pytest.raises(SourceError, match=reason):
        mask_of_brush(bytes(packed), SIZE)


def circle(y: int, x: int, radius: int) -> NDArray[np.bool_]:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    return (rows - y) ** 2 + (columns - x) ** 2 <= radius**2


PAINTED = {"hat": circle(8, 10, 5), "coat": circle(20, 30, 7) & ~circle(20, 30, 2)}


def label_studio(masks: dict[str, NDArray[np.bool_]]) -> dict[str, str]:
    result = [
        {
            "type": "brushlabels",
            "original_width": SIZE[1],
            "original_height": SIZE[0],
            "image_rotation": 0,
            "value": {"format": "rle", "rle": painted(mask), "brushlabels": [label]},
        }
        for label, mask in masks.items()
    ]
    return {"a.json": json.dumps([{"data": {"image": "a.png"}, "annotations": [{"result": result}]}])}


def cvat_mask(label: str, mask: NDArray[np.bool_], **more: object) -> str:
    rows, columns = np.nonzero(mask)
    top, left = rows.min(), columns.min()
    part = mask[top : rows.max() + 1, left : columns.max() + 1]
    runs = [(value, len(list(run))) for value, run in groupby(part.reshape(-1).tolist())]
    counts = [length for _, length in ([(False, 0)] if runs[0][0] else []) + runs]
    sides = {"left": left, "top": top, "width": part.shape[1], "height": part.shape[0], **more}
    written = " ".join(f'{key}="{value}"' for key, value in sides.items())
    return f'<mask label="{label}" rle="{", ".join(map(str, counts))}" occluded="0" {written}/>'


def cvat(masks: dict[str, NDArray[np.bool_]]) -> dict[str, str]:
    shapes = "".join(cvat_mask(label, mask) for label, mask in masks.items())
    image = f'<image id="0" name="a.png" width="{SIZE[1]}" height="{SIZE[0]}">{shapes}</image>'
    return {"a.xml": f"<annotations>{image}</annotations>"}


def cvat_frames(masks: dict[str, NDArray[np.bool_]]) -> dict[str, str]:
    tracks = "".join(
        f'<track label="{label}">{cvat_mask(label, mask, frame=0, outside=0)}'
        f"{cvat_mask(label, mask, frame=1, outside=1)}</track>"
        for label, mask in masks.items()
    )
    size = f"<original_size><width>{SIZE[1]}</width><height>{SIZE[0]}</height></original_size>"
    meta = f"<meta><task><start_frame>0</start_frame><stop_frame>0</stop_frame>{size}</task></meta>"
    return {"a.xml": f"<annotations>{meta}{tracks}</annotations>"}


WRITERS = {"label-studio": label_studio, "cvat": cvat, "cvat, frames": cvat_frames}


@pytest.mark.parametrize("case", WRITERS)
@pytest.mark.parametrize("masks", [True, False])
def test_a_brush_is_an_object_with_its_box_and_its_mask(tmp_path, case, masks):
    draw(tmp_path, "frame_000000.png" if "frames" in case else "a.png", size=SIZE)
    write_files(tmp_path, WRITERS[case](PAINTED))
    (one,) = list_references(case.partition(",")[0], tmp_path, masks=masks)
    boxes: tuple[Any, ...] = one.boxes
    if one.normalized:
        boxes = tuple(scale_to_pixels(box, SIZE) for box in boxes)
    assert [box.label for box in boxes] == list(PAINTED)
    for box, mask in zip(boxes, PAINTED.values(), strict=True):
        rows, columns = np.nonzero(mask)
        assert (box.ymin, box.xmin) == pytest.approx((rows.min(), columns.min()))
        assert (box.ymax, box.xmax) == pytest.approx((rows.max() + 1, columns.max() + 1))
        if masks:
            assert np.array_equal(draw_mask(box.mask, SIZE), mask)
            assert box.area == pytest.approx(mask.sum())


def test_bad_brushes_are_dropped_with_their_reasons(tmp_path):
    draw(tmp_path, "a.png", size=SIZE)
    empty = np.zeros(SIZE, bool)
    (written,) = label_studio({"hat": PAINTED["hat"], "coat": empty}).values()
    write_files(tmp_path, {"a.json": written.replace(f'"original_width": {SIZE[1]}', '"original_width": 40')})
    (one,) = list_references("label-studio", tmp_path)
    assert len(one.boxes) == 1 and one.bad_objects[0][0] == "mask is empty"
    document = json.loads(written)
    document[0]["annotations"][0]["result"][1]["value"]["rle"] = ["x"]
    write_files(tmp_path, {"a.json": json.dumps(document)})
    assert list_references("label-studio", tmp_path)[0].bad_objects[0][0] == "brush is no list of bytes"
    for fault, reason in {
        'left="90"': "run lengths do not fit the picture",
        'left="1.5"': "run lengths are no whole numbers",
    }.items():
        (text,) = cvat({"hat": PAINTED["hat"]}).values()
        write_files(tmp_path, {"a.xml": text.replace(f'left="{np.nonzero(PAINTED["hat"])[1].min()}"', fault)})
        (one,) = list_references("cvat", tmp_path, masks=True)
        assert one.bad_objects[0][0] == reason
