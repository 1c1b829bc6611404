"""What does a run's report say of the run itself: what it was, how its numbers went, what it waited for?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.charts import tiling
from halofeed.inspection.layout import section
from halofeed.inspection.lines import percent, plural
from halofeed.inspection.markup import Markup, element
from halofeed.inspection.run_chart import (
    MOST_SERIES,
    Series,
    line_chart,
    line_legend,
    smoothing_width,
)
from halofeed.inspection.run_facts import RunFacts, number_of
from halofeed.inspection.run_frames import figure
from halofeed.inspection.run_metrics import show
from halofeed.schemas.errors import PartitionError
from halofeed.schemas.partition import REPLICA_AXIS, Partition

_COUNTS = frozenset({"examples"})
_MUCH_WAITING = 0.05


def header(facts: RunFacts) -> Markup:
    """What was trained on what, how far it came, and the figures that people ask for first."""
    config, document = facts.config, facts.document
    name = f"{config.get('model', 'a model')}"
    data = f"{document.get('data_name') or document.get('data', 'unknown data')}"
    version = f"{document.get('data_version') or ''}"
    shape = " × ".join(map(str, facts.image_shape[:-1]))
    steps, wanted, batch = facts.steps, facts.wanted_steps, int(config.get("batch_size", 1))
    done = f"{steps:,} steps" if steps >= wanted else f"{steps:,} of {wanted:,} steps"
    sentence = (
        f"{name}, trained for {facts.task} on split {document.get('split', 'train')!r} of {data} {version}: {done} of "
        f"{plural(batch, 'image')} of ",
        element("span", "whole", shape),
        f", {plural(len(facts.ranks), 'class', 'classes')}.",
    )
    best = facts.best()
    loss = facts.column("loss")
    taken = facts.seconds()
    known = np.isfinite(taken)
    rate = facts.column("images_per_second")
    tiles = [
        (done.removesuffix(" steps"), "steps"),
        (show(float(loss[-1])) if len(loss) else "–", "last loss"),
        *([(show(best[1]), f"best {best[0]}, step {best[2].step:,}")] if best else []),
        *([(lasted(float(taken[known].sum())), "all steps took, about")] if known.any() else []),
        *([(show(float(np.median(rate[known]))), "images a second, median")] if known.any() else []),
        *([(_short(parameters), "parameters")] if (parameters := document.get("parameters")) else []),
        *(
            [(str(_devices(facts)), f"{document.get('platform', 'unknown')} devices")]
            if document.get("mesh")
            else []
        ),
    ]
    return element(
        "header",
        None,
        element("p", "kind", "halofeed training run"),
        element("h1", None, name, " ", element("small", None, f"on {data} {version}".rstrip())),
        element("p", "lead", sentence),
        element("p", "notice", unfinished) if (unfinished := _unfinished(facts)) else None,
        element(
            "dl",
            "tiles run",
            [
                element("div", None, element("dt", None, words), element("dd", None, value))
                for value, words in tiles
            ],
        ),
        split_over_cores(facts),
    )


def split_over_cores(facts: RunFacts) -> Markup | None:
    """A small drawing of how an image was cut, and over how many cores and replicas; None where nobody knows."""
    mesh = facts.document.get("mesh")
    if not isinstance(mesh, Mapping):
        return None
    replicas = int(mesh.get(REPLICA_AXIS, 1))
    cores = _devices(facts) // max(1, replicas)
    whole = (1,) * (len(facts.image_shape) - 1)
    parts: Sequence[int] = whole
    try:
        partition = Partition.parse(str(facts.config.get("partition", "")), cores_per_replica=cores)
        dims = partition.dims.get("image")
        if dims is not None and len(dims) == len(facts.image_shape) + 1:
            parts = tuple(dims[1:-1])
    except PartitionError:
        return None
    axes = ("height", "width") if len(parts) == 2 else ("depth", "height", "width")
    cuts = [f"{count} along {axis}" for count, axis in zip(parts, axes, strict=True) if count > 1]
    each = " × ".join(
        str(math.ceil(side / count)) for side, count in zip(facts.image_shape, parts, strict=False)
    )
    if cuts:
        words = f"Each image was cut into {' and '.join(cuts)}: {each} on each of {cores} cores."
    else:
        words = "Each core held whole images."
    if replicas > 1:
        words += f" {replicas} replicas took an equal part of each batch."
    sizes = ", ".join(f"{name} {size}" for name, size in mesh.items())
    return element(
        "figure",
        {"class": "cores"},
        element("span", "enlarged", tiling(facts.image_shape[:-1], tuple(parts))),
        element("figcaption", None, words, " ", element("small", None, f"Mesh: {sizes}.")),
    )


def curves(facts: RunFacts) -> Markup:
    """The loss, its parts, the learning rate, the gradients' norm and the metrics over steps."""
    if not facts.steps:
        words = "No step has been logged yet."
        return section("curves", "How training went", element("p", "notice", words))
    steps, loss = facts.log["step"], facts.column("loss")
    width = smoothing_width(len(steps))
    drawn = [
        figure(
            "Loss",
            line_chart([Series(name="loss", steps=steps, values=loss, smooth=True)], "Loss"),
            "Look for a fall that flattens out. A rise, or a level from the beginning, asks for a lower or a higher "
            f"learning rate. Thin: each step; thick: the mean over {width} neighboring steps.",
        )
    ]
    drawn += _metric_figures(facts)
    for first in range(0, len(facts.parts), MOST_SERIES):
        names = facts.parts[first : first + MOST_SERIES]
        series = [Series(name=name, steps=steps, values=facts.log[name], smooth=True) for name in names]
        drawn.append(
            figure(
                "Parts of the loss",
                line_chart(series, "Parts of the loss"),
                "Look for a part that stays while the others fall: it asks for more weight, or its annotations for a "
                "check.",
                line_legend([name.replace("_", " ") for name in names]),
            )
        )
    rate = facts.column("learning_rate")
    if np.isfinite(rate).any():
        drawn.append(
            figure(
                "Learning rate",
                line_chart(
                    [Series(name="learning rate", steps=steps, values=rate)], "Learning rate", top=0.0
                ),
                "The schedule as it was taken: compare its bends with those of the loss.",
            )
        )
    norm = facts.column("gradient_norm")
    if np.isfinite(norm).any():
        drawn.append(
            figure(
                "Norm of the gradients",
                line_chart(
                    [Series(name="norm of the gradients", steps=steps, values=norm, smooth=True)],
                    "Norm of the gradients",
                ),
                "Look for spikes: each may undo much of what was learned, and clip_norm cuts them off.",
            )
        )
    finite = loss[np.isfinite(loss)]
    words = f"{plural(len(steps), 'step')} logged"
    if len(finite):
        words += f"; the loss went from {show(float(finite[0]))} to {show(float(finite[-1]))}"
    missing = len(loss) - len(finite)
    words += f"; {plural(missing, 'step')} without a loss, seen as gaps" if missing else ""
    return section("curves", "How training went", element("div", "columns curves", drawn), lead=words + ".")


def waiting(facts: RunFacts) -> Markup | None:
    """What share of the steps' time went on waiting for input; None before the first step."""
    if not facts.steps:
        return None
    share = facts.column("waiting_share")
    known = np.isfinite(share)
    if not known.any():
        words = "The log does not say how long the steps waited for their batches."
        return section("waiting", "Waiting for input", element("p", "notice", words))
    # The first steps wait for threads to start and files to be opened.
    steady = known & (np.arange(len(share)) >= min(2, int(np.flatnonzero(known)[-1])))
    taken = facts.seconds()
    weights = np.where(
        np.isfinite(taken), taken, float(np.nanmean(taken)) if np.isfinite(taken).any() else 1.0
    )
    mean = float(np.sum(share[steady] * weights[steady]) / max(float(np.sum(weights[steady])), 1e-12))
    advice = (
        "Input keeps up with the cores."
        if mean <= _MUCH_WAITING
        else "Input is too slow: convert with raw encoding, keep the shards on a local disk, or give the loader more "
        "cores of the host."
    )
    rate = facts.column("images_per_second")
    drawn = [
        figure(
            "Share of each step that waited",
            line_chart(
                [Series(name="waiting", steps=facts.log["step"], values=100 * share, smooth=True)],
                "Share of each step's time spent waiting for input, in percent",
                unit=" %",
                top=100.0,
            ),
            "Look for a line near 0 after the first steps; what lies above is time in which the cores did nothing.",
        )
    ]
    if np.isfinite(rate).any():
        drawn.append(
            figure(
                "Images a second",
                line_chart(
                    [Series(name="images a second", steps=facts.log["step"], values=rate, smooth=True)],
                    "Images a second",
                    top=0.0,
                ),
                "Look for a level line; dips are evaluations, checkpoints or a machine that does something else.",
            )
        )
    return section(
        "waiting",
        "Waiting for input",
        element("div", "columns", drawn),
        lead=f"{percent(mean)} of the steps' time went on waiting for batches, the first two steps left out. {advice}",
    )


def lasted(seconds: float) -> str:
    """A time for reading.

    >>> lasted(7.2), lasted(200), lasted(40000)
    ('7 s', '3 min 20 s', '11 h 6 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _metric_figures(facts: RunFacts) -> list[Markup]:
    """Metrics over steps: those between 0 and 1 together, the best one first; each other by itself."""
    names = list(
        dict.fromkeys(
            name
            for evaluation in facts.evaluations
            for name, value in evaluation.metrics.items()
            if name not in _COUNTS and number_of(value) is not None
        )
    )
    best = facts.best()
    names.sort(key=lambda name: best is None or name != best[0])
    splits = list(dict.fromkeys(evaluation.split for evaluation in facts.evaluations))
    shares: list[Series] = []
    others: list[Series] = []
    for name in names:
        for split in splits:
            of_split = [evaluation for evaluation in facts.evaluations if evaluation.split == split]
            values = [number_of(evaluation.metrics.get(name)) for evaluation in of_split]
            one = Series(
                name=f"{name} ({split})" if len(splits) > 1 else name,
                steps=np.array([evaluation.step for evaluation in of_split], np.float64),
                values=_or_gaps(values),
            )
            known = one.values[np.isfinite(one.values)]
            if len(known):
                (shares if known.min() >= 0 and known.max() <= 1 else others).append(one)
    shares = shares[:MOST_SERIES]
    drawn = []
    if shares:
        drawn.append(
            figure(
                "Metrics",
                line_chart(shares, "Metrics over steps", top=1.0),
                "Look for the step after which they no longer rise, or fall while the loss still does: from there the "
                "model learns its training images by heart.",
                line_legend([one.name for one in shares]),
            )
        )
    drawn += [
        figure(
            one.name.replace("_", " "),
            line_chart([one], one.name, top=0.0),
            "Look for a fall: distances are the better the less they are."
            if one.name.startswith("hausdorff")
            else "Look for a level line at the end.",
        )
        for one in others
    ]
    return drawn


def _or_gaps(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _unfinished(facts: RunFacts) -> str | None:
    """What is still to come, in a sentence."""
    missing = []
    if facts.steps < facts.wanted_steps:
        missing.append(
            f"{facts.wanted_steps - facts.steps:,} of {facts.wanted_steps:,} steps are still to be taken"
        )
    if not facts.evaluations and facts.document.get("evaluate_split"):
        missing.append("no evaluation is there yet")
    if not missing:
        return None
    return f"This run is not finished: {' and '.join(missing)}. The same command goes on where it stopped."


def _devices(facts: RunFacts) -> int:
    mesh = facts.document.get("mesh")
    return math.prod(int(size) for size in mesh.values()) if isinstance(mesh, Mapping) else 1


def _short(count: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,}"
