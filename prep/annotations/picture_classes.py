"""Annotations that give a picture a class and no place: tags, choices, flags, and COCO's annotations without a box.

Where a source has nothing else, they are classes of pictures. Beside boxes, they tell what is in a picture without
saying where. Then a picture whose boxes do not cover its classes is no picture without these objects:

    cat without a box, while other pictures have boxes of cats      rejected: training would learn "no cat here"
    empty, or a class of --empty-classes                            a picture without objects
    night, on pictures with boxes of other classes and without      an attribute of pictures; not read, with a note
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.example import SourceExample
from halofeed.system.errors import AnnotationsError

_EMPTY = re.compile(
    r"(is)?(empty|none|nothing|blank|background|negatives?|no[-_ ]\w+|unoccupied|void)", re.IGNORECASE
)
"""Usual names of the class of pictures without an object; --empty-classes names others."""
_NOT_READ = "classes of pictures that are not read, because they describe no objects with boxes: "
_NO_BOX = "picture has a class without a box"


def gives_classes(where: str, options: LayoutOptions, *, has_objects: bool, has_classes: bool) -> bool:
    """Return whether a source is read for the classes of its pictures, and not for objects.

    Args:
        where: annotation file or folder, for messages.
        options: options of the layout, of which the task decides if it is given.
        has_objects: whether any annotation has a place in its picture.
        has_classes: whether any annotation is a class of its picture.

    Raises:
        AnnotationsError: the task needs what the source does not have.

    >>> gives_classes("a.xml", LayoutOptions(), has_objects=False, has_classes=True)
    True
    """
    if options.task == "classification" and not has_classes:
        raise AnnotationsError(
            f"{where}: its annotations are objects, and no classes of pictures: take --task detection"
        )
    only_classes = has_classes and not has_objects
    # Pictures without boxes would become pictures without objects, and teach a detector to find nothing.
    if only_classes and (options.wants_boxes or options.masks):
        raise AnnotationsError(
            f"{where}: its annotations have no boxes and no outlines, and give each picture a class: take "
            "--task classification" + (" without --masks" if options.masks else "")
        )
    return options.task == "classification" or only_classes


def with_classes(
    example: SourceExample, names: Iterable[str], where: str, options: LayoutOptions
) -> SourceExample:
    """Return the example of a picture with its class or its classes, or with a problem.

    >>> with_classes(SourceExample(source="a.png", key="a"), ["cat", "cat"], "a.xml", LayoutOptions()).label
    'cat'
    """
    classes = tuple(dict.fromkeys(names))
    plain = replace(example, boxes=None, declared_size=None, bad_objects=())
    if example.problem is not None:
        return plain
    # With sets of classes one class is a set as well.
    if options.several_classes == "keep":
        return replace(plain, labels=classes)
    if len(classes) == 1:
        return replace(plain, label=classes[0])
    if classes:
        detail = f"{where}: {', '.join(classes[:5])}; --several-classes keep takes such pictures"
        return replace(plain, problem=("annotation", "picture has several classes", detail))
    return replace(plain, problem=("annotation", "picture has no class", where))


def settle_classes(
    listed: Sequence[tuple[SourceExample, Collection[str], str]],
    options: LayoutOptions,
    *,
    are_objects: bool,
    advice: str = "",
) -> list[SourceExample]:
    """Return examples with boxes; those that lack a box of a class of their picture have a problem.

    Args:
        listed: each example with the classes that its annotations give without a place, and where these are written.
        options: options of the layout.
        are_objects: whether these classes are those of objects, as in COCO; otherwise they may be attributes, which
            pictures with boxes of other classes have as well.
        advice: end of the message of a picture with a class without a box.
    """
    boxed = {label for one, *_ in listed for label in _labels_of_boxes(one)}
    # An attribute such as night is on pictures with boxes, and is never the class of a box.
    beside_boxes = {name for one, names, _ in listed if one.boxes for name in names}
    attributes = set() if are_objects else beside_boxes - boxed
    settled = []
    for example, names, where in listed:
        others = _without_place(example, names, options)
        lacking = [name for name in others if name not in attributes]
        if example.boxes is None:
            settled.append(example)
        elif lacking and example.problem is None:
            settled.append(_without_box(example, lacking, boxed, where, advice))
        else:
            settled.append(_with_unread(example, attributes.intersection(others)))
    return settled


def _labels_of_boxes(example: SourceExample) -> set[str]:
    return {box.label for box in example.boxes or ()}


def _without_place(example: SourceExample, names: Iterable[str], options: LayoutOptions) -> list[str]:
    """Return the classes of a picture that none of its boxes has, without words for "no object"."""
    own = _labels_of_boxes(example)
    return [name for name in dict.fromkeys(names) if name not in own and not means_empty(name, options)]


def _without_box(
    example: SourceExample, lacking: Sequence[str], boxed: Collection[str], where: str, advice: str
) -> SourceExample:
    """Return the example with the problem that it has no box of some of its classes."""
    never = next((name for name in lacking if name not in boxed), None)
    # A class that has a box in another picture is one of objects.
    fix = "" if never is None else f"; if {never} means no object: --empty-classes {shlex.quote(never)}"
    detail = f"{where}: {', '.join(lacking[:3])}: draw its box, or take the picture out{fix}{advice}"
    return replace(example, boxes=None, declared_size=None, problem=("annotation", _NO_BOX, detail))


def _with_unread(example: SourceExample, unread: Collection[str]) -> SourceExample:
    """Return the example with a note on classes that are not read."""
    if not unread:
        return example
    return replace(example, notes=(*example.notes, _NOT_READ + ", ".join(sorted(unread)[:3])))


def means_empty(name: str, options: LayoutOptions) -> bool:
    """Return whether the name of a class says that a picture shows no object.

    >>> means_empty("Empty", LayoutOptions()), means_empty("cat", LayoutOptions())
    (True, False)
    """
    return name in options.empty_classes or _EMPTY.fullmatch(name.strip()) is not None
