"""What does a report say of how a data set was made, and of how it is used?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from halofeed.inspection.facts import CORES, Facts
from halofeed.inspection.layout import card, section
from halofeed.inspection.lines import plural
from halofeed.inspection.markup import Markup, element, join, table
from halofeed.inspection.segmentation import class_channels
from halofeed.prep.option import flag
from halofeed.prep.recipe import Recipe
from halofeed.schemas.partition import splits_that_divide


def recipe(facts: Facts) -> Markup:
    """The options that were given, then all others, and the fields of a record."""
    defaults = Recipe().to_json()
    given = {name: value for name, value in facts.manifest.recipe.items() if value != defaults.get(name)}
    usual = {name: value for name, value in facts.manifest.recipe.items() if name not in given}

    def listed(options: Mapping[str, Any]) -> Markup:
        return element(
            "dl",
            "options",
            [
                element(
                    "div", None, element("dt", None, flag(name)), element("dd", None, _option_text(value))
                )
                for name, value in options.items()
            ],
        )

    rows = [
        [
            element("code", None, field.name),
            field.dtype,
            ", ".join(field.axes) or "–",
            element("span", "whole", " × ".join(map(str, field.shape)) or "–"),
            field.encoding,
            "on request" if field.optional else "always",
        ]
        for field in facts.manifest.fields
    ]
    came_from = facts.manifest.inputs.get("source", "an unknown source")
    software = ", ".join(f"{name} {version}" for name, version in facts.manifest.software.items())
    more = element(
        "details",
        None,
        element("summary", None, plural(len(usual), "option"), " at the default"),
        listed(usual),
    )
    return section(
        "recipe",
        "How it was made",
        element(
            "div",
            "columns recipe",
            card("Options that differ from their defaults", listed(given), more if usual else None),
            card(
                "Fields of a record",
                table(("field", "dtype", "axes", "shape", "encoding", "loaded"), rows),
                note=join(
                    ["“On request”: name the field in the loader's ", element("code", None, "include"), "."]
                ),
            ),
        ),
        lead=f"Converted from {came_from} by {software or 'an unknown program'}.",
    )


def usage(facts: Facts) -> Markup:
    """How to load the data, and how to train on it."""
    filled = [name for name in facts.splits if facts.manifest.splits[name].records] or list(facts.splits)
    split = filled[0] if filled else "train"
    records = facts.manifest.splits[split].records if split in facts.manifest.splits else 0
    batch = next((size for size in (64, 32, 16, 8, 4, 2) if size * 4 <= records), 1)
    shape = facts.image.shape
    found = splits_that_divide((1, *shape), CORES, axes=range(1, len(shape)))
    cores = next((count for count in (4, 2, 8, 16) if found[count]), 1)
    whole = (1,) * (len(shape) + 1)
    by_rows = (*whole[: len(shape) - 2], cores, 1, 1)
    every = found.get(cores, [])
    dims = by_rows if by_rows in every and not facts.is_volume else next(iter(every), whole)
    parts = ",".join(map(str, dims))
    channels = class_channels(facts.manifest)
    if facts.is_segmentation:
        parts += f";label={','.join(map(str, (*dims[:-1], 1) if channels else dims[:-1]))}"
    picture = f"{facts.image.dtype} {[batch, *shape]}"
    others = '"boxes", "classes", "num_boxes"' if facts.is_detection else '"label"'
    if facts.has_several_classes:
        others = f'"labels": uint8 {[batch, len(facts.manifest.labels)]}, 1 for each class of a picture'
    if facts.is_segmentation:
        label = [batch, *shape[:-1], len(channels)] if channels else [batch, *shape[:-1]]
        others = f'"label": {label}, "labelled"'
    path = shlex.quote(facts.path)
    load = (
        "from halofeed.loader import Loader\n\n"
        f"loader = Loader({facts.path!r}, split={split!r}, batch_size={batch}, seed=7)\n"
        f'batch = loader.batch(0)        # "image": {picture}; {others}, "id", ...\n'
        "stream = loader.dataset()      # tf.data.Dataset of the same batches"
    )
    train_batch = max(1, min(8, batch))
    train = f"halofeed train {path} --split {split} --batch-size {train_batch}"
    if cores > 1:
        train += f" \\\n    --cores-per-replica {cores} --partition image={parts}"
    mesh = (
        "from halofeed.loader import Loader\n"
        "from halofeed.schemas.partition import Partition\n"
        "from halofeed.trainer.mesh import make_mesh\n\n"
        f"partition = Partition.parse('image={parts}', cores_per_replica={cores})\n"
        f"loader = Loader({facts.path!r}, split={split!r}, batch_size={batch}, seed=7)\n"
        f"for batch in loader.on_mesh(make_mesh({cores}), partition):\n"
        "    ...                        # global jax.Arrays, each core holds its own part"
    )
    blocks = [card("Load batches", element("pre", None, element("code", None, load)))]
    if not facts.is_segmentation and not facts.has_several_classes:
        blocks.append(card("Train", element("pre", None, element("code", None, train))))
    if cores > 1:
        blocks.append(
            card(
                f"Onto a mesh, each {'volume' if facts.is_volume else 'image'} over {cores} cores",
                element("pre", None, element("code", None, mesh)),
            )
        )
    return section("use", "Use it", element("div", "stack", blocks))


def _option_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else str(value)
