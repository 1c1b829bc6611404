"""Compare how halofeed and other programs read the same annotations: exports of halofeed, and formats that both read.

    pip install halofeed[convert,oracles] supervision
    python benchmarks/other_readers.py                      # exit 1 if boxes differ by more than half a pixel

Each case is read by halofeed's layout, and by datumaro or supervision in another process. Classes must be equal, and
boxes within half a pixel. `MENDED` has what the other program gets wrong, with the reason, and the boxes are compared
after this is mended.

No case: VIA, Label Studio and Supervisely, which neither program reads; keypoints of YOLO; labelme's JSON and polygons
of YOLO in datumaro, which reads MIT's XML files and rows of five numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

Objects = dict[str, list[list[Any]]]
"""By the name of a picture: [class, xmin, ymin, xmax, ymax] of each object, or [class] of a picture."""
HALF_A_PIXEL = 0.5 + 1e-4
SHARED = Path(__file__).resolve().parents[1] / "shared/data"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Annotations that two programs read.

    Args:
        folder: folder for both programs.
        layout: halofeed's layout.
        reader: "datumaro" or "supervision".
        form: datumaro's name of the format, or supervision's arguments.
        below: folder of this case that the other program reads.
        points: whether to compare labeled keypoints instead of boxes.
        file: annotation file for halofeed, if it cannot be left out.
        mend: key of `MENDED`.
    """

    folder: Path
    layout: str
    reader: str = "datumaro"
    form: Any
    below: str = ""
    points: bool = False
    file: str | None = None
    mend: str = ""


Mend = Callable[[float, float, float, float], list[float]]
MENDED: dict[str, tuple[str, Mend]] = {
    "center": (
        "datumaro takes the center of a box as its corner; Create ML's x and y are the center "
        "(developer.apple.com/documentation/createml/building-an-object-detector-data-source)",
        lambda left, top, right, bottom: [
            *(left - (right - left) / 2, top - (bottom - top) / 2),
            *((left + right) / 2, (top + bottom) / 2),
        ],
    ),
    "from 1": (
        "datumaro subtracts nothing; VOC counts pixels from 1 and a box includes its last pixel (VOC2012 development "
        "kit, 9.2), so that 1 to WIDTH is all of a picture",
        lambda left, top, right, bottom: [left - 1, top - 1, right, bottom],
    ),
}
"""What another program gets wrong, and the function that gives the right box for its box."""


def read_with_datumaro(form: str, folder: str, points: bool) -> Objects:
    """Return the objects of a data set of one of datumaro's formats; the parts of a group are one object."""
    import datumaro

    dataset = datumaro.Dataset.import_from(folder, form)
    names = dataset.categories()[datumaro.AnnotationType.label]
    found: Objects = {}
    for item in dataset:
        groups: dict[Any, list[Any]] = {}
        classes = [[names[one.label].name] for one in item.annotations if isinstance(one, datumaro.Label)]
        for number, one in enumerate(item.annotations):
            if isinstance(one, datumaro.Points) is not points or isinstance(one, datumaro.Label):
                continue
            part = groups.setdefault(one.group or -1 - number, [names[one.label].name])
            if points:
                labeled = [bool(seen.value) for seen in one.visibility]
                part += np.reshape(one.points, (-1, 2))[labeled].reshape(-1).tolist()
                continue
            if isinstance(one, datumaro.Mask):
                rows, columns = np.nonzero(one.image)
                box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            else:
                x, y, width, height = one.get_bbox()
                box = [x, y, x + width, y + height]
            first = part[1:] or box
            part[1:] = map(float, [*map(min, first[:2], box[:2]), *map(max, first[2:], box[2:])])
        found[Path(item.media.path).stem] = [*groups.values()] or classes
    return found


def read_with_supervision(form: dict[str, Any], folder: str) -> Objects:
    """Return the objects of a data set; `form` is the name of its reader and paths by parameter."""
    import supervision

    paths = {
        name: f"{folder}/{value}" if isinstance(value, str) else value
        for name, value in form["paths"].items()
    }
    dataset = getattr(supervision.DetectionDataset, form["reader"])(**paths)
    return {
        Path(path).stem: [
            [dataset.classes[label], *map(float, box)]
            for label, box in zip(found.class_id, found.xyxy, strict=True)
        ]
        for path, _, found in dataset
    }


def read_with_halofeed(case: Case) -> Objects:
    """Return the objects of a data set as a layout reads them."""
    from PIL import Image

    from halofeed.prep.layouts import LayoutOptions, find_layout
    from halofeed.prep.sources.files import LocalFiles

    files, found = LocalFiles(case.folder), {}
    options = LayoutOptions(keep=("keypoints",) if case.points else ())
    for one in find_layout(case.layout).list_references(files, files, case.file, options):
        path = case.folder / one.source
        if one.problem or case.below not in str(path):
            continue
        with Image.open(path) as picture:
            scale = np.array(picture.size) if one.normalized else np.ones(2)
        rows = [
            [
                box.label,
                *(np.reshape([(p.x, p.y) for p in box.keypoints if p.visibility], (-1, 2)) * scale).ravel(),
            ]
            if case.points
            else [box.label, *(np.array([box.xmin, box.ymin, box.xmax, box.ymax]) * np.tile(scale, 2))]
            for box in one.boxes or ()
        ]
        found[path.stem] = rows if one.boxes is not None else [[one.label]]
    return found


def difference(ours: Objects, theirs: Objects) -> str:
    """Return the first difference between two readings, or ""."""
    if not ours or ours.keys() != theirs.keys():
        return f"pictures: {sorted(ours)[:3]} of {len(ours)}, {sorted(theirs)[:3]} of {len(theirs)}"
    for name in sorted(ours):
        one, other = (sorted(objects) for objects in (ours[name], theirs[name]))
        waiting = list(other)
        for item in one:
            near = [
                entry
                for entry in waiting
                if entry[0] == item[0]
                and len(entry) == len(item)
                and np.abs(np.subtract(entry[1:], item[1:])).max(initial=0) <= HALF_A_PIXEL
            ]
            if not near:
                return f"{name}: {item} is none of {waiting}"
            waiting.remove(near[0])
        if waiting:
            return f"{name}: {waiting} is only in the other reading"
    return ""


def run_halofeed(*words: object) -> None:
    """Run a command of halofeed; raise CalledProcessError if it fails."""
    subprocess.run(
        [sys.executable, "-m", "halofeed", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )


def exports(data: Path, work: Path) -> Iterator[tuple[str, Case]]:
    """Convert three real data sets, export them, and yield a case for each export."""
    detection = {
        "boxes": ("detection/cards_voc/test", "voc", ("coco", "yolo", "voc")),
        "masks": ("detection/coco_ccby", "coco", ("coco", "yolo", "voc")),
        "classes": ("images/clothing/test", "folders", ("folders",)),
    }
    forms = {"coco": "coco_instances", "voc": "voc_detection", "yolo": "yolo", "folders": "imagenet"}
    segments = {
        "reader": "from_yolo",
        "paths": {
            "images_directory_path": "images/train",
            "annotations_directory_path": "labels/train",
            "data_yaml_path": "data.yaml",
        },
    }
    for name, (source, layout, targets) in detection.items():
        out = work / f"{name}-data"
        masks = ("--masks", "--boxes-crowd", "drop") if name == "masks" else ()
        size = ("--resize", "none", "--encoding", "png", "--split-shares", "train=0.5,val=0.5")
        run_halofeed(
            "convert",
            "--source",
            data / source,
            "--layout",
            layout,
            "--out",
            out,
            "--name",
            "set",
            *size,
            *masks,
        )
        for target in targets:
            folder = work / f"{name}-{target}"
            run_halofeed("export", out / "set/1.0.0", "--to", target, "--out", folder)
            how: dict[str, Any] = {"folder": folder, "layout": target, "form": forms[target]}
            if (name, target) == ("boxes", "voc"):  # whole pixels, which VOC counts from 1
                how |= {"mend": "from 1"}
            if target == "folders":
                how |= {"below": "/train/"}
            if (name, target) == ("masks", "yolo"):
                how |= {"reader": "supervision", "form": segments, "below": "/train/"}
            yield f"export of {name} as {target}", Case(**how)


def inputs(data: Path, work: Path) -> Iterator[tuple[str, Case]]:
    """Yield a case for each format that another program reads, from the drawn cases and the real data sets."""
    cases = data / "cases"

    def copied(name: str) -> Path:
        shutil.copytree(cases / name, work / name)
        return work / name

    cvat = copied("cvat")
    text = (cvat / "annotations.xml").read_text()
    meta = "<meta><task><labels><label><name>car</name><attributes/></label></labels></task></meta>"
    (cvat / "annotations.xml").write_text(text.replace("<image", f"{meta}<image", 1))
    yield "CVAT for images", Case(folder=cvat, layout="cvat", form="cvat")
    lvis = copied("lvis")
    document = json.loads((lvis / "lvis_v1_val.json").read_text())
    for image in document["images"]:
        image["file_name"] = "/".join(image["coco_url"].rsplit("/", 2)[1:])
    for one in document["annotations"]:
        one["iscrowd"] = 0  # LVIS has no such key, and datumaro demands it
    (lvis / "annotations").mkdir()
    (lvis / "annotations/instances_val.json").write_text(json.dumps(document))
    (lvis / "lvis_v1_val.json").unlink()
    (lvis / "images").mkdir()
    for folder in ("train2017", "val2017"):
        (lvis / folder).rename(lvis / "images" / folder)
    yield "LVIS", Case(folder=lvis, layout="coco", form="coco_instances")
    voc = work / "voc"
    shutil.copytree(data / "detection/bccd_voc", voc)
    (voc / "labelmap.txt").write_text(
        "".join(f"{name}:::\n" for name in ("background", "WBC", "RBC", "Platelets"))
    )
    yield "VOC", Case(folder=voc, layout="voc", form="voc_detection", mend="from 1")
    yield "YOLO", Case(folder=cases / "yolo", layout="yolo", form="yolo")
    yield "KITTI", Case(folder=cases / "kitti", layout="kitti", form="kitti_detection")
    yield "WIDER FACE", Case(folder=cases / "wider", layout="wider", form="wider_face")
    yield (
        "COCO keypoints",
        Case(folder=_keypoints(work / "keypoints"), layout="coco", form="coco_person_keypoints", points=True),
    )
    open_images, boxes = _open_images(work / "open_images"), "annotations/train-annotations-bbox.csv"
    yield "Open Images", Case(folder=open_images, layout="csv", form="open_images", file=boxes)
    yield (
        "createml, datumaro",
        Case(folder=cases / "createml", layout="createml", form="roboflow_create_ml", mend="center"),
    )
    createml = {"images_directory_path": "train", "annotations_path": "train/_annotations.createml.json"}
    labelme = {"images_directory_path": "", "annotations_directory_path": ""}
    polygons = {"images_directory_path": "train/images", "annotations_directory_path": "train/labels"}
    for name, reader, paths in (
        ("createml", "from_createml", createml),
        ("labelme", "from_labelme", labelme),
        ("yolo_polygons", "from_yolo", {**polygons, "data_yaml_path": "data.yaml"}),
    ):
        layout = name.partition("_")[0]
        form = {"reader": reader, "paths": paths}
        yield (
            f"{name}, supervision",
            Case(folder=cases / name, layout=layout, reader="supervision", form=form),
        )


def _draw(folder: Path, *names: str) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (96, 64), "gray").save(folder / name)


def _keypoints(folder: Path) -> Path:
    """Write COCO keypoints: one person with three points, the last without a label."""
    _draw(folder / "images/val", "a.png")
    (folder / "annotations").mkdir()
    ids = {"id": 1, "image_id": 1, "category_id": 1, "iscrowd": 0}
    person = {"bbox": [10, 8, 30, 22], "area": 660, "segmentation": [[10, 8, 40, 8, 40, 30, 10, 30]]}
    points = {"keypoints": [12.5, 9.5, 2, 20.25, 11, 1, 0, 0, 0], "num_keypoints": 2}
    category = {"id": 1, "name": "person", "keypoints": ["nose", "eye", "tail"], "skeleton": [[1, 2]]}
    document = {
        "images": [{"id": 1, "file_name": "a.png", "width": 96, "height": 64}],
        "annotations": [ids | person | points],
        "categories": [category],
    }
    (folder / "annotations/person_keypoints_val.json").write_text(json.dumps(document))
    return folder


def _open_images(folder: Path) -> Path:
    """Write Open Images V6: class names, the list of pictures, and boxes as shares."""
    _draw(folder / "images/train", "0a.jpg", "0b.jpg")
    (folder / "annotations").mkdir()
    description = (
        "ImageID,Subset,OriginalURL,OriginalLandingURL,License,AuthorProfileURL,Author,Title,OriginalSize"
    )
    description += ",OriginalMD5,Thumbnail300KURL,Rotation\n"
    rows = "".join(f"{name},train{',' * 10}\n" for name in ("0a", "0b"))
    boxes = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"
    boxes += ",IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside\n"
    boxes += "0a,x,/m/01,1,0.125,0.5,0.25,0.75,0,0,0,0,0\n0b,x,/m/02,1,0,0.5,0.1,0.9,0,1,0,0,0\n"
    for name, content in {
        "class-descriptions-boxable.csv": "/m/01,/m/01\n/m/02,/m/02\n",  # datumaro keeps the ids as names
        "train-images-with-rotation.csv": description + rows,
        "train-annotations-bbox.csv": boxes,
    }.items():
        (folder / "annotations" / name).write_text(content)
    return folder


READERS: dict[str, Callable[[Case], Objects]] = {
    "datumaro": lambda case: read_with_datumaro(case.form, str(case.folder) + case.below, case.points),
    "supervision": lambda case: read_with_supervision(case.form, str(case.folder)),
}


def main() -> int:
    """Print a line per case, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the test data")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.read:
        given = json.loads(parsed.read)
        print(json.dumps(READERS[given["reader"]](Case(**given | {"folder": Path(given["folder"])}))))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as work:
        for name, case in chain(inputs(parsed.data, Path(work)), exports(parsed.data, Path(work))):
            if importlib.util.find_spec(case.reader) is None:
                print(f"{name:<36} {case.reader:<12} not installed")
                continue
            document = json.dumps(vars(case) | {"folder": str(case.folder)})
            command = [sys.executable, "-W", "ignore", __file__, "--read", document]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                found = f"{case.reader} fails: {done.stderr.strip().splitlines()[-1]}"
            else:
                theirs = json.loads(done.stdout.splitlines()[-1])
                reason, mend = MENDED.get(case.mend, ("", lambda *box: list(box)))
                theirs = {
                    key: [[one[0], *mend(*one[1:])] for one in objects] for key, objects in theirs.items()
                }
                found = difference(read_with_halofeed(case), theirs)
            failed |= bool(found)
            print(
                f"{name:<36} {case.reader:<12} {found or f'equal; {reason}'.removesuffix('; ')}", flush=True
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
