"""Recipe of a conversion: its checks and its JSON form.

RecipeOptions (recipe_options.py)   every option with its default
KindRules (kind_rules.py)           rules of pictures, volumes and clips
Recipe (here)                       options that passed the rules of their kind
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from halofeed.prep.annotations.class_marks import parse_class_marks
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.splits import compile_group_pattern
from halofeed.prep.annotations.stated_columns import parse_columns
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options.kind_rules import CLIP_RULES, PICTURE_RULES, VOLUME_RULES, KindRules
from halofeed.prep.options.option import (
    copy_options,
    fields_by_class,
    flag,
    problems_of,
    refusal,
    unmet_need,
)
from halofeed.prep.options.recipe_options import RecipeOptions
from halofeed.prep.sources.example import FileSelection
from halofeed.prep.sources.file_names import is_image_name, is_scan_name, is_scan_or_array_name
from halofeed.schemas.fields import SETS
from halofeed.schemas.kinds import with_current_option_names
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES, TASKS
from halofeed.system.errors import UsageError
from halofeed.system.memory import MEBIBYTE, MemoryBudget, ReserveMemory, process_budget
from halofeed.system.wording import did_you_mean

RULES = (CLIP_RULES, VOLUME_RULES, PICTURE_RULES)
"""Rules of each kind of image. The first one whose option the recipe sets applies."""
_LARGEST_NUMBER = 1e18


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeOptions):
    """Options that decide the bytes of a converted data set, together with the sources and their labels.

    Raises:
        UsageError: lists every option that is wrong or contradicts another one.

    >>> Recipe(layout="voc", resize="keep-aspect", min_dimension=640, max_dimension=640, pad=True).static_shape()
    (640, 640)
    """

    def __post_init__(self) -> None:
        if isinstance(self.ignore_label, int):  # programs may name one value as a number
            object.__setattr__(self, "ignore_label", (str(self.ignore_label),))
        # Defaults differ by kind of image, which the other options decide: they are settled once all are known.
        for name, value in self.rules.defaults(self).items():
            object.__setattr__(self, name, getattr(self, name) or value)
        if problems := self._problems():
            raise UsageError("\n".join(problems))

    def _problems(self) -> list[str]:
        found = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if problem := _value_problem(field, value):
                found.append(f"{flag(field.name)} {value!r}: {problem}")
        unknown = [name for name in self.keep if name not in OPTIONAL_ATTRIBUTES]
        found += [*self.volume_problems(), *self.clip_problems(), *self.rules.problems(self)]
        found += self.class_choice().problems(of_label_images=self.may_hold_label_images())
        found += problems_of(
            (
                self.shards > 99_999,
                f"--shards {self.shards}: expected at most 99,999, which is what fits the file names",
            ),
            (
                not self.class_separator,
                "--class-separator: expected a text, none or auto, got an empty one",
            ),
            (unknown, f"--keep {','.join(unknown)}: expected some of {', '.join(OPTIONAL_ATTRIBUTES)}"),
        )
        found += refusal(lambda: parse_columns(self.column)) + refusal(
            lambda: parse_class_marks(self.class_marks)
        )
        if (pattern := self.group_pattern) is not None:
            found += refusal(lambda: compile_group_pattern(pattern))
        return found + problems_of(
            (
                self.folds is not None and self.split_shares,
                "--split-shares and --folds both assign splits; give one of them",
            ),
            (
                self.group_pattern is not None and self.group_column is not None,
                "--group-pattern and --group-column both name groups; give one of them",
            ),
        )

    def check_used(self, names: Container[str] | None = None) -> None:
        """Refuse options that differ from their defaults and have no effect.

        The command line calls this. A recipe of a manifest or of a program may hold such values.

        Args:
            names: options to check; default: all.

        Raises:
            UsageError: lists each such option and what it needs.
        """
        given, blank = self.to_json(), self.of_defaults().to_json()
        found = [
            need.message(field.name)
            for declaring_class, field in fields_by_class(type(self))
            if given.get(field.name) != blank.get(field.name)
            and (names is None or field.name in names)
            and (need := unmet_need(declaring_class, field, self)) is not None
        ]
        if found:
            raise UsageError("\n".join(found))

    @property
    def rules(self) -> KindRules:
        """Rules of the recipe's kind of image."""
        return next(
            rules for rules in RULES if not rules.chosen_by or getattr(self, rules.chosen_by) is not None
        )

    def of_defaults(self) -> Recipe:
        """Return a recipe of the same kind of image with the default of every other option."""
        name = self.rules.chosen_by
        return type(self)(**{name: getattr(self, name)} if name else {})

    def settled_task(self) -> str | None:
        """Return --task, or the first task of the kind that the layout has, or the layout's own; None if it is open."""
        layout = LAYOUTS.get(self.layout)
        fitting = [task for task in self.rules.tasks if layout is None or task in layout.tasks]
        chosen = self.task or next(iter([*fitting, *self.rules.tasks]), None)
        return chosen or (None if layout is None else layout.default_task)

    def _possible_tasks(self) -> tuple[str, ...]:
        """Return the tasks that the records can serve by task, kind and layout."""
        if task := self.settled_task():
            return (task,)
        layout = LAYOUTS.get(self.layout)
        return tuple(TASKS) if layout is None else layout.tasks

    def may_hold_boxes(self) -> bool:
        """Return True if records can have boxes."""
        layout = LAYOUTS.get(self.layout)
        return "detection" in self._possible_tasks() and (layout is None or "detection" in layout.tasks)

    def may_hold_label_images(self) -> bool:
        """Return True if records have a class for each voxel or pixel."""
        return self._possible_tasks() == ("segmentation",)

    def memory_budget(self, room_bytes: int | None) -> MemoryBudget:
        """Return the memory that the inputs which this process decodes at the same time share.

        Args:
            room_bytes: memory that the machine has for this process; None if unknown.
        """
        return process_budget(self.max_memory * MEBIBYTE, room_bytes)

    def reserve_alone(self) -> ReserveMemory:
        """Return the memory check for an input that is converted alone."""
        return MemoryBudget(self.max_memory * MEBIBYTE).share().reserve_with_margin

    def static_shape(self) -> tuple[int, ...] | None:
        """Return the size of every stored image along its kind's axes; None where the recipe does not fix it."""
        return self.rules.shape(self)

    def layout_options(
        self,
        salt: str = "",
        *,
        source_splits: bool = True,
        selection: FileSelection | None = None,
    ) -> LayoutOptions:
        """Return the options of the layout.

        Args:
            salt: text that is mixed into the hashes of patient ids, see `SeriesPolicy`.
            source_splits: False if the layout must ignore the source's own splits.
            selection: result of `KindRules.select_files`; None decides by file names alone.
        """
        takes = selection.takes_scan if selection else is_scan_name
        return copy_options(
            LayoutOptions,
            self,
            regions=SETS if self.holds_class_sets() else self.regions,
            series=dataclasses.replace(self.series_policy(), salt=salt),
            task=self.settled_task(),
            split_folders={"auto": None, "yes": True, "no": False}[self.split_folders],
            source_splits=source_splits,
            needs_groups=self.group_pattern is None
            and bool(self.split_shares or self.folds or self.group_column),
            takes=selection.takes if selection else is_image_name,
            takes_scan=is_scan_or_array_name if self.array_spacing_mm and takes is is_scan_name else takes,
            list_series=None,
            class_names={},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the options as plain JSON values."""
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
            if not (field.metadata.get("omitted") and getattr(self, field.name) == field.default)
        }

    @classmethod
    def from_json(
        cls,
        document: Mapping[str, Any],
        *,
        where: str = "the recipe of the data set",
        path: Callable[[str], str] = flag,
    ) -> Recipe:
        """Read the recipe of a manifest or of a training run, also of earlier versions.

        Args:
            document: value by option.
            where: description of the document, for messages.
            path: function that returns the place of an option in the document, for messages.

        Raises:
            UsageError: lists every option that this version does not know or whose value is wrong.
        """
        document = with_current_option_names(document)
        found = dict(recipe_problems(document))
        fields_by_name = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        strange = False
        for name, value in document.items():
            # A name of a later version, or a typing error: it must not be ignored.
            if name not in fields_by_name:
                near = did_you_mean(name, fields_by_name)
                strange |= not near
                found[name] = f"no option of this version; {near}".rstrip("; ")
            elif name not in found:
                values[name] = tuple(value) if isinstance(value, list) else value
                if problem := _value_problem(fields_by_name[name], values[name]):
                    found[name] = f"got {value!r}; {problem}"
        if found:
            listed = [f"{path(name)}: {problem}" for name, problem in found.items()]
            if strange:
                listed.append(f"known options: {', '.join(fields_by_name)}")
            raise UsageError("\n".join([f"{where} cannot be followed:", *listed]))
        try:
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"{where} cannot be followed:\n{error}") from error

    def difference(self, other: Mapping[str, Any]) -> list[str]:
        """Return one line for each option in which this recipe differs from the JSON form of another.

        An option that the other form lacks has today's default.
        """
        ours = self.to_json()
        other = self.of_defaults().to_json() | with_current_option_names(other)
        return [
            f"{flag(key)}: was {other.get(key)!r}, now {ours.get(key)!r}"
            for key in dict.fromkeys([*ours, *other])
            if ours.get(key) != other.get(key)
        ]


def _value_problem(field: dataclasses.Field[Any], value: Any) -> str:
    """Return the problem of a value that is not among the choices of its option or too small, else ""."""
    choices, least = field.metadata.get("choices"), field.metadata.get("least")
    if choices and value is not None and value not in choices:
        near = did_you_mean(str(value), map(str, choices))
        return f"{near}expected one of {', '.join(map(str, choices))}"
    return f"expected {least} or more" if least is not None and value is not None and value < least else ""


def recipe_problems(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (option, problem) for each value of a manifest's recipe that has the wrong type; skip unknown options.

    >>> list(recipe_problems({"height": "300", "pad_value": [0, None], "another": {}}))
    [('height', "expected int, got '300'"), ('pad_value', 'expected several int, got [0, None]')]
    """
    types = _types()
    for name, value in document.items():
        if name in types and not _has_type(value, types[name]):
            expected = types[name]
            several = get_origin(expected) is tuple
            words = (
                f"several {get_args(expected)[0].__name__}"
                if several
                else getattr(expected, "__name__", expected)
            )
            yield name, f"expected {words}, got {value!r:.60}"


@functools.cache
def _types() -> Mapping[str, Any]:
    # Resolving the annotations of 100 options takes longer than checking a recipe.
    return get_type_hints(Recipe)


def _has_type(value: Any, expected: Any) -> bool:
    """Return True if a JSON value has an option's type; numbers must be finite and below `_LARGEST_NUMBER`."""
    # JSON has lists and no tuples.
    if get_origin(expected) is tuple:
        return isinstance(value, list | tuple) and all(_has_type(one, get_args(expected)[0]) for one in value)
    if get_origin(expected) is Literal:
        return isinstance(value, str)
    if isinstance(expected, UnionType):
        return any(_has_type(value, one) for one in get_args(expected))
    # JSON has one kind of number, so that 1 is a float too; True is not a number, though Python's bool is an int.
    if expected in (int, float):
        return type(value) in (int, expected) and abs(value) < _LARGEST_NUMBER
    return type(value) is expected
