"""Parser of YAML documents without aliases and repeated keys."""

from __future__ import annotations

from typing import Any

MAX_YAML_BYTES = 1 << 20


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

    def plain(node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            keys = [key.value if isinstance(key, yaml.ScalarNode) else None for key, _ in node.value]
            if len(set(keys)) < len(keys) or None in keys:
                twice = next((key for key in keys if keys.count(key) > 1), None)
                raise ValueError(f"the key {twice!r} comes twice or is no text; correct it")
            return {key: plain(value) for key, (_, value) in zip(keys, node.value, strict=True)}
        if isinstance(node, yaml.SequenceNode):
            return [plain(one) for one in node.value]
        return node.value if as_text else converter.construct_object(node)

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, yaml.SafeLoader)):
            raise ValueError("it has an alias (*name); write the value out")
        node = yaml.compose(data, yaml.SafeLoader)
        converter = yaml.constructor.SafeConstructor()
        return None if node is None else plain(node)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"it is not valid YAML: {problem:.200}; correct it") from error
