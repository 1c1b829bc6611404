# Written by `python -m halofeed.stubs` from the options of the commands. Change those, and run it again.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from halofeed.api import StrPath
from halofeed.inspection.review.review import Review
from halofeed.inspection.verify import VerifyReport
from halofeed.inspection.version_difference import VersionDifference
from halofeed.api import ConvertedDataset as ConvertedDataset
from halofeed.api import Dataset as Dataset
from halofeed.keras_data import keras_datasets as keras_datasets
from halofeed.loader import ElasticDeformation as ElasticDeformation
from halofeed.loader import FlipDepth as FlipDepth
from halofeed.loader import FlipLeftRight as FlipLeftRight
from halofeed.loader import FlipUpDown as FlipUpDown
from halofeed.loader import Loader as Loader
from halofeed.loader import MixUp as MixUp
from halofeed.loader import Mixture as Mixture
from halofeed.loader import Mosaic as Mosaic
from halofeed.loader import PadAndCrop as PadAndCrop
from halofeed.loader import RandAugmentMoves as RandAugmentMoves
from halofeed.loader import RandomCrop as RandomCrop
from halofeed.loader import RandomCropImage as RandomCropImage
from halofeed.loader import RandomResizedCrop as RandomResizedCrop
from halofeed.loader import RandomRotation as RandomRotation
from halofeed.loader import RepeatFactor as RepeatFactor
from halofeed.loader import Rotate90 as Rotate90
from halofeed.loader import ScaleJitter as ScaleJitter
from halofeed.loader import SsdRandomCrop as SsdRandomCrop
from halofeed.loader import boxes_to_mm as boxes_to_mm
from halofeed.loader import boxes_to_source as boxes_to_source
from halofeed.loader import join_id as join_id
from halofeed.loader.forms.keras_form import keras_batches as keras_batches
from halofeed.pipelines.run_counts import ConversionSummary as ConversionSummary
from halofeed.schemas.partition import Partition as Partition
from halofeed.trainer.mesh import constrain as constrain
from halofeed.trainer.mesh import make_mesh as make_mesh

__version__: str

def open(
    path: StrPath,
) -> Dataset:
    """Open a data set by its version's folder or address, or by the folder of its only version.

    Raises:
        UsageError: there is none, or there are several versions; the message names them.
        ManifestError: the conversion has not finished, or the manifest is wrong.

    >>> halofeed.open("data/photos").class_names
    ('hat', 'shirt')
    """

def convert(
    source: StrPath,
    out: StrPath,
    *,
    layout: str = '',
    recipe: StrPath | Mapping[str, Any] | None = None,
    name: str = '',
    beam_options: Sequence[str] = (),
    images: StrPath | None = None,
    version: str = '1.0.0',
    from_: StrPath = '',
    keep_splits: bool = False,
    label_map: StrPath | None = None,
    split_lists: Sequence[str | int] | Mapping[str, Any] = (),
    nnunet_splits: StrPath | None = None,
    nnunet_fold: int | None = None,
    max_rejected: int | float | str | None = None,
    normalize_like: StrPath | None = None,
    disk_check: Literal['refuse', 'ignore'] = 'refuse',
    listing: Literal['auto', 'command', 'job'] = 'auto',
    on_loss: Literal['refuse', 'warn', 'ignore'] = 'refuse',
    warn_cut: float = 0.01,
    salt: str = '',
    overwrite: bool = False,
    workers: int | None = None,
    threads: int | None = None,
    max_silence_minutes: float | None = None,
    job_restarts: int = 0,
    task: Literal['classification', 'detection', 'segmentation'] | None = None,
    box_origin: Literal[0, 1] | None = None,
    box_units: Literal['auto', 'pixels', 'normalized'] = 'auto',
    box_form: Literal['auto', 'corners', 'corner-size', 'center-size'] = 'auto',
    ignore_columns: Sequence[str | int] = (),
    column: Sequence[str | int] = (),
    class_marks: Sequence[str | int] = (),
    annotation_grid: Literal['auto', 'stored', 'displayed'] = 'auto',
    split_folders: Literal['auto', 'yes', 'no'] = 'auto',
    folders_are_classes: bool = False,
    voc_images: Literal['auto', 'filename', 'xml-name'] = 'auto',
    image_sets: Sequence[str | int] = (),
    resize: Literal['fixed-shape', 'keep-aspect', 'none'] = 'fixed-shape',
    height: int = 300,
    width: int = 300,
    min_dimension: int = 600,
    max_dimension: int = 1024,
    pad: bool = False,
    pad_value: int | Sequence[int] = (),
    interpolation: Literal['', 'antialias', 'tf1-bilinear', 'tf1-nearest', 'tf1-bicubic', 'tf1-area', 'tf2-bilinear', 'tf2-nearest', 'tf2-bicubic', 'tf2-area', 'tf2-lanczos3', 'tf2-lanczos5', 'tf2-bilinear-antialias', 'tf2-bicubic-antialias', 'tf2-lanczos3-antialias', 'tf2-lanczos5-antialias', 'linear', 'cubic'] = '',
    channels: int = 0,
    dtype: Literal['', 'uint8', 'uint16', 'int16', 'float32', 'bfloat16'] = '',
    sample_bits: Literal[0, 8, 9, 10, 11, 12, 13, 14, 15, 16] = 0,
    alpha: Literal['drop', 'blend'] = 'drop',
    background: Sequence[int] = (0, 0, 0),
    max_pixels: int = 178956970,
    max_memory: int = 0,
    encoding: Literal['raw', 'packed', 'yuv420', 'jpeg', 'png'] = 'raw',
    jpeg_quality: int = 95,
    max_boxes: int = 100,
    boxes_outside: Literal['clip', 'drop', 'fail'] = 'clip',
    boxes_zero_area: Literal['drop', 'keep', 'fail'] = 'drop',
    boxes_crowd: Literal['keep', 'drop', 'objects'] = 'keep',
    boxes_difficult: Literal['keep', 'drop', 'objects'] = 'keep',
    on_bad_object: Literal['drop', 'reject'] = 'drop',
    oriented_boxes: Literal['upright', 'drop'] = 'upright',
    class_property: str | None = None,
    one_class: str | None = None,
    person_box: Literal['full', 'visible', 'head'] = 'full',
    run_lengths: Literal['auto', 'columns', 'rows'] = 'auto',
    coordinates: str = 'auto',
    empty_classes: Sequence[str | int] = (),
    keep: Sequence[str | int] = (),
    several_classes: Literal['refuse', 'keep'] = 'refuse',
    class_separator: str = 'auto',
    masks: bool = False,
    shards: int = 1,
    limit: int | None = None,
    license: str = '',
    citation: str = '',
    split_shares: Sequence[str | int] | Mapping[str, Any] = (),
    split_seed: int = 0,
    folds: int | None = None,
    group_column: str | None = None,
    group_pattern: str | None = None,
    duplicates: Literal['report', 'group', 'drop', 'drop-conflicts'] = 'report',
    frames: int | None = None,
    frame_stride: int | None = None,
    frame_rate: float | None = None,
    folder_frame_rate: float | None = None,
    clips_per_source: str | int = 'all',
    short_clips: Literal['refuse', 'repeat'] = 'refuse',
    incomplete_clips: Literal['refuse', 'keep'] = 'refuse',
    depth: int | None = None,
    spacing_mm: Sequence[float] = (),
    fit: Literal['crop-or-pad', 'stretch', 'tiles'] = 'crop-or-pad',
    center: Literal['volume', 'foreground', 'label'] = 'volume',
    crop_foreground: bool = False,
    tile_overlap: Sequence[int] = (),
    mask_interpolation: Literal['onehot-linear', 'nearest'] = 'onehot-linear',
    slice_wise: Literal['auto', 'always', 'never'] = 'auto',
    window: str | None = None,
    window_hu: Sequence[float] = (),
    window_unit: Literal['hu', 'any'] = 'hu',
    offset_hu: float = 0.0,
    window_percentiles: Sequence[float] = (),
    normalize: str | None = None,
    mask_grid: Literal['refuse', 'resample', 'voxels'] = 'refuse',
    channel_grid: str = 'refuse',
    mask_grid_tolerance: float = 0.05,
    mask_references: Literal['check', 'ignore'] = 'check',
    class_overlap: Literal['refuse', 'last', 'first', 'channels'] = 'refuse',
    several_masks: Literal['refuse', 'merge', 'majority', 'staple'] = 'refuse',
    scan_box_units: Literal['auto', 'voxels', 'mm-ras', 'mm-lps'] = 'auto',
    min_readers: int = 1,
    refuse_flaws: Sequence[str | int] = (),
    fill_missing_slices: bool = False,
    min_slices: int = 3,
    secondary_captures: Literal['skip', 'take'] = 'skip',
    real_world_values: str = 'auto',
    series_identity: Literal['headers', 'uid', 'folder'] = 'headers',
    series_split: Literal['volumes', 'channels', 'refuse'] = 'volumes',
    alternating_slices: Literal['refuse', 'keep'] = 'refuse',
    series_modality: Sequence[str | int] = (),
    series_description: str | None = None,
    series_choice: Literal['all', 'largest'] = 'all',
    non_finite_value: float | None = None,
    non_finite_labels: Literal['refuse', 'background'] = 'refuse',
    sform_qform: Literal['sform', 'qform', 'refuse'] = 'sform',
    unoriented: Literal['radiological', 'neurological', 'refuse'] = 'radiological',
    array_spacing_mm: Sequence[float] = (),
    max_voxels: int = 2147483648,
    image_pattern: str | None = None,
    label_pattern: str | None = None,
    regions: Literal['refuse', 'combine'] = 'refuse',
    channel_order: Sequence[str | int] = (),
    classes: Sequence[str | int] = (),
    map_classes: Sequence[str | int] | Mapping[str, Any] = (),
    drop_classes: Sequence[str | int] = (),
    emptied_pictures: Literal['negative', 'ignored', 'left-out'] = 'negative',
    label_channels: Sequence[str | int] = (),
    label_colors: Sequence[str | int] | Mapping[str, Any] = (),
    label_values: Literal['auto', 'stored', 'shown'] = 'auto',
    ignore_label: str | int | Sequence[str | int] = (),
    missing_masks: Literal['refuse', 'prediction'] = 'refuse',
    missing_classes: Literal['refuse', 'empty'] = 'refuse',
    scale: float = 1.0,
    gsd_m: float = 0.0,
    min_visible: float = 0.3,
    empty_tiles: str = 'keep',
    bands: Sequence[int] = (),
    value_range: Sequence[float] = (),
    debug: bool = False,
) -> ConvertedDataset:
    """Convert images and annotations into sharded TFRecords, and open the result; the same call resumes.

    The data set is in OUT/NAME/VERSION. What the run did is in the result's `summary`. Without `max_rejected` more than
    5% rejected inputs give a warning on standard error.

    Args:
        source: folder or file of the annotations, and of the images if they are beside them.
        out: folder below which NAME/VERSION is made.
        layout: layout of the source; `halofeed convert --help` lists them; default: that of `recipe`, else the only one
            that fits the files.
        recipe: recipe of an earlier conversion: its manifest's file or folder, a file of options in JSON or YAML, or
            options by name, such as `halofeed.open(path).manifest.recipe`; other options override it.
        name: name of the data set; default: the source's, in lower case letters, digits and underscores.
        beam_options: Beam's own options, such as ["--runner=DataflowRunner"].
        images: folder that image paths are relative to; default: the source's folder.
        version: the data set's version.
        from_: folder or address of an earlier version, such as data/cards/1.0.0: take its recipe, keep its shards
            without a changed or removed example, and put new examples into further shards; its classes keep their
            numbers. source names all sources, old and new; out and name are those of the earlier version.
        keep_splits: with from_: examples of the earlier version keep their split, and new ones of their groups get
            it; other options of splits are then for the rest.
        label_map: file of class names (.txt, .json, .pbtxt, .csv); default: from the data.
        split_lists: split by lists of files, e.g. train=train.txt,test=test.txt.
        nnunet_splits: nnU-Net's splits_final.json: the cases of train and val; nnunet_fold says which fold.
        nnunet_fold: fold of nnunet_splits, from 0.
        max_rejected: fail the job when more inputs than this are rejected: a number, such as 100, or a share of all
            inputs, such as 0.05 or 5%; default: no limit, and a warning above 5%.
        normalize_like: volumes, as nnU-Net does for CT: folder of an earlier conversion; the labeled voxels of its
            split train give window_hu (their percentiles 0.5 and 99.5) and normalize (their mean and deviation).
        disk_check: records too large for the local disk, calculated before the first is written: refuse, or ignore.
        listing: on another runner: where class folders of pictures are listed: by the command, in the job by its
            workers, or auto: in the job where there are more than 100,000 files.
        on_loss: records that lost their information, such as those of one value, or whose objects are all below 2
            pixels: refuse the conversion where most records are hit, and warn of other losses; or warn or ignore
            only.
        warn_cut: volumes: warn where the static shape cuts off more than this share of a class, or of the body of a
            scan without labels.
        salt: DICOM: secret mixed into the hashes of patients when splits are made; never written.
        overwrite: replace a version that is there already.
        workers: worker processes of a local run; default: one per core, at most shards, and as many as have memory
            for max_memory each.
        threads: decoding threads per worker; default: all cores shared by the workers.
        max_silence_minutes: another runner's job: cancel it when no worker has sent a heartbeat for this long, also
            at the beginning; workers send one every 30 s, but not while a runner shuffles; default: 60 after the
            first heartbeat, and no limit before it, because a job may be queued.
        job_restarts: another runner's job: restart it at most this often when it fails without an error from a
            worker, or falls silent; it resumes from the finished shards. For runners without retries (Prism), or
            beyond those.
        task: task that the records serve; default: the layout's own.
        box_origin: boxes in pixels: the number of the first pixel, 0 or 1 (then both ends are within the box, as in
            VOC); default: 0 for tables; for voc 0 where boxes have fractions, else 1, refused where boxes begin below
            1; for mot 0 where boxes have fractions or begin at 0, else 1.
        box_units: unit of boxes: pixels, or normalized, fractions of the picture's width and height; auto reads a
            file whose boxes are all within 0 to 1 as normalized.
        box_form: form of a box in columns x,y,w,h, in a list called bbox, or in VOC's xmin,ymin,xmax,ymax: corners
            (xmin,ymin,xmax,ymax), corner-size (upper left x,y, then width,height, as in COCO), center-size (center
            x,y, then width,height); auto accepts columns whose names are unambiguous, and refuses others.
        ignore_columns: tables and COCO: columns or keys to ignore that would be refused because they may hold boxes
            or outlines; rotation (COCO, VOC, CVAT, Label Studio): use boxes as they are before their rotation.
        column: tables: the column, key or feature that has a meaning, as MEANING=COLUMN, e.g.
            label=fine_label,image=isic_id; meanings: image, label, split, group, id, width, height, xmin, ymin, xmax,
            ymax, x, y, w, h, bbox, objects, area, is_crowd, difficult, truncated, occluded, group_of, corners.
            Several columns as label are a class each.
        class_marks: tables with a column for each class: what a value in these columns means, as yes=VALUE, no=VALUE
            or reject=VALUE (the picture is left out), e.g. no=-1,reject=blank; default: 1 is yes and 0 is no; -1 is
            no where no column holds 0; blank is no where all hold blank or 1.
        annotation_grid: pictures with an EXIF orientation: whether boxes and label images refer to the pixels as the
            file stores them or to the picture as displayed; auto decides by declared sizes and the tool's own way,
            and warns where nothing shows it.
        split_folders: class folders: whether the first folder names a split; auto decides by its name.
        folders_are_classes: class folders: read each folder as a class even if annotations of another layout are
            beside the images.
        voc_images: VOC: which image an XML file describes if <filename> and the file's own name are those of two
            images; auto decides by the declared sizes and by the other XML files, and rejects those for which nothing
            proves it.
        image_sets: VOC: the lists of ImageSets/Main to follow, e.g. trainval,test; default: train, val and test, and
            none where split_shares or split_lists make the splits.
        resize: fixed-shape stretches to height x width; keep-aspect scales into min_dimension, max_dimension; none
            keeps the size.
        height: rows of a fixed shape.
        width: columns of a fixed shape.
        min_dimension: keep-aspect: the shorter side is scaled to this ...
        max_dimension: keep-aspect: ... unless the longer side would pass this.
        pad: keep-aspect: pad to max x max at the bottom and right.
        pad_value: value of padding, one value or one per channel, e.g. 124,116,104 (default: 0); volumes: in HU
            (default: the smallest value of each channel).
        interpolation: how images are resized and resampled. Pictures and clips: tf1-* and tf2-* give TensorFlow's own
            pixels (default: antialias). Volumes: linear or cubic, with smoothing before downsampling (default:
            linear).
        channels: pictures: 1 gray, 3 color (default), 4 color and alpha; tiles: any number of bands, see bands;
            volumes: channels of each scan (default: 1).
        dtype: stored type. Pictures: uint8 scales 16-bit sources down, uint16 keeps them (default: uint8). Volumes:
            int16 whole HU (default), uint8 the window (default with one), float32, bfloat16.
        sample_bits: pictures and clips of 16 bits stored as uint8: number of bits that their samples use, e.g. 12
            maps 0 to 4095 to 0 to 255; default: 16, and a picture whose largest value is below 4096 is refused, as it
            would be nearly black.
        alpha: transparency: drop ignores it, blend puts background behind it.
        background: the color behind transparent pixels, 0 to 255.
        max_pixels: a source with more pixels is rejected before it is decoded.
        max_memory: MiB of memory that a worker may use for all images that it decodes at the same time; a source
            whose header shows that it needs more is rejected (default: 4096; volumes: 8192).
        encoding: encoding of the stored image and its label: raw is the fastest to load from memory; packed has the
            same numbers in about half of the bytes, which a disk or a bucket delivers faster; yuv420 is half of raw,
            with colors of half the resolution, for pictures. Only halofeed's loader reads these. The decoders of the
            TF Object Detection API and Model Garden read jpeg (the smallest) and png, which are for pictures.
        jpeg_quality: quality of stored JPEGs, 1 to 100; with the default, an unchanged JPEG keeps its own bytes,
            including EXIF data.
        max_boxes: static number of boxes that the loader pads to; the report counts the boxes beyond it.
        boxes_outside: boxes that leave the picture.
        boxes_zero_area: boxes without height or width.
        boxes_crowd: boxes that mark a crowd or a group (Open Images' IsGroupOf): keep them with their flag, by which
            training leaves them out; drop them; or take them as objects, for tools that flag every object.
        boxes_difficult: boxes flagged as difficult: keep them with their flag, drop them, or take them as objects
            without it.
        on_bad_object: COCO, VOC and tables: an object that cannot be used (inverted or NaN box, no class; with masks
            no usable segmentation): drop only the object and list it in rejected.jsonl, or reject its image.
        oriented_boxes: boxes that are turned (DOTA, YOLO's OBB, CVAT, Label Studio, labelme, roLabelImg, rotation in
            COCO and VOC): the upright box around each, or leave them out; both are counted. ignore_columns rotation
            takes boxes as they are before they are turned. keep corners keeps their corners too.
        class_property: GeoJSON: property with the class; default: QuPath's classification, class, label, category,
            type_id and other usual names, or the only one whose texts repeat.
        one_class: GeoJSON, masks of objects, and tables of run lengths without classes: all are objects of this
            class, e.g. building.
        person_box: CrowdHuman: the box of each person: the full body, which may extend beyond the picture, its
            visible part, or the head.
        run_lengths: tables of run lengths: whether pixels count down the columns, as Kaggle's mostly do, or along the
            rows. auto: the masks of pictures that are no squares show it, else columns.
        coordinates: GeoJSON: what its numbers are: pixels of the picture; picture, the coordinate system of each
            picture; lat-lon, latitude before longitude; or a system such as EPSG:32633. auto: the file's own member
            crs, else longitude and latitude; pixels for QuPath, and for pictures without a georeference.
        empty_classes: classes of pictures (tags, choices, annotations without a box) that mean that there is no
            object, beside usual names such as empty. A picture with another class and without a box of it is
            rejected.
        keep: further attributes of each object to keep: category_id (COCO's own number of the class), corners (the
            four corners of oriented boxes and outlines of four points, in the order of the annotation, and those of
            the box of other objects; resizing with two scales moves each corner exactly, which may skew a rectangle),
            occluded (COCO, VOC, tables), group_of (tables, Open Images' IsGroupOf), view (VOC's pose), keypoints
            (COCO; the same number for each object, missing ones with visibility 0). The loader gives them with
            include=, except view and keypoints, which are for readers of the TF Object Detection API's keys.
        several_classes: classification, not from folders: refuse a picture with several classes (in several rows, or
            in a list), or keep all of them; then the loader gives `labels`, a 0 or 1 for each class, and `halofeed
            train` learns each class by itself, as multi-label classification.
        class_separator: tables of classes: the text that separates several classes in one cell, such as |; none: a
            cell is one class; auto refuses cells whose parts are classes of other rows.
        masks: store the objects' masks (COCO) as one PNG each.
        shards: files per split.
        limit: convert only about this many inputs, a random sample of each split in proportion, at least one of each;
            classes are those of all inputs.
        license: license of the data, such as CC-BY-4.0, for the manifest and TFDS.
        citation: how to cite the data, such as a BibTeX entry, for the manifest and TFDS.
        split_shares: split by a stable hash of the group, with the shares of all and of each class, e.g.
            train=0.8,validation=0.1,test=0.1; default: the source's splits. A group is a table's column group, a
            DICOM patient, a BIDS subject, {group} of image_pattern, or the group of group_pattern or group_column.
        split_seed: seed of the hash that makes the splits.
        folds: divide the groups into this many folds of equal size, as splits fold0, fold1, ..., with all classes in
            each; `halofeed train fold 2` and Loader(..., fold=2) validate with one fold and train with the others.
        group_column: column of a table or key of an image entry, such as video_id, whose value is the group that
            stays in one split.
        group_pattern: regular expression with one (group) in the source's path, whose sources stay in one split, e.g.
            '(patient[0-9]+)'; '(.+)' makes each source a group of its own.
        duplicates: inputs that show the same, also resized, recompressed, mirrored, turned, brightened or cropped by
            a tenth. report: warn at the end where copies are in several splits; group: keep copies, with their
            groups, in one split of split_shares or folds; drop: convert one of each (labeled before unlabeled, test
            before train, the largest, the first by path), and all where labels differ; drop-conflicts: none where
            labels differ.
        frames: frames of a record: every source is a clip (a video, an animated GIF, WebP or PNG, a folder of
            frames), brought to frames x height x width; for segmentation each frame needs a mask (a folder of PNG
            files, or an animated PNG, GIF or lossless WebP).
        frame_stride: use every N-th frame (default: 1, every frame); of sequences of pictures with boxes too (mot,
            visdrone-video, cvat), whose frames are near copies.
        frame_rate: use this many frames per second instead, by the frames' time stamps: at each of these times the
            frame that is shown then.
        folder_frame_rate: frames per second of folders of frames, which have no time stamps.
        clips_per_source: which parts of a source become records: all, one after the other, without the incomplete
            rest at the end; or a number of evenly spaced parts.
        short_clips: a source with fewer frames than frames is rejected, or its last frame is repeated.
        incomplete_clips: a truncated source, or one with missing frames, is rejected, or its available frames are
            kept and a warning counts them.
        depth: slices of a record: every source is a CT or MR volume, brought to depth x height x width.
        spacing_mm: resample to this spacing, e.g. 2,1.5,1.5; default: the scan's own.
        fit: how a scan is brought to the static shape: crop-or-pad around center, stretch whatever the spacing, or
            tiles, as many records as cover it; pictures: tiles of height x width cover each picture.
        center: crop-or-pad: center of the crop: the volume's, the foreground's (above -500 where the scan has air of
            -500 and less, else above its mean) or the label's.
        crop_foreground: crop to the foreground before fit.
        tile_overlap: tiles: minimum overlap of neighbors, in voxels, e.g. 8,64,64, or of pictures in pixels of the
            scaled picture, e.g. 128,128.
        mask_interpolation: how masks are resampled: the class with the largest weight, or nearest, which is 40 times
            as fast and up to half a source voxel off.
        slice_wise: use the nearest slice across thick slices, as nnU-Net does; auto: if the slice spacing is over 3
            times the spacing within the slice.
        window: a window in HU by name (abdomen, bone, brain, liver, lung, mediastinum) or as center/width, e.g.
            40/400; DICOM pictures: the number or the explanation of one of the file's own windows or VOI LUTs, e.g. 2
            (default: the first), center/width, or none for all values.
        window_hu: the window's low and high end, e.g. -160,240.
        window_unit: unit of window and window_hu: hu refuses a scan whose values are not Hounsfield units (MR, a CT
            without rescale, a file that states no unit and has no value below -50); any applies the window to every
            scan.
        offset_hu: CT in files that do not state their unit: number that is added to each value and gives Hounsfield
            units, e.g. -1024 for values stored as HU + 1024; use offset_hu=-1024. Scans of one channel.
        window_percentiles: a separate window for each scan, e.g. 0.5,99.5 of the values above its smallest one (MR);
            tiles: for each picture and band, of its pixels that are not nodata, e.g. 2,98.
        normalize: subtract a mean and divide by a deviation: scan uses each scan's and channel's own, of the values
            above its smallest one (z-score); MEAN/DEVIATION, e.g. 101.3/38.2, is the same for all scans, after the
            window. Stored as float32 or bfloat16; the manifest, or each record where scans differ, states how to undo
            it. See normalize_like.
        mask_grid: a mask on another grid than its scan is refused, or resampled onto it; voxels: a mask of the scan's
            stored shape is used voxel by voxel, for masks whose affine was lost, and others are refused.
        channel_grid: refuse: a further channel on another grid than the first (PET and CT, ADC and T2) is refused;
            resample: it is brought onto the first one's grid by linear interpolation (few whole numbers in areas, as
            labels: nearest voxel), and voxels that it does not cover get its background; resample:NAME takes the grid
            of another channel: its name in dataset.json, the part of its file's name that others lack, e.g.
            resample:CT, or its number from 0.
        mask_grid_tolerance: largest offset of a mask, or a further channel, from its scan's grid along each axis, as
            a fraction of a voxel below 0.5; within it the offset is ignored.
        mask_references: a SEG or RTSTRUCT that refers to other images, another series or another frame of reference
            than those of its DICOM scan is refused; ignore: it is used at its position, e.g. for scans whose UIDs
            were changed (layout dicom pairs it with the series that lies nearest, or that label_pattern names).
        class_overlap: voxels that two classes claim in class-masks, a SEG or RTSTRUCT, or several files: the scan is
            refused, or the class with the last or first number, or of the last or first file, gets them; channels
            (volumes, at most 16 classes) keeps all: the loader gives each class, and each region of nnU-Net, as a
            channel of 0 and 1, the last axis of `label` (halofeed's trainer does not train on it).
        several_masks: several label files (SEGs, RTSTRUCTs) of one image are refused, or merged in order of name, as
            those of a table are; volumes: readings of the same structures become one label: majority takes the class
            of most readings, staple weighs them by their agreement (STAPLE); a tie is background. A reading is a
            file, or all files of one {reader} of label_pattern.
        scan_box_units: scan-boxes: unit of the boxes: voxels (continuous, x along the file's fastest axis), mm-ras
            (to the right, anterior and superior, as in NIfTI) or mm-lps (left, posterior, superior, as in DICOM and
            ITK); auto takes the only one in which they lie in their scans.
        min_readers: LIDC: a nodule that fewer readers outlined is flagged as ignored (is_crowd), so that it is
            neither learned nor counted as background; boxes_crowd drop leaves it out.
        refuse_flaws: DICOM: refuse a series with any of these flaws instead of correcting it: tilt, unequal-gaps,
            missing-slice, overlapping, padding, duplicates.
        fill_missing_slices: DICOM: interpolate missing slices instead of refusing the series.
        min_slices: DICOM: a stack of fewer slices is listed and skipped: surveys, captures, files of one series UID
            each.
        secondary_captures: DICOM: images of the SOP class Secondary Capture, mostly screenshots, are listed and
            skipped; take: use them, since some programs write volumes in this form.
        real_world_values: DICOM: auto applies the only Real World Value Mapping of a frame (parametric maps, enhanced
            MR), except to CT, PET and others whose rescale is a quantity; or name one of several by its unit, such as
            mm2/s, or by its number from 1; stored: no mapping.
        series_identity: DICOM: files of one series UID whose headers name different patients, studies, series or
            equipment become several scans where that is proven, and are refused otherwise; uid: files of one series
            UID are one series whatever their other headers are; folder: the files of a folder are one series whatever
            their series UIDs are.
        series_split: DICOM: a series with several images at each position (phases, echoes, b-values, times) becomes
            one scan of each, or one scan with as many channels (give channels), or is refused.
        alternating_slices: DICOM: a scan whose alternating slices show different content, as if two scans were mixed
            without a header that distinguishes them.
        series_modality: DICOM: use only series of these modalities, e.g. CT,MR.
        series_description: DICOM: use only series whose description matches this regular expression in upper or lower
            case, e.g. 'portal|venous'.
        series_choice: DICOM: use all series of each study, or only the largest of them (slices x rows x columns)
            after the other options.
        non_finite_value: volumes in files: value that replaces NaN and infinity, in the scan's unit, e.g. -1024;
            default: such a scan is refused.
        non_finite_labels: volumes in files: a label with NaN or infinity is refused, or these voxels become
            background.
        sform_qform: NIfTI: which affine is used if a file has two that differ by more than a tenth of a voxel (the
            report notes it), or refuse the file.
        unoriented: volumes in files: direction of the first axis in a volume without an orientation: to the left
            (radiological, as SPM, FSL, nibabel and ITK read it; the report notes it), to the right (neurological), or
            refuse the volume.
        array_spacing_mm: NumPy arrays (.npy, .npz) are volumes [depth, height, width] with this voxel size, e.g.
            2.5,0.8,0.8, and so are stacks of TIFF pages without a JSON file of their spacing; they are without an
            orientation, see unoriented.
        max_voxels: volumes in files: a volume that claims more voxels, over all channels, is refused.
        image_pattern: pairs, class-masks: path of the images, e.g. images/{id}.nii.gz. {id} is the part that an image
            and its label share, {split} the split, {group} the group that stays in one split (a patient), {channel}
            the channel of an image that a file holds; all but {id} stay within one name:
            {split}/{group}_{id}_{channel}.nii.gz; * matches anything within a name, ** any folders; dicom: with
            label_pattern, the part of a series' folder that is {id}, e.g. {id}/ct; bids: where the images are, if not
            in anat, e.g. **/{id}_pet.nii.gz, with {id} for the subject and session.
        label_pattern: pairs, dicom: path of the labels, e.g. labels/{id}.nii.gz; class-masks, dicom: e.g.
            {class}/{id}.nii.gz; dicom: also folders of DICOM images whose values are classes, or pictures, one for
            each slice; bids: the labels to take where there are several, e.g. derivatives/manual/**/{id}_dseg.nii.gz;
            {reader} is who drew a label, see several_masks.
        regions: nnU-Net: regions (classes of several values) are refused, or each value is a class that is named
            after all regions that contain it, e.g. tumor+core; with class_overlap channels each region is a separate
            class.
        channel_order: the values of {channel} in image_pattern that become channels, in order, e.g. t1,t1ce,t2,flair;
            default: all, by name; bids: suffixes, also with entities, e.g. T1w,ce-gd_T1w; default: those of all
            sessions.
        classes: the classes to keep, by name (label images: or value), in the order of their ids (a label_map gives
            other ids); objects, pictures, pixels and voxels of all others are left out. A name may be a pattern, e.g.
            'GTV*', which keeps each class that fits, or a code of a SEG, RTSTRUCT or .seg.nrrd, e.g. SCT:10200004.
        map_classes: replace classes of the source, by name (label images: or value): FROM=TO, e.g.
            'car=vehicle,bus=vehicle' or 'left kidney=kidney,BODY=background,500=liver', 'GTV*=tumor' for all that
            fit, SCT:10200004=liver for a code (SCT:64033007+SCT:7771000 with a modifier), or 1..300=cell for a range
            of values; background leaves a class out, before overlaps are counted.
        drop_classes: classes of the source to leave out, by name or value.
        emptied_pictures: a picture whose objects classes, map_classes and drop_classes all leave out becomes a
            picture without objects, one with ignored regions in the place of its objects, or has no record.
        label_channels: volumes: the class of each channel of label files with a channel per class (one-hot), in
            order, e.g. background,liver,spleen.
        label_colors: segmentation: the class of each color (RRGGBB, hexadecimal) of label files in color, e.g.
            ff0000=liver,00ff00=spleen; black is the background.
        label_values: segmentation: what a gray PNG label of fewer than 8 bits, or with a palette of grays, holds: the
            numbers that it stores, the gray values that it shows, or what the files of the data set prove.
        ignore_label: segmentation: what is no class in label images and volumes: values, names or colors (RRGGBB),
            such as 255, -1 or void,e0e0c0. Records store one value for all, `loader.ignore_label`; padding has it,
            and losses, metrics and statistics ignore it (default: what the source calls ignore; 255 for label images
            with the palette of PASCAL VOC).
        missing_masks: segmentation: images without a label are rejected, or kept for prediction in a split without
            labels.
        missing_classes: class-masks, bids: a scan that lacks the mask of a class is rejected, or the class is empty
            there; SEG and RTSTRUCT: the same for a scan whose label names none of the classes.
        scale: scale the picture by this factor before it is cut, e.g. 0.5; a pyramid is read at the level that is
            enough.
        gsd_m: scale the picture to this ground sample distance in meters per pixel, e.g. 0.5; the file states its
            own.
        min_visible: share of an object's box that a tile must show, 0 to 1. An object that it shows less of stays in
            the tile, flagged as ignored (is_crowd), so that it is neither learned nor counted as background; the same
            for boxes in volumes, in tiles and crops.
        empty_tiles: tiles without an object, or whose label is background only: keep all, drop all, or keep this
            share of them, e.g. 0.1, chosen by a stable hash.
        bands: bands of the file that become channels, in order, counted from 1, e.g. 4,3,2; default: all, which
            channels must match.
        value_range: values of more than 8 bits: the low and the high end that become 0 and 255, e.g. 0,3000; see
            window_percentiles for a range of each picture.
        debug: show the whole traceback of an error.

    Raises:
        UsageError: a parameter is wrong; and as `halofeed.pipelines.convert.convert`.

    >>> halofeed.convert("photos", "data", height=16, width=24)
    <photos 1.0.0: classification, train: 8 records, in data/photos/1.0.0>
    """

def dry_run(
    source: StrPath,
    out: StrPath,
    *,
    name: str = '',
    recipe: StrPath | Mapping[str, Any] | None = None,
    images: StrPath | None = None,
    version: str = '1.0.0',
    from_: StrPath = '',
    keep_splits: bool = False,
    label_map: StrPath | None = None,
    split_lists: Sequence[str | int] | Mapping[str, Any] = (),
    nnunet_splits: StrPath | None = None,
    nnunet_fold: int | None = None,
    max_rejected: int | float | str | None = None,
    normalize_like: StrPath | None = None,
    disk_check: Literal['refuse', 'ignore'] = 'refuse',
    listing: Literal['auto', 'command', 'job'] = 'auto',
    on_loss: Literal['refuse', 'warn', 'ignore'] = 'refuse',
    warn_cut: float = 0.01,
    salt: str = '',
    overwrite: bool = False,
    preview: StrPath | None = None,
    workers: int | None = None,
    threads: int | None = None,
    max_silence_minutes: float | None = None,
    job_restarts: int = 0,
    layout: str = '',
    task: Literal['classification', 'detection', 'segmentation'] | None = None,
    box_origin: Literal[0, 1] | None = None,
    box_units: Literal['auto', 'pixels', 'normalized'] = 'auto',
    box_form: Literal['auto', 'corners', 'corner-size', 'center-size'] = 'auto',
    ignore_columns: Sequence[str | int] = (),
    column: Sequence[str | int] = (),
    class_marks: Sequence[str | int] = (),
    annotation_grid: Literal['auto', 'stored', 'displayed'] = 'auto',
    split_folders: Literal['auto', 'yes', 'no'] = 'auto',
    folders_are_classes: bool = False,
    voc_images: Literal['auto', 'filename', 'xml-name'] = 'auto',
    image_sets: Sequence[str | int] = (),
    resize: Literal['fixed-shape', 'keep-aspect', 'none'] = 'fixed-shape',
    height: int = 300,
    width: int = 300,
    min_dimension: int = 600,
    max_dimension: int = 1024,
    pad: bool = False,
    pad_value: int | Sequence[int] = (),
    interpolation: Literal['', 'antialias', 'tf1-bilinear', 'tf1-nearest', 'tf1-bicubic', 'tf1-area', 'tf2-bilinear', 'tf2-nearest', 'tf2-bicubic', 'tf2-area', 'tf2-lanczos3', 'tf2-lanczos5', 'tf2-bilinear-antialias', 'tf2-bicubic-antialias', 'tf2-lanczos3-antialias', 'tf2-lanczos5-antialias', 'linear', 'cubic'] = '',
    channels: int = 0,
    dtype: Literal['', 'uint8', 'uint16', 'int16', 'float32', 'bfloat16'] = '',
    sample_bits: Literal[0, 8, 9, 10, 11, 12, 13, 14, 15, 16] = 0,
    alpha: Literal['drop', 'blend'] = 'drop',
    background: Sequence[int] = (0, 0, 0),
    max_pixels: int = 178956970,
    max_memory: int = 0,
    encoding: Literal['raw', 'packed', 'yuv420', 'jpeg', 'png'] = 'raw',
    jpeg_quality: int = 95,
    max_boxes: int = 100,
    boxes_outside: Literal['clip', 'drop', 'fail'] = 'clip',
    boxes_zero_area: Literal['drop', 'keep', 'fail'] = 'drop',
    boxes_crowd: Literal['keep', 'drop', 'objects'] = 'keep',
    boxes_difficult: Literal['keep', 'drop', 'objects'] = 'keep',
    on_bad_object: Literal['drop', 'reject'] = 'drop',
    oriented_boxes: Literal['upright', 'drop'] = 'upright',
    class_property: str | None = None,
    one_class: str | None = None,
    person_box: Literal['full', 'visible', 'head'] = 'full',
    run_lengths: Literal['auto', 'columns', 'rows'] = 'auto',
    coordinates: str = 'auto',
    empty_classes: Sequence[str | int] = (),
    keep: Sequence[str | int] = (),
    several_classes: Literal['refuse', 'keep'] = 'refuse',
    class_separator: str = 'auto',
    masks: bool = False,
    shards: int = 1,
    limit: int | None = None,
    license: str = '',
    citation: str = '',
    split_shares: Sequence[str | int] | Mapping[str, Any] = (),
    split_seed: int = 0,
    folds: int | None = None,
    group_column: str | None = None,
    group_pattern: str | None = None,
    duplicates: Literal['report', 'group', 'drop', 'drop-conflicts'] = 'report',
    frames: int | None = None,
    frame_stride: int | None = None,
    frame_rate: float | None = None,
    folder_frame_rate: float | None = None,
    clips_per_source: str | int = 'all',
    short_clips: Literal['refuse', 'repeat'] = 'refuse',
    incomplete_clips: Literal['refuse', 'keep'] = 'refuse',
    depth: int | None = None,
    spacing_mm: Sequence[float] = (),
    fit: Literal['crop-or-pad', 'stretch', 'tiles'] = 'crop-or-pad',
    center: Literal['volume', 'foreground', 'label'] = 'volume',
    crop_foreground: bool = False,
    tile_overlap: Sequence[int] = (),
    mask_interpolation: Literal['onehot-linear', 'nearest'] = 'onehot-linear',
    slice_wise: Literal['auto', 'always', 'never'] = 'auto',
    window: str | None = None,
    window_hu: Sequence[float] = (),
    window_unit: Literal['hu', 'any'] = 'hu',
    offset_hu: float = 0.0,
    window_percentiles: Sequence[float] = (),
    normalize: str | None = None,
    mask_grid: Literal['refuse', 'resample', 'voxels'] = 'refuse',
    channel_grid: str = 'refuse',
    mask_grid_tolerance: float = 0.05,
    mask_references: Literal['check', 'ignore'] = 'check',
    class_overlap: Literal['refuse', 'last', 'first', 'channels'] = 'refuse',
    several_masks: Literal['refuse', 'merge', 'majority', 'staple'] = 'refuse',
    scan_box_units: Literal['auto', 'voxels', 'mm-ras', 'mm-lps'] = 'auto',
    min_readers: int = 1,
    refuse_flaws: Sequence[str | int] = (),
    fill_missing_slices: bool = False,
    min_slices: int = 3,
    secondary_captures: Literal['skip', 'take'] = 'skip',
    real_world_values: str = 'auto',
    series_identity: Literal['headers', 'uid', 'folder'] = 'headers',
    series_split: Literal['volumes', 'channels', 'refuse'] = 'volumes',
    alternating_slices: Literal['refuse', 'keep'] = 'refuse',
    series_modality: Sequence[str | int] = (),
    series_description: str | None = None,
    series_choice: Literal['all', 'largest'] = 'all',
    non_finite_value: float | None = None,
    non_finite_labels: Literal['refuse', 'background'] = 'refuse',
    sform_qform: Literal['sform', 'qform', 'refuse'] = 'sform',
    unoriented: Literal['radiological', 'neurological', 'refuse'] = 'radiological',
    array_spacing_mm: Sequence[float] = (),
    max_voxels: int = 2147483648,
    image_pattern: str | None = None,
    label_pattern: str | None = None,
    regions: Literal['refuse', 'combine'] = 'refuse',
    channel_order: Sequence[str | int] = (),
    classes: Sequence[str | int] = (),
    map_classes: Sequence[str | int] | Mapping[str, Any] = (),
    drop_classes: Sequence[str | int] = (),
    emptied_pictures: Literal['negative', 'ignored', 'left-out'] = 'negative',
    label_channels: Sequence[str | int] = (),
    label_colors: Sequence[str | int] | Mapping[str, Any] = (),
    label_values: Literal['auto', 'stored', 'shown'] = 'auto',
    ignore_label: str | int | Sequence[str | int] = (),
    missing_masks: Literal['refuse', 'prediction'] = 'refuse',
    missing_classes: Literal['refuse', 'empty'] = 'refuse',
    scale: float = 1.0,
    gsd_m: float = 0.0,
    min_visible: float = 0.3,
    empty_tiles: str = 'keep',
    bands: Sequence[int] = (),
    value_range: Sequence[float] = (),
    debug: bool = False,
) -> str:
    """Describe the conversion that `convert` would make with the same parameters, and write no data set.

    The text has inputs by split, classes, record sizes, rejects and a converted sample; for volumes a shape, a spacing
    and a window. `preview="sample.png"` draws the sample.

    Args:
        source: as for `convert`.
        out: folder below which `convert` would make NAME/VERSION.
        name: name of the data set.
        recipe: manifest.json of a data set, options in JSON or YAML, or a pipeline.config; options here win.
        images: folder that image paths are relative to; default: the source's folder.
        version: the data set's version.
        from_: folder or address of an earlier version, such as data/cards/1.0.0: take its recipe, keep its shards
            without a changed or removed example, and put new examples into further shards; its classes keep their
            numbers. source names all sources, old and new; out and name are those of the earlier version.
        keep_splits: with from_: examples of the earlier version keep their split, and new ones of their groups get
            it; other options of splits are then for the rest.
        label_map: file of class names (.txt, .json, .pbtxt, .csv); default: from the data.
        split_lists: split by lists of files, e.g. train=train.txt,test=test.txt.
        nnunet_splits: nnU-Net's splits_final.json: the cases of train and val; nnunet_fold says which fold.
        nnunet_fold: fold of nnunet_splits, from 0.
        max_rejected: fail the job when more inputs than this are rejected: a number, such as 100, or a share of all
            inputs, such as 0.05 or 5%; default: no limit, and a warning above 5%.
        normalize_like: volumes, as nnU-Net does for CT: folder of an earlier conversion; the labeled voxels of its
            split train give window_hu (their percentiles 0.5 and 99.5) and normalize (their mean and deviation).
        disk_check: records too large for the local disk, calculated before the first is written: refuse, or ignore.
        listing: on another runner: where class folders of pictures are listed: by the command, in the job by its
            workers, or auto: in the job where there are more than 100,000 files.
        on_loss: records that lost their information, such as those of one value, or whose objects are all below 2
            pixels: refuse the conversion where most records are hit, and warn of other losses; or warn or ignore
            only.
        warn_cut: volumes: warn where the static shape cuts off more than this share of a class, or of the body of a
            scan without labels.
        salt: DICOM: secret mixed into the hashes of patients when splits are made; never written.
        overwrite: replace a version that is there already.
        preview: with dry_run: PNG file to write, with the pictures of the sample.
        workers: worker processes of a local run; default: one per core, at most shards, and as many as have memory
            for max_memory each.
        threads: decoding threads per worker; default: all cores shared by the workers.
        max_silence_minutes: another runner's job: cancel it when no worker has sent a heartbeat for this long, also
            at the beginning; workers send one every 30 s, but not while a runner shuffles; default: 60 after the
            first heartbeat, and no limit before it, because a job may be queued.
        job_restarts: another runner's job: restart it at most this often when it fails without an error from a
            worker, or falls silent; it resumes from the finished shards. For runners without retries (Prism), or
            beyond those.
        layout: layout of the source: one of the layouts listed below; default: auto, the only one that fits its
            files, which is printed with the reason.
        task: task that the records serve; default: the layout's own.
        box_origin: boxes in pixels: the number of the first pixel, 0 or 1 (then both ends are within the box, as in
            VOC); default: 0 for tables; for voc 0 where boxes have fractions, else 1, refused where boxes begin below
            1; for mot 0 where boxes have fractions or begin at 0, else 1.
        box_units: unit of boxes: pixels, or normalized, fractions of the picture's width and height; auto reads a
            file whose boxes are all within 0 to 1 as normalized.
        box_form: form of a box in columns x,y,w,h, in a list called bbox, or in VOC's xmin,ymin,xmax,ymax: corners
            (xmin,ymin,xmax,ymax), corner-size (upper left x,y, then width,height, as in COCO), center-size (center
            x,y, then width,height); auto accepts columns whose names are unambiguous, and refuses others.
        ignore_columns: tables and COCO: columns or keys to ignore that would be refused because they may hold boxes
            or outlines; rotation (COCO, VOC, CVAT, Label Studio): use boxes as they are before their rotation.
        column: tables: the column, key or feature that has a meaning, as MEANING=COLUMN, e.g.
            label=fine_label,image=isic_id; meanings: image, label, split, group, id, width, height, xmin, ymin, xmax,
            ymax, x, y, w, h, bbox, objects, area, is_crowd, difficult, truncated, occluded, group_of, corners.
            Several columns as label are a class each.
        class_marks: tables with a column for each class: what a value in these columns means, as yes=VALUE, no=VALUE
            or reject=VALUE (the picture is left out), e.g. no=-1,reject=blank; default: 1 is yes and 0 is no; -1 is
            no where no column holds 0; blank is no where all hold blank or 1.
        annotation_grid: pictures with an EXIF orientation: whether boxes and label images refer to the pixels as the
            file stores them or to the picture as displayed; auto decides by declared sizes and the tool's own way,
            and warns where nothing shows it.
        split_folders: class folders: whether the first folder names a split; auto decides by its name.
        folders_are_classes: class folders: read each folder as a class even if annotations of another layout are
            beside the images.
        voc_images: VOC: which image an XML file describes if <filename> and the file's own name are those of two
            images; auto decides by the declared sizes and by the other XML files, and rejects those for which nothing
            proves it.
        image_sets: VOC: the lists of ImageSets/Main to follow, e.g. trainval,test; default: train, val and test, and
            none where split_shares or split_lists make the splits.
        resize: fixed-shape stretches to height x width; keep-aspect scales into min_dimension, max_dimension; none
            keeps the size.
        height: rows of a fixed shape.
        width: columns of a fixed shape.
        min_dimension: keep-aspect: the shorter side is scaled to this ...
        max_dimension: keep-aspect: ... unless the longer side would pass this.
        pad: keep-aspect: pad to max x max at the bottom and right.
        pad_value: value of padding, one value or one per channel, e.g. 124,116,104 (default: 0); volumes: in HU
            (default: the smallest value of each channel).
        interpolation: how images are resized and resampled. Pictures and clips: tf1-* and tf2-* give TensorFlow's own
            pixels (default: antialias). Volumes: linear or cubic, with smoothing before downsampling (default:
            linear).
        channels: pictures: 1 gray, 3 color (default), 4 color and alpha; tiles: any number of bands, see bands;
            volumes: channels of each scan (default: 1).
        dtype: stored type. Pictures: uint8 scales 16-bit sources down, uint16 keeps them (default: uint8). Volumes:
            int16 whole HU (default), uint8 the window (default with one), float32, bfloat16.
        sample_bits: pictures and clips of 16 bits stored as uint8: number of bits that their samples use, e.g. 12
            maps 0 to 4095 to 0 to 255; default: 16, and a picture whose largest value is below 4096 is refused, as it
            would be nearly black.
        alpha: transparency: drop ignores it, blend puts background behind it.
        background: the color behind transparent pixels, 0 to 255.
        max_pixels: a source with more pixels is rejected before it is decoded.
        max_memory: MiB of memory that a worker may use for all images that it decodes at the same time; a source
            whose header shows that it needs more is rejected (default: 4096; volumes: 8192).
        encoding: encoding of the stored image and its label: raw is the fastest to load from memory; packed has the
            same numbers in about half of the bytes, which a disk or a bucket delivers faster; yuv420 is half of raw,
            with colors of half the resolution, for pictures. Only halofeed's loader reads these. The decoders of the
            TF Object Detection API and Model Garden read jpeg (the smallest) and png, which are for pictures.
        jpeg_quality: quality of stored JPEGs, 1 to 100; with the default, an unchanged JPEG keeps its own bytes,
            including EXIF data.
        max_boxes: static number of boxes that the loader pads to; the report counts the boxes beyond it.
        boxes_outside: boxes that leave the picture.
        boxes_zero_area: boxes without height or width.
        boxes_crowd: boxes that mark a crowd or a group (Open Images' IsGroupOf): keep them with their flag, by which
            training leaves them out; drop them; or take them as objects, for tools that flag every object.
        boxes_difficult: boxes flagged as difficult: keep them with their flag, drop them, or take them as objects
            without it.
        on_bad_object: COCO, VOC and tables: an object that cannot be used (inverted or NaN box, no class; with masks
            no usable segmentation): drop only the object and list it in rejected.jsonl, or reject its image.
        oriented_boxes: boxes that are turned (DOTA, YOLO's OBB, CVAT, Label Studio, labelme, roLabelImg, rotation in
            COCO and VOC): the upright box around each, or leave them out; both are counted. ignore_columns rotation
            takes boxes as they are before they are turned. keep corners keeps their corners too.
        class_property: GeoJSON: property with the class; default: QuPath's classification, class, label, category,
            type_id and other usual names, or the only one whose texts repeat.
        one_class: GeoJSON, masks of objects, and tables of run lengths without classes: all are objects of this
            class, e.g. building.
        person_box: CrowdHuman: the box of each person: the full body, which may extend beyond the picture, its
            visible part, or the head.
        run_lengths: tables of run lengths: whether pixels count down the columns, as Kaggle's mostly do, or along the
            rows. auto: the masks of pictures that are no squares show it, else columns.
        coordinates: GeoJSON: what its numbers are: pixels of the picture; picture, the coordinate system of each
            picture; lat-lon, latitude before longitude; or a system such as EPSG:32633. auto: the file's own member
            crs, else longitude and latitude; pixels for QuPath, and for pictures without a georeference.
        empty_classes: classes of pictures (tags, choices, annotations without a box) that mean that there is no
            object, beside usual names such as empty. A picture with another class and without a box of it is
            rejected.
        keep: further attributes of each object to keep: category_id (COCO's own number of the class), corners (the
            four corners of oriented boxes and outlines of four points, in the order of the annotation, and those of
            the box of other objects; resizing with two scales moves each corner exactly, which may skew a rectangle),
            occluded (COCO, VOC, tables), group_of (tables, Open Images' IsGroupOf), view (VOC's pose), keypoints
            (COCO; the same number for each object, missing ones with visibility 0). The loader gives them with
            include=, except view and keypoints, which are for readers of the TF Object Detection API's keys.
        several_classes: classification, not from folders: refuse a picture with several classes (in several rows, or
            in a list), or keep all of them; then the loader gives `labels`, a 0 or 1 for each class, and `halofeed
            train` learns each class by itself, as multi-label classification.
        class_separator: tables of classes: the text that separates several classes in one cell, such as |; none: a
            cell is one class; auto refuses cells whose parts are classes of other rows.
        masks: store the objects' masks (COCO) as one PNG each.
        shards: files per split.
        limit: convert only about this many inputs, a random sample of each split in proportion, at least one of each;
            classes are those of all inputs.
        license: license of the data, such as CC-BY-4.0, for the manifest and TFDS.
        citation: how to cite the data, such as a BibTeX entry, for the manifest and TFDS.
        split_shares: split by a stable hash of the group, with the shares of all and of each class, e.g.
            train=0.8,validation=0.1,test=0.1; default: the source's splits. A group is a table's column group, a
            DICOM patient, a BIDS subject, {group} of image_pattern, or the group of group_pattern or group_column.
        split_seed: seed of the hash that makes the splits.
        folds: divide the groups into this many folds of equal size, as splits fold0, fold1, ..., with all classes in
            each; `halofeed train fold 2` and Loader(..., fold=2) validate with one fold and train with the others.
        group_column: column of a table or key of an image entry, such as video_id, whose value is the group that
            stays in one split.
        group_pattern: regular expression with one (group) in the source's path, whose sources stay in one split, e.g.
            '(patient[0-9]+)'; '(.+)' makes each source a group of its own.
        duplicates: inputs that show the same, also resized, recompressed, mirrored, turned, brightened or cropped by
            a tenth. report: warn at the end where copies are in several splits; group: keep copies, with their
            groups, in one split of split_shares or folds; drop: convert one of each (labeled before unlabeled, test
            before train, the largest, the first by path), and all where labels differ; drop-conflicts: none where
            labels differ.
        frames: frames of a record: every source is a clip (a video, an animated GIF, WebP or PNG, a folder of
            frames), brought to frames x height x width; for segmentation each frame needs a mask (a folder of PNG
            files, or an animated PNG, GIF or lossless WebP).
        frame_stride: use every N-th frame (default: 1, every frame); of sequences of pictures with boxes too (mot,
            visdrone-video, cvat), whose frames are near copies.
        frame_rate: use this many frames per second instead, by the frames' time stamps: at each of these times the
            frame that is shown then.
        folder_frame_rate: frames per second of folders of frames, which have no time stamps.
        clips_per_source: which parts of a source become records: all, one after the other, without the incomplete
            rest at the end; or a number of evenly spaced parts.
        short_clips: a source with fewer frames than frames is rejected, or its last frame is repeated.
        incomplete_clips: a truncated source, or one with missing frames, is rejected, or its available frames are
            kept and a warning counts them.
        depth: slices of a record: every source is a CT or MR volume, brought to depth x height x width.
        spacing_mm: resample to this spacing, e.g. 2,1.5,1.5; default: the scan's own.
        fit: how a scan is brought to the static shape: crop-or-pad around center, stretch whatever the spacing, or
            tiles, as many records as cover it; pictures: tiles of height x width cover each picture.
        center: crop-or-pad: center of the crop: the volume's, the foreground's (above -500 where the scan has air of
            -500 and less, else above its mean) or the label's.
        crop_foreground: crop to the foreground before fit.
        tile_overlap: tiles: minimum overlap of neighbors, in voxels, e.g. 8,64,64, or of pictures in pixels of the
            scaled picture, e.g. 128,128.
        mask_interpolation: how masks are resampled: the class with the largest weight, or nearest, which is 40 times
            as fast and up to half a source voxel off.
        slice_wise: use the nearest slice across thick slices, as nnU-Net does; auto: if the slice spacing is over 3
            times the spacing within the slice.
        window: a window in HU by name (abdomen, bone, brain, liver, lung, mediastinum) or as center/width, e.g.
            40/400; DICOM pictures: the number or the explanation of one of the file's own windows or VOI LUTs, e.g. 2
            (default: the first), center/width, or none for all values.
        window_hu: the window's low and high end, e.g. -160,240.
        window_unit: unit of window and window_hu: hu refuses a scan whose values are not Hounsfield units (MR, a CT
            without rescale, a file that states no unit and has no value below -50); any applies the window to every
            scan.
        offset_hu: CT in files that do not state their unit: number that is added to each value and gives Hounsfield
            units, e.g. -1024 for values stored as HU + 1024; use offset_hu=-1024. Scans of one channel.
        window_percentiles: a separate window for each scan, e.g. 0.5,99.5 of the values above its smallest one (MR);
            tiles: for each picture and band, of its pixels that are not nodata, e.g. 2,98.
        normalize: subtract a mean and divide by a deviation: scan uses each scan's and channel's own, of the values
            above its smallest one (z-score); MEAN/DEVIATION, e.g. 101.3/38.2, is the same for all scans, after the
            window. Stored as float32 or bfloat16; the manifest, or each record where scans differ, states how to undo
            it. See normalize_like.
        mask_grid: a mask on another grid than its scan is refused, or resampled onto it; voxels: a mask of the scan's
            stored shape is used voxel by voxel, for masks whose affine was lost, and others are refused.
        channel_grid: refuse: a further channel on another grid than the first (PET and CT, ADC and T2) is refused;
            resample: it is brought onto the first one's grid by linear interpolation (few whole numbers in areas, as
            labels: nearest voxel), and voxels that it does not cover get its background; resample:NAME takes the grid
            of another channel: its name in dataset.json, the part of its file's name that others lack, e.g.
            resample:CT, or its number from 0.
        mask_grid_tolerance: largest offset of a mask, or a further channel, from its scan's grid along each axis, as
            a fraction of a voxel below 0.5; within it the offset is ignored.
        mask_references: a SEG or RTSTRUCT that refers to other images, another series or another frame of reference
            than those of its DICOM scan is refused; ignore: it is used at its position, e.g. for scans whose UIDs
            were changed (layout dicom pairs it with the series that lies nearest, or that label_pattern names).
        class_overlap: voxels that two classes claim in class-masks, a SEG or RTSTRUCT, or several files: the scan is
            refused, or the class with the last or first number, or of the last or first file, gets them; channels
            (volumes, at most 16 classes) keeps all: the loader gives each class, and each region of nnU-Net, as a
            channel of 0 and 1, the last axis of `label` (halofeed's trainer does not train on it).
        several_masks: several label files (SEGs, RTSTRUCTs) of one image are refused, or merged in order of name, as
            those of a table are; volumes: readings of the same structures become one label: majority takes the class
            of most readings, staple weighs them by their agreement (STAPLE); a tie is background. A reading is a
            file, or all files of one {reader} of label_pattern.
        scan_box_units: scan-boxes: unit of the boxes: voxels (continuous, x along the file's fastest axis), mm-ras
            (to the right, anterior and superior, as in NIfTI) or mm-lps (left, posterior, superior, as in DICOM and
            ITK); auto takes the only one in which they lie in their scans.
        min_readers: LIDC: a nodule that fewer readers outlined is flagged as ignored (is_crowd), so that it is
            neither learned nor counted as background; boxes_crowd drop leaves it out.
        refuse_flaws: DICOM: refuse a series with any of these flaws instead of correcting it: tilt, unequal-gaps,
            missing-slice, overlapping, padding, duplicates.
        fill_missing_slices: DICOM: interpolate missing slices instead of refusing the series.
        min_slices: DICOM: a stack of fewer slices is listed and skipped: surveys, captures, files of one series UID
            each.
        secondary_captures: DICOM: images of the SOP class Secondary Capture, mostly screenshots, are listed and
            skipped; take: use them, since some programs write volumes in this form.
        real_world_values: DICOM: auto applies the only Real World Value Mapping of a frame (parametric maps, enhanced
            MR), except to CT, PET and others whose rescale is a quantity; or name one of several by its unit, such as
            mm2/s, or by its number from 1; stored: no mapping.
        series_identity: DICOM: files of one series UID whose headers name different patients, studies, series or
            equipment become several scans where that is proven, and are refused otherwise; uid: files of one series
            UID are one series whatever their other headers are; folder: the files of a folder are one series whatever
            their series UIDs are.
        series_split: DICOM: a series with several images at each position (phases, echoes, b-values, times) becomes
            one scan of each, or one scan with as many channels (give channels), or is refused.
        alternating_slices: DICOM: a scan whose alternating slices show different content, as if two scans were mixed
            without a header that distinguishes them.
        series_modality: DICOM: use only series of these modalities, e.g. CT,MR.
        series_description: DICOM: use only series whose description matches this regular expression in upper or lower
            case, e.g. 'portal|venous'.
        series_choice: DICOM: use all series of each study, or only the largest of them (slices x rows x columns)
            after the other options.
        non_finite_value: volumes in files: value that replaces NaN and infinity, in the scan's unit, e.g. -1024;
            default: such a scan is refused.
        non_finite_labels: volumes in files: a label with NaN or infinity is refused, or these voxels become
            background.
        sform_qform: NIfTI: which affine is used if a file has two that differ by more than a tenth of a voxel (the
            report notes it), or refuse the file.
        unoriented: volumes in files: direction of the first axis in a volume without an orientation: to the left
            (radiological, as SPM, FSL, nibabel and ITK read it; the report notes it), to the right (neurological), or
            refuse the volume.
        array_spacing_mm: NumPy arrays (.npy, .npz) are volumes [depth, height, width] with this voxel size, e.g.
            2.5,0.8,0.8, and so are stacks of TIFF pages without a JSON file of their spacing; they are without an
            orientation, see unoriented.
        max_voxels: volumes in files: a volume that claims more voxels, over all channels, is refused.
        image_pattern: pairs, class-masks: path of the images, e.g. images/{id}.nii.gz. {id} is the part that an image
            and its label share, {split} the split, {group} the group that stays in one split (a patient), {channel}
            the channel of an image that a file holds; all but {id} stay within one name:
            {split}/{group}_{id}_{channel}.nii.gz; * matches anything within a name, ** any folders; dicom: with
            label_pattern, the part of a series' folder that is {id}, e.g. {id}/ct; bids: where the images are, if not
            in anat, e.g. **/{id}_pet.nii.gz, with {id} for the subject and session.
        label_pattern: pairs, dicom: path of the labels, e.g. labels/{id}.nii.gz; class-masks, dicom: e.g.
            {class}/{id}.nii.gz; dicom: also folders of DICOM images whose values are classes, or pictures, one for
            each slice; bids: the labels to take where there are several, e.g. derivatives/manual/**/{id}_dseg.nii.gz;
            {reader} is who drew a label, see several_masks.
        regions: nnU-Net: regions (classes of several values) are refused, or each value is a class that is named
            after all regions that contain it, e.g. tumor+core; with class_overlap channels each region is a separate
            class.
        channel_order: the values of {channel} in image_pattern that become channels, in order, e.g. t1,t1ce,t2,flair;
            default: all, by name; bids: suffixes, also with entities, e.g. T1w,ce-gd_T1w; default: those of all
            sessions.
        classes: the classes to keep, by name (label images: or value), in the order of their ids (a label_map gives
            other ids); objects, pictures, pixels and voxels of all others are left out. A name may be a pattern, e.g.
            'GTV*', which keeps each class that fits, or a code of a SEG, RTSTRUCT or .seg.nrrd, e.g. SCT:10200004.
        map_classes: replace classes of the source, by name (label images: or value): FROM=TO, e.g.
            'car=vehicle,bus=vehicle' or 'left kidney=kidney,BODY=background,500=liver', 'GTV*=tumor' for all that
            fit, SCT:10200004=liver for a code (SCT:64033007+SCT:7771000 with a modifier), or 1..300=cell for a range
            of values; background leaves a class out, before overlaps are counted.
        drop_classes: classes of the source to leave out, by name or value.
        emptied_pictures: a picture whose objects classes, map_classes and drop_classes all leave out becomes a
            picture without objects, one with ignored regions in the place of its objects, or has no record.
        label_channels: volumes: the class of each channel of label files with a channel per class (one-hot), in
            order, e.g. background,liver,spleen.
        label_colors: segmentation: the class of each color (RRGGBB, hexadecimal) of label files in color, e.g.
            ff0000=liver,00ff00=spleen; black is the background.
        label_values: segmentation: what a gray PNG label of fewer than 8 bits, or with a palette of grays, holds: the
            numbers that it stores, the gray values that it shows, or what the files of the data set prove.
        ignore_label: segmentation: what is no class in label images and volumes: values, names or colors (RRGGBB),
            such as 255, -1 or void,e0e0c0. Records store one value for all, `loader.ignore_label`; padding has it,
            and losses, metrics and statistics ignore it (default: what the source calls ignore; 255 for label images
            with the palette of PASCAL VOC).
        missing_masks: segmentation: images without a label are rejected, or kept for prediction in a split without
            labels.
        missing_classes: class-masks, bids: a scan that lacks the mask of a class is rejected, or the class is empty
            there; SEG and RTSTRUCT: the same for a scan whose label names none of the classes.
        scale: scale the picture by this factor before it is cut, e.g. 0.5; a pyramid is read at the level that is
            enough.
        gsd_m: scale the picture to this ground sample distance in meters per pixel, e.g. 0.5; the file states its
            own.
        min_visible: share of an object's box that a tile must show, 0 to 1. An object that it shows less of stays in
            the tile, flagged as ignored (is_crowd), so that it is neither learned nor counted as background; the same
            for boxes in volumes, in tiles and crops.
        empty_tiles: tiles without an object, or whose label is background only: keep all, drop all, or keep this
            share of them, e.g. 0.1, chosen by a stable hash.
        bands: bands of the file that become channels, in order, counted from 1, e.g. 4,3,2; default: all, which
            channels must match.
        value_range: values of more than 8 bits: the low and the high end that become 0 and 255, e.g. 0,3000; see
            window_percentiles for a range of each picture.
        debug: show the whole traceback of an error.

    >>> print(halofeed.dry_run("photos", "data", height=16, width=24).splitlines()[1].strip())
    train        8 inputs
    """

def verify(
    path: StrPath,
) -> VerifyReport:
    """Check every byte of a data set; see `halofeed.inspection.verify.verify`.

    >>> halofeed.verify("data/photos").ok
    True
    """

def review(
    path: StrPath,
    *,
    run: StrPath | Sequence[StrPath] | None = None,
    redirects: str = '',
    json: StrPath | None = None,
    show: int = 5,
    split: str = '',
    checkpoint: str | int = 'best',
    debug: bool = False,
) -> Review:
    """Search a data set for what may hurt training; see `halofeed.inspection.review.review.review_dataset`.

    Args:
        path: folder or address of the data set's version.
        run: folder that `train` returned, or several: likely label faults are listed by what they predict.
        redirects: http addresses: hosts to which the server may redirect, or * for any (default: only itself).
        json: write all that was found as JSON; - for standard output.
        show: suspects of each kind to list.
        split: search label faults in this split only (default: all).
        checkpoint: best, last or a step.
        debug: show the whole traceback of an error.

    >>> halofeed.review("data/photos").suspects
    ()
    """

def diff(
    earlier: StrPath,
    later: StrPath,
    *,
    json: StrPath | None = None,
    html: StrPath | None = None,
    debug: bool = False,
) -> VersionDifference:
    """Compare two versions of a data set, and return everything in which they differ.

    Args:
        earlier: folder or address of the earlier version.
        later: folder or address of the later version.
        json: write all differences into this file; - prints only them.
        html: write a page into this file, which loads nothing else.
        debug: show the whole traceback of an error.

    >>> halofeed.diff("data/photos", "data/photos").is_empty
    True
    """

def inspect(
    path: StrPath,
    *,
    record: str | None = None,
    parser: bool = False,
) -> str:
    """Describe a data set, or one record of it ("train:17"), or return a TensorFlow parser of its records.

    >>> print(halofeed.inspect("data/photos").splitlines()[0])
    photos 1.0.0: classification, 8 records, 12.9 kB
    """

def report(
    path: StrPath,
    *,
    output: StrPath | None = None,
    sources: StrPath | None = None,
    redirects: str = '',
    samples: int = 12,
    run: str | None = None,
    serve: bool = False,
    port: int = 0,
    debug: bool = False,
) -> Path:
    """Write the HTML report of a data set or a training run, and return its path.

    Args:
        path: folder or address of the data set's version, or folder of the run.
        output: default: VERSION-report.html beside the version's folder; report.html in a run's.
        sources: the folder of the source pictures, to show them beside the stored ones; default: the folder from
            which this machine converted them; without one they are not shown.
        redirects: http addresses: hosts to which the server may redirect, or * for any (default: only itself).
        samples: samples to show beside their sources; 0 for a report without pictures.
        run: show likely label faults first, by what runs of `halofeed train` predict; several with commas, as in
            `halofeed review run`.
        serve: write no file; serve pages of all records with search and filter to a browser of this machine, until
            Ctrl-C.
        port: of serve; default: any free port.
        debug: show the whole traceback of an error.

    >>> print(halofeed.report("data/photos", output="photos.html"))
    photos.html
    """

def show(
    path: StrPath,
    *,
    split: str = 'train',
    batch_size: int | None = None,
    config: StrPath | None = None,
    redirects: str = '',
    step: int = 0,
    seed: int | None = None,
    partition: str | None = None,
    side: int = 320,
    output: StrPath = 'batch.png',
    debug: bool = False,
) -> Path:
    """Write a picture of a batch, and return its path.

    Args:
        path: folder or address of the data set's version.
        split: name of the split.
        batch_size: default: the config's, or 8.
        config: a training recipe, whose augmentations, batch size and partition are shown.
        redirects: http addresses: hosts to which the server may redirect, or * for any (default: only itself).
        step: number of the batch, from 0 (default: 0).
        seed: default: the config's, or 0.
        partition: parts along each axis of the image, such as image=1,4,1,1.
        side: the longer side of each image shown.
        output: a .png.
        debug: show the whole traceback of an error.

    >>> print(halofeed.show("data/photos", batch_size=4, output="batch.png"))
    batch.png
    """

def subset(
    path: StrPath,
    *,
    where: str,
    out: StrPath,
    name: str = '',
    version: str = '',
    findings: StrPath | Mapping[int, Sequence[str]] | None = None,
    debug: bool = False,
) -> Dataset:
    """Write the records that meet a condition as a new version, which lists its parent, and open it.

    Args:
        path: folder or address of the data set's version.
        where: condition on the records, such as "class=hat and width>=24"; `halofeed subset --help` has the language.
        out: folder below which NAME/VERSION is made.
        name: the subset's name (default: the data set's).
        version: the subset's version (default: the data set's).
        findings: findings that a condition may name: what `halofeed review json` wrote, or {"ID OF A RECORD":
            ["FINDING", ...], ...} (default: the command reviews the data set).
        debug: show the whole traceback of an error.

    >>> halofeed.subset("data/photos", where="class=hat", out="data", name="hats").splits
    {'train': 4}
    """

def plan(
    data: StrPath | None = None,
    *,
    split: str = 'train',
    config: StrPath | None = None,
    set: Mapping[str, Any] | Sequence[str | tuple[str, Any]] = (),
    model: str | None = None,
    task: str | None = None,
    auto: bool = False,
    minutes: float | None = None,
    toml: StrPath | None = None,
    remat: bool = False,
    topology: str = 'v3-8',
    topologies: bool = False,
    cores_per_replica: Sequence[int] = (),
    images_per_replica: int | None = None,
    classes: int = 0,
    search: Literal['side', 'batch', 'depth'] | None = None,
    savings: bool = False,
    picture_size: Sequence[int] | None = None,
    pictures: int | None = None,
    tile_sizes: Sequence[str | int] | None = None,
    tile_overlap: Sequence[int] | None = None,
    object_size: int | None = None,
    html: StrPath | None = None,
    jobs: int | None = None,
    debug: bool = False,
) -> dict[str, Any]:
    """Find the splits of a model that fit on a machine, and return the plan's document.

    Args:
        data: folder of the data set's version; None plans for the config's own size.
        split: split to train on.
        config: a recipe of `halofeed configs`, a .toml file or a pipeline.config (default: train's).
        set: change any setting of the recipe, e.g. batch_size=16, image_shape=[512,512,3]; may be repeated.
        model: a model of your own, as in train.
        task: a task of your own, as in train.
        auto: plan the network from the data set too, as train config auto.
        minutes: with auto: time to train for (default: 120 on a TPU).
        toml: with auto: also write the configuration, for train config FILE.
        remat: as in train: recompute activations.
        topology: v2-8, v3-8, v3-64, v4-8, v5e-16, v5p-8, v6e-8, tpu7x-8 and larger; the grid of the chips, v3:4x8;
            cpu:8 for virtual devices; gpu:1 for GPUs here.
        topologies: only list the TPUs that the compiler here knows.
        cores_per_replica: splits to compile (default: 1,2,4,8,16 to its cores).
        images_per_replica: default: the recipe's batch; 1 with picture_size.
        classes: number of classes without a data set (default: a usual number).
        search: find the largest that fits at each split.
        savings: also what remat and smaller optimizers save.
        picture_size: compare tiles of pictures of this size in pixels with splits of the picture over cores.
        pictures: with picture_size: pictures in an epoch (default: 1).
        tile_sizes: with picture_size: the tiles to compare (default: 512,1024,2048).
        tile_overlap: with picture_size: minimum overlap of neighbors (default: object_size, else 128).
        object_size: with picture_size: longest side of the largest object, which a tile must show whole.
        html: also write the plan as a page.
        jobs: parallel compilations (default: by cores and memory).
        debug: show the whole traceback of an error.

    >>> found = halofeed.plan("data/photos", topology="cpu:1", set={"batch_size": 8, "model.features": [8]})
    >>> [split["fits"] for split in found["splits"]]
    [True]
    """

def train(
    data: StrPath,
    *,
    split: str = 'train',
    fold: int | None = None,
    out: StrPath | None = None,
    overwrite: bool = False,
    config: StrPath | None = None,
    minutes: float | None = None,
    set: Mapping[str, Any] | Sequence[str | tuple[str, Any]] = (),
    model: str | None = None,
    task: str | None = None,
    backbone_weights: StrPath | None = None,
    init: StrPath | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    iterations_per_loop: int | None = None,
    seed: int | None = None,
    optimizer: Literal['sgd', 'adam', 'adamw', 'lamb', 'lars'] | None = None,
    learning_rate: float | None = None,
    schedule: Literal['cosine', 'polynomial', 'manual_step', 'exponential', 'constant'] | None = None,
    compute_dtype: Literal['bfloat16', 'float32'] | None = None,
    remat: bool | None = None,
    cores_per_replica: int | None = None,
    partition: str | None = None,
    evaluate_every: int | None = None,
    evaluate_split: str | None = None,
    evaluate_batch_size: int | None = None,
    checkpoint_every: int | None = None,
    keep_last: int | None = None,
    virtual_devices: int | None = None,
    compile_cache: StrPath | None = None,
    coordinator: str | None = None,
    process_count: int | None = None,
    process_id: int | None = None,
    debug: bool = False,
) -> Path:
    """Train a model and return the run's folder; `set` changes settings of the recipe. The same call resumes.

    Args:
        data: folder of the data set's version.
        split: split to train on.
        fold: evaluate on this fold of `halofeed convert folds 5`, from 0, and train on the others.
        out: the run's folder (default: runs/DATA-CONFIG).
        overwrite: replace the run in the folder, if halofeed wrote all files in it and none has changed.
        config: a recipe of `halofeed configs`, a .toml file, or a pipeline.config of the TF Object Detection API
            (default: by the data's task and size, and the devices); auto plans one by nnU-Net's rules, for minutes of
            this machine.
        minutes: with config auto: time of the command in minutes, with the plan and the evaluation (default: 10 on a
            processor, 120 on accelerators).
        set: change any setting of the recipe, e.g. clip_norm=10, model.width=16, task.alpha=0.75; may be repeated.
        model: name of the network, which `halofeed configs` lists, or package:Class of your own.
        task: package:Class of a task of your own (default: the data set's).
        backbone_weights: file of keras.applications weights for the backbone.
        init: run whose weights to start from: its best checkpoint, or RUN/checkpoints/00000100. Its classes may
            differ; then the outputs per class are new. Without config the options are that run's too.
        steps: number of steps to take.
        batch_size: images per step, over all devices.
        iterations_per_loop: steps that are dispatched before their results are awaited, as of TPUConfig; for very
            short steps.
        seed: seed of the initial parameters and of the order of the data.
        optimizer: name of the optimizer.
        learning_rate: highest learning rate.
        schedule: change of the rate after its warm-up.
        compute_dtype: precision of the activations.
        remat: keep only the convolutions' outputs for the backward pass and compute the rest again.
        cores_per_replica: number of cores that share each image: 1, 2, 4, ..., 128.
        partition: parts along each axis, batch first, e.g. image=1,4,1,1 for 4 bands of rows; separate several by ;.
            It takes TPUConfig's lists too: '[[1,4,1,1],None]'.
        evaluate_every: steps between evaluations; 0 evaluates once, at the end.
        evaluate_split: split to evaluate on (default: the first of validation, val and test that exists).
        evaluate_batch_size: images per evaluation step (default: the batch size).
        checkpoint_every: steps between checkpoints; 0 saves at evaluations and at the end.
        keep_last: number of last checkpoints to keep, besides the best.
        virtual_devices: use this many CPU devices instead of accelerators.
        compile_cache: folder of compiled programs, so that the next command compiles nothing; none for no cache
            (default: $HALOFEED_COMPILE_CACHE, else ~/.cache/halofeed/compiled).
        coordinator: the address of process 0.
        process_count: number of processes.
        process_id: number of this process, from 0.
        debug: show the whole traceback of an error.

    >>> run = halofeed.train("data/photos", out="run", steps=1, batch_size=8, set={"model.features": [8]})
    >>> (run / "report.html").exists()
    True
    """

def evaluate(
    run: StrPath,
    data: StrPath | None = None,
    *,
    checkpoint: str | int = 'best',
    cores_per_replica: int | None = None,
    partition: str | None = None,
    model: str | None = None,
    task: str | None = None,
    virtual_devices: int | None = None,
    compile_cache: StrPath | None = None,
    split: str = '',
    merge: str = 'shared',
    merge_overlap: str = 'iou',
    merge_threshold: float | None = None,
    cross_validate: bool = False,
    no_largest_component: bool = False,
    debug: bool = False,
) -> dict[str, Any]:
    """Measure a trained model on a split, and return the metrics.

    Args:
        run: folder that `train` returned.
        data: folder of the data set's version; None is the run's own.
        checkpoint: best, last or a step.
        cores_per_replica: cores that share an image (default: the run's).
        partition: parts along each axis (default: the run's).
        model: model of your own that was moved (default: the run's).
        task: task of your own that was moved (default: the run's).
        virtual_devices: use this many CPU devices instead of accelerators.
        compile_cache: folder of compiled programs, so that the next command compiles nothing; none for no cache
            (default: $HALOFEED_COMPILE_CACHE, else ~/.cache/halofeed/compiled).
        split: name of the split (default: the run's evaluation split).
        merge: shared: boxes of two tiles are one object if they agree in the part that both tiles show (default);
            nms: keep the box with the highest score; nmm, greedy-nmm: the union of overlapping boxes, as SAHI; none.
        merge_overlap: of nms, nmm and greedy-nmm: iou, or ios, the intersection over the smaller box.
        merge_threshold: smallest overlap of two boxes of one object (default: 0.3 for shared, 0.5 for the others).
        cross_validate: of several runs, such as those of all folds: each on the split that it was evaluated on, as
            one table.
        no_largest_component: masks: keep all components, also of classes for which the validation split has proved
            that the largest one alone is better.
        debug: show the whole traceback of an error.

    >>> halofeed.evaluate("run")["examples"]
    8
    """

def predict(
    run: StrPath,
    data: StrPath | None = None,
    *,
    out: StrPath,
    checkpoint: str | int = 'best',
    cores_per_replica: int | None = None,
    partition: str | None = None,
    model: str | None = None,
    task: str | None = None,
    virtual_devices: int | None = None,
    compile_cache: StrPath | None = None,
    split: str = '',
    merge: str = 'shared',
    merge_overlap: str = 'iou',
    merge_threshold: float | None = None,
    min_score: float | None = None,
    draw: bool = False,
    draw_count: int = 50,
    geojson: bool = False,
    no_largest_component: bool = False,
    source: StrPath | None = None,
    no_windows: bool = False,
    overwrite: bool = False,
    debug: bool = False,
) -> Path:
    """Write predictions in the coordinates of the source files, and return the folder.

    Args:
        run: folder that `train` returned.
        data: folder of the data set's version; None is the run's own.
        out: output folder.
        checkpoint: best, last or a step.
        cores_per_replica: cores that share an image (default: the run's).
        partition: parts along each axis (default: the run's).
        model: model of your own that was moved (default: the run's).
        task: task of your own that was moved (default: the run's).
        virtual_devices: use this many CPU devices instead of accelerators.
        compile_cache: folder of compiled programs, so that the next command compiles nothing; none for no cache
            (default: $HALOFEED_COMPILE_CACHE, else ~/.cache/halofeed/compiled).
        split: name of the split (default: the run's evaluation split).
        merge: shared: boxes of two tiles are one object if they agree in the part that both tiles show (default);
            nms: keep the box with the highest score; nmm, greedy-nmm: the union of overlapping boxes, as SAHI; none.
        merge_overlap: of nms, nmm and greedy-nmm: iou, or ios, the intersection over the smaller box.
        merge_threshold: smallest overlap of two boxes of one object (default: 0.3 for shared, 0.5 for the others).
        min_score: leave out boxes with a lower score; 0 keeps all, for COCO metrics of detections.json (default:
            0.05, and 0.3 for what draw shows).
        draw: also draw boxes, classes or masks: pictures in OUT/drawn, and one page, OUT/predictions.html, the worst
            first where labels exist.
        draw_count: most pictures, scans or clips that draw shows.
        geojson: also write a GeoJSON file for each picture of tiles: boxes, or outlines of masks or classes, on the
            map if the source is georeferenced.
        no_largest_component: masks: keep all components, also of classes for which the validation split has proved
            that the largest one alone is better.
        source: new pictures, scans or clips instead of a data set.
        no_windows: crop or pad new volumes to the recipe's shape instead of overlapping windows.
        overwrite: replace earlier predictions there, if halofeed wrote all files in the folder and none has changed.
        debug: show the whole traceback of an error.

    >>> found = halofeed.predict("run", source="photos", out="found")
    >>> len((found / "classes.csv").read_text().splitlines())  # a line for each picture, and the header
    9
    """

def export(
    path: StrPath,
    *,
    out: StrPath,
    checkpoint: str | int = 'best',
    cores_per_replica: int | None = None,
    partition: str | None = None,
    model: str | None = None,
    task: str | None = None,
    virtual_devices: int | None = None,
    compile_cache: StrPath | None = None,
    format: Literal['stablehlo', 'savedmodel'] | None = None,
    to: str | None = None,
    grid: str | None = None,
    images: StrPath | None = None,
    overwrite: bool = False,
    debug: bool = False,
) -> Path:
    """Export a trained model or the pictures and labels of a data set, and return the folder.

    Args:
        path: folder of the run; with `to` the folder or address of a data set's version.
        out: output folder.
        checkpoint: best, last or a step.
        cores_per_replica: cores that share an image (default: the run's).
        partition: parts along each axis (default: the run's).
        model: model of your own that was moved (default: the run's).
        task: task of your own that was moved (default: the run's).
        virtual_devices: use this many CPU devices instead of accelerators.
        compile_cache: folder of compiled programs, so that the next command compiles nothing; none for no cache
            (default: $HALOFEED_COMPILE_CACHE, else ~/.cache/halofeed/compiled).
        format: of a run; savedmodel writes TensorFlow's beside the StableHLO (default: stablehlo).
        to: folders: classification; coco, yolo, voc, dota: detection; nifti: segmentation of volumes; parquet:
            pictures of any task, and volumes as NIfTI; webdataset: pictures of any task. Pictures are the stored JPEG
            or PNG files, or PNG; padding is cut off.
        grid: stored: boxes, masks and labels of the stored pictures and volumes (default); source: of the files that
            were converted.
        images: with grid source: the folder of pictures that was converted, to copy them.
        overwrite: replace an earlier export there, if halofeed wrote all files in the folder and none has changed.
        debug: show the whole traceback of an error.

    >>> len(list(halofeed.export("data/photos", to="folders", out="pictures").glob("train/*/*.png")))
    8
    >>> sorted(path.name for path in halofeed.export("run", out="exported").glob("[a-zA-Z]*"))
    ['README.md', 'model.stablehlo', 'signature.json']
    """
