"""With the kernel, and as where it could not be built."""

import contextlib
from collections.abc import Iterator

import pytest

from halofeed.schemas.native import kernel

needs_kernel = pytest.mark.skipif(
    not kernel.is_built(),
    reason="schemas/native/kernel.c is not built: halofeed was installed where there is no C compiler",
)
_WAYS = [pytest.param(True, marks=needs_kernel, id="kernel"), pytest.param(False, id="NumPy")]
ways = pytest.mark.parametrize("is_used", _WAYS)


@contextlib.contextmanager
def kernel_if(is_used: bool) -> Iterator[None]:
    """Meanwhile the kernel is used, or is as if it were not built."""
    built = kernel._library
    kernel._library = built if is_used else None
    try:
        yield
    finally:
        kernel._library = built
