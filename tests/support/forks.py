"""What tests that fork say: threads of libraries that were imported before are not used by the child."""

from typing import TypeVar

import pytest

Test = TypeVar("Test")


def forks(test: Test) -> Test:
    """Marks a test whose process is forked, perhaps after JAX was imported."""
    for warning in (
        "ignore:.*multi-threaded.*fork:DeprecationWarning",
        r"ignore:os.fork\(\) was called:RuntimeWarning",
    ):
        test = pytest.mark.filterwarnings(warning)(test)
    return test
