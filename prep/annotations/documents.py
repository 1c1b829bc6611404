"""Parsers of annotation files in JSON, XML and YAML that refuse what expands without limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.bounded_json import parse_json
from halofeed.system.errors import SourceError

_MAX_VALUES = 20_000_000
"""Limit for the values of a JSON document: about as many as fit into `annotation_tools._MAX_BYTES`."""
MAX_YAML_BYTES = 1 << 20
"""Limit for a YAML document (estimate): lists of classes and folders are far smaller, and PyYAML is slow."""


def read_limited(files: SourceFiles, path: str, what: str, most: int) -> bytes:
    """Return the bytes of a file; raise SourceError if it has more than `most` bytes or cannot be read."""
    if (files.size(path) or 0) > most:
        raise SourceError("annotation", f"{what} is too large", f"more than {most} bytes")
    return files.read(path)


def parse_json_document(data: bytes) -> Any:
    """Return a JSON document of limited size; raise SourceError if it is damaged."""
    try:
        # A file may begin with a byte order mark, and Python's json.dump writes NaN.
        return parse_json(data.removeprefix(b"\xef\xbb\xbf"), _MAX_VALUES, finite=False)
    except ValueError as error:
        raise SourceError("annotation", "malformed JSON", str(error)) from error


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list; [] for anything else."""
    return value if isinstance(value, list) else []


def parse_json_lines(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the document of each line that is not blank; raise SourceError for a damaged one.

    >>> list(parse_json_lines(b'{"a": 1}\\n\\n[2]'))
    [(1, {'a': 1}), (3, [2])]
    """
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                yield number, parse_json_document(line)
            except SourceError as error:
                raise error.at(f"line {number}") from error


class _DoctypeRefusingBuilder(ElementTree.TreeBuilder):
    """Tree builder that refuses a DTD: annotations have none, and entities can expand without limit."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise SourceError("annotation", "XML has a DTD", f"<!DOCTYPE {name}> is refused; remove it")


def parse_xml_document(data: bytes) -> ElementTree.Element:
    """Return the root element of an XML file; raise SourceError if it is damaged or has a DTD."""
    parser = ElementTree.XMLParser(target=_DoctypeRefusingBuilder())  # noqa: S314 - without a DTD there are no entities
    try:
        parser.feed(data)
        root: ElementTree.Element = parser.close()
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise SourceError("annotation", "malformed XML", str(error)) from error
    return root


def parse_yaml(data: bytes, *, as_text: bool = False) -> Any:
    """Return a YAML document as dicts, lists and scalars.

    Args:
        data: the document, at most `MAX_YAML_BYTES`.
        as_text: return every scalar as it is written, such as `no`; else numbers, dates and booleans are converted.

    Raises:
        ValueError: it is too large, damaged, has an alias (which can expand without limit) or a key twice.

    >>> parse_yaml(b"a: [1, no]"), parse_yaml(b"a: [1, no]", as_text=True)
    ({'a': [1, False]}, {'a': ['1', 'no']})
    """
    import yaml

    if len(data) > MAX_YAML_BYTES:
        raise ValueError(f"expected at most {MAX_YAML_BYTES:,} bytes of YAML; shorten it")
    converter = yaml.constructor.SafeConstructor()
    try:
        # A few aliases of aliases expand to billions of values ("billion laughs").
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, yaml.SafeLoader)):
            raise ValueError("it has an alias (*name); write the value out")
        node = yaml.compose(data, yaml.SafeLoader)
        # PyYAML reads the class names no, on and off as booleans (YAML 1.1).
        convert = _text_of_node if as_text else converter.construct_object
        return None if node is None else _plain(node, convert)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"it is not valid YAML: {problem:.200}; correct it") from error


def _text_of_node(node: Any) -> Any:
    return node.value


def _plain(node: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the value of a node of YAML, whose scalars `convert` maps to values."""
    if node.id == "sequence":
        return [_plain(one, convert) for one in node.value]
    if node.id != "mapping":
        return convert(node)
    keys = [key.value if key.id == "scalar" else None for key, _ in node.value]
    # PyYAML keeps the last of two equal keys without a message.
    if len(set(keys)) < len(keys) or None in keys:
        twice = next((key for key in keys if keys.count(key) > 1), None)
        raise ValueError(f"the key {twice!r} comes twice or is no text; correct it")
    return {key: _plain(value, convert) for key, (_, value) in zip(keys, node.value, strict=True)}
