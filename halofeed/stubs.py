"""Files that are generated from the options of commands; `python -m halofeed.stubs` writes them.

halofeed/__init__.pyi   types, defaults and meanings of the Python API's keywords, for editors and type checkers
halofeed/help.json      rows of options, for the help of the command line
docs/api.md             tables of keywords, between the lines `BEGIN` and `END`
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import halofeed
from halofeed.keywords import keywords_of, name_parameters
from halofeed.option_rows import HELP_FILE, help_text
from halofeed.options import Option, default_text
from halofeed.storage.paths import load_text, save_text

_MODULES: Mapping[str, str] = vars(halofeed)["_MODULES"]
_PACKAGE = Path(__file__).parent
_STUB = _PACKAGE / "__init__.pyi"
_PAGE = _PACKAGE.parent / "docs" / "api.md"
BEGIN = "<!-- `python -m halofeed.stubs` writes the tables from here -->"
END = "<!-- to here -->"
_COLUMNS = 118

_HEAD = """\
# Written by `python -m halofeed.stubs` from the options of the commands. Change those, and run it again.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from halofeed.api import StrPath
from halofeed.inspection.review.review import Review
from halofeed.inspection.verify import VerifyReport
from halofeed.inspection.version_difference import VersionDifference
"""
_TAIL = """
__version__: str
"""

_COMMANDS_OF = {"dry_run": "convert"}
"""Commands of functions that have another name."""
_OWN = {
    "dry_run": {"dry_run"},
    "convert": {"dry_run", "preview"},
    "plan": {"json"},
    "evaluate": {"json"},
    "inspect": {"redirects"},
}
"""Keywords that a function gives its command by itself."""
_COMMON = ("quiet", "verbose", "debug")
_PATH_WORDS = ("FILE", "FOLDER", "PATH")
"""Words for a value in the help that name a path."""
_PATHS = {
    *("source", "images", "label_map", "nnunet_splits", "normalize_like", "preview", "out"),
    *("backbone_weights", "init", "config"),
}
_PAIRS = {"split_lists", "split_shares", "map_classes", "label_colors"}
"""Lists of NAME=VALUE, which may be mappings."""
_ANNOTATIONS = {
    "checkpoint": "str | int",
    "clips_per_source": "str | int",
    "max_rejected": "int | float | str | None",
    "findings": "StrPath | Mapping[int, Sequence[str]] | None",
    "ignore_label": "str | int | Sequence[str | int]",
    "pad_value": "int | Sequence[int]",
    "recipe": "StrPath | Mapping[str, Any] | None",
    "set": "Mapping[str, Any] | Sequence[str | tuple[str, Any]]",
}
"""Types of keywords that take more than the option of the command line."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """Function of the Python API.

    Args:
        node: its definition in api.py.
        options: what its **options take.
    """

    node: ast.FunctionDef
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.node.name


def functions() -> list[Function]:
    """Return the functions of the Python API in the order of api.py."""
    tree = ast.parse(load_text(_PACKAGE / "api.py", "utf-8"))
    return [
        Function(node=node, options=tuple(_options_of(node)))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in _MODULES
    ]


def _options_of(node: ast.FunctionDef) -> Iterator[Option]:
    """Yield the options that a function takes by **options, those of all commands last."""
    if node.args.kwarg is None:
        return
    known = keywords_of(_COMMANDS_OF.get(node.name, node.name))
    stated = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)} | _OWN.get(node.name, set())
    # A key that is not its option's own name is an earlier name, which the stub does not offer.
    usual = [row for name, row in known.items() if name == row.name and name not in stated]
    yield from sorted(usual, key=lambda row: row.name in _COMMON)


def annotation(option: Option) -> str:
    """Return the type of a keyword's value as text.

    >>> annotation(Option(name="spacing_mm", type=float, is_list=True, default=()))
    'Sequence[float]'
    >>> annotation(Option(name="task", choices=("detection", "segmentation")))
    "Literal['detection', 'segmentation'] | None"
    """
    if option.name in _ANNOTATIONS:
        return _ANNOTATIONS[option.name]
    if option.choices:
        # The default "" of an option means that its value follows from others.
        unset = [_default(option)] if _default(option) == "" else []
        text = f"Literal[{', '.join(map(repr, [*unset, *option.choices]))}]"
    elif option.is_list:
        # A class or a fold may be named by its number.
        item = "str | int" if option.type is str else option.type.__name__
        text = f"Sequence[{item}]" + (" | Mapping[str, Any]" if option.name in _PAIRS else "")
    elif option.name in _PATHS or option.more.get("metavar") in _PATH_WORDS:
        text = "StrPath"
    else:
        text = option.type.__name__
    return f"{text} | None" if _default(option) is None else text


def _default(option: Option) -> Any:
    return () if option.name == "set" else option.default


def _meaning(option: Option) -> str:
    text = option.help.removesuffix(default_text(option.default))  # which the signature shows
    return " ".join(name_parameters(text).split())


def stub_text() -> str:
    """Return the text of halofeed/__init__.pyi."""
    found = functions()
    generated = {function.name for function in found}
    imports = [
        f"from {module} import {name} as {name}"
        for name, module in sorted(_MODULES.items(), key=lambda pair: (pair[1], pair[0]))
        if name not in generated
    ]
    return _HEAD + "\n".join(imports) + "\n" + _TAIL + "".join(map(_stub_of, found))


def _stub_of(function: Function) -> str:
    """Return the definition of a function for the stub."""
    given, returns = function.node.args, function.node.returns
    assert returns is not None
    places = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    parts = [
        *map(_parameter, given.args, places),
        *(["*"] if given.kwonlyargs or function.options else []),
        *map(_parameter, given.kwonlyargs, given.kw_defaults),
        *(f"{row.name}: {annotation(row)} = {_default(row)!r}" for row in function.options),
    ]
    lines = "".join(f"    {part},\n" for part in parts)
    text = textwrap.indent(_documentation(function), "    ").strip()
    return f'\ndef {function.name}(\n{lines}) -> {ast.unparse(returns)}:\n    """{text}\n    """\n'


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    assert one.annotation is not None
    return f"{one.arg}: {ast.unparse(one.annotation)}" + (
        "" if default is None else f" = {ast.unparse(default)}"
    )


_OPTIONS_ENTRY = re.compile(r"^    options: .*\n(?:      .*\n)*", re.MULTILINE)


def _documentation(function: Function) -> str:
    """Return a function's docstring, with an entry for each keyword in place of that of `options`."""
    entries = [f"{row.name}: {_meaning(row).removesuffix('.')}." for row in function.options]
    filled = "".join(
        textwrap.fill(
            entry, _COLUMNS - 4, initial_indent="    ", subsequent_indent=" " * 8, break_on_hyphens=False
        )
        + "\n"
        for entry in entries
    )
    text = ast.get_docstring(function.node) or ""
    return _OPTIONS_ENTRY.sub(lambda _: filled, text).replace("\\", "\\\\")


def keyword_tables() -> str:
    """Return the tables of keywords as docs/api.md has them."""
    return "\n".join(
        f"### Keywords of {function.name}\n\n| keyword | type | default | meaning |\n|---|---|---|---|\n"
        + "".join(_row(option) for option in function.options if option.name not in _COMMON)
        for function in functions()
        if function.options and function.name not in _COMMANDS_OF
    )


def _row(option: Option) -> str:
    code = map(_code, (option.name, annotation(option), repr(_default(option))))
    # A pattern such as tf1-* would start italics, and <filename> would be taken for an HTML element.
    text = _meaning(option).translate({ord(sign): f"&#{ord(sign)};" for sign in "*<|"})
    return f"| {' | '.join((*code, text))} |\n"


def _code(text: str) -> str:
    # Python-Markdown shows the backslash of an escaped | within backticks, and GitHub ends the cell at any other.
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def page_text() -> str:
    """Return the text of docs/api.md with the tables of now."""
    before, _, rest = load_text(_PAGE, "utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{keyword_tables()}\n{END}{after}"


GENERATED: Mapping[Path, Callable[[], str]] = {_STUB: stub_text, HELP_FILE: help_text, _PAGE: page_text}
"""Function that returns the text of each generated file."""


def main() -> None:
    """Write every generated file, and print the names of those that changed."""
    for path, text_of in GENERATED.items():
        if not path.parent.is_dir():
            continue  # an installed package has no pages
        text = text_of()
        if not path.is_file() or load_text(path, "utf-8") != text:
            save_text(path, text, "utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
