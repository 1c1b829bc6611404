"""What the flex template's launcher runs: `halofeed convert`, with the template's parameters as its options.

The launcher gives parameters and Beam's own options in one list; what metadata.json names is halofeed's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def command(given: Sequence[str]) -> list[str]:
    """The words of the conversion; a parameter that is left empty stands for the option's default."""
    metadata = json.loads(Path(__file__).with_name("metadata.json").read_text())
    names = {parameter["name"] for parameter in metadata["parameters"]}
    ours, beams = [], ["--runner=DataflowRunner"]
    for word in given:
        name, _, value = word.removeprefix("--").partition("=")
        if name not in names:
            beams.append(word)
        elif value:
            ours += [f"--{name.replace('_', '-')}", value]
    return ["convert", *ours, "--", *beams]


if __name__ == "__main__":
    from halofeed.cli import main

    sys.exit(main(command(sys.argv[1:])))
