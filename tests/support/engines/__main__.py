"""`python -m tests.support.engines start|stop NAME`: bring up an engine or a store on this machine, or end it.

Each is a module beside this one with `start(home) -> dict[str, str]`, which gives the environment variables to set,
and `stop(home)`. What they download is kept in the cache; `./run engine NAME start` does the same.
"""

import argparse
import importlib
import shlex
import sys
from pathlib import Path

from tests.support.engines.processes import MissingError, cache, pid_of

NAMES = ("flink", "spark", "prism", "s3", "gcs")

STORES = ("s3", "gcs")
"""Which hold what was copied into them, and run no code of the checkout: a second start leaves them alone."""


def is_running(home: Path) -> bool:
    """Whether a process of an engine runs that an earlier command started."""
    return any(pid_of(home, file.stem) is not None for file in home.glob("*.pid"))


def main() -> int:
    """Run the command; what it prints can be given to a shell's `eval`."""
    parser = argparse.ArgumentParser("python -m tests.support.engines", description=__doc__)
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("name", choices=NAMES)
    asked = parser.parse_args()
    engine = importlib.import_module(f"tests.support.engines.{asked.name}")
    home = cache() / "running" / asked.name
    kept = home / "settings"
    if asked.action == "start" and asked.name in STORES and kept.is_file() and is_running(home):
        print(kept.read_text(), end="")
        print(f"engine: {asked.name} runs already; `./run engine {asked.name} stop` ends it", file=sys.stderr)
        return 0
    if asked.action == "start" and is_running(home):
        print(f"engine: the {asked.name} that ran is ended", file=sys.stderr)
    engine.stop(home)
    if asked.action == "start":
        try:
            settings = engine.start(home)
        except MissingError as error:
            print(f"engine: {error}", file=sys.stderr)
            return 1
        exports = "".join(f"export {variable}={shlex.quote(value)}\n" for variable, value in settings.items())
        kept.write_text(exports)
        print(exports, end="")
        print(f"engine: {asked.name} runs; its files and logs lie in {home}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
