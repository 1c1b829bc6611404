"""The choice of classes, applied to objects and classes of pictures: --classes, --map-classes, --drop-classes.

Label images are chosen by their values (`halofeed.pipelines.classes`). Here a class is a name, and "background" may be
one, such as the folder of pictures that show nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from halofeed.prep.annotations.class_names import BACKGROUND, ClassChoice
from halofeed.prep.annotations.resolve_boxes import sides_of
from halofeed.prep.sources.example import SourceExample
from halofeed.system.errors import AnnotationsError
from halofeed.system.wording import plural

Emptied = Literal["negative", "ignored", "left-out"]
"""What becomes of a picture that has objects or classes, and none of the chosen ones."""
_MAX_SHOWN = 10


@dataclass(kw_only=True)
class ChosenCounts:
    """Counts of what the choice has met and left out.

    Args:
        found: objects and classes of pictures by their class in the source.
        emptied: pictures whose objects or classes are all left out, and that stay as pictures without any.
        ignored: pictures whose objects are all left out, and that stay with ignored regions in their place.
        left_out: such pictures that have no record.
    """

    found: Counter[str] = field(default_factory=Counter)
    emptied: int = 0
    ignored: int = 0
    left_out: int = 0

    def add(self, later: ChosenCounts) -> None:
        """Add the counts of a later list."""
        self.found.update(later.found)
        self.emptied += later.emptied
        self.ignored += later.ignored
        self.left_out += later.left_out

    def check(self, choice: ClassChoice, known: Iterable[str]) -> None:
        """Refuse a choice that names classes which the source does not have.

        Args:
            known: classes that the layout lists, which may be without objects.

        Raises:
            AnnotationsError: lists the unknown classes and the known ones; or "background" is a class of the source.
        """
        names = list(dict.fromkeys([*known, *self.found]))
        if not names:
            return  # every input is rejected with its own reason
        mapped = [
            name for name, target in choice.renamed if target == BACKGROUND and name not in choice.dropped
        ]
        # Of a picture of the class "background" nobody could tell whether it was mapped there or left out.
        if mapped and BACKGROUND in names:
            raise AnnotationsError(
                f"--map-classes {mapped[0]}={BACKGROUND}: {BACKGROUND!r} is a class here too; to leave "
                f"{mapped[0]!r} out, use --drop-classes '{mapped[0]}'; to join both, give them another name, such as "
                f"--map-classes '{mapped[0]}=nothing,{BACKGROUND}=nothing'"
            )
        choice.check_known(names, "the annotations")

    def describe(self, choice: ClassChoice) -> str:
        """Return what the choice leaves out, as text; "" where it leaves nothing out."""
        lost = {name: count for name, count in self.found.items() if chosen_class(choice, name) is None}
        if not lost:
            return ""
        listed = [f"{name} {count:,}" for name, count in sorted(lost.items(), key=lambda one: -one[1])]
        more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
        text = f"left out by class: {', '.join(listed[:_MAX_SHOWN])}{more}"
        if self.left_out:
            one, many = (
                "picture has no other class and is left out",
                "pictures have no other class and are left out",
            )
            text += f"; {plural(self.left_out, one, many)}"
        if self.emptied:
            one, many = "picture has no other class and is kept", "pictures have no other class and are kept"
            text += (
                f"; {plural(self.emptied, one, many)} (--emptied-pictures left-out leaves such pictures out)"
            )
        if self.ignored:
            one, many = "picture has no other class and ignores", "pictures have no other class and ignore"
            text += f"; {plural(self.ignored, one, many)} the places of these objects"
        return text


def chosen_class(choice: ClassChoice, name: str) -> str | None:
    """Return the data set class of a class of objects or pictures; None where the choice leaves it out.

    >>> choice = ClassChoice.of((), ("car=vehicle", "bus=vehicle"), ("tram",))
    >>> [chosen_class(choice, name) for name in ("car", "tram", "person", "background")]
    ['vehicle', None, 'person', 'background']
    """
    if name == BACKGROUND and name not in dict(choice.renamed):
        return name if not choice.keep or name in choice.keep else None
    return choice.target(name)


def chosen_order(choice: ClassChoice, names: Iterable[str]) -> list[str]:
    """Return the data set classes of source classes in their order, or in that of --classes.

    >>> chosen_order(ClassChoice.of((), ("bus=car",)), ["bus", "person", "car"])
    ['car', 'person']
    """
    names = list(names)
    choice = choice.with_names(names)
    targets = (chosen_class(choice, name) for name in names)
    return [*dict.fromkeys(choice.keep or (name for name in targets if name is not None))]


def choose_classes(
    examples: Iterable[SourceExample], choice: ClassChoice, emptied: Emptied, counts: ChosenCounts
) -> Iterator[SourceExample]:
    """Yield the examples with their objects and classes after the choice.

    Crowds, groups and difficult objects follow their class. A picture that had no object keeps none, whatever the
    choice. A picture with one class that is left out has no record, because nothing would be left to learn from it.

    Args:
        emptied: what becomes of a picture whose objects are all left out.
        counts: receives what was met and left out.

    >>> from halofeed.prep.sources.example import Box
    >>> boxes = tuple(Box(ymin=0, xmin=0, ymax=1, xmax=1, label=label) for label in ("car", "tram"))
    >>> street = SourceExample(source="a.jpg", key=1, boxes=boxes)
    >>> choice = ClassChoice.of((), ("car=vehicle",), ("tram",))
    >>> [box.label for one in choose_classes([street], choice, "negative", ChosenCounts()) for box in one.boxes]
    ['vehicle']
    """
    for example in examples:
        yield example if example.problem is not None else _choose(example, choice, emptied, counts)


def _choose(
    example: SourceExample, choice: ClassChoice, emptied: Emptied, counts: ChosenCounts
) -> SourceExample:
    before = [*example.classes, *(box.label for box in example.boxes or ())]
    counts.found.update(before)
    targets = {name: chosen_class(choice, name) for name in before}
    if all(name == target for name, target in targets.items()):
        return example
    chosen = _with_targets(example, targets)
    if chosen.classes or chosen.boxes:
        return chosen
    # The objects may look like a chosen class, as a van like a car: they are no background and no object.
    if example.boxes and emptied == "ignored":
        counts.ignored += 1
        regions = tuple(sides_of(box) for box in example.boxes)
        return replace(chosen, ignored_regions=(*chosen.ignored_regions, *regions))
    # A picture of a single class has nothing else, where one with objects still shows what is no object.
    if example.label is None and emptied != "left-out":
        counts.emptied += 1
        return chosen
    counts.left_out += 1
    left_out = ", ".join(dict.fromkeys(before))
    return replace(example, problem=("selection", "picture has none of the chosen classes", left_out))


def _with_targets(example: SourceExample, targets: Mapping[str, str | None]) -> SourceExample:
    """Return the example with the target of each of its classes, and without those that have none."""
    if example.labels is not None:  # several classes of a picture may become one
        joined = dict.fromkeys(target for name in example.labels if (target := targets[name]) is not None)
        example = replace(example, labels=tuple(joined))
    if example.boxes is not None:
        boxes = [(box, targets[box.label]) for box in example.boxes]
        kept = tuple(replace(box, label=target) for box, target in boxes if target is not None)
        example = replace(example, boxes=kept)
    return example if example.label is None else replace(example, label=targets[example.label])
