"""What the records of a case must be, one function for each kind of check."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import cv2
import numpy as np

from tests.support.case_runs import Check, Record, Written

_BACKGROUND = "background"


def _record(written: Written, name: str) -> Record:
    """The only record whose file or key ends so."""
    found = [one for one in written.records if one.key.endswith(name) or one.name.endswith(name)]
    assert len(found) == 1, f"{name}: {len(found)} records of {sorted(one.name for one in written.records)}"
    return found[0]


def groups_stay_together(group_of: Callable[[Record], str]) -> Check:
    """No group has records in two splits, and there are two splits."""

    def check(written: Written) -> None:
        splits = defaultdict(set)
        for record in written.records:
            splits[group_of(record)].add(record.split)
        divided = {group for group, names in splits.items() if len(names) > 1}
        assert not divided, f"groups in two splits: {sorted(divided)}"
        assert len({record.split for record in written.records}) > 1, "one split has all"

    return check


def part_of_name(pattern: str) -> Callable[[Record], str]:
    """A function that takes the group of a record from its file's name: the first group of the pattern."""

    def group(record: Record) -> str:
        found = re.search(pattern, record.name)
        assert found, f"no group in {record.name}"
        return found[1]

    return group


def classes_are(*names: str, unused: Iterable[str] = ()) -> Check:
    """The class names are these, in any order; background and `unused` may be there besides."""

    def check(written: Written) -> None:
        found = set(written.manifest.labels.values()) - {_BACKGROUND, *unused}
        assert found == set(names), f"classes {sorted(found)}, expected {sorted(names)}"

    return check


def records_are(count: int, **splits: int) -> Check:
    """So many records, and so many in each split that is named."""

    def check(written: Written) -> None:
        found = defaultdict(int)
        for record in written.records:
            found[record.split] += 1
        assert sum(found.values()) == count, f"{dict(found)} records, expected {count}"
        assert not splits or found == splits, f"records {dict(found)}, expected {splits}"

    return check


def picture_classes_are(expected: Mapping[str, tuple[str, ...]]) -> Check:
    """The classes of each picture, by the end of its name."""

    def check(written: Written) -> None:
        found = {(record.name, record.key): record.classes for record in written.records}
        for name, classes in expected.items():
            fits = [value for names, value in found.items() if any(text.endswith(name) for text in names)]
            assert fits == [tuple(sorted(classes))], f"{name}: classes {fits}, expected {classes}"
        assert len(found) == len(expected), f"{len(found)} pictures, expected {len(expected)}"

    return check


def boxes_are(name: str, *expected: tuple[str, float, float, float, float], within: float = 0.51) -> Check:
    """The objects of the picture whose name ends so: class, then xmin, ymin, xmax, ymax in pixels of the source."""

    def check(written: Written) -> None:
        record = _record(written, name)
        wanted = sorted((text, (y0, x0, y1, x1)) for text, x0, y0, x1, y1 in expected)
        texts = [text for text, _ in record.objects]
        assert texts == [text for text, _ in wanted], f"{name}: objects {record.objects}, expected {wanted}"
        for (_, box), (_, place) in zip(record.objects, wanted, strict=True):
            assert np.allclose(box, place, atol=within), (
                f"{name}: objects {record.objects}, expected {wanted}"
            )

    return check


def label_values_are(name: str, expected: Mapping[str, int]) -> Check:
    """Pixels or voxels of each class in a record; "ignored" is the ignore label."""

    def check(written: Written) -> None:
        found = _record(written, name).label
        assert found == expected, f"{name}: {dict(found)}, expected {dict(expected)}"

    return check


def label_counts_are(name: str, *expected: int) -> Check:
    """Pixels or voxels of the classes in a record, whatever their names are; the ignore label is no class."""

    def check(written: Written) -> None:
        found = sorted(count for text, count in _record(written, name).label.items() if text != "ignored")
        assert found == sorted(expected), f"{name}: {found}, expected {sorted(expected)}"

    return check


def image_values_are(name: str, *expected: float, within: float = 0) -> Check:
    """The distinct values of an image without its padding, or its least and greatest where two are given."""

    def check(written: Written) -> None:
        record = _record(written, name)
        found = np.unique(written.image(record).astype(np.float64))
        assert all(np.abs(found - value).min() <= within for value in expected), (
            f"{name}: {found[:9]}, expected {expected}"
        )

    return check


def image_channels_are(name: str, count: int) -> Check:
    """An image has so many channels, and not all are equal."""

    def check(written: Written) -> None:
        image = written.image(_record(written, name))
        assert image.shape[-1] == count, f"{name}: shape {image.shape}, expected {count} channels"
        assert any((image[..., :1] != image).ravel()), f"{name}: all channels are equal"

    return check


def image_levels_are(name: str, count: int) -> Check:
    """An image has at least so many distinct values."""

    def check(written: Written) -> None:
        record = _record(written, name)
        found = len(np.unique(written.image(record)))
        assert found >= count, f"{name}: {found} levels, expected {count}"

    return check


def notes(pattern: str) -> Check:
    """A finding of the manifest, which the report shows, matches."""

    def check(written: Written) -> None:
        found = [
            text for split in written.manifest.splits.values() for text in split.statistics.findings or ()
        ]
        assert any(re.search(pattern, f"{text}") for text in found), f"no finding {pattern!r} in {found}"

    return check


def no_object_is_a_crowd(count: int) -> Check:
    """There are so many objects, and none is a crowd."""

    def check(written: Written) -> None:
        crowds = [flag for record in written.records for flag in record.features["image/object/is_crowd"]]
        assert crowds == [0] * count, f"{sum(crowds)} of {len(crowds)} are crowds, expected 0 of {count}"

    return check


def mask_areas_are(name: str, *areas: int) -> Check:
    """Pixels of each object's mask in one record."""

    def check(written: Written) -> None:
        masks = _record(written, name).features["image/object/mask"]
        found = sorted(int(cv2.countNonZero(cv2.imdecode(np.frombuffer(one, np.uint8), 0))) for one in masks)
        assert found == sorted(areas), f"{name}: masks of {found} pixels, expected {sorted(areas)}"

    return check


def one_of(*checks: Check) -> Check:
    """One of several outcomes that are all right."""

    def check(written: Written) -> None:
        faults = []
        for each in checks:
            try:
                return each(written)
            except AssertionError as error:
                faults.append(str(error))
        raise AssertionError("; ".join(faults))

    return check


def says_not(pattern: str) -> Check:
    """The message of the command does not match."""

    def check(written: Written) -> None:
        assert not re.search(pattern, written.message), f"it says {pattern!r}"

    return check


def says(pattern: str) -> Check:
    """The message of the command matches."""

    def check(written: Written) -> None:
        assert re.search(pattern, written.message), f"nothing says {pattern!r}"

    return check
