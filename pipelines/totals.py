"""Totals of references, gathered in one pass or added up from several lists."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from halofeed.pipelines.classes import NamesInLabels
from halofeed.pipelines.commit import cure_of
from halofeed.pipelines.job import reference_to_json
from halofeed.prep.annotations.choose_classes import ChosenCounts
from halofeed.prep.annotations.contract import ListedClasses
from halofeed.prep.annotations.written_boxes import BOX_IS_INVERTED, MIN_BAD_OBJECTS, is_mostly_bad
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import is_image_name, is_still_name, is_volume_name
from halofeed.prep.sources.files import Stamp
from halofeed.prep.sources.walk import EMPTY_FOLDER, HIDDEN_FILE
from halofeed.schemas.identity import example_id
from halofeed.schemas.ledger import LedgerCounter
from halofeed.system.addresses import address_of, redacted
from halofeed.system.errors import AnnotationsError, JobError
from halofeed.system.wording import plural

SHARE_INVERTED = 0.1
"""Share of inverted boxes above which their numbers are not corners, rather than mistakes."""
MAX_LABELS_SEEN = 64
"""Number of label images that planning reads."""
_FRAMES_SEEN = 8
"""Label images of one clip, or of one scan with a picture for each slice, that planning reads."""
_DIGESTS = 2**256


@dataclass(kw_only=True)
class Totals:
    """Everything that a plan needs to know about references.

    Args:
        count: number of references.
        convertible: number of references without a problem in the annotations.
        identities: ids of the convertible references, unless they are checked elsewhere.
        digests: sum of the SHA-256 of all references with file sizes, modulo 2**256, independent of the order.
        in_order: SHA-256 of the same in order, as earlier versions used it; None for lists that were added up.
        stamps: sum of digests of the stamps of all source files; None where a file has no reliable stamp.
        first_sources: first image of each label.
        first_bad_objects: source and detail of the first unusable object of each reason, the very first one first.
        unlabeled: number of images without a label mask by split; they are all for other tasks than segmentation.
        first_unlabeled: first of them.
        declared: sizes of stored objects, as far as declared sizes of pictures show them; empty for lists that workers
            wrote.
        listed_classes: classes that the layout knows from what it has read for the references; None if it has other
            files of classes, or none.
        chosen: what the user's choice of classes of objects and pictures has met.
    """

    count: int = 0
    convertible: int = 0
    identities: array[int] = field(default_factory=lambda: array("q"))
    digests: int = 0
    in_order: Any = field(default_factory=hashlib.sha256)
    stamps: int | None = 0
    splits: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    first_sources: dict[str, str] = field(default_factory=dict)
    objects: int = 0
    bad_objects: Counter[str] = field(default_factory=Counter)
    first_bad_objects: dict[str, tuple[str, str]] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    first_problems: dict[str, str] = field(default_factory=dict)
    has_boxes: bool = False
    has_label: bool = False
    first_volume: str = ""
    first_picture: str = ""
    masks: set[str] = field(default_factory=set)
    labelled: int = 0
    unlabeled: Counter[str] = field(default_factory=Counter)
    first_unlabeled: str = ""
    label_images: list[str] = field(default_factory=list)
    names_in_labels: NamesInLabels | None = None
    declared: LedgerCounter = field(default_factory=LedgerCounter)
    listed_classes: ListedClasses | None = None
    chosen: ChosenCounts = field(default_factory=ChosenCounts)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without the ids (8 bytes each) and the ordered digest."""
        return {**vars(self), "identities": None, "in_order": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, identities=array("q"))

    def take(
        self,
        reference: SourceExample,
        size: Callable[[str], int | None],
        stamp: Callable[[str], Stamp | None],
    ) -> tuple[int, bytes]:
        """Count a reference.

        Args:
            size: returns the bytes of a source file.
            stamp: returns the settled stamp of a source file.

        Returns:
            The id of the reference's example, and its JSON to write. The JSON has no group, which may name a patient
            and is not needed after the splits are made, and no secrets of addresses.
        """
        line = reference_to_json(reference)
        entry = f"{line} {[size(path) for path in reference.paths]}\n".encode()
        if reference.problem not in (HIDDEN_FILE, EMPTY_FOLDER):  # these depend on who lists a folder
            self.digests = (self.digests + int.from_bytes(hashlib.sha256(entry).digest(), "big")) % _DIGESTS
            if self.in_order is not None:
                self.in_order.update(entry)
        if reference.problem is not None:
            reference = _without_secrets(reference)
        # The digests above are of the reference as it was listed, so changed groups and secrets still change them.
        if reference.problem is not None or reference.group is not None or reference.joint is not None:
            line = reference_to_json(replace(reference, group=None, joint=None))
        identity = example_id(reference.key)
        self.count += 1
        if reference.problem is None:
            self.identities.append(identity)
            self.convertible += 1
            self._take_convertible(reference)
            self._take_stamps(reference, stamp)
        else:
            stage, reason, detail = reference.problem
            named = f"{stage}: {reason}"
            self.problems[named] += 1
            self.first_problems.setdefault(named, reference.source + (f": {detail}" if detail else ""))
        return identity, line.encode("utf-8", "surrogateescape")

    def keep_classes(self, classes: ListedClasses) -> None:
        """Keep the classes that a listing returned."""
        self.listed_classes = classes

    def _take_convertible(self, reference: SourceExample) -> None:
        self.splits[reference.split] += 1
        self._take_kind(reference)
        self._take_masks(reference)
        self._take_objects(reference)
        self._take_labels(reference)

    def _take_kind(self, reference: SourceExample) -> None:
        """Note the first volume and the first picture, by the names of their files."""
        has_slices = reference.members or reference.stored
        # A DICOM series is a folder or a list of files, whose name has no meaning.
        if not self.first_volume and (has_slices or is_volume_name(reference.source)):
            self.first_volume = reference.source
        if not self.first_picture and not has_slices and is_image_name(reference.source):
            self.first_picture = reference.source

    def _take_masks(self, reference: SourceExample) -> None:
        self.labelled += reference.is_labelled
        if not reference.is_labelled:
            self.unlabeled[reference.split] += 1
            self.first_unlabeled = self.first_unlabeled or reference.source
        if len(self.label_images) < MAX_LABELS_SEEN:
            self.label_images += _label_images(reference)

    def _take_objects(self, reference: SourceExample) -> None:
        self.has_boxes |= reference.boxes is not None
        self.objects += len(reference.boxes or ()) + len(reference.bad_objects)
        for reason, detail in reference.bad_objects:
            self.bad_objects[reason] += 1
            self.first_bad_objects.setdefault(reason, (reference.source, detail))

    def _take_labels(self, reference: SourceExample) -> None:
        self.has_label |= reference.label is not None or reference.labels is not None
        labels = [*reference.classes, *[box.label for box in reference.boxes or ()]]
        masks = (*reference.class_masks, *(reference.class_runs or ()))
        for label in [*labels, *[name for name, _ in masks]]:
            self.labels[label] += 1
            self.first_sources.setdefault(label, reference.source)

    def _take_stamps(self, reference: SourceExample, stamp: Callable[[str], Stamp | None]) -> None:
        if self.stamps is None:
            return
        # A file changed within the resolution of its file system's times, or a series without stamps, proves nothing.
        stamps = [stamp(path) for path in reference.paths]
        of_series = reference.stored[2] if reference.stored else "no series"
        if None in stamps or not of_series:
            self.stamps = None
            return
        entry = repr((reference.key, of_series, stamps)).encode()
        self.stamps = (self.stamps + int.from_bytes(hashlib.sha256(entry).digest(), "big")) % _DIGESTS

    def add(self, later: Totals) -> None:
        """Add the totals of a later list."""
        self.count += later.count
        self.convertible += later.convertible
        self.identities.extend(later.identities)
        self.digests = (self.digests + later.digests) % _DIGESTS
        self.in_order = None  # a digest in order cannot be added up
        both = (self.stamps, later.stamps)
        self.stamps = None if both[0] is None or both[1] is None else (both[0] + both[1]) % _DIGESTS
        self.splits.update(later.splits)
        self.labels.update(later.labels)
        for label, source in later.first_sources.items():
            self.first_sources.setdefault(label, source)
        self.objects += later.objects
        self.bad_objects.update(later.bad_objects)
        for reason, first in later.first_bad_objects.items():
            self.first_bad_objects.setdefault(reason, first)
        self.problems.update(later.problems)
        self.first_problems = later.first_problems | self.first_problems
        self.has_boxes |= later.has_boxes
        self.has_label |= later.has_label
        self.first_volume = self.first_volume or later.first_volume
        self.first_picture = self.first_picture or later.first_picture
        self.labelled += later.labelled
        self.unlabeled.update(later.unlabeled)
        self.first_unlabeled = self.first_unlabeled or later.first_unlabeled
        self.label_images = (self.label_images + later.label_images)[:MAX_LABELS_SEEN]
        self.masks |= later.masks
        self.chosen.add(later.chosen)

    def describe_unlabeled(self) -> str:
        """Return how many images of a segmentation set have no label, an example, and their splits."""
        splits = ", ".join(f"{name} ({count:,})" for name, count in sorted(self.unlabeled.items()))
        count = sum(self.unlabeled.values())
        return (
            f"{count:,} of {plural(self.convertible, 'image')} {'has' if count == 1 else 'have'} no label, such as "
            f"{self.first_unlabeled}; their records are for prediction only, in "
            f"{'a split' if len(self.unlabeled) == 1 else 'splits'} without labels: {splits}"
        )

    def fingerprints(self, labels: bytes) -> tuple[str, ...]:
        """Return the digest of all references with the labels, then the digest of earlier versions if it is known.

        Args:
            labels: the label map as JSON.
        """
        found = [hashlib.sha256(self.digests.to_bytes(32, "big") + labels)]
        if self.in_order is not None:
            found.append(self.in_order.copy())
            found[1].update(labels)
        return tuple(one.hexdigest() for one in found)

    def refuse_all(self, images: str) -> None:
        """Refuse to start when the annotations alone reject every input.

        Args:
            images: folder of the images.

        Raises:
            JobError: always, as a conversion without records does.
        """
        most = self.problems.most_common(3)
        listed = [
            f"{count} x {reason}, the first {self.first_problems[reason]}{cure_of(reason)}"
            for reason, count in most
        ]
        inputs = plural(self.count, "input was", "inputs were")
        head = f"nothing was converted: {inputs} rejected because of the annotations; correct these:"
        # Missing files are most often a wrong folder of images.
        if any("file" in reason for reason, _ in most):
            listed.append(f"the images' folder is {images}; --images names another")
        raise JobError("\n".join([head, *listed]))

    def check_objects(self) -> None:
        """Refuse annotations if most of their objects are unusable, because this is a systematic mistake."""
        bad = sum(self.bad_objects.values())
        inverted = self.bad_objects[BOX_IS_INVERTED]
        many_inverted = inverted >= MIN_BAD_OBJECTS and inverted > SHARE_INVERTED * self.objects
        if not many_inverted and not is_mostly_bad(bad, self.objects):
            return
        reasons = "; ".join(f"{count} x {reason}" for reason, count in self.bad_objects.most_common(3))
        cures = ["correct the annotations"]
        if many_inverted:  # a width and a height under the names of a corner
            cures += ["add --box-form corner-size if xmax and ymax hold a width and a height"]
        if any("segmentation" in reason for reason in self.bad_objects):
            cures += ["leave --masks out"]
        if bad < self.objects:
            cures += ["reject the images that have such objects with --on-bad-object reject"]
        reason, (source, detail) = next(iter(self.first_bad_objects.items()))
        raise AnnotationsError(
            f"{bad} of {plural(self.objects, 'object')} cannot be used ({reasons}), the first in "
            f"{source}: {reason} ({detail}); "
            f"{', or '.join(cures)}"
        )


def _without_secrets(reference: SourceExample) -> SourceExample:
    """Return a rejected reference without the secrets of addresses in its annotations."""
    assert reference.problem is not None
    address = address_of(reference.source)
    hide = redacted if address is None else address.hidden_in
    stage, reason, detail = reference.problem
    key = hide(reference.key) if isinstance(reference.key, str) else reference.key
    return replace(reference, source=hide(reference.source), key=key, problem=(stage, reason, hide(detail)))


def _label_images(reference: SourceExample) -> list[str]:
    """Return the label images of a reference; evenly spaced ones of masks that are folders of pictures."""
    folders = dict(reference.mask_members)
    # Masks of a volume in DICOM are SEG or RTSTRUCT; those of a picture are pictures.
    is_label = is_image_name if is_image_name(reference.source) else is_still_name
    found: list[str] = []
    for path in reference.masks:
        members = folders.get(path) or (path,)
        step = max(1, len(members) // _FRAMES_SEEN)
        found += filter(is_label, members[::step][:_FRAMES_SEEN])
    return found
