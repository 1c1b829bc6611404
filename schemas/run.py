"""Which files does a training run leave, and what is in the one that describes it?

RUN/run.json            the config, the data's facts and recipe, the mesh
RUN/log.jsonl           one line a step
RUN/evaluations.jsonl   one line an evaluation
RUN/checkpoints/STEP    model, optimizer, average, the loader's state; the last few and the best
RUN/tensorboard/        the same numbers for TensorBoard
RUN/examples/           predictions beside the truth, for the report
RUN/report.html
RUN/.halofeed           which of these halofeed wrote (halofeed.schemas.ownership)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.files import read_regular
from halofeed.schemas.limits import RUN_BYTES, RUN_VALUES
from halofeed.schemas.plain_json import parse_json
from halofeed.schemas.sealed import unsealed

RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
EXAMPLES = "examples"
RUN_FORMAT = 1


def read_run(folder: str | Path) -> dict[str, Any]:
    """The document of a run folder's run.json.

    Raises:
        UsageError: there is none.
        CorruptFileError: it cannot be read, or another version of halofeed made it.
    """
    file = Path(folder) / RUN_FILE
    try:
        document = parse_json(read_regular(file, RUN_BYTES), RUN_VALUES)
    except FileNotFoundError:
        raise UsageError(
            f"{folder}: holds no run ({RUN_FILE} is missing); name a folder that `halofeed train --out` made"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptFileError(
            f"{file}: cannot be read: {error}; move {folder} away and train again"
        ) from error
    try:
        document = unsealed(document)
    except ValueError as error:
        raise CorruptFileError(
            f'{file}: {error}; put back what was changed, or remove its member "crc32c" to take it as it is'
        ) from error
    if not isinstance(document, dict) or document.get("format") != RUN_FORMAT:
        raise CorruptFileError(
            f"{file}: expected a run of format {RUN_FORMAT}; it was made by another version of halofeed"
        )
    return document
