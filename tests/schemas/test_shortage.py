"""Is it said what was short where memory, a thread or a process could not be had?"""

from __future__ import annotations

import errno

import pytest

from halofeed.pipelines.progress import WorkerProgress, job_error
from halofeed.schemas.errors import JobError
from halofeed.schemas.shortage import shortage


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "too little memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "too little memory"),
        (RuntimeError("can't start new thread"), "no further thread could be started"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "no further process could be started",
        ),
    ],
)
def test_a_shortage_is_named_with_its_cure(error, said, tmp_path):
    text = shortage(error)
    assert text is not None and text.startswith(said) and "--workers" in text
    with pytest.raises(JobError), WorkerProgress(str(tmp_path)).reporting("shard train/0"):
        raise error
    assert job_error(str(tmp_path)) == f"shard train/0: {text}"


def test_other_errors_are_none():
    assert shortage(RuntimeError("else")) is None and shortage(OSError(errno.ENOENT, "no")) is None
