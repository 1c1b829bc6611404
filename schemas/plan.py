"""What does a plan say, and where does one lie that was made for a data set?

VERSION-plan.json beside the version's folder, which holds nothing but the data set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.files import read_regular
from halofeed.schemas.limits import RUN_BYTES, RUN_VALUES
from halofeed.schemas.plain_json import parse_json
from halofeed.schemas.sealed import unsealed

PLAN_FORMAT = 1


def plan_file(folder: str | Path) -> Path:
    """Where the plan of a data set's version lies.

    >>> plan_file("data/cards/1.0.0").name
    '1.0.0-plan.json'
    """
    absolute = Path(os.path.abspath(folder))
    return absolute.with_name(f"{absolute.name}-plan.json")


def read_plan(folder: str | Path) -> dict[str, Any] | None:
    """The plan that was made for a data set's version; None where there is none.

    Raises:
        CorruptFileError: it cannot be read, or another version of halofeed made it.
    """
    file = plan_file(folder)
    try:
        document = unsealed(parse_json(read_regular(file, RUN_BYTES), RUN_VALUES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{file}: cannot be read: {error}; plan again, or delete it") from error
    if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
        raise CorruptFileError(
            f"{file}: expected a plan of format {PLAN_FORMAT}; another version of halofeed made it; plan again, or "
            "delete it"
        )
    return document
