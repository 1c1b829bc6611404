"""Reader of LiTS file names: `volume-N.nii` with `segmentation-N.nii`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.pairing import (
    NEITHER,
    Key,
    Label,
    find_split_folder,
    pair_up,
    single_file_label,
    split_at,
)
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.sources.file_names import is_volume_name, missing_part, stem_of, whole_scans
from halofeed.prep.sources.files import SourceFiles, unlisted_folders
from halofeed.prep.sources.reference import SourceExample

VALUES = {0: "background", 1: "liver", 2: "tumour"}
"""Class names of the values in a segmentation."""
_NAME = re.compile(
    r"(?P<test>test[-_])?(?:(?P<image>volume|ct)|segmentation|seg)[-_](?P<number>\d+)", re.IGNORECASE
)


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every `volume-N` (or `ct_N`) with the `segmentation-N` of the same number.

    `test-volume-N` belongs to the split `test`; it is for prediction only if there is no `test-segmentation-N`.
    Folders with split names are splits, and numbers may restart in each. All other scans belong to `train`.

    Raises:
        AnnotationsError: there is no scan, or the user named an annotation file.
    """
    if annotation_file is not None:
        raise AnnotationsError(f"{annotation_file}: LiTS names need no annotation file; name the folder")
    paths = images.sizes()
    volumes = [path for path in whole_scans(paths) if is_volume_name(path)]
    named = {path: match for path in volumes if (match := _NAME.fullmatch(stem_of(path)))}
    scans = [path for path, match in named.items() if match["image"]]
    if not scans:
        raise AnnotationsError(
            f"{images.root}: no volume-N.nii.gz, .nii, .nrrd or .mha lies below it{layout_hint(images, 'lits')}"
        )
    trained = [path.split("/")[:-1] for path in scans if not named[path]["test"]]
    place = find_split_folder(trained, options.split_folders, images.root)
    found: list[tuple[Key, SourceExample]] = []
    labels: list[tuple[Key, Label]] = []
    for path, match in named.items():
        split = "test" if match["test"] else split_at(path.split("/")[:-1], place)
        key = (split, str(int(match["number"])), match["test"] or "")
        problem = missing_part(path, paths)
        if match["image"]:
            found.append((key, SourceExample(source=path, key=path, split=split, problem=problem)))
        else:
            labels.append((key, single_file_label(path, problem)))
    may_have_test_labels = any(key[2] for key, _ in labels) or bool(unlisted_folders(images))
    yield from pair_up(
        found, labels, options.missing_masks, lambda key: bool(key[2]) and not may_have_test_labels
    )
    for path in volumes:
        if path not in named:
            yield SourceExample(source=path, key=path, problem=NEITHER)
