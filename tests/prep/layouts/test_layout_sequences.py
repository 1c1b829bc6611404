"""Boxes of the frames of sequences: the MOT challenge, VisDrone's videos, and CVAT's tracks on pictures and videos."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.annotations.polygon_tracks import polygon_between
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.frame_pictures import _Video
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from tests.support.annotation_writer import draw
from tests.support.clip_writer import write_video
from tests.support.conversions import boxes_in_source, halofeed_here, read_split, rejected_entries
from tests.support.layout_references import detected, list_references, write_files

SIZE = (48, 64)
FRAMES = 6


def rows_of(*rows: Sequence[object]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def read(layout: str, root: Path, **options: object) -> dict[str, SourceExample]:
    found = list_references(layout, root, **options)
    for one in found:
        assert reference_from_json(reference_to_json(one)) == one
    return {one.source: one for one in found}


def edges(example: SourceExample) -> list[tuple[str, float, float, float, float]]:
    assert example.problem is None, example.problem
    return [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in example.boxes or ()]


# MOT ---------------------------------------------------------------------------------------------------------


def write_mot(
    root: Path,
    sequence: str = "MOT17-02",
    rows: Sequence[Sequence[object]] = (),
    *,
    frames: int = FRAMES,
    name: str = "{:06d}.jpg",
    first: int = 1,
    more: str = "",
) -> None:
    draw(root / sequence, *(f"img1/{name.format(first + place)}" for place in range(frames)), size=SIZE)
    facts = (
        f"[Sequence]\nname={sequence}\nimDir=img1\nseqLength={frames}\nimWidth=64\nimHeight=48\nimExt=.jpg\n"
    )
    write_files(
        root / sequence,
        {"gt/gt.txt": rows_of(*rows), "seqinfo.ini": facts, "det/det.txt": "1,-1,1,1,9,9,0.5\n"},
    )
    if more:
        write_files(root / sequence, {"gt/labels.txt": more})


PEDESTRIAN = (1, 4, 11, 21, 10, 20, 1, 1, 0.5)


def test_a_sequence_of_mot_has_its_boxes_from_0_and_its_frames_are_one_group(tmp_path):
    rows = [PEDESTRIAN, (1, 5, -3, 5, 8, 8, 1, 1, 1), (3, 4, 13, 21, 10, 20, 1, 13, 1)]
    write_mot(tmp_path / "train", rows=rows)
    draw(tmp_path, "test/MOT17-01/img1/000001.jpg", size=SIZE)
    assert detected(tmp_path) == "mot"
    found = read("mot", tmp_path)
    names = [f"train/MOT17-02/img1/{number:06d}.jpg" for number in range(1, FRAMES + 1)]
    assert edges(found[names[0]]) == [("pedestrian", 10, 20, 20, 40), ("pedestrian", -4, 4, 4, 12)]
    assert edges(found[names[2]]) == [("crowd", 12, 20, 22, 40)]
    assert [edges(found[name]) for name in (names[1], *names[3:])] == [[]] * 4
    assert {found[name].group for name in names} == {"train/MOT17-02/img1"}
    assert {(found[name].split, found[name].declared_size) for name in names} == {("train", SIZE)}
    assert found["test/MOT17-01/img1/000001.jpg"].problem[1] == "image has no annotation"
    kept = read("mot", tmp_path, keep=("occluded",))[names[0]]
    assert [box.occluded for box in kept.boxes] == [True, False]


def test_boxes_that_evaluation_leaves_out_are_ignored_regions(tmp_path):
    of_classes = [(1, number, 10 * number, 5, 5, 5, 1, number, 1) for number in (2, 7, 8, 12)]
    write_mot(tmp_path, rows=[*of_classes, (1, 1, 1, 1, 4, 4, 0, 1, 1)])
    one = read("mot", tmp_path)["MOT17-02/img1/000001.jpg"]
    assert [label for label, *_ in edges(one)] == ["person_on_vehicle"]
    assert sorted(one.ignored_regions) == [(0, 0, 4, 4), (4, 69, 9, 74), (4, 79, 9, 84), (4, 119, 9, 124)]


@pytest.mark.parametrize(
    ("rows", "options", "xmin"),
    [
        ([PEDESTRIAN], {}, 10),
        ([PEDESTRIAN, (2, 1, 11.5, 3, 4, 4, 1, 1, 1)], {}, 11),
        ([PEDESTRIAN, (2, 1, 0, 3, 4, 4, 1, 1, 1)], {}, 11),
        ([PEDESTRIAN, (2, 1, 0, -3, 4, 4, 1, 1, 1)], {}, 10),
        ([PEDESTRIAN, (2, 1, 0, 3, 4, 4, 1, 1, 1)], {"box_origin": 1}, 10),
        ([PEDESTRIAN], {"box_origin": 0}, 11),
    ],
)
def test_pixels_of_mot_count_from_1_unless_boxes_show_another_origin(tmp_path, rows, options, xmin):
    write_mot(tmp_path, rows=rows)
    one = read("mot", tmp_path, **options)["MOT17-02/img1/000001.jpg"]
    assert edges(one) == [("pedestrian", xmin, xmin + 10, xmin + 10, xmin + 30)]
    assert any("--box-origin" in note for note in one.notes) == (xmin == 11 and not options)


def test_other_tools_name_classes_and_files_in_their_own_way(tmp_path):
    rows = [(1, 1, 0, 0, 8, 8, 1, 2, 1), (2, 1, 1.5, 0, 8, 8, 1, 7, 1), (FRAMES, 1, 2, 0, 8, 8, 0, 1, 1)]
    write_mot(tmp_path, ".", rows, name="frame_{:06d}.png", first=0, more="car\nbus\n")
    (tmp_path / "seqinfo.ini").unlink()
    found = read("mot", tmp_path)
    assert edges(found["img1/frame_000000.png"]) == [("bus", 0, 0, 8, 8)]
    assert edges(found["img1/frame_000001.png"]) == [("7", 1.5, 0, 9.5, 8)]
    assert found[f"img1/frame_{FRAMES - 1:06d}.png"].ignored_regions == ((0, 2, 8, 10),)
    assert all(
        any("the first frame is the first file" in note for note in one.notes) for one in found.values()
    )


def test_the_file_of_2015_has_a_place_in_the_world_and_one_class(tmp_path):
    write_mot(tmp_path, rows=[(1, 1, 11, 21, 10, 20, 1, -1, -1, -1), (2, 1, 5, 5, 4, 4, 0, -1, -1, -1)])
    found = read("mot", tmp_path)
    assert edges(found["MOT17-02/img1/000001.jpg"]) == [("pedestrian", 10, 20, 20, 40)]
    assert found["MOT17-02/img1/000002.jpg"].ignored_regions


def test_copies_of_a_sequence_for_other_detectors_are_left_out(tmp_path):
    for detector in ("DPM", "FRCNN", "SDP"):
        write_mot(tmp_path, f"MOT17-02-{detector}", [PEDESTRIAN])
    write_mot(tmp_path, "MOT17-04-DPM", [PEDESTRIAN], frames=FRAMES - 1)
    reasons = Counter(one.problem[1] if one.problem else "" for one in read("mot", tmp_path).values())
    assert reasons == {"": 2 * FRAMES - 1, "sequence is a copy": 2 * FRAMES}


def test_bad_lines_of_a_sequence_are_named(tmp_path):
    write_mot(tmp_path, rows=[PEDESTRIAN, (9, 1, 1, 1, 4, 4, 1, 1, 1), (2, 1, 1, 1, 4, 4, 0.3, 1, 1)])
    found = read("mot", tmp_path)
    assert found["MOT17-02/img1/000002.jpg"].bad_objects[0][0] == "confidence is not 0 or 1"
    assert {one.problem[1] for one in found.values() if one.problem} == {"image file not found"}
    write_files(tmp_path / "MOT17-02", {"gt/gt.txt": rows_of(PEDESTRIAN) + "1,2,3\n"})
    with pytest.raises(AnnotationsError, match=r"line is no box of a frame .*line 2: '1,2,3'"):
        read("mot", tmp_path)


def test_frames_may_be_below_another_root_and_a_file_alone_is_refused(tmp_path):
    write_mot(tmp_path / "in", rows=[PEDESTRIAN], name="{:08d}.jpg")
    (tmp_path / "images" / "MOT17-02").mkdir(parents=True)
    (tmp_path / "in" / "MOT17-02" / "img1").rename(tmp_path / "images" / "MOT17-02" / "img1")
    found = {one.source: one for one in list_references("mot", tmp_path / "in", images=tmp_path / "images")}
    assert len(edges(found["MOT17-02/img1/00000001.jpg"])) == 1 and len(found) == FRAMES
    assert not any(one.problem for one in found.values())
    for layout in ("mot", "visdrone-video"):
        with pytest.raises(AnnotationsError, match="name the folder above both with --source"):
            list_references(layout, tmp_path / "in" / "MOT17-02" / "gt", "gt.txt")


def test_a_stride_takes_frames_of_each_sequence_and_lists_the_others(tmp_path):
    write_mot(tmp_path / "a", rows=[PEDESTRIAN])
    write_mot(tmp_path / "b", rows=[(2, *PEDESTRIAN[1:])], frames=5)
    found = read("mot", tmp_path, frame_stride=3)
    taken = [name for name, one in found.items() if one.problem is None]
    assert taken == [f"{folder}/MOT17-02/img1/{number:06d}.jpg" for folder in "ab" for number in (1, 4)]
    assert {one.problem[1] for one in found.values() if one.problem} == {"frame is left out"}


def test_no_sequence_is_in_two_splits(tmp_path):
    for number in range(8):
        write_mot(tmp_path / "in", f"S-{number}", [(1, number, 5 + number, 5, 9, 9, 1, 1, 1)])
    words = ("--split-shares", "train=0.5,test=0.5", "--resize", "none", "--encoding", "png")
    done = halofeed_here("convert", "--source", tmp_path / "in", "--out", tmp_path, "--name", "d", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    splits: dict[str, set[str]] = {}
    for split in ("train", "test"):
        for record in read_split(tmp_path / "d" / "1.0.0", split):
            name = bytes(record["image/filename"][0]).decode()
            splits.setdefault(name.split("/")[0], set()).add(split)
    assert len(splits) == 8 and all(len(some) == 1 for some in splits.values())
    assert {split for some in splits.values() for split in some} == {"train", "test"}


# VisDrone ----------------------------------------------------------------------------------------------------


def write_visdrone(root: Path, name: str = "uav0000013_00000_v") -> list[str]:
    frames = [f"sequences/{name}/{number:07d}.jpg" for number in range(1, 5)]
    draw(root, *frames, size=SIZE)
    rows = [
        (2, 0, 5, 6, 10, 20, 1, 4, 0, 1),
        (1, 0, 4, 6, 10, 20, 1, 4, 1, 0),
        (1, 1, 30, 30, 8, 8, 0, 0, 0, 0),
        (1, 2, 20, 1, 3, 3, 0, 11, 0, 0),
        (3, 3, 20, 1, 3, 3, 0, 1, 0, 0),
    ]
    write_files(root, {f"annotations/{name}.txt": rows_of(*rows)})
    return frames


def test_a_video_of_visdrone_has_the_objects_and_regions_of_its_frames(tmp_path):
    frames = write_visdrone(tmp_path / "VisDrone2019-VID-val")
    assert detected(tmp_path) == "visdrone-video"
    found = read("visdrone-video", tmp_path)
    first, second, third, last = (found[f"VisDrone2019-VID-val/{frame}"] for frame in frames)
    assert edges(first) == [("car", 4, 6, 14, 26)] and edges(second) == [("car", 5, 6, 15, 26)]
    assert sorted(first.ignored_regions) == [(1, 20, 4, 23), (30, 30, 38, 38)]
    assert [box.is_crowd for box in third.boxes] == [True] and edges(last) == []
    assert {one.split for one in found.values()} == {"val"}
    assert {one.group for one in found.values()} == {"VisDrone2019-VID-val/sequences/uav0000013_00000_v"}


# CVAT --------------------------------------------------------------------------------------------------------


def cvat(shapes: str, *, stop: int = 19, step: int = 1, source: str = "clip.mp4") -> str:
    meta = (
        f"<start_frame>0</start_frame><stop_frame>{stop}</stop_frame><frame_filter>step={step}</frame_filter>"
    )
    meta += f"<original_size><width>{SIZE[1]}</width><height>{SIZE[0]}</height></original_size>"
    meta += f"<source>{source}</source>"
    return f'<annotations><meta><task>{meta}</task></meta><track label="hat">{shapes}</track></annotations>'


def box(frame: int, *corners: float, outside: int = 0, **more: object) -> str:
    sides = dict(zip(("xtl", "ytl", "xbr", "ybr"), corners, strict=True))
    written = " ".join(f'{key}="{value}"' for key, value in {**sides, **more}.items())
    return f'<box frame="{frame}" outside="{outside}" {written}/>'


def draw_frames(root: Path, count: int) -> None:
    draw(root, *(f"images/frame_{number:06d}.png" for number in range(count)), size=SIZE)


def frame(number: int) -> str:
    return f"images/frame_{number:06d}.png"


def test_boxes_between_key_frames_are_on_the_line_between_them(tmp_path):
    start, end = np.array([2.0, 3, 10, 11]), np.array([20.0, 9, 40, 30])
    shapes = box(0, *start, keyframe=1) + box(12, *end, keyframe=1) + box(15, *end, outside=1)
    draw_frames(tmp_path, 20)
    write_files(tmp_path, {"a.xml": cvat(shapes)})
    found = read("cvat", tmp_path)
    for number in range(20):
        expected = start + (end - start) * min(number, 12) / 12
        got = edges(found[frame(number)])
        assert len(got) == (number < 15)
        if got:
            assert got[0][1:] == pytest.approx(expected.tolist())
    assert any("interpolated" in note for note in found[frame(5)].notes)
    assert not any("interpolated" in note for note in found[frame(12)].notes)


def test_a_track_of_key_frames_without_an_end_stays_until_the_end_of_the_video(tmp_path):
    draw_frames(tmp_path, 20)
    write_files(tmp_path, {"a.xml": cvat(box(0, 2, 3, 10, 11) + box(8, 4, 3, 12, 11))})
    found = read("cvat", tmp_path)
    assert edges(found[frame(19)]) == [("hat", 4, 3, 12, 11)]
    every = "".join(box(number, 2, 3, 10, 11) for number in range(9))
    write_files(tmp_path, {"a.xml": cvat(every)})
    assert edges(read("cvat", tmp_path)[frame(19)]) == []


def test_a_turn_between_key_frames_takes_the_shorter_way(tmp_path):
    draw_frames(tmp_path, 3)
    shapes = box(0, 10, 10, 30, 20, rotation=350) + box(2, 10, 10, 30, 20, rotation=10)
    write_files(tmp_path, {"a.xml": cvat(shapes, stop=2)})
    assert edges(read("cvat", tmp_path)[frame(1)]) == [("hat", 10, 10, 30, 20)]


@pytest.mark.parametrize(
    "shapes",
    [
        '<mask frame="0" outside="0" left="1" top="1" width="1" height="1" rle="0,1"/>' + box(3, 1, 1, 9, 9),
        box(0, 1, 1, 9, 9, keyframe=0) + box(3, 1, 1, 9, 9, keyframe=0),
    ],
)
def test_a_gap_that_cvats_rule_for_boxes_does_not_fill_is_named(tmp_path, shapes):
    draw_frames(tmp_path, 4)
    write_files(tmp_path, {"a.xml": cvat(shapes, stop=3)})
    found = read("cvat", tmp_path)
    assert [found[frame(number)].problem is not None for number in range(4)] == [False, True, True, False]
    assert found[frame(1)].problem[1] == "track has no box on a frame"


BETWEEN = [
    # Two polygons, the share of the way, and the polygon of CVAT's interpolate_position (annotation.py).
    (
        [10, 10, 30, 10, 30, 30, 10, 30],
        [14, 12, 44, 12, 40, 36, 24, 46, 12, 30],
        0.25,
        [11, 10.5, 33.5, 10.5, 32.5, 31.5, 13.5, 34, 10.5, 30],
    ),
    (
        [10, 10, 20, 8, 30, 10, 31, 20, 30, 30, 20, 33, 10, 30],
        [20, 20, 50, 20, 35, 45],
        0.5,
        [15, 15, 20, 14, 40, 15, 40.5, 20, 40, 25, 27.5, 39, 22.5, 37.5],
    ),
    (
        [5, 5, 6, 5, 40, 5, 40, 40],
        [5, 6, 41, 6, 42, 44, 6, 41],
        0.75,
        [5, 5.75, 5.25, 5.75, 40.75, 5.75, 41.5, 43, 14.5, 40.75],
    ),
]


@pytest.mark.parametrize(("first", "second", "share", "expected"), BETWEEN)
def test_a_polygon_between_key_frames_is_that_of_cvat(tmp_path, first, second, share, expected):
    assert polygon_between(first, second, share) == pytest.approx(expected)
    places = {0: first, 4: second}
    written = [
        ";".join(f"{x},{y}" for x, y in zip(numbers[::2], numbers[1::2], strict=True))
        for numbers in places.values()
    ]
    shapes = "".join(
        f'<polygon frame="{number}" outside="0" points="{points}"/>'
        for number, points in zip(places, written, strict=True)
    )
    draw_frames(tmp_path, 5)
    write_files(tmp_path, {"a.xml": cvat(shapes, stop=4)})
    found = read("cvat", tmp_path, masks=True)
    middle = found[frame(round(4 * share))]
    assert middle.boxes[0].mask[0] == pytest.approx(expected) and "interpolated" in middle.notes[0]
    assert found[frame(0)].boxes[0].mask == [first] and found[frame(4)].boxes[0].mask == [second]


def test_a_moved_polygon_moves_by_the_share_and_one_without_extent_has_no_way():
    square = [0.0, 0, 8, 0, 8, 8, 0, 8]
    moved = [side + 4 for side in square]
    for share in (0, 0.3, 1):
        assert polygon_between(square, moved, share) == pytest.approx([side + 4 * share for side in square])
    assert polygon_between(square, [3.0, 3] * 4, 0.5) is None


def pictures(count: int) -> list[np.ndarray]:
    found = []
    for number in range(count):
        pixels = np.full((*SIZE, 3), 128, np.uint8)
        pixels[10:30, 5 + number : 25 + number] = (220, 40, 40)
        found.append(pixels)
    return found


def convert(root: Path, *words: str) -> Path:
    common = ("--source", root / "in", "--out", root, "--name", "d", "--overwrite", "--resize", "none")
    done = halofeed_here("convert", *common, "--encoding", "png", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "d" / "1.0.0"


@pytest.mark.parametrize("name", ["clip.mp4", "renamed.mp4", "sub/clip.mp4"])
def test_frames_are_read_from_the_video_itself(tmp_path, name):
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    write_video(tmp_path / "in" / name, pictures(20))
    shapes = box(0, 5, 10, 25, 30) + box(15, 20, 10, 40, 30) + box(16, 20, 10, 40, 30, outside=1)
    write_files(tmp_path / "in", {"a.xml": cvat(shapes)})
    capture = cv2.VideoCapture(str(tmp_path / "in" / name))
    expected = [cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB) for _ in range(20)]
    records = {
        bytes(one["image/filename"][0]).decode(): one for one in read_split(convert(tmp_path), "train")
    }
    assert sorted(records) == [f"{name}//frame_{number:06d}.bmp" for number in range(20)]
    for number, pixels in enumerate(expected):
        record = records[f"{name}//frame_{number:06d}.bmp"]
        stored = cv2.imdecode(np.frombuffer(record["image/encoded"][0], np.uint8), cv2.IMREAD_COLOR_RGB)
        assert np.array_equal(stored, pixels)
        boxes = boxes_in_source(record).tolist()
        assert len(boxes) == (number < 16)
        if boxes:
            assert boxes[0] == pytest.approx([10, 5 + number, 30, 25 + number], abs=1e-3)


def test_frames_of_a_video_take_a_stride_are_one_group_and_become_tiles(tmp_path):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "clip.mp4", pictures(20))
    write_files(tmp_path / "in", {"a.xml": cvat(box(0, 5, 10, 25, 30) + box(19, 24, 10, 44, 30))})
    found = read("cvat", tmp_path / "in", frame_stride=5)
    assert [one.video_frame for one in found.values() if not one.problem] == [
        ("clip.mp4", at) for at in (0, 5, 10, 15)
    ]
    assert {one.group for one in found.values()} == {"a.xml"}
    tiles = ("--fit", "tiles", "--height", "24", "--width", "32", "--resize", "fixed-shape")
    assert len(list(read_split(convert(tmp_path, "--frame-stride", "5", *tiles), "train"))) == 4 * 4


def test_frames_that_the_video_lacks_are_rejected(tmp_path):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "clip.mp4", pictures(12))
    write_files(tmp_path / "in", {"a.xml": cvat(box(0, 5, 10, 25, 30) + box(19, 24, 10, 44, 30))})
    folder = convert(tmp_path)
    assert len(list(read_split(folder, "train"))) == 12
    assert Counter(one["reason"] for one in rejected_entries(folder)) == {"video has fewer frames": 8}


def test_images_of_a_video_task_are_its_frames_too(tmp_path):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "clip.mp4", pictures(8))
    size = f'width="{SIZE[1]}" height="{SIZE[0]}"'
    images = "".join(
        f'<image id="{number}" name="frame_{number:06d}" {size}>{box(0, 5, 10, 25, 30)}</image>'
        for number in (2, 7)
    )
    text = cvat("", stop=7).replace('<track label="hat"></track>', images)
    write_files(tmp_path / "in", {"a.xml": text.replace("<box ", '<box label="hat" ')})
    found = read("cvat", tmp_path / "in")
    assert [one.video_frame for one in found.values()] == [("clip.mp4", 2), ("clip.mp4", 7)]
    assert {one.group for one in found.values()} == {"a.xml"}


def test_frames_in_any_order_are_those_of_the_video_and_nearly_ascending_ones_are_decoded_once(tmp_path):
    write_video(tmp_path / "clip.mp4", pictures(30))
    clip = open_clip(LocalFiles(tmp_path), "clip.mp4")
    expected = list(clip.read(range(30)))
    grabbed: list[int] = []

    def counted(indices: Iterable[int]) -> Iterator[np.ndarray]:
        at = -1
        for index in indices:
            grabbed.append(index - at)
            at = index
            yield expected[index]

    video = _Video(replace(clip, decode=counted))
    order = [number + (1 if number % 2 == 0 else -1) for number in range(30)]
    assert all(np.array_equal(video.frame(number), expected[number]) for number in order)
    assert sum(grabbed) <= 2 * 30
    video = _Video(clip)
    shuffled = np.random.default_rng(0).permutation(30).tolist()
    assert all(np.array_equal(video.frame(number), expected[number]) for number in shuffled)
