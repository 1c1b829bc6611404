"""Compare how halofeed and other programs read the same annotations: exports of halofeed, and formats that both read.

    pip install halofeed[convert,oracles]
    python benchmarks/other_readers.py                      # exit 1 if boxes differ by more than half a pixel
    python benchmarks/other_readers.py --python ../other/bin/python        # readers that do not fit beside halofeed

Each case is read by halofeed's layout, and by another program in another process. Classes and label images must be
equal, and boxes within half a pixel. `MENDED` has what the other program gets wrong, or means otherwise, with the
reason, and the boxes are compared after this is mended.

The extra `oracles` has datumaro, supervision and globox. label-studio-sdk, supervisely, labelme and ultralytics need
0.4 to 6 GB each: install them into environments of their own, and name these with --python, as scalabel,
cityscapesscripts, monai, pillow-jxl-plugin and pylibjpeg-libjpeg. Formats whose readers need more than that are
compared with stated numbers (reader stated).

Pictures are compared value by value. Decoders of lossy formats may round colors in other ways: the row says by how many
levels at most.
"""

from __future__ import annotations

import argparse
import base64
import csv
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Objects = dict[str, list[list[Any]]]
"""By the name of a picture: [class, xmin, ymin, xmax, ymax] of each object, or [class] of a picture."""
HALF_A_PIXEL = 0.5 + 1e-4
STATED, REGION = "stated", "ignored region"
HERE = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("HALOFEED_TEST_DATA", HERE.parent / "shared/data"))
# First, because rt-utils installs a package of its own that is named tests.
sys.path.insert(0, str(HERE))

from picture_readers import (  # noqa: E402
    DECODERS,
    picture_rows,
    read_list_with_halofeed,
    read_pixels_with,
    read_pixels_with_halofeed,
    read_with_croissant,
    read_with_monai,
    record_rows,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Annotations that two programs read.

    Args:
        folder: folder for both programs.
        layout: halofeed's layout.
        reader: key of `READERS`, the module of the other program; "stated" for boxes that `form` states where no
            program reads the format. Ignored regions are then compared too, as objects of the class `REGION`.
        form: datumaro's name of the format, or the arguments of another reader.
        below: folder of this case that the other program reads.
        points: whether to compare labeled keypoints instead of boxes.
        in_volumes: whether boxes are in volumes: xmin, ymin, zmin, xmax, ymax, zmax in voxels of the file.
        patterns: options of a conversion of label images, to compare them instead of boxes.
        file: annotation file for halofeed, if it cannot be left out.
        mend: key of `MENDED`.
        pixels: whether to compare the pixels of the pictures in the folder; `form` has their channels and bits.
        by_first_value: whether pictures are named by their first value, because they are in containers.
        is_list: whether to compare the files of each entry of a list of volumes.
        within: largest difference between two numbers.
    """

    folder: Path
    layout: str
    reader: str = "datumaro"
    form: Any
    below: str = ""
    points: bool = False
    in_volumes: bool = False
    patterns: tuple[str, ...] = ()
    file: str | None = None
    mend: str = ""
    pixels: bool = False
    by_first_value: bool = False
    is_list: bool = False
    within: float = HALF_A_PIXEL


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
    "last pixel": (
        "scalabel adds the last pixel to boxes with fractions too, which are positions",
        lambda left, top, right, bottom: [left, top, right - 1, bottom - 1],
    ),
    "outline": (
        "labelme's masks hold the pixels of the outline, so that they are a pixel wider than their shape",
        lambda left, top, right, bottom: [left, top, right - 1, bottom - 1],
    ),
}
"""What another program gets wrong or means otherwise, and the function that gives the right box for its box."""


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


def read_labels_with_datumaro(folder: str) -> Objects:
    """Return what `pixels_by_class` gives of the class masks of VOC's SegmentationClass."""
    import datumaro

    dataset = datumaro.Dataset.import_from(folder, "voc_segmentation")
    names = dataset.categories()[datumaro.AnnotationType.label]
    found: Objects = {}
    for item in dataset:
        masks = [one for one in item.annotations if isinstance(one, datumaro.Mask)]
        by_class: dict[str, NDArray[np.bool_]] = {}
        for one in masks:
            if (name := names[one.label].name) in ("background", "ignored"):
                continue
            by_class[name] = by_class.get(name, np.zeros(one.image.shape, bool)) | one.image.astype(bool)
        if masks:
            found[Path(item.media.path).stem] = pixels_by_class(by_class)
    return found


def pixels_by_class(masks: Mapping[str, NDArray[np.bool_]]) -> list[list[Any]]:
    """Return [class, number of its pixels, CRC-32 of its mask] of each class that has pixels."""
    return [
        [name, int(mask.sum()), zlib.crc32(np.packbits(mask).tobytes())]
        for name, mask in masks.items()
        if mask.any()
    ]


def read_with_globox(form: dict[str, Any], folder: str) -> Objects:
    """Return the objects of a data set; `form` is the name of its reader, a file, and the other arguments."""
    import globox

    read = getattr(globox.AnnotationSet, form["reader"])
    found = read(f"{folder}/{form['file']}", image_folder=folder, **form["arguments"])
    return {
        Path(one.image_id).stem: [[box.label, box.xmin, box.ymin, box.xmax, box.ymax] for box in one.boxes]
        for one in found
    }


def read_with_label_studio(config: str, folder: str) -> Objects:
    """Return the objects of Label Studio's own export to COCO; `config` is the labeling configuration."""
    from label_studio_sdk.converter import Converter

    with tempfile.TemporaryDirectory() as out:
        converter = Converter(config, folder, download_resources=False)
        converter.convert_to_coco(f"{folder}/project.json", out, is_dir=False)
        document = json.loads(Path(out, "result.json").read_text())
    names = {one["id"]: one["name"] for one in document["categories"]}
    found: Objects = {}
    for image in document["images"]:
        boxes = [
            (one["category_id"], *one["bbox"])
            for one in document["annotations"]
            if one["image_id"] == image["id"]
        ]
        found[Path(image["file_name"]).stem.rpartition("__")[2]] = [  # it puts a digest before the name
            [names[label], x, y, x + width, y + height] for label, x, y, width, height in boxes
        ]
    return found


def read_brushes(folder: Path) -> Objects:
    """Return the boxes around the pixels with alpha, as Label Studio's converter unpacks brushes."""
    from label_studio_sdk.converter.brush import decode_rle

    found: Objects = {}
    for task in json.loads((folder / "project.json").read_text()):
        objects = found.setdefault(Path(task["data"]["image"]).stem, [])
        for one in task["annotations"][0]["result"]:
            pixels = decode_rle(one["value"]["rle"]).reshape(one["original_height"], one["original_width"], 4)
            rows, columns = np.nonzero(pixels[..., 3])
            edges = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            objects.append([one["value"]["brushlabels"][0], *map(int, edges)])
    return found


def read_with_supervisely(_: None, folder: str) -> Objects:
    """Return the objects of a project of Supervisely; its boxes include their last row and column."""
    import supervisely

    meta = supervisely.ProjectMeta.from_json(json.loads(Path(folder, "meta.json").read_text()))
    found: Objects = {}
    for path in Path(folder).glob("*/ann/*.json"):
        labels = supervisely.Annotation.from_json(json.loads(path.read_text()), meta).labels
        boxes = [(one.obj_class.name, one.geometry.to_bbox()) for one in labels]
        found[path.name.partition(".")[0]] = [
            [name, box.left, box.top, box.right + 1, box.bottom + 1] for name, box in boxes
        ]
    return found


def read_with_labelme(_: None, folder: str) -> Objects:
    """Return the boxes of labelme's own masks of the shapes."""
    import labelme
    from labelme.utils.shape import masks_to_bboxes, shape_to_mask

    found: Objects = {}
    for path in Path(folder).glob("*.json"):
        document = json.loads(path.read_text())
        shapes = labelme.LabelFile(str(path)).shapes
        size = document["imageHeight"], document["imageWidth"]
        masks = np.stack([shape_to_mask(size, one["points"], one["shape_type"]) for one in shapes])
        found[path.stem] = [
            [one["label"], left, top, right, bottom]
            for one, (top, left, bottom, right) in zip(shapes, masks_to_bboxes(masks).tolist(), strict=True)
        ]
    return found


def read_with_ultralytics(form: dict[str, Any], folder: str) -> Objects:
    """Return the keypoints of poses, checked by Ultralytics; `form` has the names and the shape of data.yaml."""
    from ultralytics.data.utils import verify_image_label

    found: Objects = {}
    for path in Path(folder, "images").rglob("*.png"):
        label = str(path.with_suffix(".txt")).replace("/images/", "/labels/")
        checked = verify_image_label(
            (str(path), label, "", True, len(form["names"]), *form["kpt_shape"], False)
        )
        _, objects, (height, width), _, points, *_ = checked
        found[path.stem] = [
            [
                form["names"][int(one[0])],
                *(places[places[:, 2] > 0, :2] * (width, height)).reshape(-1).tolist(),
            ]
            for one, places in zip(objects, points, strict=True)
        ]
    return found


def read_labels_with_halofeed(case: Case) -> Objects:
    """Return what `pixels_by_class` gives of the stored label images of a conversion."""
    import halofeed

    with tempfile.TemporaryDirectory() as out:
        run_halofeed(
            *("convert", "--source", case.folder, "--layout", case.layout, "--out", out, "--name", "set"),
            *("--resize", "none", "--encoding", "png", *case.patterns),
        )
        data = halofeed.open(f"{out}/set")
        found: Objects = {}
        for split in data.splits:
            for record in data.loader(split, batch_size=1, shuffle=False, include=["key"]).records:
                classes = enumerate(data.class_names)
                masks = {name: record["label"] == value for value, name in classes if value}
                found[Path(str(record["key"])).stem] = pixels_by_class(masks)
    return found


def read_with_scalabel(folder: str) -> Objects:
    """Return the boxes of Scalabel's own conversion to COCO."""
    from scalabel.label.io import load
    from scalabel.label.to_coco import scalabel2coco_detection

    data = load(f"{folder}/det_train.json")
    coco = scalabel2coco_detection(data.frames, data.config)
    names = {one["id"]: one["name"] for one in coco["categories"]}
    found: Objects = {Path(one["file_name"]).stem: [] for one in coco["images"]}
    stems = {one["id"]: Path(one["file_name"]).stem for one in coco["images"]}
    for one in coco["annotations"]:
        left, top, width, height = one["bbox"]
        box = [left, top, left + width, top + height]
        found[stems[one["image_id"]]].append([names[one["category_id"]], *box])
    return found


def read_with_cityscapes(folder: str) -> Objects:
    """Return the boxes around the polygons that the scripts of Cityscapes take for instances."""
    from cityscapesscripts.helpers.annotation import Annotation
    from cityscapesscripts.helpers.labels import assureSingleInstanceName, name2label

    found: Objects = {}
    for path in Path(folder).rglob("*_polygons.json"):
        annotation = Annotation()
        annotation.fromJsonFile(str(path))
        objects = found.setdefault(path.name.replace("_gtFine_polygons.json", "_leftImg8bit"), [])
        for one in annotation.objects:
            name = assureSingleInstanceName(one.label)
            if not one.deleted and name is not None and name2label[name].hasInstances:
                x, y = zip(*one.polygon, strict=True)
                objects.append([name, min(x), min(y), max(x), max(y)])
    return found


def scan_name(path: str) -> str:
    """Return the name of a scan without folder, extension and channel."""
    name = Path(path).name
    return name.removesuffix(".mhd").removesuffix(".nii.gz").removesuffix("_0000")


def read_volumes_with_halofeed(case: Case) -> Objects:
    """Return the objects of a data set of volumes: a conversion, exported as a table in voxels of the sources."""
    with tempfile.TemporaryDirectory() as out:
        shape = [word for side in ("depth", "height", "width") for word in (f"--{side}", 64)]
        run_halofeed(
            *(
                "convert",
                "--source",
                case.folder,
                "--layout",
                case.layout,
                "--out",
                out,
                "--name",
                "set",
                *shape,
            )
        )
        run_halofeed("export", f"{out}/set/1.0.0", "--to", "scan-boxes", "--out", f"{out}/table")
        rows = list(csv.DictReader(Path(out, "table", "boxes.csv").read_text().splitlines()))
    found: Objects = {}
    for row in rows:
        objects = found.setdefault(scan_name(row["filename"]), [])
        if row["class"]:
            sides = (f"{axis}{end}" for end in ("min", "max") for axis in "xyz")
            objects.append([row["class"], *(float(row[side]) for side in sides)])
    return found


def read_with_simpleitk(form: Mapping[str, str], folder: str) -> Objects:
    """Return the objects of volumes: spheres of a table in millimeters, or boxes of numbered objects."""
    import SimpleITK

    found: Objects = {}
    if table := form.get("table"):
        scans = {scan_name(str(path)): path for path in Path(folder).rglob("*.mhd")}
        found = {name: [] for name in scans}
        for row in csv.DictReader(Path(folder, table).read_text().splitlines()):
            if row["seriesuid"] not in scans:
                continue
            image = SimpleITK.ReadImage(str(scans[row["seriesuid"]]))
            place = [float(row[f"coord{axis}"]) for axis in "XYZ"]
            # ITK counts from the center of the first voxel.
            center = np.array(image.TransformPhysicalPointToContinuousIndex(place)) + 0.5
            reach = float(row["diameter_mm"]) / 2 / np.array(image.GetSpacing())
            found[row["seriesuid"]].append(["nodule", *(center - reach), *(center + reach)])
        return found
    names = json.loads(Path(folder, "dataset.json").read_text())["labels"]
    for path in Path(folder, "labelsTr").glob("*.nii.gz"):
        statistics = SimpleITK.LabelShapeStatisticsImageFilter()
        statistics.Execute(SimpleITK.ReadImage(str(path)))
        classes = json.loads(Path(str(path).replace(".nii.gz", ".json")).read_text())["instances"]
        objects = found.setdefault(scan_name(str(path)), [])
        for number in statistics.GetLabels():
            start, size = np.split(np.array(statistics.GetBoundingBox(number)), 2)
            objects.append([names[str(classes[str(number)])], *map(float, start), *map(float, start + size)])
    return found


def read_with_halofeed(case: Case) -> Objects:
    """Return the objects of a data set as a layout reads them."""
    from halofeed.prep.convert.drawn_boxes import with_drawn_boxes
    from halofeed.prep.layouts import LayoutOptions, find_layout
    from halofeed.prep.options.recipe import Recipe
    from halofeed.prep.sources.files import LocalFiles

    if case.in_volumes:
        return read_volumes_with_halofeed(case)
    if case.patterns:
        return read_labels_with_halofeed(case)
    if case.pixels:
        return read_pixels_with_halofeed(case.folder, case.form)
    if case.is_list:
        return read_list_with_halofeed(case.layout, case.folder)
    files, found = LocalFiles(case.folder), {}
    task = "detection" if case.layout == "cityscapes" else None
    options = LayoutOptions(keep=("keypoints",) if case.points else (), task=task)
    recipe = Recipe(height=16, width=16)
    for one in find_layout(case.layout).list_references(files, files, case.file, options):
        path = case.folder / one.source
        if one.problem or case.below not in str(path):
            continue
        one = with_drawn_boxes(one, files, recipe)
        with Image.open(io.BytesIO(files.read(one.source))) as picture:
            scale = np.array(picture.size) if one.normalized else np.ones(2)
            first = int(np.asarray(picture).ravel()[0])
        rows = [
            [
                box.label,
                *(np.reshape([(p.x, p.y) for p in box.keypoints if p.visibility], (-1, 2)) * scale).ravel(),
            ]
            if case.points
            else [box.label, *(np.array([box.xmin, box.ymin, box.xmax, box.ymax]) * np.tile(scale, 2))]
            for box in one.boxes or ()
        ]
        regions = one.ignored_regions if case.reader == STATED else ()
        rows += [[REGION, xmin, ymin, xmax, ymax] for ymin, xmin, ymax, xmax in regions]
        name = str(first) if case.by_first_value else path.stem
        found[name] = rows if one.boxes is not None else [[one.label]]
    return found


def difference(ours: Objects, theirs: Objects, within: float = HALF_A_PIXEL) -> str:
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
                and np.abs(np.subtract(entry[1:], item[1:])).max(initial=0) <= within
            ]
            if not near:
                return f"{name}: {item!s:.200} is none of {waiting!s:.200}"
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
    coco = work / "coco"
    (coco / "annotations").mkdir(parents=True)
    shutil.copytree(data / "detection/coco_ccby/images", coco / "images")
    document = json.loads((data / "detection/coco_ccby/instances.json").read_text())
    # Of a crowd datumaro keeps the mask, which is a pixel wider than COCO's box of it.
    document["annotations"] = [one for one in document["annotations"] if not one["iscrowd"]]
    (coco / "annotations/instances_train.json").write_text(json.dumps(document))
    yield "COCO", Case(folder=coco, layout="coco", form="coco_instances")
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
    yield "VisDrone", _visdrone(work / "visdrone")
    yield "CrowdHuman", _crowdhuman(work / "crowdhuman")
    yield "WIDER FACE", Case(folder=cases / "wider", layout="wider", form="wider_face")
    yield (
        "COCO keypoints",
        Case(folder=_keypoints(work / "keypoints"), layout="coco", form="coco_person_keypoints", points=True),
    )
    voc_masks = copied("voc_segmentation")
    shutil.rmtree(voc_masks / "SegmentationObject")  # empty drawings, which datumaro prefers to the classes
    for path in (voc_masks / "SegmentationClass").iterdir():
        with Image.open(path) as label:
            label.load()
        label.putpalette(
            [*(label.getpalette() or [])[:765], 224, 224, 192]
        )  # the color of 255 in VOC's files
        label.save(path)
    patterns = (
        *("--image-pattern", "JPEGImages/{id}.jpg", "--label-pattern", "SegmentationClass/{id}.png"),
        *("--map-classes", "1=aeroplane,2=bicycle"),
    )
    yield (
        "VOC SegmentationClass",
        Case(folder=voc_masks, layout="pairs", form="voc_segmentation", patterns=patterns),
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


def _visdrone(folder: Path) -> Case:
    """Write VisDrone's text files: objects, an ignored region, others, and a line that ends with a comma."""
    _draw(folder / "images", "1.jpg", "2.jpg")
    (folder / "annotations").mkdir()
    (folder / "annotations/1.txt").write_text("10,8,30,22,1,4,0,0\n50,10,20,30,0,0,0,0\n")
    (folder / "annotations/2.txt").write_text("5,40,10,12,1,1,0,1,\n70,30,20,20,0,11,0,0\n")
    boxes = {
        "1": [["car", 10, 8, 40, 30], [REGION, 50, 10, 70, 40]],
        "2": [["pedestrian", 5, 40, 15, 52], [REGION, 70, 30, 90, 50]],
    }
    return Case(folder=folder, layout="visdrone", reader=STATED, form=boxes)


def _crowdhuman(folder: Path) -> Case:
    """Write CrowdHuman's list: a person that leaves the picture, one that is ignored, and a mask."""
    _draw(folder / "Images", "27,ab.jpg")
    persons = [
        {"tag": "person", "fbox": [-5, 8, 30, 50], "extra": {"box_id": 0}},
        {"tag": "person", "fbox": [40, 8, 10, 20], "extra": {"box_id": 1, "ignore": 1}},
        {"tag": "mask", "fbox": [60, 20, 20, 20], "extra": {"ignore": 1}},
    ]
    (folder / "annotation_val.odgt").write_text(json.dumps({"ID": "27,ab", "gtboxes": persons}) + "\n")
    boxes = [["person", -5, 8, 25, 58], [REGION, 40, 8, 50, 28], [REGION, 60, 20, 80, 40]]
    return Case(folder=folder, layout="crowdhuman", reader=STATED, form={"27,ab": boxes})


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


def volumes(work: Path) -> Iterator[tuple[str, Case]]:
    """Draw sets with boxes in volumes, and yield a case for each."""
    from tests.support.scan_box_sets import draw_luna, draw_nndetection

    itk: Mapping[str, Any] = {"reader": "SimpleITK", "in_volumes": True}
    for name, oblique in (("LUNA16", False), ("LUNA16, oblique scans", True)):
        draw_luna(folder := work / f"luna {oblique}", oblique=oblique)
        yield name, Case(folder=folder, layout="luna16", form={"table": "annotations.csv"}, **itk)
    draw_nndetection(folder := work / "nndetection")
    yield "nnDetection", Case(folder=folder, layout="nndetection", form={}, **itk)


def drawn(work: Path) -> Iterator[tuple[str, Case]]:
    """Draw a case for each format whose reader is a program of its own, and yield it."""
    car, sides = {"label": "car"}, ("x", "y", "width", "height")

    def region(name: str, *values: int) -> dict[str, Any]:
        return {
            "shape_attributes": {"name": "rect", **dict(zip(sides, values, strict=True))},
            "region_attributes": {"type": name},
        }

    _draw(folder := work / "via", "a.png", "b.png")
    regions = {
        "a.png": [region("car", 10, 8, 30, 22), region("dog", 0, 0, 96, 64)],
        "b.png": [region("dog", 3, 4, 7, 5)],
    }
    entries = {f"{name}123": {"filename": name, "size": 123, "regions": one} for name, one in regions.items()}
    (folder / "via.json").write_text(json.dumps(entries))
    form: Any = {"reader": "from_via_json", "file": "via.json", "arguments": {"label_key": "type"}}
    yield "VIA", Case(folder=folder, layout="via", reader="globox", form=form)

    _draw(folder := work / "label_studio", "a.png")
    tags = {"rectanglelabels": ("box", "RectangleLabels"), "polygonlabels": ("poly", "PolygonLabels")}
    label = "".join(
        f'<{tag} name="{name}" toName="image"><Label value="car"/></{tag}>' for name, tag in tags.values()
    )
    values: list[tuple[str, dict[str, Any]]] = [
        ("rectanglelabels", {"x": 10.4, "y": 12.5, "width": 31, "height": 34, "rotation": 0}),
        ("polygonlabels", {"points": [[10, 20], [90, 20], [50, 80.5]]}),
    ]
    results = [
        {
            "id": kind,
            "type": kind,
            "from_name": tags[kind][0],
            "to_name": "image",
            "original_width": 96,
            "original_height": 64,
            "value": {**value, kind: ["car"]},
        }
        for kind, value in values
    ]
    task = {"id": 1, "data": {"image": "a.png"}, "annotations": [{"id": 1, "result": results}]}
    (folder / "project.json").write_text(json.dumps([task]))
    form = f'<View><Image name="image" value="$image"/>{label}</View>'
    yield "Label Studio", Case(folder=folder, layout="label-studio", reader="label_studio_sdk", form=form)

    _draw((folder := work / "supervisely") / "ds0/img", "a.png")
    (folder / "ds0/ann").mkdir()
    bitmap = io.BytesIO()
    Image.fromarray(np.full((5, 7), 255, np.uint8)).save(bitmap, "PNG")
    packed = base64.b64encode(zlib.compress(bitmap.getvalue())).decode()
    shapes = [
        {"geometryType": "rectangle", "points": {"exterior": [[40, 30], [10, 8]], "interior": []}},
        {"geometryType": "polygon", "points": {"exterior": [[1, 2], [9, 2], [5, 8]], "interior": []}},
        {"geometryType": "bitmap", "bitmap": {"origin": [3, 4], "data": packed}},
    ]
    classes = [
        {"title": one["geometryType"], "shape": one["geometryType"], "color": "#FF0000"} for one in shapes
    ]
    objects = [{**one, "classTitle": one["geometryType"], "tags": []} for one in shapes]
    annotation = {"description": "", "tags": [], "size": {"height": 64, "width": 96}, "objects": objects}
    (folder / "ds0/ann/a.png.json").write_text(json.dumps(annotation))
    (folder / "meta.json").write_text(json.dumps({"classes": classes, "tags": []}))
    yield "Supervisely", Case(folder=folder, layout="supervisely", reader="supervisely", form=None)

    _draw(folder := work / "labelme", "a.png")
    kinds = {
        "rectangle": [[10, 8], [40, 30]],
        "polygon": [[1, 2], [9, 2], [5, 8]],
        "circle": [[20, 20], [23, 24]],
    }
    document: Any = {
        "version": "5.0",
        "flags": {},
        "shapes": [{**car, "points": points, "shape_type": kind} for kind, points in kinds.items()],
        "imagePath": "a.png",
        "imageData": None,
        "imageHeight": 64,
        "imageWidth": 96,
    }
    (folder / "a.json").write_text(json.dumps(document))
    yield "labelme", Case(folder=folder, layout="labelme", reader="labelme", form=None, mend="outline")

    folder = work / "poses"
    for split in ("train", "val"):
        _draw(folder / "images" / split, f"{split}.png")
        (folder / "labels" / split).mkdir(parents=True)
        rows = "1 0.5 0.5 0.5 0.5 0.3 0.4 2 0.52 0.61 1 0 0 0\n0 0.25 0.25 0.2 0.3 0.2 0.2 2 0.25 0.3 2 0.3 0.35 1\n"
        (folder / "labels" / split / f"{split}.txt").write_text(rows)
    yaml = "train: images/train\nval: images/val\nkpt_shape: [3, 3]\nnames: [cat, dog]\n"
    (folder / "data.yaml").write_text(yaml)
    form = {"names": ["cat", "dog"], "kpt_shape": [3, 3]}
    yield "YOLO poses", Case(folder=folder, layout="yolo", reader="ultralytics", form=form, points=True)


SIZE = (96, 64)  # of the pictures that `_draw` makes
WRITTEN: Objects = {"a": [["cat", 10, 8, 40, 30], ["dog", 50, 20, 90, 60]], "b": []}
"""Objects of formats that no other program at hand reads; their inputs are written from these numbers."""


def stated(work: Path) -> Iterator[tuple[str, Case]]:
    """Write pictures and `WRITTEN` in formats whose readers need a database, a service or a training framework."""
    width, height = SIZE
    names = ["cat", "dog"]
    boxes: dict[str, list[list[int]]] = {
        f"{name}.png": [[names.index(label), *box] for label, *box in found]
        for name, found in WRITTEN.items()
    }
    shares = {
        name: [
            [number, left / width, top / height, (right - left) / width, (bottom - top) / height]
            for number, left, top, right, bottom in found
        ]
        for name, found in boxes.items()
    }
    fiftyone: dict[str, Any] = {"classes": names, "labels": {}}
    for name, found in shares.items():
        fiftyone["labels"][Path(name).stem] = [{"label": one[0], "bounding_box": one[1:]} for one in found]
    ndjson: list[dict[str, Any]] = [
        {"type": "dataset", "task": "detect", "class_names": {"0": "cat", "1": "dog"}}
    ]
    for name, found in shares.items():
        rows = [[one[0], one[1] + one[3] / 2, one[2] + one[4] / 2, *one[3:]] for one in found]
        ndjson.append({"type": "image", "file": name, "split": "train", "annotations": {"boxes": rows}})
    meta = {"type": "groundtruth/object-detection", "class-map": {"0": "cat", "1": "dog"}}
    manifest = [
        {
            "source-ref": f"s3://bucket/data/{name}",
            "job": {
                "image_size": [{"width": width, "height": height, "depth": 3}],
                "annotations": [
                    {
                        "class_id": number,
                        "left": left,
                        "top": top,
                        "width": right - left,
                        "height": bottom - top,
                    }
                    for number, left, top, right, bottom in found
                ],
            },
            "job-metadata": meta,
        }
        for name, found in boxes.items()
    ]
    lines = [
        " ".join([f"data/{name}", *(",".join(map(str, (*one[1:], one[0]))) for one in found)])
        for name, found in boxes.items()
    ]
    texts = {
        "FiftyOne": ("fiftyone", {"labels.json": json.dumps(fiftyone)}),
        "Ultralytics NDJSON": ("yolo-ndjson", {"set.ndjson": "\n".join(map(json.dumps, ndjson))}),
        "SageMaker": ("sagemaker", {"train.manifest": "\n".join(map(json.dumps, manifest))}),
        "keras-yolo3": ("keras-yolo", {"train.txt": "\n".join(lines), "classes.txt": "cat\ndog\n"}),
    }
    for name, (layout, files) in texts.items():
        _draw(work / layout / "data", *boxes)
        for file, text in files.items():
            (work / layout / file).write_text(text)
        yield name, Case(folder=work / layout, layout=layout, reader=STATED, form=WRITTEN)
    yield from _drawn_masks(work, boxes)


def _drawn_masks(work: Path, boxes: Mapping[str, Sequence[Sequence[int]]]) -> Iterator[tuple[str, Case]]:
    """Write the same boxes as masks: a file for each object, and Penn-Fudan's label images with their text."""
    people = {
        Path(name).stem: [["PASpersonWalking", *one[1:]] for one in found] for name, found in boxes.items()
    }
    for name, found in boxes.items():
        stem = Path(name).stem
        _draw(work / "masks" / stem / "images", name)
        (work / "masks" / stem / "masks").mkdir()
        numbers = np.zeros(SIZE[::-1], np.uint8)
        text = f'# Compatible with PASCAL Annotation Version 1.00\nImage filename : "Set/PNGImages/{name}"\n'
        text += "# Top left pixel co-ordinates : (1, 1)\n"
        for place, (_, left, top, right, bottom) in enumerate(found, start=1):
            alone = np.zeros(SIZE[::-1], np.uint8)
            alone[top:bottom, left:right] = 255
            Image.fromarray(alone).save(work / "masks" / stem / f"masks/{place}.png")
            numbers[top:bottom, left:right] = place
            text += f'Bounding box for object {place} "PASpersonWalking" (Xmin, Ymin) - (Xmax, Ymax) : '
            text += f"({left + 1}, {top + 1}) - ({right}, {bottom})\n"
        for folder in ("PNGImages", "PedMasks", "Annotation"):
            (work / "pedestrians" / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE, "gray").save(work / "pedestrians/PNGImages" / name)
        Image.fromarray(numbers).save(work / "pedestrians/PedMasks" / f"{stem}_mask.png")
        (work / "pedestrians/Annotation" / f"{stem}.txt").write_text(text)
    one_class = {name: [["object", *one[1:]] for one in found] for name, found in people.items() if found}
    yield "DSB 2018", Case(folder=work / "masks", layout="object-masks", reader=STATED, form=one_class)
    yield "Penn-Fudan", Case(folder=work / "pedestrians", layout="pascal-text", reader=STATED, form=people)


def masks_and_frames(work: Path) -> Iterator[tuple[str, Case]]:
    """Write `WRITTEN` as run lengths, as brushes, and as boxes of the frames of sequences."""
    pictures = {
        name: [(label, _rectangle(*map(int, sides))) for label, *sides in found]
        for name, found in WRITTEN.items()
    }
    rows = [(name, label, _runs(mask)) for name, found in pictures.items() for label, mask in found]
    rows += [(name, "", "") for name, found in pictures.items() if not found]
    _draw(folder := work / "run-lengths", *(f"{name}.png" for name in WRITTEN))
    text = "".join(f"{name}.png,{label},{runs}\n" for name, label, runs in rows)
    (folder / "train.csv").write_text(f"ImageId,class,EncodedPixels\n{text}")
    yield "run lengths", Case(folder=folder, layout="run-lengths", reader=STATED, form=WRITTEN)

    width, height = SIZE
    size = f'width="{width}" height="{height}"'
    shapes = "".join(
        f'<mask label="{label}" rle="0, {(right - left) * (bottom - top)}" left="{left}" top="{top}" '
        f'width="{right - left}" height="{bottom - top}"/>'
        for label, left, top, right, bottom in WRITTEN["a"]
    )
    _draw(folder := work / "brushes", "a.png")
    (folder / "a.xml").write_text(f'<annotations><image name="a.png" {size}>{shapes}</image></annotations>')
    only = {"a": WRITTEN["a"]}
    yield "CVAT, brushes", Case(folder=folder, layout="cvat", reader=STATED, form=only)

    _draw(folder := work / "label_studio_brushes", "a.png")
    results = [
        {
            "type": "brushlabels",
            "original_width": width,
            "original_height": height,
            "value": {"format": "rle", "rle": _packed(mask), "brushlabels": [label]},
        }
        for label, mask in pictures["a"]
    ]
    task = {"data": {"image": "a.png"}, "annotations": [{"result": results}]}
    (folder / "project.json").write_text(json.dumps([task]))
    yield (
        "Label Studio, brushes",
        Case(folder=folder, layout="label-studio", reader="label_studio_sdk", form=""),
    )

    _draw(folder := work / "mot/img1", *(f"00000{number}.jpg" for number in (1, 2)))
    (folder.parent / "gt").mkdir()
    lines = [
        f"1,{number},{left + 0.5},{top},{right - left},{bottom - top},1,{number},1\n"
        for number, (_, left, top, right, bottom) in enumerate(WRITTEN["a"], start=1)
    ]
    (folder.parent / "gt/gt.txt").write_text("".join(lines))
    (folder.parent / "gt/labels.txt").write_text("cat\ndog\n")
    yield "MOT challenge", Case(folder=folder.parent, layout="mot", form="mot_seq")

    frames = {"frame_000000": 0, "frame_000001": 1, "frame_000002": 2}
    _draw(folder := work / "key_frames", *(f"{name}.png" for name in frames))
    corners = ("xtl", "ytl", "xbr", "ybr")
    keys = "".join(
        f'<box frame="{number}" outside="0" '
        + " ".join(f'{key}="{side + 4 * number}"' for key, side in zip(corners, (10, 8, 40, 30), strict=True))
        + "/>"
        for number in (0, 2)
    )
    meta = "<meta><task><start_frame>0</start_frame><stop_frame>2</stop_frame></task></meta>"
    (folder / "a.xml").write_text(f'<annotations>{meta}<track label="car">{keys}</track></annotations>')
    moved = {name: [["car", *(side + 4 * n for side in (10, 8, 40, 30))]] for name, n in frames.items()}
    yield "CVAT, key frames", Case(folder=folder, layout="cvat", reader=STATED, form=moved)

    _draw(folder := work / "visdrone_video/sequences/v1", "0000001.jpg", "0000002.jpg")
    (folder.parents[1] / "annotations").mkdir()
    (folder.parents[1] / "annotations/v1.txt").write_text("1,0,10,8,30,22,1,4,0,0\n2,1,50,20,40,40,0,0,0,0\n")
    form: Objects = {"0000001": [["car", 10, 8, 40, 30]], "0000002": [[REGION, 50, 20, 90, 60]]}
    yield (
        "VisDrone's videos",
        Case(folder=folder.parents[1], layout="visdrone-video", reader=STATED, form=form),
    )


def _rectangle(left: int, top: int, right: int, bottom: int) -> NDArray[np.bool_]:
    mask = np.zeros(SIZE[::-1], np.bool_)
    mask[top:bottom, left:right] = True
    return mask


def _runs(mask: NDArray[np.bool_]) -> str:
    """Return run lengths down the columns, from 1."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.T.ravel().astype(np.int8), [0]])))
    return " ".join(f"{start + 1} {end - start}" for start, end in edges.reshape(-1, 2))


def _packed(mask: NDArray[np.bool_]) -> list[int]:
    """Return the four values of each pixel as Label Studio packs them, each pixel in a run of its own."""
    bits = f"{4 * mask.size:032b}{7:05b}" + "".join(f"{length - 1:04b}" for length in (3, 4, 8, 16))
    bits += "".join(f"100{3:03b}{255 * int(inside):08b}" for inside in mask.ravel())
    bits += "0" * (-len(bits) % 8)
    return [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]


def street_scenes(work: Path) -> Iterator[tuple[str, Case]]:
    """Write frames of BDD100K, with whole numbers and with fractions, polygons of Cityscapes, and Datumaro's JSON."""
    for name, shift, mend in (("BDD100K", 0, ""), ("BDD100K, fractions", 0.25, "last pixel")):
        _draw(folder := work / f"frames{shift}", "a.png", "b.png")
        corners = {"x1": 10 + shift, "y1": 8, "x2": 40, "y2": 30}
        written: list[dict[str, Any]] = [
            {
                "id": "1",
                "category": "car",
                "box2d": corners,
                "attributes": {"occluded": True, "crowd": False},
            },
            {"id": "2", "category": "rider", "box2d": {"x1": 50, "y1": 20, "x2": 90, "y2": 60}},
        ]
        frames: list[dict[str, Any]] = [{"name": "a.png", "labels": written}, {"name": "b.png", "labels": []}]
        config = {
            "imageSize": {"width": SIZE[0], "height": SIZE[1]},
            "categories": [{"name": "car"}, {"name": "rider"}],
        }
        (folder / "det_train.json").write_text(json.dumps({"frames": frames, "config": config}))
        yield name, Case(folder=folder, layout="bdd100k", reader="scalabel", form=None, mend=mend)
    town = "train/aachen"
    _draw(work / "town/leftImg8bit" / town, "a_leftImg8bit.png")
    (work / "town/gtFine" / town).mkdir(parents=True)
    outline = [[10, 8], [40, 9], [38, 30], [12, 30]]
    labels = ("road", "car", "persongroup", "polegroup", "bicycle", "license plate")
    objects = [{"label": label, "polygon": outline} for label in labels]
    document: dict[str, Any] = {"imgHeight": SIZE[1], "imgWidth": SIZE[0], "objects": objects}
    (work / "town/gtFine" / town / "a_gtFine_polygons.json").write_text(json.dumps(document))
    yield "Cityscapes", Case(folder=work / "town", layout="cityscapes", reader="cityscapesscripts", form=None)
    _draw(folder := work / "datumaro/images/train", "a.png")
    (work / "datumaro/annotations").mkdir()
    shapes = [
        {"type": "bbox", "label_id": 0, "bbox": [10, 8, 30, 22], "group": 0},
        {"type": "polygon", "label_id": 1, "points": [50, 20, 90, 20, 90, 60], "group": 2},
        {"type": "polygon", "label_id": 1, "points": [1, 1, 9, 1, 9, 5], "group": 2},
    ]
    annotations = [{"id": at, "attributes": {}, "z_order": 0, **one} for at, one in enumerate(shapes)]
    categories = {"label": {"labels": [{"name": name, "parent": ""} for name in ("cat", "dog")]}}
    item = {"id": "a", "annotations": annotations, "attr": {}, "image": {"path": "a.png", "size": [64, 96]}}
    document = {
        "dm_format_version": "1.0",
        "media_type": 2,
        "infos": {},
        "categories": categories,
        "items": [item],
    }
    (work / "datumaro/annotations/train.json").write_text(json.dumps(document))
    yield "Datumaro", Case(folder=work / "datumaro", layout="datumaro", form="datumaro")
    poses = [
        {
            "type": "points",
            "label_id": 0,
            "points": [12.5, 9, 20, 11, 0, 0],
            "visibility": [2, 1, 0],
            "group": 1,
        },
        {"type": "bbox", "label_id": 0, "bbox": [10, 8, 30, 22], "group": 1},
    ]
    item["annotations"] = [{"id": at, "attributes": {}, "z_order": 0, **one} for at, one in enumerate(poses)]
    named = {"label_id": 0, "labels": ["nose", "eye", "tail"], "joints": [], "positions": []}
    document["categories"]["points"] = {"items": [named]}
    shutil.copytree(work / "datumaro", folder := work / "datumaro_points")
    (folder / "annotations/train.json").write_text(json.dumps(document))
    yield "Datumaro, points", Case(folder=folder, layout="datumaro", form="datumaro", points=True)
    yield from _label_documents(work)


def _label_documents(work: Path) -> Iterator[tuple[str, Case]]:
    """Write label images of SageMaker and FiftyOne, keypoints of FiftyOne, and polygons of CVAT's key frames."""
    masks = {label: _rectangle(*map(int, sides)) for label, *sides in WRITTEN["a"]}
    values = np.zeros(SIZE[::-1], np.uint8)
    for value, mask in enumerate(masks.values(), start=1):
        values[mask] = value
    form = {"a": pixels_by_class(masks)}
    task = ("--task", "segmentation")
    colors = {"BACKGROUND": "#ffffff", "cat": "#2acf59", "dog": "#f28333"}
    pairs = {
        str(at): {"class-name": one, "hex-color": color} for at, (one, color) in enumerate(colors.items())
    }
    palette = np.array([[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in colors.values()], np.uint8)
    _draw(folder := work / "sagemaker_labels", "a.png")
    (folder / "labels").mkdir()
    Image.fromarray(palette[values]).save(folder / "labels/0.png")
    meta = {"internal-color-map": pairs, "type": "groundtruth/semantic-segmentation"}
    line = {"source-ref": "s3://b/a.png", "x-ref": "s3://b/labels/0.png", "x-ref-metadata": meta}
    (folder / "output.manifest").write_text(json.dumps(line))
    case = Case(folder=folder, layout="sagemaker", reader=STATED, form=form, patterns=task)
    yield "SageMaker, label images", case

    np.save(stream := io.BytesIO(), values)
    packed = base64.b64encode(zlib.compress(stream.getvalue())).decode()
    truth: dict[str, Any] = {"_cls": "Segmentation", "mask": {"$binary": {"base64": packed, "subType": "00"}}}
    for name, more in (
        ("packed", truth),
        ("files", {"_cls": "Segmentation", "mask_path": "fields/truth/a.png"}),
    ):
        _draw(folder := work / f"fiftyone_{name}", "a.png")
        (folder / "fields/truth").mkdir(parents=True)
        if name == "files":
            Image.fromarray(values).save(folder / "fields/truth/a.png")
        (folder / "metadata.json").write_text(
            json.dumps({"mask_targets": {"truth": {"1": "cat", "2": "dog"}}})
        )
        (folder / "samples.json").write_text(json.dumps({"samples": [{"filepath": "a.png", "truth": more}]}))
        case = Case(folder=folder, layout="fiftyone", reader=STATED, form=form, patterns=task)
        yield f"FiftyOne, segmentations, {name}", case

    _draw(folder := work / "fiftyone_points", "a.png")
    box = {"label": "cat", "bounding_box": [0.125, 0.25, 0.5, 0.5]}
    pose = {"label": "cat", "points": [[0.25, 0.5], [float("nan")] * 2, [0.5, 0.75]]}
    sample = {
        "filepath": "a.png",
        "truth": {"_cls": "Detections", "detections": [box]},
        "pose": {"_cls": "Keypoints", "keypoints": [pose]},
    }
    (folder / "samples.json").write_text(json.dumps({"samples": [sample]}))
    form = {"a": [["cat", 24, 32, 48, 48]]}
    case = Case(folder=folder, layout="fiftyone", reader=STATED, form=form, points=True)
    yield "FiftyOne, keypoints", case

    # The polygon between is that of CVAT's interpolate_position; its box is compared.
    _draw(folder := work / "key_polygons", *(f"frame_00000{number}.png" for number in range(3)))
    places = {0: "10,10;20,8;30,10;31,20;30,30;20,33;10,30", 2: "20,20;50,20;35,45"}
    keys = "".join(f'<polygon frame="{at}" outside="0" points="{points}"/>' for at, points in places.items())
    meta_text = "<meta><task><start_frame>0</start_frame><stop_frame>2</stop_frame></task></meta>"
    (folder / "a.xml").write_text(f'<annotations>{meta_text}<track label="car">{keys}</track></annotations>')
    moved: dict[int, list[float]] = {0: [10, 8, 31, 33], 1: [15, 14, 40.5, 39], 2: [20, 20, 50, 45]}
    by_frame: Objects = {f"frame_00000{number}": [["car", *sides]] for number, sides in moved.items()}
    yield "CVAT, key polygons", Case(folder=folder, layout="cvat", reader=STATED, form=by_frame)


def rows_of_pictures(data: Path, work: Path) -> Iterator[tuple[str, Case]]:
    """Yield the rows of picture_readers.py."""
    for name, arguments in chain(picture_rows(data, work), record_rows(work)):
        yield name, Case(**arguments)


def _other_pixels(module: str, case: Case) -> Objects:
    return read_pixels_with(module, case.folder, case.form)


READERS: dict[str, Callable[[Case], Objects]] = {
    STATED: lambda case: dict(case.form),
    **{name: partial(_other_pixels, name) for name in DECODERS},
    "mlcroissant": lambda case: read_with_croissant(case.form, case.folder),
    "monai": lambda case: read_with_monai(case.form, case.folder),
    "scalabel": lambda case: read_with_scalabel(str(case.folder)),
    "cityscapesscripts": lambda case: read_with_cityscapes(str(case.folder)),
    "datumaro": lambda case: (
        read_labels_with_datumaro(str(case.folder))
        if case.patterns
        else read_with_datumaro(case.form, str(case.folder) + case.below, case.points)
    ),
    "supervision": lambda case: read_with_supervision(case.form, str(case.folder)),
    "globox": lambda case: read_with_globox(case.form, str(case.folder)),
    "label_studio_sdk": lambda case: (
        read_with_label_studio(case.form, str(case.folder)) if case.form else read_brushes(case.folder)
    ),
    "supervisely": lambda case: read_with_supervisely(case.form, str(case.folder)),
    "labelme": lambda case: read_with_labelme(case.form, str(case.folder)),
    "SimpleITK": lambda case: read_with_simpleitk(case.form, str(case.folder)),
    "ultralytics": lambda case: read_with_ultralytics(case.form, str(case.folder)),
}


def python_with(module: str, others: Sequence[str]) -> str | None:
    """Return this interpreter, or another that has a module, or None."""
    if module == STATED:
        return sys.executable
    if importlib.util.find_spec(module) is not None:
        return sys.executable
    test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return next(
        (one for one in others if not subprocess.run([one, "-c", test], check=False).returncode), None
    )


def main() -> int:
    """Print a line per case, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the test data")
    parser.add_argument(
        "--python", action="append", default=[], help="interpreter of an environment with another reader"
    )
    parser.add_argument(
        "--only", default="", help="compare no exports, and only inputs with this text in their name"
    )
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.read:
        given = json.loads(parsed.read)
        print(json.dumps(READERS[given["reader"]](Case(**given | {"folder": Path(given["folder"])}))))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        given = (
            inputs(parsed.data, folder),
            drawn(folder),
            stated(folder),
            masks_and_frames(folder),
            street_scenes(folder),
            volumes(folder),
            rows_of_pictures(parsed.data, folder),
        )
        for name, case in chain(*given, *(() if parsed.only else (exports(parsed.data, folder),))):
            if parsed.only not in name:
                continue
            if (python := python_with(case.reader, parsed.python)) is None:
                print(f"{name:<36} {case.reader:<16} not installed")
                continue
            document = json.dumps(vars(case) | {"folder": str(case.folder)})
            command = [python, "-W", "ignore", __file__, "--read", document]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                found = f"{case.reader} fails: {done.stderr.strip().splitlines()[-1]}"
            else:
                theirs = json.loads(done.stdout.splitlines()[-1])
                reason, mend = MENDED.get(case.mend, ("", lambda *box: list(box)))
                theirs = {
                    key: [[one[0], *mend(*one[1:])] for one in objects] for key, objects in theirs.items()
                }
                found = difference(read_with_halofeed(case), theirs, case.within)
                if not reason and case.within != HALF_A_PIXEL:
                    reason = f"within {case.within:g} levels"
            failed |= bool(found)
            print(
                f"{name:<36} {case.reader:<16} {found or f'equal; {reason}'.removesuffix('; ')}", flush=True
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
