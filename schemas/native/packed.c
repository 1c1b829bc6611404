/* Unpacking of windows of arrays that are packed as docs/packed.md specifies.

   A value is a table and bands of at most 32 rows. A band's rows are differences to the row above in groups of 16 units;
   each group's numbers have as many bits as its largest one needs.

   Input may be damaged. All sizes are compared before bytes are read: the sum of a band's widths must be its size, and
   16 bytes after the last band belong to the value, so that a load of 16 bytes at any group is inside. The layout is not
   a part of the input: PackedLayout has validated it. */

#include <stdatomic.h>
#include <stdlib.h>

#include "interleaving.h"
#include "packed.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define STRIP 16384 /* bytes of rows that are assembled in the L1 cache before they are written */

/* Bytes of a table's windows, and of one window, from which on they bypass the cache, which could not hold the result until
   it is used. */
#define STREAMED_TABLE (1 << 24)
#define STREAMED_WINDOW (1 << 19)

/* A row of halofeed.schemas.native.packing.Unpacks: a window of a packed value. Axes are depth (planes), height, width;
   `start` is its first stored pixel along each axis, and `backwards` says which axes are mirrored. `flags` has a byte for
   each band: 0 if its checksum was not compared yet; address 0: checksums are not compared, 1: they always are. */
typedef struct {
    int64_t value, size, layout;
    int64_t start[3], shape[3], backwards[3];
    int64_t target, target_stride[3];
    int64_t flags;
    int64_t header, length, length_checksum, footer, checksum; /* as in Move */
    int64_t done;
} Unpack;

int64_t halofeed_unpack_columns(void) { return sizeof(Unpack) / sizeof(int64_t); }

static void *address(int64_t number) { return (void *)(intptr_t)number; }

/* The number of bits that a code of 4 bits means: 15 is 16, and no number has 15. */
static inline int64_t width_of(int64_t code) { return code == 15 ? 16 : code; }

/* The codes from number `number` on, the first one in the lowest 4 bits; at least seven of them. They may be read past
   the last one, because at least 16 bytes follow. */
static inline uint32_t codes_at(const uint8_t *codes, int64_t number) {
    return read_u32(codes + (number >> 1)) >> 4 * (number & 1);
}

/* Adding the differences of a row to the row above, in plain C; packed_rows.h has the same in vectors and describes
   the arguments. */
typedef void (*AddRow)(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number, int64_t count,
                       const uint8_t *data);

/* Eight bytes from eight numbers of `bits` bits each: the number is cut in two three times. */
static inline uint64_t spread(uint64_t packed, int64_t bits) {
    if (bits == 8) return packed;
    const uint64_t one = (1u << bits) - 1, two = ((uint64_t)1 << 2 * bits) - 1, four = ((uint64_t)1 << 4 * bits) - 1;
    uint64_t found = (packed & four) | (packed >> 4 * bits & four) << 32;
    found = (found & (two | two << 32)) | (found >> 2 * bits & (two | two << 32)) << 16;
    const uint64_t all = one | one << 16 | one << 32 | one << 48;
    return (found & all) | (found >> bits & all) << 8;
}

static inline void unpack_bytes(uint8_t *out, const uint8_t *data, int64_t bits) {
    write_u64(out, spread(read_u64(data), bits));
    write_u64(out + 8, spread(read_u64(data + bits), bits));
}

static inline void unpack_words(uint16_t *out, const uint8_t *data, int64_t bits) {
    uint8_t low[UNITS], high[UNITS];
    const int64_t low_bits = bits < 8 ? bits : 8;
    unpack_bytes(low, data, low_bits);
    unpack_bytes(high, data + 2 * low_bits, bits - low_bits);
    const uint16_t bias = (uint16_t)((1 << bits) >> 1);
    for (int64_t at = 0; at < UNITS; at++) out[at] = (uint16_t)((low[at] | high[at] << 8) - bias);
}

static void add_bytes(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number, int64_t count,
                      const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += UNITS, above += UNITS) {
        const int64_t bits = codes_at(codes, number + group) & 15;
        uint8_t found[UNITS];
        unpack_bytes(found, data, bits);
        for (int64_t at = 0; at < UNITS; at++) line[at] = (uint8_t)(above[at] + found[at] - ((1 << bits) >> 1));
        data += 2 * bits;
    }
}

static void add_colors(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number, int64_t count,
                       const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 3 * UNITS, above += 3 * UNITS) {
        uint8_t found[3][UNITS];
        for (int64_t part = 0; part < 3; part++) {
            const int64_t bits = codes_at(codes, number + 3 * group + part) & 15;
            unpack_bytes(found[part], data, bits);
            for (int64_t at = 0; at < UNITS; at++) found[part][at] = (uint8_t)(found[part][at] - ((1 << bits) >> 1));
            data += 2 * bits;
        }
        for (int64_t at = 0; at < UNITS; at++) {
            line[3 * at] = (uint8_t)(above[3 * at] + found[0][at] + found[1][at]);
            line[3 * at + 1] = (uint8_t)(above[3 * at + 1] + found[0][at]);
            line[3 * at + 2] = (uint8_t)(above[3 * at + 2] + found[0][at] + found[2][at]);
        }
    }
}

static void add_words(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number, int64_t count,
                      const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 2 * UNITS, above += 2 * UNITS) {
        const int64_t bits = width_of(codes_at(codes, number + group) & 15);
        uint16_t found[UNITS], sums[UNITS];
        unpack_words(found, data, bits);
        memcpy(sums, above, sizeof sums);
        for (int64_t at = 0; at < UNITS; at++) sums[at] = (uint16_t)(sums[at] + found[at]);
        memcpy(line, sums, sizeof sums);
        data += 2 * bits;
    }
}

static void add_halves(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number, int64_t count,
                       const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 4 * UNITS, above += 4 * UNITS) {
        uint16_t found[2][UNITS], sums[2 * UNITS];
        for (int64_t part = 0; part < 2; part++) {
            const int64_t bits = width_of(codes_at(codes, number + 2 * group + part) & 15);
            unpack_words(found[part], data, bits);
            data += 2 * bits;
        }
        memcpy(sums, above, sizeof sums);
        for (int64_t at = 0; at < 2 * UNITS; at++) sums[at] = (uint16_t)(sums[at] + found[at & 1][at >> 1]);
        memcpy(line, sums, sizeof sums);
    }
}

/* The same in vectors. ------------------------------------------------------------------------------------------------- */

#if HAS_SSE || defined(__aarch64__)
#define HAS_VECTORS 1

/* Constants by the number of bits, for 16 numbers in 16 bytes. They are computed by the compiler, so that no thread meets
   a table that another one is writing. Those of one number of bits are in one cache line. */
#define SIXTEEN(ENTRY, bits)                                                                                  \
    {ENTRY(bits, 0),  ENTRY(bits, 1),  ENTRY(bits, 2),  ENTRY(bits, 3), ENTRY(bits, 4),  ENTRY(bits, 5),      \
     ENTRY(bits, 6),  ENTRY(bits, 7),  ENTRY(bits, 8),  ENTRY(bits, 9), ENTRY(bits, 10), ENTRY(bits, 11),     \
     ENTRY(bits, 12), ENTRY(bits, 13), ENTRY(bits, 14), ENTRY(bits, 15)}
#define BY_BITS(OF) {OF(0), OF(1), OF(2), OF(3), OF(4), OF(5), OF(6), OF(7), OF(8)}

/* Way 1: a number begins in byte `place * bits / 8` and ends in the same or the next one, so each number gets 16 bits with
   these two bytes. Byte 15 has no next one; 128 stands for a byte of zeros. */
#define BYTE(bits, place) ((place) * (bits) >> 3)
#define BIT(bits, place) ((place) * (bits) & 7)
#define PAIR(bits, place) BYTE(bits, place), BYTE(bits, place) < 15 ? BYTE(bits, place) + 1 : 128
#if HAS_SSE
/* AVX2 shifts all numbers by the same count only, so a product moves each number's highest bit to bit 15 first. */
#define MOVE(bits, place) (bits) ? 1 << (16 - (bits) - BIT(bits, place)) & 65535 : 0
typedef uint16_t Moving;
#else
/* NEON shifts each number by its own count; a negative one is to the right. */
#define MOVE(bits, place) -BIT(bits, place)
typedef int16_t Moving;
#endif
#define PAIRS(bits) {SIXTEEN(PAIR, bits), SIXTEEN(MOVE, bits)}
static const struct {
    uint8_t pair[2 * UNITS];
    Moving move[UNITS];
} pairs[9] __attribute__((aligned(LINE))) = BY_BITS(PAIRS);

/* Way 2, for an instruction that takes 8 bits from any bit of 8 bytes: the first 8 numbers are `bits` bytes, and so are the
   last 8. Each half gets its bytes, and each number the place of its first bit in its half. */
#define HALF(bits, place) ((place) & 7) < (bits) ? ((place) & 7) + ((place) >> 3) * (bits) : 128
#define FIRST_BIT(bits, place) ((place) & 7) * (bits)
#define MASK(bits, place) (1 << (bits)) - 1
#define BIAS(bits, place) (1 << (bits)) >> 1
#define CONSTANTS(bits) {SIXTEEN(HALF, bits), SIXTEEN(FIRST_BIT, bits), SIXTEEN(MASK, bits), SIXTEEN(BIAS, bits)}
static const struct {
    uint8_t half[UNITS], first_bit[UNITS], mask[UNITS], bias[UNITS]; /* `mask` and `bias` serve both ways */
} constants[9] __attribute__((aligned(LINE))) = BY_BITS(CONSTANTS);

/* Half the range of numbers of up to 16 bits. Loading it is faster than computing it: 8.6 instead of 8.2 GB/s of a CT. */
#define EIGHT(bias) {bias, bias, bias, bias, bias, bias, bias, bias}
static const uint16_t word_bias[17][8] __attribute__((aligned(LINE))) = {
    EIGHT(0),   EIGHT(1),   EIGHT(2),    EIGHT(4),    EIGHT(8),    EIGHT(16),   EIGHT(32),    EIGHT(64),   EIGHT(128),
    EIGHT(256), EIGHT(512), EIGHT(1024), EIGHT(2048), EIGHT(4096), EIGHT(8192), EIGHT(16384), EIGHT(32768)};
#endif

#if HAS_SSE
typedef __m128i Vector;
typedef struct {
    Vector of[2];
} Vectors;

static inline Vector load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }
static inline void store(uint8_t *at, Vector value) { _mm_storeu_si128((__m128i *)at, value); }
static inline Vector sum_bytes(Vector a, Vector b) { return _mm_add_epi8(a, b); }
static inline Vector sub_bytes(Vector a, Vector b) { return _mm_sub_epi8(a, b); }
static inline Vector sum_words(Vector a, Vector b) { return _mm_add_epi16(a, b); }
static inline Vector sub_words(Vector a, Vector b) { return _mm_sub_epi16(a, b); }
/* Alternately one of `a` and one of `b`: the first halves of both, and the last ones. */
static inline Vector first_bytes(Vector a, Vector b) { return _mm_unpacklo_epi8(a, b); }
static inline Vector last_bytes(Vector a, Vector b) { return _mm_unpackhi_epi8(a, b); }
static inline Vector first_words(Vector a, Vector b) { return _mm_unpacklo_epi16(a, b); }
static inline Vector last_words(Vector a, Vector b) { return _mm_unpackhi_epi16(a, b); }

/* Interleaves 16 red, green and blue bytes, and adds them to 48 bytes of `above`. */
FOR("avx2") static inline void add_interleaved(uint8_t *line, const uint8_t *above, Vector red, Vector green, Vector blue) {
    const Interleaved colors = interleave(red, green, blue);
    for (int at = 0; at < 3; at++) store(line + 16 * at, sum_bytes(load(above + 16 * at), colors.of[at]));
}

FOR("avx2") static inline Vector numbers_avx2(const uint8_t *data, int64_t bits) {
    const __m256i both = _mm256_broadcastsi128_si256(load(data));
    const __m256i found = _mm256_shuffle_epi8(both, _mm256_load_si256((const __m256i *)pairs[bits].pair));
    const __m256i top = _mm256_mullo_epi16(found, _mm256_load_si256((const __m256i *)pairs[bits].move));
    const __m256i low = _mm256_srl_epi16(top, _mm_cvtsi32_si128((int)(16 - bits)));
    return _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}

#define NAME(function) function##_avx2
#define FOR_SET FOR("avx2")
#include "packed_rows.h"

#define VBMI "avx2,avx512vl,avx512bw,avx512vbmi"
FOR(VBMI) static inline Vector numbers_vbmi(const uint8_t *data, int64_t bits) {
    const Vector halves = _mm_shuffle_epi8(load(data), load(constants[bits].half));
    return _mm_and_si128(_mm_multishift_epi64_epi8(load(constants[bits].first_bit), halves), load(constants[bits].mask));
}

#define NAME(function) function##_vbmi
#define FOR_SET FOR(VBMI)
#include "packed_rows.h"
#endif

#if defined(__aarch64__)
typedef uint8x16_t Vector;
typedef struct {
    Vector of[2];
} Vectors;

static inline uint16x8_t words_of(Vector bytes) { return vreinterpretq_u16_u8(bytes); }
static inline Vector bytes_of(uint16x8_t words) { return vreinterpretq_u8_u16(words); }
static inline Vector load(const uint8_t *at) { return vld1q_u8(at); }
static inline void store(uint8_t *at, Vector value) { vst1q_u8(at, value); }
static inline Vector sum_bytes(Vector a, Vector b) { return vaddq_u8(a, b); }
static inline Vector sub_bytes(Vector a, Vector b) { return vsubq_u8(a, b); }
static inline Vector sum_words(Vector a, Vector b) { return bytes_of(vaddq_u16(words_of(a), words_of(b))); }
static inline Vector sub_words(Vector a, Vector b) { return bytes_of(vsubq_u16(words_of(a), words_of(b))); }
/* Alternately one of `a` and one of `b`: the first halves of both, and the last ones. */
static inline Vector first_bytes(Vector a, Vector b) { return vzip1q_u8(a, b); }
static inline Vector last_bytes(Vector a, Vector b) { return vzip2q_u8(a, b); }
static inline Vector first_words(Vector a, Vector b) { return bytes_of(vzip1q_u16(words_of(a), words_of(b))); }
static inline Vector last_words(Vector a, Vector b) { return bytes_of(vzip2q_u16(words_of(a), words_of(b))); }

/* Interleaves 16 red, green and blue bytes, and adds them to 48 bytes of `above`. */
static inline void add_interleaved(uint8_t *line, const uint8_t *above, Vector red, Vector green, Vector blue) {
    uint8x16x3_t colors = vld3q_u8(above);
    colors.val[0] = vaddq_u8(colors.val[0], red);
    colors.val[1] = vaddq_u8(colors.val[1], green);
    colors.val[2] = vaddq_u8(colors.val[2], blue);
    vst3q_u8(line, colors);
}

static inline Vector numbers_neon(const uint8_t *data, int64_t bits) {
    const Vector found = load(data);
    const uint16x8_t first = words_of(vqtbl1q_u8(found, load(pairs[bits].pair)));
    const uint16x8_t last = words_of(vqtbl1q_u8(found, load(pairs[bits].pair + UNITS)));
    const uint16x8_t a = vshlq_u16(first, vld1q_s16(pairs[bits].move)), b = vshlq_u16(last, vld1q_s16(pairs[bits].move + 8));
    return vandq_u8(vuzp1q_u8(bytes_of(a), bytes_of(b)), load(constants[bits].mask));
}

#define NAME(function) function##_neon
#define FOR_SET
#include "packed_rows.h"
#endif

/* The instruction set in use: 0 plain C, 1 AVX2 or NEON, 2 AVX-512 with VBMI; -1 before the first call. */
static _Atomic int instructions = -1;

static int best_instructions(void) {
#if HAS_SSE
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return 2;
    return __builtin_cpu_supports("avx2") ? 1 : 0;
#elif defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

/* Chooses an instruction set for all later calls, the best one for -1, and returns the one in use. For tests. */
int halofeed_instructions(int wanted) {
    const int best = best_instructions(), chosen = wanted < 0 || wanted > best ? best : wanted;
    atomic_store(&instructions, chosen);
    return chosen;
}

int halofeed_instructions_used(void) {
    const int set = atomic_load(&instructions);
    return set < 0 ? halofeed_instructions(-1) : set; /* several threads choose the same one */
}

static AddRow add_row_of(int64_t unit) {
    static const AddRow rows[][5] = {
        {0, add_bytes, add_words, add_colors, add_halves},
#if HAS_SSE
        {0, add_bytes_avx2, add_words_avx2, add_colors_avx2, add_halves_avx2},
        {0, add_bytes_vbmi, add_words_vbmi, add_colors_vbmi, add_halves_vbmi},
#elif defined(__aarch64__)
        {0, add_bytes_neon, add_words_neon, add_colors_neon, add_halves_neon},
#endif
    };
    return rows[halofeed_instructions_used()][unit];
}

/* Reading bands. ------------------------------------------------------------------------------------------------------- */

/* The sum of the widths of two codes in each of `bytes` bytes; `*are_valid` becomes 0 if a width is too large for bytes. It
   may read 15 bytes past them. A crop sums the codes of all groups, also of those that it does not show: in plain C that is
   18 % of the time of a crop of 224 columns of 640, and with SSE2 the crop takes 12 % less. */
#if HAS_SSE
static inline int64_t sum_widths(const uint8_t *codes, int64_t bytes, int are_words, int *are_valid) {
    static const uint8_t tail[2 * 16] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    const __m128i zero = _mm_setzero_si128(), fifteen = _mm_set1_epi8(15);
    __m128i sum = zero, largest = zero;
    for (; bytes > 0; bytes -= 16, codes += 16) {
        __m128i found = load(codes);
        if (bytes < 16) found = _mm_and_si128(found, load(tail + 16 - bytes));
        const __m128i low = _mm_and_si128(found, fifteen), high = _mm_and_si128(_mm_srli_epi16(found, 4), fifteen);
        __m128i both = _mm_add_epi8(low, high);
        if (are_words) /* a code of 15 is 16 bits; a comparison gives -1 */
            both = _mm_sub_epi8(both, _mm_add_epi8(_mm_cmpeq_epi8(low, fifteen), _mm_cmpeq_epi8(high, fifteen)));
        sum = _mm_add_epi64(sum, _mm_sad_epu8(both, zero));
        largest = _mm_max_epu8(largest, _mm_max_epu8(low, high));
    }
    const __m128i is_valid = _mm_cmpeq_epi8(_mm_subs_epu8(largest, _mm_set1_epi8(8)), zero);
    if (!are_words && _mm_movemask_epi8(is_valid) != 0xffff) *are_valid = 0;
    return _mm_cvtsi128_si64(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum)));
}
#else
static inline int64_t sum_widths(const uint8_t *codes, int64_t bytes, int are_words, int *are_valid) {
    const uint64_t each_half = EACH_BYTE * 15;
    uint64_t sum = 0, wrong = 0;
    for (; bytes > 0; bytes -= 8, codes += 8) {
        uint64_t found = read_u64(codes);
        if (bytes < 8) found &= ((uint64_t)1 << 8 * bytes) - 1;
        const uint64_t low = found & each_half, high = found >> 4 & each_half;
        sum += (low + high) * EACH_BYTE >> 56; /* the uppermost byte of the product is the sum of all bytes */
        if (are_words) { /* one more for each code of 15 */
            const uint64_t full = found & found >> 1 & found >> 2 & found >> 3;
            sum += ((full & EACH_BYTE) + (full >> 4 & EACH_BYTE)) * EACH_BYTE >> 56;
        } else
            wrong |= ((low + EACH_BYTE * 7) | (high + EACH_BYTE * 7)) & EACH_BYTE * 16; /* above 8 */
    }
    if (wrong) *are_valid = 0;
    return (int64_t)sum;
}
#endif

/* The rows of a window within one band, and where they go. `line` holds the groups `group` to `group + groups` of the
   current row, of which `bytes` from `offset` on are in the window. */
typedef struct {
    const Layout *layout;
    const Sizes *sizes;
    int64_t rows, first, last; /* rows of the band, and those of the window */
    int64_t group, groups, offset, bytes;
    uint8_t *line, *strip;
    uint8_t *target; /* of the band's first row in the window */
    int64_t stride;
    int backwards, streams, has_strip, is_direct; /* direct: groups are unpacked where the rows are shown */
    int64_t held; /* bytes of rows in `strip`, which go before `target` */
} Rows;

static void flush(Rows *rows) {
    if (rows->held) stream(rows->target - rows->held, rows->strip, rows->held);
    rows->held = 0;
}

static uint8_t *next_row(const Rows *rows) { return rows->has_strip ? rows->strip + rows->held : rows->target; }

/* Writes the next row of the window, if it is not there; `shown` is its first stored pixel. */
static void put_row(Rows *rows, const uint8_t *shown) {
    const int64_t pixel = rows->layout->pixel;
    uint8_t *out = next_row(rows);
    if (rows->is_direct && out == shown)
        ; /* unpacked there */
    else if (rows->backwards)
        mirror(out, shown, rows->bytes / pixel, pixel);
    else if (rows->streams && !rows->has_strip)
        stream(out, shown, rows->bytes);
    else
        memcpy(out, shown, rows->bytes);
    rows->target += rows->stride;
    if (rows->has_strip) {
        rows->held += rows->bytes;
        if (rows->held + rows->bytes > STRIP) flush(rows);
    }
}

static int unpack_raw(Rows *rows, const uint8_t *band, const uint8_t *end) {
    if (end - band != rows->rows * rows->sizes->row) return 0;
    const uint8_t *shown = band + rows->group * UNITS * rows->layout->unit + rows->offset;
    for (int64_t row = rows->first; row < rows->last; row++) put_row(rows, shown + row * rows->sizes->row);
    return 1;
}

/* Makes the line the row above the first one, which has the same unit in all of a group. Called with a constant `unit`, so
   that the compiler writes vectors: 32 calls of memcpy per group took an eighth of the time. */
static inline void repeat_bases(Rows *rows, const uint8_t *bases, const int64_t unit) {
    uint8_t *line = rows->line;
    bases += rows->group * unit;
    for (int64_t group = 0; group < rows->groups; group++, line += UNITS * unit, bases += unit)
        for (int64_t place = 0; place < UNITS; place++) memcpy(line + place * unit, bases, unit);
}

static void begin_line(Rows *rows, const uint8_t *bases) {
    switch (rows->layout->unit) {
        case 1: repeat_bases(rows, bases, 1); break;
        case 2: repeat_bases(rows, bases, 2); break;
        case 3: repeat_bases(rows, bases, 3); break;
        default: repeat_bases(rows, bases, 4);
    }
}

/* Finds where the window's groups begin in each row's data; 0 if the sizes of all groups are not the band's size. */
static int find_groups(const Rows *rows, const uint8_t *codes, const uint8_t *data, const uint8_t *end,
                       const uint8_t *begin[ROWS]) {
    const Sizes *sizes = rows->sizes;
    const int64_t count = sizes->groups * sizes->parts, before = rows->group * sizes->parts, bytes = before >> 1;
    const int are_words = has_words(rows->layout);
    int64_t starts[ROWS], sum = 0;
    int are_valid = 1;
    for (int64_t row = 0; row < rows->rows; row++, codes += sizes->widths) {
        if (bytes) sum += sum_widths(codes, bytes, are_words, &are_valid);
        starts[row] = sum + (before & 1 ? width_of(codes[bytes] & 15) : 0);
        sum += sum_widths(codes + bytes, sizes->widths - bytes, are_words, &are_valid);
        /* An unused half of a byte must be 0, so that every array has one packed form. */
        if (count & 1 && codes[count >> 1] >> 4) are_valid = 0;
    }
    if (!are_valid || end - data != 2 * sum) return 0;
    for (int64_t row = 0; row < rows->last; row++) begin[row] = data + 2 * starts[row];
    return 1;
}

static int unpack_groups(Rows *rows, const uint8_t *band, const uint8_t *end) {
    const Sizes *sizes = rows->sizes;
    const int64_t unit = rows->layout->unit, base_bytes = sizes->groups * unit, code_bytes = rows->rows * sizes->widths;
    if (end - band < base_bytes + code_bytes) return 0;
    const uint8_t *codes = band + base_bytes, *begin[ROWS];
    if (!find_groups(rows, codes, codes + code_bytes, end, begin)) return 0;
    begin_line(rows, band);
    const AddRow add = add_row_of(unit);
    const uint8_t *above = rows->line;
    for (int64_t row = 0; row < rows->last; row++, codes += sizes->widths) {
        uint8_t *line = rows->is_direct && row >= rows->first ? next_row(rows) : rows->line;
        add(line, above, codes, rows->group * sizes->parts, rows->groups, begin[row]);
        if (row >= rows->first) put_row(rows, line + rows->offset);
        above = line;
    }
    return 1;
}

/* A number in groups of 7 bits, the lowest first; -1 if it is damaged. */
static int64_t read_varint(const uint8_t **at, const uint8_t *end) {
    uint64_t number = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*at >= end) return -1;
        const uint8_t byte = *(*at)++;
        number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return (int64_t)number;
    }
    return -1;
}

/* Writes one patch, as far as it is in the line's groups. */
static void patch(Rows *rows, int64_t from, int64_t to, const uint8_t *value) {
    const int64_t unit = rows->layout->unit, low = rows->group * UNITS, high = low + rows->groups * UNITS;
    from = (from < low ? low : from) - low, to = (to > high ? high : to) - low;
    if (unit == 1) {
        if (from < to) memset(rows->line + from, value[0], to - from);
        return;
    }
    for (; from < to; from++) memcpy(rows->line + from * unit, value, unit);
}

static int unpack_patches(Rows *rows, const uint8_t *band, const uint8_t *end) {
    const int64_t unit = rows->layout->unit, units = rows->sizes->units;
    memset(rows->line, 0, rows->groups * UNITS * unit);
    for (int64_t row = 0; row < rows->rows; row++) {
        int64_t count = read_varint(&band, end), place = 0;
        if (count < 0) return 0;
        for (; count; count--) {
            const int64_t skip = read_varint(&band, end), length = read_varint(&band, end);
            if (skip < 0 || length < 1 || place + skip + length > units || end - band < unit) return 0;
            place += skip + length;
            patch(rows, place - length, place, band);
            band += unit;
        }
        if (row >= rows->first && row < rows->last) put_row(rows, rows->line + rows->offset);
    }
    return band == end;
}

/* Unpacks the rows of one band; 0 if it is damaged. */
static int unpack_band(Rows *rows, const uint8_t *band, const uint8_t *end) {
    switch (band[0]) {
        case RAW: return unpack_raw(rows, band + 1, end);
        case GROUPS: return unpack_groups(rows, band + 1, end);
        case PATCHES: return unpack_patches(rows, band + 1, end);
        default: return 0;
    }
}

/* Where a band is in its value; 0 if that is outside, or its checksum is wrong. */
static int find_band(const Unpack *unpack, const Sizes *sizes, int64_t number, Extend extend, const uint8_t **band,
                     const uint8_t **end) {
    const uint8_t *value = address(unpack->value), *entry = value + HEAD + ENTRY * number;
    const int64_t begin = number ? read_u32(entry - ENTRY) : sizes->table, stop = read_u32(entry);
    if (begin < sizes->table || stop <= begin || stop > unpack->size - SLACK) return 0;
    *band = value + begin, *end = value + stop;
    if (!unpack->flags) return 1;
    /* Atomic, because threads may unpack windows of one value at the same time. */
    _Atomic uint8_t *flag = unpack->flags == 1 ? 0 : (_Atomic uint8_t *)address(unpack->flags) + number;
    if (flag && atomic_load_explicit(flag, memory_order_relaxed)) return 1;
    if (extend(0, *band, (size_t)(stop - begin)) != read_u32(entry + 4)) return 0;
    if (flag) atomic_store_explicit(flag, 1, memory_order_relaxed);
    return 1;
}

static int is_table(const Unpack *unpack, const Sizes *sizes, Extend extend) {
    const uint8_t *value = address(unpack->value);
    if (unpack->size < sizes->table + SLACK || read_u32(value) != VERSION) return 0;
    /* The last band ends where the slack begins, or the value is a longer or a shorter one. */
    if (sizes->bands && read_u32(value + sizes->table - ENTRY) + (int64_t)SLACK != unpack->size) return 0;
    return !unpack->flags || extend(0, value + HEAD, (size_t)(sizes->table - HEAD)) == read_u32(value + 4);
}

/* Whether a window is inside the array. */
static int is_inside(const Unpack *unpack) {
    const Layout *layout = address(unpack->layout);
    const int64_t sizes[3] = {layout->planes, layout->height, layout->width};
    for (int axis = 0; axis < 3; axis++) {
        const int64_t start = unpack->start[axis], shape = unpack->shape[axis];
        if (start < 0 || shape < 0 || start > sizes[axis] || shape > sizes[axis] - start) return 0;
    }
    return 1;
}

/* Bytes of memory that a window needs: a strip, and a row with the rest of its first and last group. */
static int64_t memory_of(const Unpack *unpack) {
    const Layout *layout = address(unpack->layout);
    return is_inside(unpack) ? unpack->shape[2] * layout->pixel + 2 * UNITS * layout->unit + STRIP + 2 * LINE : 0;
}

static int64_t window_bytes(const Unpack *unpack) {
    const Layout *layout = address(unpack->layout);
    return is_inside(unpack) ? unpack->shape[0] * unpack->shape[1] * unpack->shape[2] * layout->pixel : 0;
}

/* Unpacks the planes of a window, whose sizes in a row are known. */
static int unpack_planes(const Unpack *unpack, Rows *rows, Extend extend) {
    const Layout *layout = rows->layout;
    const int64_t *shape = unpack->shape, *stride = unpack->target_stride;
    const int64_t start = unpack->start[1], stop = start + shape[1];
    for (int64_t plane = 0; plane < shape[0]; plane++) {
        const int64_t seen = unpack->backwards[0] ? shape[0] - 1 - plane : plane;
        rows->target = (uint8_t *)address(unpack->target) + seen * stride[0];
        if (unpack->backwards[1]) rows->target += (shape[1] - 1) * stride[1];
        for (int64_t place = start / ROWS; place * ROWS < stop; place++) {
            const uint8_t *band, *end;
            const int64_t number = (unpack->start[0] + plane) * rows->sizes->bands_of_plane + place, first = place * ROWS;
            rows->rows = layout->height - first < ROWS ? layout->height - first : ROWS;
            rows->first = start > first ? start - first : 0;
            rows->last = stop - first < rows->rows ? stop - first : rows->rows;
            if (!find_band(unpack, rows->sizes, number, extend, &band, &end) || !unpack_band(rows, band, end)) return 0;
        }
        flush(rows);
    }
    return 1;
}

static int unpack_window(const Unpack *unpack, uint8_t *memory, int streams, Extend extend) {
    const Layout *layout = address(unpack->layout);
    const Sizes sizes = sizes_of(layout);
    if (!is_inside(unpack) || !is_table(unpack, &sizes, extend)) return 0;
    const int64_t *shape = unpack->shape, *stride = unpack->target_stride;
    if (!shape[0] || !shape[1] || !shape[2]) return 1;
    const int64_t group_bytes = UNITS * layout->unit, low = unpack->start[2] * layout->pixel;
    Rows rows = {.layout = layout, .sizes = &sizes, .bytes = shape[2] * layout->pixel, .streams = streams};
    rows.group = low / group_bytes;
    rows.groups = (low + rows.bytes + group_bytes - 1) / group_bytes - rows.group;
    rows.offset = low - rows.group * group_bytes;
    rows.strip = memory + (-(intptr_t)memory & (LINE - 1)), rows.line = rows.strip + STRIP + LINE;
    rows.backwards = (int)unpack->backwards[2];
    rows.stride = unpack->backwards[1] ? -stride[1] : stride[1];
    rows.has_strip = streams && rows.stride == rows.bytes && 2 * rows.bytes <= STRIP;
    /* Rows of a strip may write past their end: the next row is there, and no column depends on another one. */
    const int is_whole = rows.bytes == rows.groups * group_bytes;
    rows.is_direct = !rows.offset && !rows.backwards && (rows.has_strip || (is_whole && !streams));
    const int done = unpack_planes(unpack, &rows, extend);
#if HAS_SSE
    /* Also after damage: the caller may fill the same target in another thread, after which no store may arrive. */
    _mm_sfence();
#endif
    return done;
}

/* Unpacks the windows of a table from `next` on; any number of threads may call it at the same time. `streams`: 1 bypasses
   the cache, 0 does not, -1 does where that is faster. */
void halofeed_unpack(Unpack *unpacks, int64_t count, _Atomic int64_t *next, int streams, Extend extend) {
    int64_t needed = 0, all_bytes = 0;
    for (int64_t at = 0; at < count; at++) {
        const int64_t of_window = memory_of(&unpacks[at]);
        if (of_window > needed) needed = of_window;
        all_bytes += window_bytes(&unpacks[at]);
    }
    uint8_t *memory = malloc((size_t)needed + 1);
    if (!memory) return; /* the windows are left, and the caller unpacks them otherwise */
    for (int64_t at; (at = atomic_fetch_add(next, 1)) < count;) {
        Unpack *unpack = &unpacks[at];
        if (unpack->header &&
            !is_framed(unpack->header, unpack->footer, unpack->length, unpack->length_checksum, unpack->checksum))
            continue;
        const int is_large = all_bytes >= STREAMED_TABLE || window_bytes(unpack) >= STREAMED_WINDOW;
        unpack->done = unpack_window(unpack, memory, streams < 0 ? is_large : streams, extend);
    }
    free(memory);
}
