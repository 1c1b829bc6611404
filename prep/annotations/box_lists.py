"""Form of the lists of keras-yolo3: a picture in each line, with its boxes."""

from __future__ import annotations

import re

from halofeed.prep.sources.file_names import is_image_name

_BOX = re.compile(r"-?\d+(?:\.\d+)?(?:,-?\d+(?:\.\d+)?){3},\d+")
_SHOWN_LINES = 20
"""Lines to look at: the form of a list shows in its first ones."""


def split_list_line(line: str) -> tuple[str, list[str]]:
    """Return the path of a line, which may have blanks, and its boxes.

    >>> split_list_line("a b/1.jpg 1,2,3,4,0 5,6,7,8,1")
    ('a b/1.jpg', ['1,2,3,4,0', '5,6,7,8,1'])
    """
    words = line.split()
    first = next((at for at, word in enumerate(words) if at and _BOX.fullmatch(word)), len(words))
    # Blanks inside of a path are kept as they are.
    name = line.strip() if first == len(words) else line.strip().split(words[first], 1)[0].rstrip()
    return name, words[first:]


def is_list_of_boxes(text: str) -> bool:
    """Return whether lines name pictures with boxes, as keras-yolo3 writes them; judged by the first ones.

    >>> is_list_of_boxes("a/1.jpg 1,2,3,4,0 5,6,7,8,1\\na/2.jpg"), is_list_of_boxes("a/1.jpg 3")
    (True, False)
    """
    lines = [split_list_line(line) for line in text.splitlines()[:_SHOWN_LINES] if line.strip()]
    # A list of pictures alone says nothing of objects.
    if not any(boxes for _, boxes in lines):
        return False
    good = sum(is_image_name(name) and all(map(_BOX.fullmatch, boxes)) for name, boxes in lines)
    # Single lines may be damaged.
    return 2 * good > len(lines)


def is_box(word: str) -> bool:
    """Return whether a word is x1,y1,x2,y2,class.

    >>> is_box("1,2.5,3,4,0"), is_box("1,2,3,4")
    (True, False)
    """
    return _BOX.fullmatch(word) is not None
