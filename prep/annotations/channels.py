"""How files of one channel each (t1, flair, ...) become images of several channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from halofeed.prep.annotations.pairing import Key
from halofeed.prep.sources.reference import Reference
from halofeed.schemas.errors import AnnotationsError, Problem

LEFT_OUT: Problem = ("selection", "channel is left out by --channel-order", "")


def join_channels(
    images: Iterable[tuple[Key, Mapping[str, str], Reference]], order: Sequence[str], root: str
) -> tuple[list[tuple[Key, Reference]], list[Reference]]:
    """Each image once, with all its channels, and the files of channels that the order leaves out.

    Args:
        images: each file of an image: what it shares with its label, what its pattern's placeholders stand for, and its
            reference.
        order: the channels to take; (): all that there are, by name, which is noted.
        root: of the source, for messages.

    Raises:
        AnnotationsError: a channel of the order is nowhere.
    """
    cases: dict[tuple[str, ...], dict[str, list[tuple[Key, Reference]]]] = {}
    for key, values, reference in images:
        case = tuple(value for name, value in sorted(values.items()) if name != "channel")
        cases.setdefault(case, {}).setdefault(values["channel"], []).append((key, reference))
    present = sorted({name for channels in cases.values() for name in channels})
    if missing := [name for name in order if name not in present]:
        raise AnnotationsError(
            f"--channel-order: {', '.join(missing)}: no such channel in {root}; found {', '.join(present[:20])}"
        )
    names = tuple(order) or tuple(present)
    note = () if order or len(names) == 1 else (f"channels in order of name: {', '.join(names)}",)
    joined, left_out = [], []
    for channels in cases.values():
        taken = [channels[name] for name in names if name in channels]
        left_out += [
            replace(reference, problem=LEFT_OUT)
            for name, found in channels.items()
            if name not in names
            for _, reference in found
        ]
        if taken:
            key, first = taken[0][0]
            references = [found[0][1] for found in taken]
            more = tuple(reference.source for reference in references[1:])
            problem = _problem(channels, names, references)
            joined.append((key, replace(first, channels=more, problem=problem, notes=(*first.notes, *note))))
    return joined, left_out


def _problem(
    channels: Mapping[str, Sequence[tuple[Key, Reference]]],
    names: Sequence[str],
    references: Sequence[Reference],
) -> Problem | None:
    if missing := [name for name in names if name not in channels]:
        listed = f"no {', '.join(missing)}; --channel-order takes fewer"
        return ("annotation", "channel is missing", listed)
    if twice := [name for name in names if len(channels[name]) > 1]:
        paths = ", ".join(reference.source for _, reference in channels[twice[0]][:3])
        return ("annotation", "several files of one channel", paths)
    return next((reference.problem for reference in references if reference.problem), None)
