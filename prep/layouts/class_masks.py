"""How scans with one mask file per class are read: `s0001/ct.nii.gz` with `s0001/segmentations/liver.nii.gz`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.pairing import NEITHER, Key, Label, pair_up
from halofeed.prep.annotations.patterns import compile_pair
from halofeed.prep.annotations.recognize import hint
from halofeed.prep.layouts.pairs import by_pattern, image_reference, split_by_folder, untaken
from halofeed.prep.sources.files import SourceFiles, unlisted_folders
from halofeed.prep.sources.reference import Reference
from halofeed.prep.sources.volume_files import missing_part, stem_of, whole_scans
from halofeed.prep.tasks.class_order import in_class_order
from halofeed.schemas.errors import AnnotationsError, Problem

MASK_FOLDERS = ("segmentations", "segmentation", "masks", "labels", "segs")


@dataclass(kw_only=True)
class _Scans:
    """The images and, for each, the masks by class."""

    images: list[tuple[Key, Reference]] = field(default_factory=list)
    masks: dict[Key, dict[str, list[str]]] = field(default_factory=dict)
    neither: list[str] = field(default_factory=list)
    left_out: list[Reference] = field(default_factory=list)

    def add_mask(self, key: Key, name: str, path: str) -> None:
        self.masks.setdefault(key, {}).setdefault(name, []).append(path)

    @property
    def classes(self) -> list[str]:
        return in_class_order(name for masks in self.masks.values() for name in masks)


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[Reference]:
    """Every scan with the mask of each class, in the order of the classes' values.

    Without patterns, a scan is the one volume, picture or clip beside a folder called segmentations (segmentation,
    masks, labels, segs), and the names of the files in that folder are the classes. Other forms take patterns, such as
    `images/{id}.nii.gz` and `{class}/{id}.nii.gz`. A folder called train, val, test, ... is the split.

    Raises:
        AnnotationsError: if no scan or no mask is found, or a class of the options has no mask at all.
    """
    found = _find(images, annotation_file, options)
    classes = _chosen(found, images.root, options)
    labels = [(key, _label(masks, classes, images, options)) for key, masks in found.masks.items()]
    yield from pair_up(found.images, labels, options.missing_masks)
    yield from found.left_out
    for path in [*found.neither, *untaken(images, options)]:
        yield Reference(source=path, key=path, problem=NEITHER)


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Value 1 and up for the classes of the options in their order, or for all classes in order of their names."""
    chosen = _chosen(_find(images, annotation_file, options), images.root, options)
    classes = options.classes or in_class_order(chosen.values())
    return {0: "background", **dict(enumerate(classes, start=1))}


def _chosen(found: _Scans, root: str, options: LayoutOptions) -> Mapping[str, str]:
    """The class of the data set that each class of the masks becomes, in the order of its values."""
    choice = options.choice
    targets = {name: target for name in found.classes if (target := choice.target(name)) is not None}
    if missing := [name for name in options.classes if name not in targets.values()]:
        present = ", ".join(found.classes[:20])
        raise AnnotationsError(
            f"{root}: no mask of class {', '.join(missing[:10])} anywhere; found {present}"
        )
    choice.check_known(found.classes, f"the masks of {root}")
    if not targets:
        raise AnnotationsError(f"--map-classes leaves out every class: {', '.join(found.classes[:20])}")
    order = options.classes or in_class_order(targets.values())
    return dict(sorted(targets.items(), key=lambda item: order.index(item[1])))


def _find(images: SourceFiles, annotation_file: str | None, options: LayoutOptions) -> _Scans:
    if annotation_file is not None:
        raise AnnotationsError(f"{annotation_file}: class masks need no annotation file; name the folder")
    if options.image_pattern is None and options.label_pattern is None:
        found = _by_custom(images, options.takes_scan)
        expected = f"one volume beside a folder {MASK_FOLDERS[0]}"
        splits_named = False
    else:
        pair = compile_pair(options.image_pattern, options.label_pattern, with_class=True)
        files = by_pattern(images, pair, options)
        found = _Scans(images=files.images, neither=files.neither, left_out=files.left_out)
        for key, values, path in files.labels:
            found.add_mask(key, values["class"], path)
        unlisted = unlisted_folders(images)
        if unlisted and (not options.classes or options.missing_classes == "empty"):
            raise AnnotationsError(
                f"{images.root}: {', '.join(unlisted[:3])} cannot be listed, and may hold the masks of a class: all "
                "scans would seem to lack it; give yourself the right to read it (chmod u+rx), or name with --classes "
                "those to take"
            )
        expected = f"{pair.image.text!r} with {pair.label.text!r}"
        splits_named = "split" in pair.image.names
    if not found.images or not found.masks:
        what = "mask" if found.images else "image"
        raise AnnotationsError(
            f"{images.root}: no {what} is found by the rule: {expected}; say it with --image-pattern and "
            "--label-pattern, such as 'images/{id}.nii.gz' and '{class}/{id}.nii.gz'"
            f"{hint(images, 'class-masks')}"
        )
    if not splits_named:
        found.images = split_by_folder(found.images, images.root, options.split_folders)
    return found


def _by_custom(images: SourceFiles, takes: Callable[[str], bool]) -> _Scans:
    result = _Scans()
    paths = images.sizes()
    beside: dict[str, list[str]] = {}
    for path in whole_scans(paths, takes):
        folder = path.rpartition("/")[0]
        scan, _, last = folder.rpartition("/")
        if last.lower() in MASK_FOLDERS:
            result.add_mask((scan,), stem_of(path), path)
        else:
            beside.setdefault(folder, []).append(path)
    for folder, found in beside.items():
        if (folder,) in result.masks:
            result.images += [((folder,), image_reference(path, paths, {})) for path in found]
        elif len(found) == 1 and folder.rpartition("/")[0] in {
            key[0].rpartition("/")[0] for key in result.masks
        }:
            result.images.append(((folder,), image_reference(found[0], paths, {})))
        else:
            result.neither += found
    return result


def _label(
    masks: Mapping[str, list[str]], classes: Mapping[str, str], images: SourceFiles, options: LayoutOptions
) -> Label:
    paths = images.sizes()
    first = min(min(found) for found in masks.values())
    chosen = [(name, masks[name]) for name in classes if name in masks]
    problem: Problem | None = None
    absent = [name for name in classes if name not in masks]
    twice = [name for name, found in chosen if len(found) > 1]
    if twice:
        problem = ("annotation", "several masks of one class", ", ".join(sorted(masks[twice[0]])[:3]))
    elif not chosen:
        problem = ("annotation", "scan has no mask of any class", f"of {', '.join([*classes][:10])}")
    elif absent and options.missing_classes == "refuse":
        more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
        problem = ("annotation", "mask of a class is missing", ", ".join(absent[:10]) + more)
    for _, found in chosen:
        problem = problem or missing_part(found[0], paths)
    return Label(
        path=first, class_masks=tuple((classes[name], found[0]) for name, found in chosen), problem=problem
    )
