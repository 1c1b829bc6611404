"""Checksums are CRC32C, in pieces as in one, over any buffer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.schemas import checksum
from halofeed.schemas.checksum import BLOCK_BYTES, block_checksums, crc32c, mask_crc


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial 0x1EDC6F41 (reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(0, 64))
def test_it_is_the_polynomials_and_continues_over_pieces(data: bytes, cut: int) -> None:
    assert crc32c(data) == slow_crc32c(data)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)


@pytest.mark.parametrize("size", [(1 << 15) - 1, 1 << 15, (1 << 15) + 1, 300_001])
def test_large_pieces_are_summed_alike_by_either_way(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checksum._extend is not None, "the wheel of google-crc32c has its library in another place"
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    found = [crc32c(data), crc32c(data.tobytes()), crc32c(data[77:], crc32c(data[:77])), crc32c(data[1:])]
    monkeypatch.setattr(checksum, "_extend", None)
    assert found == [crc32c(data)] * 3 + [crc32c(data[1:])]


def test_arrays_of_any_type_and_shape_count_as_their_bytes() -> None:
    array = np.arange(24, dtype="<u2").reshape(2, 3, 4)
    assert crc32c(array) == crc32c(memoryview(array)) == crc32c(array.tobytes())
    assert block_checksums(array) == [crc32c(array.tobytes())]
    assert block_checksums(np.zeros((0, 3), np.uint8)) == []


def test_an_array_with_gaps_is_refused_and_not_copied() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.zeros((4, 4))[:, ::2])


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_blocks_are_a_mebibyte_each_and_the_last_one_shorter(size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    parts = [data[start : start + BLOCK_BYTES] for start in range(0, size, BLOCK_BYTES)]
    assert block_checksums(data) == [crc32c(part) for part in parts]


@given(st.integers(0, 2**32 - 1))
def test_masking_is_a_bijection_that_can_be_undone(crc: int) -> None:
    rotated = (mask_crc(crc) - 0xA282EAD8) & 0xFFFFFFFF
    assert ((rotated << 15) | (rotated >> 17)) & 0xFFFFFFFF == crc
