/* Packing of arrays as docs/packed.md specifies it.

   Each band has the shortest of its modes; of equally short ones the first: as it is, groups, patches. So its bytes are
   those of halofeed.schemas.packed.packed_reference. */

#include <stdlib.h>

#include "packed.h"

/* A row of a band while it is packed. */
typedef struct {
    const Layout *layout;
    const Sizes *sizes;
    uint8_t *deltas;                /* its differences, 8 or 16 bits [part, groups * 16] */
    const uint8_t *above, *current; /* the row and the row above, with whole groups */
    uint8_t *rows[2];               /* memory for them */
} Packing;

/* A number of 16 bits at any address. */
typedef uint16_t Word __attribute__((aligned(1), may_alias));

/* Eight numbers of `bits` bits each as one number, from eight bytes: neighbors are joined three times. */
static inline uint64_t squeeze_plain(uint64_t bytes, int64_t bits) {
    if (bits == 8) return bytes;
    uint64_t found = (bytes & 0x00ff00ff00ff00ffu) | (bytes >> 8 & 0x00ff00ff00ff00ffu) << bits;
    found = (found & 0x0000ffff0000ffffu) | (found >> 16 & 0x0000ffff0000ffffu) << 2 * bits;
    return (found & 0xffffffffu) | (found >> 32) << 4 * bits;
}

/* The bits that `largest` needs with a sign. Negative numbers are inverted, so that no sign is set in it. */
static inline int64_t signed_bits(uint32_t largest) { return 1 + (largest ? 32 - __builtin_clz(largest) : 0); }

static inline int64_t bits_of_bytes_plain(const uint8_t *deltas) {
    const uint64_t a = read_u64(deltas), b = read_u64(deltas + 8);
    if (!(a | b)) return 0;
    uint64_t found = (a ^ (a >> 7 & EACH_BYTE) * 255) | (b ^ (b >> 7 & EACH_BYTE) * 255);
    found |= found >> 32, found |= found >> 16, found |= found >> 8;
    return signed_bits((uint32_t)(found & 255));
}

static inline int64_t bits_of_words_plain(const uint8_t *deltas) {
    uint64_t any = 0, found = 0;
    for (int at = 0; at < 4; at++) {
        const uint64_t words = read_u64(deltas + 8 * at);
        any |= words;
        found |= words ^ (words >> 15 & EACH_WORD) * 65535;
    }
    if (!any) return 0;
    found |= found >> 32, found |= found >> 16;
    const int64_t bits = signed_bits((uint32_t)(found & 65535));
    return bits == 15 ? 16 : bits; /* a code of 4 bits has no 16 */
}

/* The even bytes of a number, the lowest first, in its lower half. */
static inline uint64_t even_bytes(uint64_t words) {
    words &= 0x00ff00ff00ff00ffu;
    words = (words | words >> 8) & 0x0000ffff0000ffffu;
    return (words | words >> 16) & 0xffffffffu;
}

/* Cuts 16 differences, with the sign inverted, into their low and their high bytes. */
static inline void split_words_plain(const uint8_t *deltas, int64_t bits, uint64_t low[2], uint64_t high[2]) {
    const uint64_t mask = EACH_WORD * ((1u << bits) - 1), sign = EACH_WORD * ((1u << bits) >> 1);
    for (int at = 0; at < 2; at++) {
        const uint64_t a = (read_u64(deltas + 16 * at) ^ sign) & mask, b = (read_u64(deltas + 16 * at + 8) ^ sign) & mask;
        low[at] = even_bytes(a) | even_bytes(b) << 32;
        high[at] = even_bytes(a >> 8) | even_bytes(b >> 8) << 32;
    }
}

static inline void write_code(uint8_t *codes, int64_t number, int64_t bits) {
    const uint8_t code = (uint8_t)(bits < 15 ? bits : 15);
    if (number & 1)
        codes[number >> 1] |= (uint8_t)(code << 4);
    else
        codes[number >> 1] = code;
}

#define NAME(function) function##_plain
#define FOR_SET
#include "packing_rows.h"

#if HAS_SSE
#define BMI2 "avx2,bmi2"

FOR(BMI2) static inline uint64_t squeeze_bmi2(uint64_t bytes, int64_t bits) {
    return _pext_u64(bytes, EACH_BYTE * ((1u << bits) - 1));
}

/* The same as `signed_bits`, less 1 if all numbers are 0. The lowest bit makes the count 32 for a largest size of 0. */
FOR(BMI2) static inline int64_t signed_bits_bmi2(uint32_t largest, __m128i all) {
    return 32 - __builtin_clz(largest << 1 | 1) - _mm_testz_si128(all, all);
}

FOR(BMI2) static inline int64_t bits_of_bytes_bmi2(const uint8_t *deltas) {
    const __m128i found = _mm_loadu_si128((const __m128i *)deltas);
    const __m128i size = _mm_xor_si128(found, _mm_cmpgt_epi8(_mm_setzero_si128(), found));
    uint64_t all = (uint64_t)_mm_cvtsi128_si64(_mm_or_si128(size, _mm_srli_si128(size, 8)));
    all |= all >> 32, all |= all >> 16, all |= all >> 8;
    return signed_bits_bmi2((uint32_t)(all & 255), found);
}

FOR(BMI2) static inline int64_t bits_of_words_bmi2(const uint8_t *deltas) {
    const __m128i a = _mm_loadu_si128((const __m128i *)deltas), b = _mm_loadu_si128((const __m128i *)deltas + 1);
    const __m128i size = _mm_or_si128(_mm_xor_si128(a, _mm_srai_epi16(a, 15)), _mm_xor_si128(b, _mm_srai_epi16(b, 15)));
    uint64_t all = (uint64_t)_mm_cvtsi128_si64(_mm_or_si128(size, _mm_srli_si128(size, 8)));
    all |= all >> 32, all |= all >> 16;
    const int64_t bits = signed_bits_bmi2((uint32_t)(all & 65535), _mm_or_si128(a, b));
    return bits == 15 ? 16 : bits;
}

FOR(BMI2) static inline void split_words_bmi2(const uint8_t *deltas, int64_t bits, uint64_t low[2], uint64_t high[2]) {
    const __m128i mask = _mm_set1_epi16((short)((1 << bits) - 1)), sign = _mm_set1_epi16((short)((1 << bits) >> 1));
    const __m128i a = _mm_and_si128(_mm_xor_si128(_mm_loadu_si128((const __m128i *)deltas), sign), mask);
    const __m128i b = _mm_and_si128(_mm_xor_si128(_mm_loadu_si128((const __m128i *)deltas + 1), sign), mask);
    const __m128i byte = _mm_set1_epi16(255);
    const __m128i lower = _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte));
    const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    _mm_storeu_si128((__m128i *)low, lower);
    _mm_storeu_si128((__m128i *)high, upper);
}

#define NAME(function) function##_bmi2
#define FOR_SET FOR(BMI2)
#include "packing_rows.h"

/* Whether the processor has the instructions, and runs `pext` in hardware. AMD's before Zen 3 take up to 300 cycles for it
   instead of 3, so emulators exclude them too (https://github.com/merryhime/dynarmic). */
static int has_bmi2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") &&
           !__builtin_cpu_is("znver2");
}
#endif

/* Makes a row the current one. The last group repeats its last unit, so that it needs no more bits than the others. */
static void load_row(Packing *packing, const uint8_t *row, int64_t number) {
    const int64_t unit = packing->layout->unit, filled = packing->sizes->groups * UNITS * unit;
    packing->current = row;
    if (filled == packing->sizes->row) return;
    uint8_t *copy = packing->rows[number & 1];
    memcpy(copy, row, packing->sizes->row);
    for (int64_t at = packing->sizes->row; at < filled; at++) copy[at] = copy[at - unit];
    packing->current = copy;
}

/* Half-way between the least and the largest of a part's 16 numbers in a group, at `place` of the row; both as differences
   to the first number, so that numbers around 0 are near each other. */
static uint32_t base_of(const uint8_t *row, int64_t place, int64_t parts, int are_words) {
    const Word *words = (const Word *)row;
    const uint32_t begin = are_words ? words[place] : row[place];
    int32_t least = 0, most = 0;
    for (int64_t at = place + parts; at < place + UNITS * parts; at += parts) {
        const int32_t found = are_words ? (int16_t)(words[at] - begin) : (int8_t)(row[at] - begin);
        least = found < least ? found : least, most = found > most ? found : most;
    }
    return begin + (uint32_t)((least + most + 1) >> 1);
}

/* Writes the bases, and the row above the first row that they are. */
static void pack_bases(Packing *packing, uint8_t *bases) {
    const int64_t groups = packing->sizes->groups, parts = packing->sizes->parts, unit = packing->layout->unit;
    const int are_words = has_words(packing->layout);
    uint8_t *above = packing->rows[1]; /* row 1 is loaded when this one is not needed any more */
    packing->above = above;
    for (int64_t group = 0; group < groups; group++, bases += unit) {
        for (int64_t part = 0; part < parts; part++) {
            const uint32_t base = base_of(packing->current, group * UNITS * parts + part, parts, are_words);
            if (are_words)
                ((Word *)bases)[part] = (uint16_t)base;
            else
                bases[part] = (uint8_t)base;
        }
        for (int64_t place = 0; place < UNITS; place++, above += unit) memcpy(above, bases, unit);
    }
}

/* Packs the rows of a band in groups, and returns the end of its bytes. */
static uint8_t *pack_groups(const Packing *packing, const uint8_t *source, int64_t rows, uint8_t *out) {
    const Sizes *sizes = packing->sizes;
    uint8_t *codes = out + sizes->groups * packing->layout->unit, *data = codes + rows * sizes->widths;
    uint8_t *(*pack_row)(const Packing *, uint8_t *, uint8_t *) = pack_row_plain;
#if HAS_SSE
    if (halofeed_instructions_used() && has_bmi2()) pack_row = pack_row_bmi2;
#endif
    Packing now = *packing;
    for (int64_t row = 0; row < rows; row++, codes += sizes->widths) {
        load_row(&now, source + row * sizes->row, row);
        if (!row) pack_bases(&now, out);
        data = pack_row(&now, codes, data);
        now.above = now.current;
    }
    return data;
}

static uint8_t *write_varint(uint8_t *out, int64_t number) {
    for (; number > 127; number >>= 7) *out++ = (uint8_t)(number | 128);
    *out++ = (uint8_t)number;
    return out;
}

/* Packs one row as patches; 0 if that needs more than `most` bytes. */
static uint8_t *pack_patches_of(const uint8_t *row, const uint8_t *above, int64_t units, int64_t unit, uint8_t *out,
                                int64_t most) {
    /* The count of patches comes first. It has at most 5 bytes, and the patches are moved once it is known. */
    uint8_t *const begin = out + 5, *to = begin;
    int64_t count = 0, done = 0, at = 0;
    while (at < units) {
        while (unit == 1 && at + 8 <= units && read_u64(row + at) == read_u64(above + at)) at += 8;
        if (at < units && !memcmp(row + at * unit, above + at * unit, unit)) {
            at++;
            continue;
        }
        if (at >= units) break;
        int64_t stop = at + 1;
        while (stop < units && !memcmp(row + stop * unit, row + at * unit, unit)) stop++;
        while (!memcmp(row + (stop - 1) * unit, above + (stop - 1) * unit, unit)) stop--;
        if (to - begin > most) return 0;
        to = write_varint(to, at - done);
        to = write_varint(to, stop - at);
        memcpy(to, row + at * unit, unit);
        to += unit, count++, at = done = stop;
    }
    uint8_t *const after = write_varint(out, count);
    memmove(after, begin, to - begin);
    return after + (to - begin);
}

/* Packs a band as patches if that has fewer than `size` bytes, and returns the end of its bytes; else 0. */
static uint8_t *pack_patches(const Packing *packing, const uint8_t *source, int64_t rows, uint8_t *out, int64_t size) {
    const Sizes *sizes = packing->sizes;
    uint8_t *const begin = out;
    const uint8_t *above = memset(packing->rows[0], 0, sizes->row);
    for (int64_t row = 0; row < rows; row++, source += sizes->row) {
        out = pack_patches_of(source, above, sizes->units, packing->layout->unit, out, size - (out - begin));
        if (!out || out - begin >= size) return 0;
        above = source;
    }
    return out;
}

/* Packs an array into `target`, which has room for the layout's `packing_bytes`. Returns the value's size, 0 without
   memory. */
int64_t halofeed_pack(const Layout *layout, const uint8_t *source, uint8_t *target, int tries_patches, Extend extend) {
    const Sizes sizes = sizes_of(layout);
    const int64_t row = sizes.groups * UNITS * layout->unit;
    /* Three rows, and a band of patches, which end when they are larger than a band of groups. */
    uint8_t *memory = malloc((size_t)(3 * (row + LINE) + ROWS * (row + LINE)));
    if (!memory) return 0;
    Packing packing = {.layout = layout, .sizes = &sizes, .deltas = memory};
    packing.rows[0] = memory + row + LINE, packing.rows[1] = packing.rows[0] + row + LINE;
    uint8_t *const patches = packing.rows[1] + row + LINE;
    uint8_t *out = target + sizes.table, *entry = target + HEAD;
    for (int64_t band = 0; band < sizes.bands; band++, entry += ENTRY) {
        const int64_t place = band % sizes.bands_of_plane * ROWS;
        const int64_t rows = layout->height - place < ROWS ? layout->height - place : ROWS;
        uint8_t *const begin = out;
        const uint8_t *best = 0;
        int64_t size = rows * sizes.row;
        *out++ = GROUPS;
        uint8_t *end = pack_groups(&packing, source, rows, out);
        if (end - out < size)
            size = end - out;
        else
            *begin = RAW, best = source;
        if (tries_patches && (end = pack_patches(&packing, source, rows, patches, size)))
            *begin = PATCHES, best = patches, size = end - patches;
        if (best) memcpy(out, best, size);
        out += size, source += rows * sizes.row;
        write_u32(entry, (uint32_t)(out - target));
        write_u32(entry + 4, extend(0, begin, (size_t)(out - begin)));
    }
    free(memory);
    write_u32(target, VERSION);
    write_u32(target + 4, extend(0, target + HEAD, (size_t)(sizes.table - HEAD)));
    memset(out, 0, SLACK);
    return out + SLACK - target;
}
