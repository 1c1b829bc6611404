"""`python -m tests.support.engines start|stop NAME`: bring up an engine or a store on this machine, or end it.

Each is a module beside this one with `start(home) -> dict[str, str]`, which gives the environment variables to set,
and `stop(home)`. What they download is kept in the cache; `./run engine NAME start` does the same.
"""

import argparse
import importlib
import shlex
import sys

from tests.support.engines.processes import MissingError, cache

NAMES = ("flink", "spark", "prism", "s3", "gcs")


def main() -> int:
    """Run the command; what it prints can be given to a shell's `eval`."""
    parser = argparse.ArgumentParser("python -m tests.support.engines", description=__doc__)
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("name", choices=NAMES)
    asked = parser.parse_args()
    engine = importlib.import_module(f"tests.support.engines.{asked.name}")
    home = cache() / "running" / asked.name
    engine.stop(home)
    if asked.action == "start":
        try:
            settings = engine.start(home)
        except MissingError as error:
            print(f"engine: {error}", file=sys.stderr)
            return 1
        for variable, value in settings.items():
            print(f"export {variable}={shlex.quote(value)}")
        print(f"engine: {asked.name} runs; its files and logs lie in {home}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
