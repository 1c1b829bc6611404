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

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.example import SourceExample

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
    if options.several_classes == "keep":
        return replace(plain, labels=classes)
    if len(classes) == 1:
        return replace(plain, label=classes[0])
    if classes:
        detail = f"{where}: {', '.join(classes[:5])}; --several-classes keep takes such pictures"
        return replace(plain, problem=("annotation", "picture has several classes", detail))
    return replace(plain, problem=("annotation", "picture has no class", where))


def settle_classes(
    listed: Sequence[tuple[SourceExample, Collection[str], str]], options: LayoutOptions, *, are_objects: bool
) -> list[SourceExample]:
    """Return examples with boxes; those that lack a box of a class of their picture have a problem.

    Args:
        listed: each example with the classes that its annotations give without a place, and where these are written.
        options: options of the layout.
        are_objects: whether these classes are those of objects, as in COCO; otherwise they may be attributes, which
            pictures with boxes of other classes have as well.
    """
    boxed = {box.label for one, *_ in listed for box in one.boxes or ()}
    beside_boxes = {name for one, names, _ in listed if one.boxes for name in names}
    settled = []
    for example, names, where in listed:
        own = {box.label for box in example.boxes or ()}
        others = [
            name for name in dict.fromkeys(names) if name not in own and not _means_empty(name, options)
        ]
        attributes = [
            name for name in others if name not in boxed and name in beside_boxes and not are_objects
        ]
        lacking = [name for name in others if name not in attributes]
        if lacking and example.problem is None and example.boxes is not None:
            never = next((name for name in lacking if name not in boxed), None)
            fix = (
                "" if never is None else f"; if {never} means no object: --empty-classes {shlex.quote(never)}"
            )
            detail = f"{where}: {', '.join(lacking[:3])}: draw its box, or take the picture out{fix}"
            example = replace(
                example, boxes=None, declared_size=None, problem=("annotation", _NO_BOX, detail)
            )
        elif attributes and example.boxes is not None:
            example = replace(example, notes=(*example.notes, _NOT_READ + ", ".join(sorted(attributes)[:3])))
        settled.append(example)
    return settled


def _means_empty(name: str, options: LayoutOptions) -> bool:
    return name in options.empty_classes or _EMPTY.fullmatch(name.strip()) is not None
