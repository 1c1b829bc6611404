"""Order of the test files, and the records of how long they take and which commit passed the exhaustive ones.

.ci/durations.json: seconds per test file. Slow files run first, so that no core waits at the end.
tests/exhaustive.json: per file with exhaustive tests, the last commit whose checkout passed all of them.
"""

import json
import subprocess
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DURATIONS = ROOT / ".ci" / "durations.json"
PASSES = ROOT / "tests" / "exhaustive.json"
_SHORTEST_SECONDS = 2.0


def file_of(nodeid: str) -> str:
    """Return the file of a test.

    >>> file_of("tests/test_docs.py::test_a[b::c]")
    'tests/test_docs.py'
    """
    return nodeid.partition("::")[0]


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty where the file is absent."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


class Levels:
    """Pytest plugin that sorts test files and writes the two records."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        whole_files = not option.keyword and not any("::" in argument for argument in config.args)
        self.controller = not hasattr(config, "workerinput")
        self.record_durations = self.controller and option.record_durations
        self.record_passes = self.controller and option.record_passes and whole_files
        self.commit = self._clean_commit() if self.record_passes else None
        self.seconds: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, set[str]] = defaultdict(set)

    @staticmethod
    def _clean_commit() -> str | None:
        changed = _git("status", "--porcelain", "--", ".", f":!{PASSES.relative_to(ROOT)}")
        return None if changed else _git("rev-parse", "--short=12", "HEAD")

    def pytest_report_header(self) -> list[str]:
        """Say which exhaustive passes are known, and whether this run is recorded."""
        if not self.record_passes:
            return []
        lines = [
            f"{file}: passed at {entry['commit']}, {entry['date']}"
            for file, entry in read_json(PASSES).items()
        ]
        if self.commit is None:
            lines.append("uncommitted changes: passes of this run are not recorded")
        return lines

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the files by their time, the slowest first; the order within a file stays."""
        seconds = read_json(DURATIONS)
        items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self.seconds[file] += report.duration
        self.outcomes[file].add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        if self.record_durations:
            slow = {file: round(s) for file, s in self.seconds.items() if s >= _SHORTEST_SECONDS}
            known = read_json(DURATIONS) | slow
            by_time = dict(sorted(known.items(), key=lambda entry: (-entry[1], entry[0])))
            DURATIONS.write_text(json.dumps(by_time, indent=1) + "\n", "utf-8")
        if self.record_passes and self.commit:
            passed, today = {}, date.today().isoformat()
            for file, outcomes in self.outcomes.items():
                if "failed" not in outcomes:
                    about = {"commit": self.commit, "date": today, "seconds": round(self.seconds[file])}
                    passed[file] = {**about, "skipped": "skipped" in outcomes}
            text = json.dumps(read_json(PASSES) | passed, indent=1, sort_keys=True)
            PASSES.write_text(text + "\n", "utf-8")
