"""Reader of scans with one mask file per class: `s0001/ct.nii.gz` with `s0001/segmentations/liver.nii.gz`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.class_names import sort_class_names
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.pairing import NEITHER, LabelFiles, PairKey, SortedFiles, pair_up
from halofeed.prep.annotations.patterns import compile_pair
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.layouts.pairs import by_pattern, other_scans, split_by_folder
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import iterate_scans, stem_of
from halofeed.prep.sources.files import SourceFiles, unlisted_folders

_MASK_FOLDERS = ("segmentations", "segmentation", "masks", "labels", "segs")


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every scan with the mask of each class, in the order of the classes' values.

    Without patterns, a scan is the only volume, picture or clip in a folder that contains a mask folder. Mask folders
    are called segmentations, segmentation, masks, labels or segs. Their file names are the classes. Other
    arrangements need patterns, such as `images/{id}.nii.gz` and `{class}/{id}.nii.gz`. A folder called train, val,
    test, ... is the split.

    Raises:
        AnnotationsError: there is no scan or no mask, or no mask of a class from the options.
    """
    found = _find(images, annotation_file, options)
    labels = join_class_masks(found.labels, images.root, options)
    yield from pair_up(found.images, labels, options.missing_masks)
    yield from found.left_out
    for path in [*found.neither, *other_scans(images, options)]:
        yield SourceExample(source=path, key=path, problem=NEITHER)


def join_class_masks(
    labels: Sequence[tuple[PairKey, LabelFiles]], root: str, options: LayoutOptions
) -> list[tuple[PairKey, LabelFiles]]:
    """Return one label for each scan, with its mask of each selected class."""
    masks: dict[PairKey, dict[str, list[LabelFiles]]] = {}
    for key, label in labels:
        for name, _ in label.class_masks:
            masks.setdefault(key, {}).setdefault(name, []).append(label)
    names = (name for of_scan in masks.values() for name in of_scan)
    classes = target_classes(names, root, options)
    return [(key, join_masks(of_scan, classes, options)) for key, of_scan in masks.items()]


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return values from 1 for the classes of the options in their order, or for all classes sorted by name."""
    names = _names(_find(images, annotation_file, options))
    return class_values(target_classes(names, images.root, options), options)


def class_values(classes: Mapping[str, str], options: LayoutOptions) -> Mapping[int, str]:
    """Return the data set classes by value, from the result of `target_classes`."""
    order = options.classes or sort_class_names(classes.values())
    return {0: "background", **dict(enumerate(order, start=1))}


def _names(found: SortedFiles) -> list[str]:
    return [label.class_masks[0][0] for _, label in found.labels]


def target_classes(names: Iterable[str], root: str, options: LayoutOptions) -> Mapping[str, str]:
    """Return the data set class of each mask class, in the order of its values."""
    choice, names = options.choice, sort_class_names(names)
    targets = {name: target for name in names if (target := choice.target(name)) is not None}
    present = ", ".join(names[:20])
    if missing := [name for name in options.classes if name not in targets.values()]:
        raise AnnotationsError(
            f"{root}: no mask of class {', '.join(missing[:10])} anywhere; found {present}"
        )
    choice.check_known(names, f"the masks of {root}")
    if not targets:
        raise AnnotationsError(f"--map-classes leaves out every class: {present}")
    order = options.classes or sort_class_names(targets.values())
    return dict(sorted(targets.items(), key=lambda item: order.index(item[1])))


def _find(images: SourceFiles, annotation_file: str | None, options: LayoutOptions) -> SortedFiles:
    if annotation_file is not None:
        raise AnnotationsError(f"{annotation_file}: class masks need no annotation file; name the folder")
    if options.image_pattern is None and options.label_pattern is None:
        found = _pair_by_convention(images, options.takes_scan)
        expected = f"one volume beside a folder {_MASK_FOLDERS[0]}"
        splits_named = False
    else:
        pair = compile_pair(options.image_pattern, options.label_pattern, with_class=True)
        found = by_pattern(images, pair, options)
        unlisted = unlisted_folders(images)
        if unlisted and (not options.classes or options.missing_classes == "empty"):
            raise AnnotationsError(
                f"{images.root}: {', '.join(unlisted[:3])} cannot be listed, and may hold the masks of a class: all "
                "scans would seem to lack it; give yourself the right to read it (chmod u+rx), or name with --classes "
                "those to take"
            )
        expected = f"{pair.image.text!r} with {pair.label.text!r}"
        splits_named = "split" in pair.image.names
    if not found.images or not found.labels:
        what = "mask" if found.images else "image"
        raise AnnotationsError(
            f"{images.root}: no {what} is found by the rule: {expected}; say it with --image-pattern and "
            "--label-pattern, such as 'images/{id}.nii.gz' and '{class}/{id}.nii.gz'"
            f"{layout_hint(images, 'class-masks')}"
        )
    if not splits_named:
        found.images = split_by_folder(found.images, images.root, options.split_folders)
    return found


def _pair_by_convention(images: SourceFiles, takes: Callable[[str], bool]) -> SortedFiles:
    paths = images.sizes()
    result = SortedFiles(paths=paths)
    beside: dict[str, list[str]] = {}
    for path in iterate_scans(paths, takes):
        folder = path.rpartition("/")[0]
        scan, _, last = folder.rpartition("/")
        if last.lower() in _MASK_FOLDERS:
            result.add_label((scan,), path, stem_of(path))
        else:
            beside.setdefault(folder, []).append(path)
    scans = {scan for (scan,), _ in result.labels}
    above = {scan.rpartition("/")[0] for scan in scans}
    for folder, found in beside.items():
        if folder in scans or (len(found) == 1 and folder.rpartition("/")[0] in above):
            for path in found:
                result.add_image((folder,), path)
        else:
            result.neither += found
    return result


def join_masks(
    masks: Mapping[str, Sequence[LabelFiles]], classes: Mapping[str, str], options: LayoutOptions
) -> LabelFiles:
    """Return the label of a scan: its mask of each selected class."""
    chosen = [(name, masks[name]) for name in classes if name in masks]
    absent = [name for name in classes if name not in masks]
    problem = next((found[0].problem for _, found in chosen if found[0].problem), None)
    if twice := [found for _, found in chosen if len(found) > 1]:
        listed = ", ".join(sorted(label.path for label in twice[0])[:3])
        problem = ("annotation", "several masks of one class", listed)
    elif not chosen:
        problem = ("annotation", "scan has no mask of any class", f"of {', '.join([*classes][:10])}")
    elif absent and options.missing_classes == "refuse":
        more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
        problem = ("annotation", "mask of a class is missing", ", ".join(absent[:10]) + more)
    first = min(label.path for found in masks.values() for label in found)
    taken = tuple((classes[name], found[0].path) for name, found in chosen)
    return LabelFiles(path=first, class_masks=taken, problem=problem)
