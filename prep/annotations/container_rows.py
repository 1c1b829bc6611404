"""Rows of tables that are made of container files: the picture of a row is a member of its container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.containers import member_name

FAULT = "//fault"
"""Key of (reason, detail) in a row whose picture is rejected. No column of a file has a name with this meaning."""
_PICTURE_NAMES = ("image", "img", "picture", "photo")
_LABEL_NAMES = ("label", "mask", "annotation", "segmentation", "segmentationmask", "semanticmask", "labelmap")

ContainerRow = dict[str, Any]


def picture_row(
    row: Mapping[str, Any], picture: str, label: str | None, options: LayoutOptions
) -> ContainerRow:
    """Return a row with the path of its picture under the name that its task needs.

    Args:
        row: the other columns. A column that would name the picture too is renamed to `written_...`.
        picture: path of the picture.
        label: path of its label image, for segmentation.

    >>> picture_row({"filename": "a.jpg", "class": 3}, "a.tar//b@0+1-00000000.jpg", None, LayoutOptions())
    {'file_name': 'a.tar//b@0+1-00000000.jpg', 'written_filename': 'a.jpg', 'class': 3}
    """
    if options.wants_label_images:
        taken, found = {"image", "label", *SPELLINGS["filename"][0]}, {"image": picture, "label": label}
    else:
        taken, found = {*SPELLINGS["filename"][0]}, {"file_name": picture}
    own = {f"written_{key}" if normalize_name(key) in taken else key: value for key, value in row.items()}
    return {**found, **own}


def faulty_row(container: str, name: str, reason: str, detail: str) -> ContainerRow:
    """Return a row that rejects one member, or one sample, by its name."""
    path = f"{container}//{member_name(name)}"
    return {"file_name": path, "image": path, FAULT: (reason, detail)}


def choose_picture(container: str, names: Sequence[str], options: LayoutOptions) -> tuple[str, str | None]:
    """Return the columns or features of the picture and, for segmentation, of its label image.

    Raises:
        AnnotationsError: several can be the picture, or the label image.

    >>> choose_picture("a", ["thumbnail", "image"], LayoutOptions())
    ('image', None)
    >>> choose_picture("a", ["image", "annotation"], LayoutOptions(task="segmentation"))
    ('image', 'annotation')
    """
    found = f"{container}: it holds pictures in {', '.join(names) or 'no column'}"
    pictures = [one for one in names if normalize_name(one) in _PICTURE_NAMES]
    if len(names) != 1 and len(pictures) != 1:
        raise AnnotationsError(
            f"{found}; expected one called image: rename the column that holds the pictures"
        )
    picture = pictures[0] if pictures else names[0]
    if not options.wants_label_images:
        return picture, None
    others = [one for one in names if one != picture]
    labels = [one for one in others if normalize_name(one) in _LABEL_NAMES]
    if len(others) != 1 and len(labels) != 1:
        raise AnnotationsError(f"{found}; expected one called label for the label images: rename that column")
    return picture, labels[0] if labels else others[0]
