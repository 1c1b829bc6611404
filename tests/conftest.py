"""What all tests share: where the real data lies, and a plain statement where it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TEST_DATA = Path(os.environ.get("HALOFEED_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def pytest_report_header() -> str:
    state = (
        "found" if TEST_DATA.is_dir() else "ABSENT: tests on real files are skipped; set HALOFEED_TEST_DATA"
    )
    return f"real data: {TEST_DATA} ({state})"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real input; the test is skipped where it is absent."""
    if not TEST_DATA.is_dir():
        pytest.skip(f"no real data at {TEST_DATA}; set HALOFEED_TEST_DATA")
    return TEST_DATA
