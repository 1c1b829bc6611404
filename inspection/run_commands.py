"""Which settings had a run, and which commands train it again, evaluate it and predict with it?"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from halofeed.inspection.layout import card, section
from halofeed.inspection.markup import Markup, element, join
from halofeed.inspection.run_facts import RunFacts

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_ENOUGH = 28


def settings(facts: RunFacts) -> Markup:
    """Every setting of the run, and the data that it read."""
    document = facts.document
    rows: list[tuple[str, Any]] = []
    for name, value in facts.config.items():
        if isinstance(value, Mapping):
            group = name.removesuffix("_options")
            rows += [(f"{group}.{key}", entry) for key, entry in value.items()]
        else:
            rows.append((name, value))
    data = [
        ("data", document.get("data")),
        (
            "name and version",
            f"{document.get('data_name', '')} {document.get('data_version', '')}".strip() or None,
        ),
        ("trained on split", document.get("split")),
        ("evaluated on split", document.get("evaluate_split")),
        ("image shape", list(facts.image_shape)),
        ("mean", document["facts"].get("mean")),
        ("deviation", document["facts"].get("std")),
        ("platform", document.get("platform")),
        ("halofeed", document.get("halofeed")),
    ]
    return section(
        "config",
        "Settings",
        element(
            "div",
            "columns recipe",
            card("Data and machine", _options([(name, value) for name, value in data if value is not None])),
            card("Config", element("div", "two-columns", _options(rows))),
        ),
        lead=join(
            [
                "What the run was asked for; ",
                element("code", None, "--set NAME=VALUE"),
                " changes any of the config.",
            ]
        ),
    )


def commands(facts: RunFacts) -> Markup:
    """The commands that train again, evaluate and predict."""
    data, split = shlex.quote(str(facts.document.get("data", "DATA"))), facts.document.get("split", "train")
    evaluated = str(facts.document.get("evaluate_split") or split)
    run = shlex.quote(facts.path)
    again = f"halofeed train {data} --split {shlex.quote(str(split))} --config again.toml --out RUN-AGAIN"
    evaluate = f"halofeed evaluate {run} {data} --split {shlex.quote(evaluated)}"
    predict = f"halofeed predict {run} {data} --split {shlex.quote(evaluated)} --out predictions"
    toml = element(
        "details",
        None,
        element("summary", None, "again.toml"),
        element("pre", None, element("code", None, config_as_toml(facts.config))),
    )
    return section(
        "use",
        "Use it",
        element(
            "div",
            "stack",
            card(
                "Predict with it",
                _code(predict),
                note="Boxes and masks come back on the grid of the source images.",
            ),
            card("Evaluate it", _code(evaluate)),
            card(
                "Train it again",
                _code(again),
                toml,
                note=join(
                    [
                        "Copy the settings below the command into ",
                        element("code", None, "again.toml"),
                        ". The same data, settings and devices give the same losses.",
                    ]
                ),
            ),
        ),
    )


def config_as_toml(config: Mapping[str, Any]) -> str:
    """A config as the TOML file that `--config` reads; what is not set is left out.

    >>> print(config_as_toml({"steps": 20, "model_options": {"width": 16}, "image_shape": None}))
    steps = 20
    model_options = { width = 16 }
    """
    return "\n".join(f"{_key(name)} = {_toml(value)}" for name, value in config.items() if value is not None)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        entries = ", ".join(
            f"{_key(str(key))} = {_toml(entry)}" for key, entry in value.items() if entry is not None
        )
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the delete character, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _code(command: str) -> Markup:
    return element("pre", None, element("code", None, command))


def _options(rows: list[tuple[str, Any]]) -> Markup:
    return element(
        "dl",
        "options",
        [
            element(
                "div",
                "long" if len(_text(value)) > _SHORT_ENOUGH else None,
                element("dt", None, name),
                element("dd", None, _text(value)),
            )
            for name, value in rows
        ],
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(entry)}" for key, entry in value.items()) or "none"
    return str(value)
