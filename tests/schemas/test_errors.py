"""Do errors say what they should, exit as they should, and cross process borders?"""

from __future__ import annotations

import pickle

import pytest

from halofeed.schemas import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.UsageError("a"),
        errors.PartitionError("b"),
        errors.SourceError("decode", "truncated", "8 bytes"),
        errors.AnnotationsError("c"),
        errors.ManifestError("m.json", [("a.b", "wrong"), ("c", "missing")]),
        errors.CorruptFileError("d"),
        errors.JobError("e"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_is_ours_and_survives_pickling(error: errors.HalofeedError) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error) and str(copied) == str(error) and vars(copied) == vars(error)
    assert isinstance(error, errors.HalofeedError)
    assert error.exit_code == (2 if isinstance(error, errors.UsageError) else 1)
    assert isinstance(error, ValueError) == isinstance(error, errors.UsageError)


def test_a_manifest_error_lists_every_problem_on_a_line_of_its_own() -> None:
    error = errors.ManifestError("m.json", iter([("a.b", "wrong"), ("c", "missing")]))
    assert str(error) == "m.json: 2 problems\n  a.b: wrong\n  c: missing"


def test_a_source_error_without_detail_has_no_brackets() -> None:
    assert str(errors.SourceError("read", "gone")) == "read: gone"
