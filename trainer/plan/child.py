"""The process that compiles one request, read from standard input; its environment is set for the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from halofeed.errors import HalofeedError
from halofeed.trainer.plan.requests import Request

REFUSED = 3
"""The exit status where a request cannot be: the last line of standard output says why."""


def main() -> int:
    """Answer one request into the cache."""
    asked = json.loads(sys.stdin.read())
    request = Request.from_json(asked["request"])
    from halofeed.trainer.plan.answers import Cache, answer

    try:
        answer(request, Cache(Path(asked["cache"])))
    except HalofeedError as error:
        print(json.dumps(str(error)), flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
