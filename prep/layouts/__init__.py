"""Table of the annotation layouts: one file per layout and one entry in `LAYOUTS`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from halofeed.prep.annotations.annotation_tools import DocumentFormat, list_documents
from halofeed.prep.annotations.contract import Layout, LayoutOptions, Listing, PartwiseListing, as_listing
from halofeed.prep.annotations.label_documents import color_table, list_of_task
from halofeed.prep.annotations.suggest_layout import add_hint
from halofeed.prep.layouts import (
    bdd100k,
    bids,
    box_lines,
    cityscapes,
    coco,
    crowdhuman,
    cvat,
    datumaro,
    dicom,
    dota,
    fiftyone,
    folders,
    geojson,
    image_table,
    json_tools,
    keras_lists,
    lidc,
    luna16,
    monai,
    mot,
    msd,
    nndetection,
    nnunet,
    object_masks,
    pairs,
    pascal_text,
    run_length_table,
    sagemaker,
    scan_boxes,
    visdrone,
    visdrone_video,
    voc,
    yolo,
    yolo_ndjson,
)
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.wording import did_you_mean

__all__ = ["LAYOUTS", "Layout", "LayoutOptions", "SourceExample", "find_layout"]

_SEGMENTATION = ("segmentation",)
_DETECTION = ("detection",)
_ALL = ("classification", "detection", "segmentation")


def _with_layout_hints(layout: Layout) -> Layout:
    """Return the layout with errors that name a format that no layout reads, if the files have one."""

    def list_references(
        annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
    ) -> Listing:
        try:
            examples = layout.list_references(annotations, images, annotation_file, options)
            return (yield from as_listing(examples))
        except AnnotationsError as error:
            own = [one.name for one in LAYOUTS.values() if one.has_own_files]
            raise add_hint(error, annotations, layout.name, annotation_file, own) from error

    return replace(layout, list_references=list_references)


def _of_documents(form: DocumentFormat) -> Layout:
    """Return the layout of a format of annotation files that name pictures and their objects."""
    has_labels = form.has_label_images
    return Layout(
        name=form.layout,
        tasks=(
            "detection",
            *(("classification",) if form.has_classes else ()),
            *(("segmentation",) if has_labels else ()),
        ),
        summary=form.summary,
        list_references=partial(list_of_task if has_labels else list_documents, form),
        color_table=partial(color_table, form) if has_labels else None,
        has_masks=form.has_masks,
        keeps=form.keeps,
        takes_volumes=not has_labels,
        has_own_files=True,
    )


LAYOUTS: dict[str, Layout] = {
    layout.name: _with_layout_hints(layout)
    for layout in (
        Layout(
            name="folders",
            tasks=("classification",),
            summary="split/class/image or class/image",
            list_references=folders.list_references,
            takes_clips=True,
            in_parts=PartwiseListing(
                summarize=folders.summarize,
                resolve_rules=folders.resolve_rules,
                references_of=folders.references_of,
            ),
        ),
        Layout(
            name="csv",
            tasks=_ALL,
            summary="a table: filename,class[,split,group], one box per row in pixels, or id,image,label",
            list_references=partial(image_table.list_references, "csv"),
            keeps=("corners", "occluded", "group_of"),
            takes_clips=True,
        ),
        Layout(
            name="jsonl",
            tasks=_ALL,
            summary="the table of csv, one JSON object per line; Hugging Face, also Parquet with pictures; Vertex AI",
            list_references=partial(image_table.list_references, "jsonl"),
            list_labels=partial(image_table.list_labels, "jsonl"),
            label_values=partial(image_table.label_values, "jsonl"),
            keeps=("corners", "occluded", "group_of"),
            takes_clips=True,
            has_containers=True,
        ),
        Layout(
            name="coco",
            tasks=("detection", "segmentation", "classification"),
            summary="COCO instances JSON; panoptic JSON with its label images; classes of images, as iNaturalist's",
            list_references=coco.list_references,
            unlabeled=coco.UNLABELED,
            takes_volumes=False,
            has_masks=True,
            keeps=("category_id", "corners", "keypoints", "occluded"),
        ),
        Layout(
            name="voc",
            tasks=("detection",),
            summary="Pascal VOC XML, with ImageSets/Main or in the folders of the images",
            list_references=voc.list_references,
            list_labels=voc.list_labels,
            keeps=("corners", "occluded", "view"),
        ),
        Layout(
            name="yolo",
            tasks=("detection",),
            summary="YOLO: data.yaml, images/ and labels/, with boxes, polygons or keypoints",
            list_references=yolo.list_references,
            has_masks=True,
            keeps=("corners", "keypoints"),
        ),
        _of_documents(json_tools.LABELME),
        _of_documents(cvat.CVAT),
        _of_documents(json_tools.CREATEML),
        _of_documents(box_lines.KITTI),
        replace(_of_documents(dota.DOTA), list_labels=dota.list_labels),
        _of_documents(json_tools.VIA),
        _of_documents(json_tools.LABEL_STUDIO),
        _of_documents(json_tools.SUPERVISELY),
        _of_documents(box_lines.WIDER),
        replace(_of_documents(visdrone.VISDRONE), list_labels=visdrone.list_labels),
        replace(
            _of_documents(visdrone_video.VISDRONE_VIDEO),
            list_references=visdrone_video.list_references,
            list_labels=visdrone.list_labels,
        ),
        replace(_of_documents(mot.MOT), list_references=mot.list_references),
        _of_documents(crowdhuman.CROWDHUMAN),
        _of_documents(bdd100k.BDD100K),
        _of_documents(pascal_text.PASCAL_TEXT),
        Layout(
            name="object-masks",
            tasks=("detection",),
            summary="a mask per object: ID/images/a with ID/masks, images/a with masks/a/, or values of label images",
            list_references=object_masks.list_references,
            takes_volumes=False,
            has_masks=True,
        ),
        _of_documents(yolo_ndjson.YOLO_NDJSON),
        _of_documents(sagemaker.SAGEMAKER),
        _of_documents(keras_lists.KERAS_YOLO),
        _of_documents(datumaro.DATUMARO),
        _of_documents(fiftyone.FIFTYONE),
        Layout(
            name="cityscapes",
            tasks=("segmentation", "detection"),
            summary="Cityscapes: leftImg8bit/SPLIT/CITY with gtFine: label images, or polygons with --task detection",
            list_references=cityscapes.list_references,
            default_task="segmentation",
            label_values=cityscapes.label_values,
            ignored_values=cityscapes.ignored_values,
            takes_volumes=False,
            has_own_files=True,
            has_masks=True,
            keeps=("corners",),
        ),
        Layout(
            name="run-lengths",
            tasks=("detection", "segmentation"),
            summary="Kaggle's tables of run lengths: ImageId[_ClassId],EncodedPixels",
            list_references=run_length_table.list_references,
            has_masks=True,
            takes_volumes=False,
        ),
        Layout(
            name="geojson",
            tasks=("detection",),
            summary="GeoJSON: polygons on the map for pictures with a georeference; QuPath's in pixels; xView's",
            list_references=geojson.list_references,
            has_masks=True,
            takes_volumes=False,
            keeps=("corners",),
        ),
        Layout(
            name="tfrecord",
            tasks=_ALL,
            summary="TFRecords with pictures: the TF Object Detection API's, or TFDS with features.json",
            list_references=partial(image_table.list_references, "tfrecord"),
            list_labels=partial(image_table.list_labels, "tfrecord"),
            has_masks=True,
            has_containers=True,
            keeps=("occluded", "group_of"),
        ),
        Layout(
            name="webdataset",
            tasks=_ALL,
            summary="tar files of WebDataset: KEY.jpg with KEY.cls, KEY.json or KEY.seg.png",
            list_references=partial(image_table.list_references, "webdataset"),
            list_labels=partial(image_table.list_labels, "webdataset"),
            label_values=partial(image_table.label_values, "webdataset"),
            has_containers=True,
            keeps=("corners", "occluded", "group_of"),
        ),
        Layout(
            name="croissant",
            tasks=_ALL,
            summary="Croissant 1.0 or 1.1: a record set whose fields name pictures in files, tables or Parquet",
            list_references=partial(image_table.list_references, "croissant"),
            takes_volumes=False,
            keeps=("corners", "occluded", "group_of"),
        ),
        Layout(
            name="pairs",
            tasks=_SEGMENTATION,
            summary="volumes, pictures or clips with labels: images/a with labels/a, a with a_seg, or by patterns",
            list_references=pairs.list_references,
            label_values=pairs.label_values,
            takes_clips=True,
        ),
        Layout(
            name="msd",
            tasks=_SEGMENTATION,
            summary="Medical Segmentation Decathlon: dataset.json, imagesTr, labelsTr, imagesTs",
            list_references=msd.list_references,
            label_values=msd.label_values,
            channel_names=msd.channel_names,
        ),
        Layout(
            name="monai",
            tasks=_SEGMENTATION,
            summary="MONAI's datalist: JSON with lists of images and labels, channels and folds",
            list_references=monai.list_references,
            label_values=monai.label_values,
        ),
        Layout(
            name="nnunet",
            tasks=_SEGMENTATION,
            summary="nnU-Net raw, version 2: dataset.json, imagesTr/CASE_0000, labelsTr/CASE, imagesTs",
            list_references=nnunet.list_references,
            label_values=nnunet.label_values,
            channel_names=nnunet.channel_names,
            regions=nnunet.regions,
        ),
        Layout(
            name="lits",
            tasks=_SEGMENTATION,
            summary="LiTS names: volume-N with segmentation-N, test-volume-N",
            list_references=pairs.list_lits,
            label_values=lambda *_: pairs.LITS_VALUES,
        ),
        Layout(
            name="class-masks",
            tasks=_SEGMENTATION,
            summary="one mask per class: s0001/ct with s0001/segmentations/liver, or by patterns",
            list_references=pairs.list_class_masks,
            takes_clips=True,
            label_values=pairs.class_mask_values,
        ),
        Layout(
            name="bids",
            tasks=_SEGMENTATION,
            summary="BIDS: sub-01/[ses-1/]anat/sub-01_[ses-1_]T1w with *_dseg or *_label-CLASS_mask, in derivatives",
            list_references=bids.list_references,
            label_values=bids.label_values,
        ),
        Layout(
            name="dicom",
            tasks=_SEGMENTATION,
            summary="DICOM series in folders, each with a SEG, an RTSTRUCT or a NIfTI mask, or with none",
            list_references=dicom.list_references,
            label_values=dicom.label_values,
        ),
        Layout(
            name="scan-boxes",
            tasks=_DETECTION,
            summary="a table of boxes or spheres in volumes: filename[,class], xmin to zmax, or x,y,z,diameter",
            list_references=scan_boxes.list_references,
            takes_scan_boxes=True,
        ),
        Layout(
            name="luna16",
            tasks=_DETECTION,
            summary="LUNA16: annotations.csv with nodules in mm, scans (.mhd) in subset0 to subset9",
            list_references=luna16.list_references,
            takes_scan_boxes=True,
        ),
        Layout(
            name="lidc",
            tasks=_DETECTION,
            summary="LIDC-IDRI: DICOM series with XML of up to four readers",
            list_references=lidc.list_references,
            takes_scan_boxes=True,
        ),
        Layout(
            name="nndetection",
            tasks=_DETECTION,
            summary="nnDetection: imagesTr/CASE_0000, labelsTr/CASE with numbered objects and CASE.json",
            list_references=nndetection.list_references,
            channel_names=nndetection.channel_names,
            takes_scan_boxes=True,
        ),
    )
}


def find_layout(name: str) -> Layout:
    """Return the layout of this name; raise UsageError with the known names if there is none."""
    if name not in LAYOUTS:
        raise UsageError(
            f"layout {name!r} is not known; {did_you_mean(name, LAYOUTS)}known: {', '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]
