/* Comparison of a record's frame and of its values' checksums, for all files of the kernel. */

#ifndef HALOFEED_CHECKING_H
#define HALOFEED_CHECKING_H

#include <stdint.h>
#include <string.h>

/* Returns the CRC32C of earlier bytes, whose CRC32C is `checksum`, and `data`; see halofeed.system.checksum.extend_address. */
typedef uint32_t (*Extend)(uint32_t checksum, const uint8_t *data, size_t size);

/* Whether the TFRecord header and footer at two addresses state a length and a checksum. The header's own checksum is not
   compared if `length_checksum` is negative. */
static inline int is_framed(int64_t header, int64_t footer, int64_t length, int64_t length_checksum, int64_t checksum) {
    const uint8_t *const first = (const uint8_t *)(intptr_t)header, *const last = (const uint8_t *)(intptr_t)footer;
    uint64_t found_length;
    uint32_t found_length_checksum, found_checksum;
    memcpy(&found_length, first, 8);
    memcpy(&found_length_checksum, first + 8, 4);
    memcpy(&found_checksum, last, 4);
    return found_length == (uint64_t)length && found_checksum == (uint32_t)checksum &&
           (length_checksum < 0 || found_length_checksum == (uint32_t)length_checksum);
}

/* A value of `size` bytes in blocks. `checksums` has the CRC32C of each block, and `flags` a byte for each: 0 if its
   checksum was not compared yet. */
typedef struct {
    int64_t value, size, block, checksums, flags;
} Blocks;

/* Compares the checksums of the blocks that hold bytes `first` to before `last` of a value, except those that were
   compared. Returns 0 if one differs. */
static inline int verify_blocks(const Blocks *blocks, int64_t first, int64_t last, Extend extend) {
    const uint8_t *const value = (const uint8_t *)(intptr_t)blocks->value;
    const uint8_t *const checksums = (const uint8_t *)(intptr_t)blocks->checksums;
    uint8_t *const flags = (uint8_t *)(intptr_t)blocks->flags;
    for (int64_t number = first / blocks->block, at; (at = number * blocks->block) < last; number++) {
        if (flags[number]) continue;
        const int64_t left = blocks->size - at, size = left < blocks->block ? left : blocks->block;
        uint32_t expected;
        memcpy(&expected, checksums + 4 * number, 4);
        if (extend(0, value + at, (size_t)size) != expected) return 0;
        flags[number] = 1;
    }
    return 1;
}

#endif
