"""Type the mistakes of benchmarks/mistakes/*.md and print what each is told.

    python benchmarks/mistakes.py                        # a table; exit 1 if a mistake is silent or ends in a traceback
    python benchmarks/mistakes.py --show --only volumes  # with the answers, for a reader who grades them

A file of mistakes has a block `sh setup`, which draws the data once, and below each heading one block: `sh` or
`python`. A block runs in an empty folder of its own; `$HAVE` is the folder that the setup filled, and `$DATA` the real
input of the tests. A mistake should be refused (exit status not 0); where a warning is the right answer, the block is
marked `sh warns` or `python warns` and the answer must not be empty.

Whether an answer says what is wrong, where, and what to type instead is for a reader: the table shows the last line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_suffix("")
ROOT = FOLDER.parents[1]
HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
BLOCK = re.compile(
    r"^```(?P<language>sh|python)(?P<mark>[ a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One heading of a file of mistakes and its block."""

    title: str
    language: str
    warns: bool
    text: str


def read_mistakes(path: Path) -> tuple[str, list[Mistake]]:
    """Return the setup of a file and its mistakes."""
    head, *rest = HEADING.split(path.read_text())
    setup = BLOCK.search(head)
    mistakes = []
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        block = BLOCK.search(body)
        if block is None:
            raise SystemExit(f"{path}: the heading {title!r} has no block")
        mistakes.append(
            Mistake(
                title=title, language=block["language"], warns="warns" in block["mark"], text=block["text"]
            )
        )
    return setup["text"] if setup else "", mistakes


def answer_of(language: str, text: str, folder: Path, have: Path) -> tuple[int, str]:
    """Run a block in a folder; return its exit status and what it printed."""
    command = ["bash", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    environment = os.environ | {
        "HAVE": str(have),
        "DATA": os.environ.get("HALOFEED_TEST_DATA", str(ROOT.parent / "shared/data")),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout.strip()


def verdict(mistake: Mistake, status: int, answer: str) -> str:
    """Return "answered", "silent" or "traceback", as far as a program can tell."""
    if "Traceback (most recent call last)" in answer and mistake.language == "sh":
        return "traceback"
    if not answer or (status == 0 and not mistake.warns):
        return "silent"
    return "answered"


def main() -> int:
    """Run the mistakes and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="WORD", default="", help="files or titles that contain this word")
    parser.add_argument("--show", action="store_true", help="print whole answers")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    for path in sorted(FOLDER.glob("*.md")):
        setup, mistakes = read_mistakes(path)
        chosen = [item for item in mistakes if args.only.lower() in f"{path.stem} {item.title}".lower()]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as have:
            status, answer = answer_of("sh", f"set -e\n{setup}", Path(have), Path(have))
            if status:
                raise SystemExit(f"{path}: the setup failed\n{answer}")
            for mistake in chosen:
                with tempfile.TemporaryDirectory() as folder:
                    status, answer = answer_of(mistake.language, mistake.text, Path(folder), Path(have))
                told = verdict(mistake, status, answer)
                counts[told] += 1
                shown = f"\n{mistake.text}\n{answer}\n" if args.show else answer.splitlines()[-1:]
                print(
                    f"{path.stem:10} {told:9} {mistake.title}: {shown if args.show else ''.join(shown)[:160]}",
                    flush=True,
                )
    print(", ".join(f"{count} {told}" for told, count in counts.most_common()))
    return int(counts["answered"] != counts.total())


if __name__ == "__main__":
    sys.exit(main())
