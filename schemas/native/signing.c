/* Signatures of pictures and stacks, as prep/voxels/signatures.py defines them: the same words as its NumPy code.

   All sums are of whole numbers. Values of more than 8 bits are scaled by single operations of IEEE 754 on doubles, so
   this file must be compiled without fused multiplications (-ffp-contract=off). */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "copying.h"

#if HAS_SSE
#define FOR(features) __attribute__((target(features)))
#endif
#define INLINE static inline __attribute__((always_inline))

#define SIDE 16         /* cells along a side of a thumbnail */
#define CELLS (SIDE * SIDE)
#define ROWS_PER_CELL 4 /* that are summed */
#define MEAN_BITS 8     /* of a cell's mean after the point */
#define LEVELS 16
#define WORDS (CELLS * 4 / 64)
#define KEYS 65536      /* values of half a sorted key */
#define MOST_COLUMNS (1 << 24) /* sums of a cell stay below 2^31 */

enum { UINT8, UINT16, INT16, FLOAT32, BFLOAT16 };

/* halofeed.schemas.native.signing: `count` parts of one shape and type, of which equal shares make each of `planes`
   thumbnails. Strides are in bytes, of any sign. */
typedef struct {
    int64_t count, planes, kind;
    int64_t shape[3], stride[3]; /* height, width, channels */
} Signing;

/* Values -------------------------------------------------------------------------------------------------- */

/* Reads 16 bits at any address. */
INLINE uint16_t read_half(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Returns the bits of a float; those that are no number become 0, and so does -0. */
INLINE uint32_t finite_bits(uint32_t bits) {
    return (bits >> 23 & 255) == 255 || bits == 0x80000000u ? 0 : bits;
}

INLINE uint32_t read_float(int kind, const uint8_t *at) {
    uint32_t bits;
    if (kind == BFLOAT16) return finite_bits((uint32_t)read_half(at) << 16);
    memcpy(&bits, at, sizeof bits);
    return finite_bits(bits);
}

INLINE double as_double(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE double value_at(int kind, const uint8_t *at) {
    if (kind == UINT16) return read_half(at);
    if (kind == INT16) return (int16_t)read_half(at);
    return as_double(read_float(kind, at));
}

/* Returns a key whose order is that of the values; those of 16 bits are in its upper half. */
INLINE uint32_t key_at(int kind, const uint8_t *at) {
    if (kind == UINT16) return (uint32_t)read_half(at) << 16;
    if (kind == INT16) return (uint32_t)(uint16_t)(read_half(at) ^ 0x8000) << 16;
    const uint32_t bits = read_float(kind, at);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static double value_of_key(int64_t kind, uint32_t key) {
    if (kind == UINT16) return key >> 16;
    if (kind == INT16) return (int16_t)(key >> 16 ^ 0x8000);
    const uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
    return as_double(kind == BFLOAT16 ? bits & 0xffff0000u : bits);
}

/* Percentiles --------------------------------------------------------------------------------------------- */

/* Counts the upper halves of the keys of all parts; with a prefix the lower halves of the keys that begin with it. */
INLINE void count_kind(const Signing *signing, const int64_t *parts, int kind, int64_t prefix, uint32_t *counts) {
    memset(counts, 0, KEYS * sizeof *counts);
    for (int64_t part = 0; part < signing->count; part++)
        for (int64_t row = 0; row < signing->shape[0]; row++) {
            const uint8_t *const first = (const uint8_t *)parts[part] + row * signing->stride[0];
            for (int64_t column = 0; column < signing->shape[1]; column++)
                for (int64_t channel = 0; channel < signing->shape[2]; channel++) {
                    const uint32_t key =
                        key_at(kind, first + column * signing->stride[1] + channel * signing->stride[2]);
                    if (prefix < 0)
                        counts[key >> 16]++;
                    else if (key >> 16 == (uint32_t)prefix)
                        counts[key & (KEYS - 1)]++;
                }
        }
}

static void count_keys(const Signing *signing, const int64_t *parts, int64_t prefix, uint32_t *counts) {
    if (signing->kind == UINT16) count_kind(signing, parts, UINT16, prefix, counts);
    if (signing->kind == INT16) count_kind(signing, parts, INT16, prefix, counts);
    if (signing->kind == FLOAT32) count_kind(signing, parts, FLOAT32, prefix, counts);
    if (signing->kind == BFLOAT16) count_kind(signing, parts, BFLOAT16, prefix, counts);
}

/* Returns the number in `counts` of the value with a rank, from which the ranks of lower ones are subtracted. */
static uint32_t find_rank(const uint32_t *counts, int64_t *rank) {
    uint32_t key = 0;
    for (; *rank >= counts[key]; key++) *rank -= counts[key];
    return key;
}

/* Finds the values of two ranks; `counts` are those of the upper halves, `fine` is memory for those of lower ones. */
static void find_values(const Signing *signing, const int64_t *parts, const uint32_t *counts, uint32_t *fine,
                        const int64_t *ranks, double *values) {
    int64_t counted = -1;
    for (int at = 0; at < 2; at++) {
        int64_t rank = ranks[at];
        const uint32_t prefix = find_rank(counts, &rank);
        uint32_t rest = 0;
        if (signing->kind == FLOAT32) {
            if (counted != prefix) count_keys(signing, parts, prefix, fine);
            counted = prefix;
            rest = find_rank(fine, &rank);
        }
        values[at] = value_of_key(signing->kind, prefix << 16 | rest);
    }
}

/* Finds the 1st and 99th percentile of all parts; where they are equal, the least and the largest value. */
static int find_range(const Signing *signing, const int64_t *parts, double *range) {
    const int64_t *const shape = signing->shape;
    const int64_t last = signing->count * shape[0] * shape[1] * shape[2] - 1;
    uint32_t *const counts = malloc(2 * KEYS * sizeof *counts);
    if (!counts) return 0;
    count_keys(signing, parts, -1, counts);
    find_values(signing, parts, counts, counts + KEYS, (int64_t[]){last / 100, last * 99 / 100}, range);
    if (range[0] == range[1]) find_values(signing, parts, counts, counts + KEYS, (int64_t[]){0, last}, range);
    free(counts);
    return 1;
}

/* Thumbnails ---------------------------------------------------------------------------------------------- */

INLINE void scale_kind(const Signing *signing, int kind, const uint8_t *row, const double *range, uint8_t *bytes) {
    const double least = range[0], factor = 255 / (range[1] - range[0]);
    for (int64_t column = 0; column < signing->shape[1]; column++)
        for (int64_t channel = 0; channel < signing->shape[2]; channel++) {
            const uint8_t *const at = row + column * signing->stride[1] + channel * signing->stride[2];
            if (kind == UINT8) {
                *bytes++ = *at;
                continue;
            }
            const double scaled = (value_at(kind, at) - least) * factor;
            *bytes++ = (uint8_t)(scaled < 0 ? 0 : scaled > 255 ? 255 : scaled);
        }
}

/* Returns whether a row of bytes has them one after the other. */
INLINE int has_bytes(const Signing *signing) {
    const int64_t *const shape = signing->shape, *const stride = signing->stride;
    return signing->kind == UINT8 && (shape[2] == 1 || stride[2] == 1) && (shape[1] == 1 || stride[1] == shape[2]);
}

/* Returns a row as bytes: its own, or those of `bytes`. */
INLINE const uint8_t *bytes_of_row(const Signing *signing, const uint8_t *row, const double *range, uint8_t *bytes) {
    const int64_t kind = signing->kind;
    if (has_bytes(signing)) return row;
    if (kind != UINT8 && range[0] == range[1])
        memset(bytes, 0, signing->shape[1] * signing->shape[2]);
    else if (kind == UINT8)
        scale_kind(signing, UINT8, row, range, bytes);
    else if (kind == UINT16)
        scale_kind(signing, UINT16, row, range, bytes);
    else if (kind == INT16)
        scale_kind(signing, INT16, row, range, bytes);
    else if (kind == FLOAT32)
        scale_kind(signing, FLOAT32, row, range, bytes);
    else
        scale_kind(signing, BFLOAT16, row, range, bytes);
    return bytes;
}

/* Returns a sampled row of a part; its cells have `ROWS_PER_CELL` such rows each. */
INLINE const uint8_t *sampled_row(const Signing *signing, const uint8_t *part, int64_t number) {
    return part + (2 * number + 1) * signing->shape[0] / (2 * SIDE * ROWS_PER_CELL) * signing->stride[0];
}

INLINE int64_t total(const uint16_t *sums, int64_t count) {
    uint32_t found = 0;
    for (int64_t at = 0; at < count; at++) found += sums[at];
    return found;
}

/* Adds the means of a part's cells, in 1/256 of a level. `sums` and `bytes` are memory for a row. */
INLINE void add_cells(const Signing *signing, const uint8_t *part, const double *range, uint16_t *restrict sums,
                      uint8_t *bytes, int64_t *cells) {
    const int64_t width = signing->shape[1], channels = signing->shape[2], columns = width * channels;
    const int is_bytes = has_bytes(signing);
    for (int64_t row = 0; row < SIDE; row++) {
        const uint8_t *rows[ROWS_PER_CELL];
        for (int64_t at = 0; at < ROWS_PER_CELL; at++) {
            const int64_t number = row * ROWS_PER_CELL + at;
            if (is_bytes && row + 1 < SIDE) expect_row(sampled_row(signing, part, number + ROWS_PER_CELL), columns);
            rows[at] = bytes_of_row(signing, sampled_row(signing, part, number), range, bytes + at * columns);
        }
        const uint8_t *const a = rows[0], *const b = rows[1], *const c = rows[2], *const d = rows[3];
        for (int64_t at = 0; at < columns; at++) sums[at] = (uint16_t)(a[at] + b[at] + c[at] + d[at]);
        for (int64_t cell = 0; cell < SIDE; cell++) {
            /* Edges are in sixteenths of a column. A column that two cells share counts in each by its part. */
            const int64_t left = cell * width, right = left + width;
            const int64_t first = left / SIDE * channels, end = right / SIDE * channels;
            int64_t sum = total(sums + first, end - first) * SIDE - total(sums + first, channels) * (left % SIDE);
            if (right % SIDE) sum += total(sums + end, channels) * (right % SIDE);
            cells[row * SIDE + cell] += (sum << MEAN_BITS) / (ROWS_PER_CELL * columns);
        }
    }
}

/* Quotient rounded down, of which only the dividend may be negative. */
INLINE int64_t divide_down(int64_t dividend, int64_t divisor) {
    return dividend / divisor - (dividend % divisor < 0);
}

/* Writes a thumbnail's spread and its words: 16 levels of its own contrast. */
static void pack_cells(const int64_t *cells, int64_t *out) {
    int64_t sum = 0, spread = 0;
    for (int at = 0; at < CELLS; at++) sum += cells[at];
    const int64_t mean = sum / CELLS;
    for (int at = 0; at < CELLS; at++) spread += cells[at] < mean ? mean - cells[at] : cells[at] - mean;
    spread /= CELLS;
    uint64_t words[WORDS] = {0};
    for (int at = 0; at < CELLS; at++) {
        int64_t level = divide_down((cells[at] - mean) * 5 + spread, spread ? 2 * spread : 1) + LEVELS / 2;
        level = level < 0 ? 0 : level > LEVELS - 1 ? LEVELS - 1 : level;
        words[at / 16] |= (uint64_t)level << 4 * (at % 16);
    }
    out[0] = spread;
    memcpy(out + 1, words, sizeof words);
}

typedef void (*AddCells)(const Signing *signing, const uint8_t *part, const double *range, uint16_t *sums, uint8_t *bytes,
                         int64_t *cells);

static void add_cells_plain(const Signing *signing, const uint8_t *part, const double *range, uint16_t *sums,
                            uint8_t *bytes, int64_t *cells) {
    add_cells(signing, part, range, sums, bytes, cells);
}

#if HAS_SSE
FOR("avx2") static void add_cells_avx2(const Signing *signing, const uint8_t *part, const double *range, uint16_t *sums,
                                       uint8_t *bytes, int64_t *cells) {
    add_cells(signing, part, range, sums, bytes, cells);
}
#endif

/* Writes for each plane its spread and its `WORDS` words, of parts at `count` addresses. Returns 0, with nothing written,
   without memory, without pixels, or for rows that are too long for the sums. */
int halofeed_sign(const Signing *signing, const int64_t *parts, int64_t *out) {
    AddCells add = add_cells_plain;
#if HAS_SSE
    if (__builtin_cpu_supports("avx2")) add = add_cells_avx2;
#endif
    const int64_t columns = signing->shape[1] * signing->shape[2], each = signing->count / signing->planes;
    double range[2] = {0, 0};
    if (!columns || !signing->shape[0] || columns > MOST_COLUMNS) return 0;
    if (signing->kind != UINT8 && !find_range(signing, parts, range)) return 0;
    uint16_t *const sums = malloc(columns * sizeof *sums + ROWS_PER_CELL * columns);
    if (!sums) return 0;
    for (int64_t plane = 0; plane < signing->planes; plane++) {
        int64_t cells[CELLS] = {0};
        for (int64_t part = plane * each; part < (plane + 1) * each; part++)
            add(signing, (const uint8_t *)parts[part], range, sums, (uint8_t *)(sums + columns), cells);
        for (int at = 0; at < CELLS; at++) cells[at] /= each;
        pack_cells(cells, out + plane * (1 + WORDS));
    }
    free(sums);
    return 1;
}
