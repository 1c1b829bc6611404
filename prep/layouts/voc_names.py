"""Which image a VOC file means whose <filename> and own name are those of two images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.grid import Size, stored_sizes
from halofeed.prep.annotations.images import Found, ImageIndex, Wanted
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.schemas.errors import AnnotationsError, SourceError

XML_NAME = (
    "<filename> names another picture than the XML file's own name, which was taken, as declared sizes or other XML "
    "files prove; --voc-images filename takes the former"
)
WRITTEN = (
    "<filename> names another picture than the XML file's own name, and was taken, as declared sizes or the other XML "
    "files prove; --voc-images xml-name takes the latter"
)
NO_SUCH_FILE = "<filename> names no file; the picture of the XML file's own name was taken"
_OPEN = "<filename> and the XML file's name mean two images"
_CURE = "--voc-images filename or --voc-images xml-name says which is meant"


@dataclass(frozen=True, kw_only=True)
class _Conflict:
    """The two images that one XML file may mean; `beside` has several where only their extensions differ."""

    written: Found
    beside: tuple[str, ...]


def settle_names(
    index: ImageIndex,
    wanted: Mapping[str, Wanted],
    declared: Mapping[str, Size | None],
    images: SourceFiles,
    options: LayoutOptions,
) -> dict[str, Found | SourceError]:
    """The image that each XML file means, or why none can be told.

    Where <filename> and the XML file's own name are those of two images, the first of these proves one:

    1. The declared size is that of one of them. If all such proofs agree, they hold for the other XML files too.
    2. One of them is the image of another XML file.
    3. The other XML files whose two names differ have an image by one of these names alone, the same for all.

    Args:
        wanted: of each XML file; `declared` are the sizes that they declare.

    Raises:
        AnnotationsError: nothing proves it for most XML files.
    """
    found = index.match(wanted)
    conflicts: dict[str, _Conflict] = {}
    taken: set[str] = set()
    alone: set[str] = set()
    lost: dict[str, str] = {}  # whose <filename> is that of no image
    for path, answer in found.items():
        differ = _differ(path, wanted[path].name)
        beside = tuple(index.neighbors(wanted[path])) if differ else ()
        if isinstance(answer, SourceError):
            if len(beside) == 1 and answer.reason == "image file not found":
                lost[path] = beside[0]
        elif beside and answer.path not in beside:
            conflicts[path] = _Conflict(written=answer, beside=beside)
        else:
            taken.add(answer.path)
            if beside:
                found[path] = replace(answer, note=answer.note or NO_SUCH_FILE)
            if differ:
                alone.add("xml-name" if beside else "filename")
    if lost:
        alone.add("xml-name")
        taken.update(lost.values())
    if not conflicts:
        return found
    chosen = dict.fromkeys(conflicts, options.voc_images)
    if options.voc_images == "auto":
        chosen = _by_size(conflicts, declared, images)
        if len(proven := set(chosen.values())) == 1:
            chosen = dict.fromkeys(conflicts, proven.pop())
        chosen = _by_others(conflicts, chosen, taken)
        if len(alone) == 1:
            chosen = dict.fromkeys(conflicts, *alone) | chosen
    left = [path for path in conflicts if path not in chosen]
    if 2 * len(left) > len(found):
        one = conflicts[left[0]]
        raise AnnotationsError(
            f"{left[0]}: <filename> is that of {one.written.path}, and its own name that of {one.beside[0]}, as "
            f"in {len(left)} of {len(found)} XML files; {_CURE}"
        )
    answers = {path: _answer(one, chosen.get(path), options) for path, one in conflicts.items()}
    claimed = {answer.path for answer in (found | answers).values() if isinstance(answer, Found)}
    own = {path: Found(path=image, note=NO_SUCH_FILE) for path, image in lost.items() if image not in claimed}
    return found | answers | own


def _differ(path: str, written: str) -> bool:
    """Whether a <filename> is no name of the XML file's image, whatever its extension.

    >>> _differ("a/1.xml", "1.JPG"), _differ("a/1.jpg.xml", "1.jpg"), _differ("1.xml", "2.jpg"), _differ("1.xml", "")
    (False, False, True, False)
    """
    names = {_stem(PurePosixPath(path).stem), PurePosixPath(path).stem}
    name = PurePosixPath(written.replace("\\", "/")).name
    return bool(name) and not names.intersection((_stem(name), name))


def _stem(name: str) -> str:
    return PurePosixPath(name).stem if is_image_name(name) else name


def _by_size(
    conflicts: Mapping[str, _Conflict], declared: Mapping[str, Size | None], images: SourceFiles
) -> dict[str, str]:
    """What is meant where the declared size is that of one image alone."""
    asked = [path for path in conflicts if declared[path] is not None and len(conflicts[path].beside) == 1]
    written = stored_sizes([conflicts[path].written.path for path in asked], images)
    beside = stored_sizes([conflicts[path].beside[0] for path in asked], images)
    return {
        path: "filename" if declared[path] in one else "xml-name"
        for path, one, other in zip(asked, written, beside, strict=True)
        if one and other and (declared[path] in one) is not (declared[path] in other)
    }


def _by_others(conflicts: Mapping[str, _Conflict], chosen: dict[str, str], taken: set[str]) -> dict[str, str]:
    """What is meant where one of the images is that of another XML file; each answer can give further ones."""
    chosen = dict(chosen)
    taken = taken | {_path(conflicts[path], what) for path, what in chosen.items()}
    while True:
        left = {path: one for path, one in conflicts.items() if path not in chosen}
        claims = Counter(one.written.path for one in left.values())
        found = {}
        for path, one in left.items():
            is_written_taken = one.written.path in taken or claims[one.written.path] > 1
            if is_written_taken is not (one.beside[0] in taken):
                found[path] = "xml-name" if is_written_taken else "filename"
        if not found:
            return chosen
        chosen |= found
        taken |= {_path(left[path], what) for path, what in found.items()}


def _path(one: _Conflict, what: str) -> str:
    return one.written.path if what == "filename" else one.beside[0]


def _answer(one: _Conflict, what: str | None, options: LayoutOptions) -> Found | SourceError:
    proven = options.voc_images == "auto"
    if what == "filename":
        return replace(one.written, note=WRITTEN if proven else one.written.note)
    if what == "xml-name" and len(one.beside) == 1:
        return Found(path=one.beside[0], note=XML_NAME if proven else "")
    if what == "xml-name":
        return SourceError("annotation", "file name is ambiguous", ", ".join(one.beside[:3]))
    return SourceError("annotation", _OPEN, f"{one.written.path} and {one.beside[0]}; {_CURE}")
