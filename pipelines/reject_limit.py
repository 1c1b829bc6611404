"""Limit of rejected inputs, as a count or as a share of all inputs, and the warning where none was given."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from halofeed.schemas.file_layout import OBJECT, SELECTION
from halofeed.schemas.manifest import Manifest
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

WARNED_SHARE: Final = Decimal("0.05")
"""Share of rejected inputs above which a conversion warns, unless the user has set a limit."""
_COUNT = re.compile(r"\d+")
_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(%|e-\d+)?")


@dataclass(frozen=True, kw_only=True)
class RejectLimit:
    """The largest number of rejected inputs that a conversion accepts.

    Args:
        count: the number; None for a share.
        share: share of all inputs, 0 to 1, exact as it was written; None for a count.

    >>> RejectLimit.of("5%").most(999), RejectLimit.of("0.05").most(1000), RejectLimit.of(2).most(1000)
    (49, 50, 2)
    """

    count: int | None = None
    share: Decimal | None = None

    @classmethod
    def of(cls, value: int | str) -> RejectLimit:
        """Return the limit that a value of --max-rejected means: 100 is a count, 0.05 and 5% are shares.

        Raises:
            UsageError: it means neither.
        """
        text = str(value).strip()
        if _COUNT.fullmatch(text):
            return cls(count=int(text))
        share = None
        if found := _SHARE.fullmatch(text):
            share = Decimal(text.removesuffix("%")) / (100 if found[2] == "%" else 1)
        if share is None or share > 1:
            raise UsageError(
                f"--max-rejected {value}: expected a number of inputs, such as 100, or a share of them, such as 0.05 "
                "or 5%"
            )
        return cls(share=share)

    def most(self, inputs: int) -> int:
        """Return the largest number of rejected inputs that is accepted of so many."""
        if self.share is None:
            return self.count or 0
        return math.floor(self.share * inputs)

    def describe(self, inputs: int) -> str:
        """Return the limit for a message.

        >>> RejectLimit.of("0.5%").describe(1200), RejectLimit.of(7).describe(1200)
        ('0.5% of 1,200 inputs (6)', '7')
        """
        if self.share is None:
            return str(self.count)
        percent = f"{(100 * self.share).normalize():f}%"
        return f"{percent} of {plural(inputs, 'input')} ({self.most(inputs):,})"


def is_failure(rejected: Mapping[str, str]) -> bool:
    """Return whether an entry counts against --max-rejected: neither left out on purpose nor a single object."""
    return rejected["stage"] not in (SELECTION, OBJECT)


def stage_of(reason: str) -> str:
    """Return the stage of a reason as the manifest names it, such as "decode" of "decode: file is empty"."""
    return reason.partition(": ")[0]


def failures_in(reasons: Mapping[str, int]) -> Counter[str]:
    """Return the counts that count against --max-rejected."""
    return Counter(
        {reason: count for reason, count in reasons.items() if is_failure({"stage": stage_of(reason)})}
    )


def inputs_in(inputs: Mapping[str, Any], limit: int | None, reasons: Mapping[str, int]) -> int:
    """Return the number of inputs of which a share is meant: all but those that were left out on purpose.

    Args:
        inputs: the manifest's entry for the references.
        limit: --limit of the recipe, which takes a sample.
        reasons: entries of rejected.jsonl by stage and reason.

    >>> inputs_in({"count": 100}, None, {"selection: not in the table": 20, "decode: file is empty": 5})
    80
    >>> inputs_in({"count": 100}, 70, {"selection: not in the table": 20})  # a sample has no file that is left out
    70
    """
    left_out = sum(number for reason, number in reasons.items() if stage_of(reason) == SELECTION)
    count = max(0, int(inputs["count"]) - left_out)
    return min(count, limit or count)


def inputs_of(manifest: Manifest) -> int:
    """Return the inputs of a data set, as `inputs_in` counts them."""
    return inputs_in(manifest.inputs, manifest.recipe.get("limit"), manifest.rejected)


def share_warning(reasons: Mapping[str, int], inputs: int, fix: str) -> str:
    """Return the warning about a large share of rejected inputs, for a conversion without --max-rejected; "" for none.

    Args:
        reasons: entries of rejected.jsonl by stage and reason.
        inputs: inputs that the share is of.
        fix: what to do about them.

    >>> share_warning({"decode: file is empty": 6}, 100, "copy them again")
    '6 of 100 inputs rejected, more than 5%; copy them again, or accept them with --max-rejected 6%'
    >>> share_warning({"decode: file is empty": 5}, 100, "copy them again")
    ''
    """
    failures = failures_in(reasons).total()
    if failures <= WARNED_SHARE * inputs:
        return ""
    accepted = math.ceil(Decimal(100 * failures) / inputs) if inputs else 100
    return (
        f"{failures:,} of {plural(inputs, 'input')} rejected, more than {WARNED_SHARE:.0%}; {fix}, or accept them with "
        f"--max-rejected {accepted}%"
    )
