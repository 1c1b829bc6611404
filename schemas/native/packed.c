/* Packing and unpacking of arrays as docs/packed.md specifies them.

   A value is a table and bands of at most 32 rows. A band's rows are differences to the row above in groups of 16 units;
   each group's numbers have as many bits as its largest one needs. Unpacking has no branch per group, because the number
   of bits is as good as random and a wrong prediction costs more than the group. So tables by the number of bits say how
   16 bytes are shuffled, shifted and masked.

   Input may be damaged. All sizes are compared before bytes are read: the sum of a band's widths must be its size, and
   16 bytes after the last band belong to the value, so that a load of 16 bytes at any group is inside. */

#include <stdatomic.h>
#include <stdlib.h>

#include "copying.h"

#if HAS_SSE
#define FOR(features) __attribute__((target(features)))
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define VERSION 1
#define ROWS 32
#define UNITS 16
#define HEAD 8
#define ENTRY 8
#define SLACK 16
#define MAX_WIDTH 16
#define STRIP 16384 /* bytes of rows that are assembled in the L1 cache before they are written */

enum { RAW, GROUPS, PATCHES };

/* halofeed.schemas.packed.packed_layout.PackedLayout.numbers */
typedef struct {
    int64_t planes, height, width, pixel, unit;
} Layout;

/* A row of halofeed.schemas.native.kernel.Unpacks: a window of a packed value. Axes are depth (planes), height, width;
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

typedef uint32_t (*Extend)(uint32_t checksum, const uint8_t *data, size_t size);

/* What follows from a layout. */
typedef struct {
    int64_t row, units, groups, parts, widths, bands_of_plane, bands, table;
} Sizes;

int64_t halofeed_unpack_columns(void) { return sizeof(Unpack) / sizeof(int64_t); }

static Sizes sizes_of(const Layout *layout) {
    Sizes sizes;
    sizes.row = layout->width * layout->pixel;
    sizes.units = sizes.row / layout->unit;
    sizes.groups = (sizes.units + UNITS - 1) / UNITS;
    sizes.parts = layout->unit == 3 ? 3 : layout->unit == 4 ? 2 : 1;
    sizes.widths = (sizes.groups * sizes.parts + 1) / 2;
    sizes.bands_of_plane = (layout->height + ROWS - 1) / ROWS;
    sizes.bands = layout->planes * sizes.bands_of_plane;
    sizes.table = HEAD + ENTRY * sizes.bands;
    return sizes;
}

static uint32_t read_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint64_t read_u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static void write_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

static void write_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }

/* The number of bits of a code of 4 bits. */
static inline int64_t width_of(int64_t code) { return code == 15 ? 16 : code; }

static inline int64_t code_at(const uint8_t *widths, int64_t number) { return widths[number >> 1] >> 4 * (number & 1) & 15; }

/* Adding the differences of a row to the row above, in place. ----------------------------------------------------------

   `line` holds the units of `count` groups. `first` is the number of the first group's first width in `widths`.
   Returns the end of the groups' data. */
typedef const uint8_t *(*AddRow)(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count, const uint8_t *data);

/* Eight bytes from eight numbers of `bits` bits each: the number is cut in two three times. */
static inline uint64_t spread(uint64_t packed, int64_t bits) {
    if (bits == 8) return packed;
    const uint64_t one = (1u << bits) - 1, two = ((uint64_t)1 << 2 * bits) - 1, four = ((uint64_t)1 << 4 * bits) - 1;
    uint64_t found = (packed & four) | (packed >> 4 * bits & four) << 32;
    found = (found & (two | two << 32)) | (found >> 2 * bits & (two | two << 32)) << 16;
    const uint64_t all = one | one << 16 | one << 32 | one << 48;
    return (found & all) | (found >> bits & all) << 8;
}

/* The inverse of `spread`. */
static inline uint64_t squeeze(uint64_t bytes, int64_t bits) {
    if (bits == 8) return bytes;
    uint64_t found = (bytes & 0x00ff00ff00ff00ffu) | (bytes >> 8 & 0x00ff00ff00ff00ffu) << bits;
    found = (found & 0x0000ffff0000ffffu) | (found >> 16 & 0x0000ffff0000ffffu) << 2 * bits;
    return (found & 0xffffffffu) | (found >> 32) << 4 * bits;
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

static const uint8_t *add_bytes(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += UNITS) {
        const int64_t bits = code_at(widths, first + group);
        uint8_t found[UNITS];
        unpack_bytes(found, data, bits);
        for (int64_t at = 0; at < UNITS; at++) line[at] = (uint8_t)(line[at] + found[at] - ((1 << bits) >> 1));
        data += 2 * bits;
    }
    return data;
}

static const uint8_t *add_colors(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 3 * UNITS) {
        uint8_t found[3][UNITS];
        for (int64_t part = 0; part < 3; part++) {
            const int64_t bits = code_at(widths, first + 3 * group + part);
            unpack_bytes(found[part], data, bits);
            for (int64_t at = 0; at < UNITS; at++) found[part][at] = (uint8_t)(found[part][at] - ((1 << bits) >> 1));
            data += 2 * bits;
        }
        for (int64_t at = 0; at < UNITS; at++) {
            line[3 * at] = (uint8_t)(line[3 * at] + found[0][at] + found[1][at]);
            line[3 * at + 1] = (uint8_t)(line[3 * at + 1] + found[0][at]);
            line[3 * at + 2] = (uint8_t)(line[3 * at + 2] + found[0][at] + found[2][at]);
        }
    }
    return data;
}

static const uint8_t *add_words(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 2 * UNITS) {
        const int64_t bits = width_of(code_at(widths, first + group));
        uint16_t found[UNITS], above[UNITS];
        unpack_words(found, data, bits);
        memcpy(above, line, sizeof above);
        for (int64_t at = 0; at < UNITS; at++) above[at] = (uint16_t)(above[at] + found[at]);
        memcpy(line, above, sizeof above);
        data += 2 * bits;
    }
    return data;
}

static const uint8_t *add_halves(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 4 * UNITS) {
        uint16_t found[2][UNITS], above[2 * UNITS];
        for (int64_t part = 0; part < 2; part++) {
            const int64_t bits = width_of(code_at(widths, first + 2 * group + part));
            unpack_words(found[part], data, bits);
            data += 2 * bits;
        }
        memcpy(above, line, sizeof above);
        for (int64_t at = 0; at < 2 * UNITS; at++) above[at] = (uint16_t)(above[at] + found[at & 1][at >> 1]);
        memcpy(line, above, sizeof above);
    }
    return data;
}

/* Tables by the number of bits: where the bytes of each number are, and what moves it to the top of its 16 bits. A number
   of at most 8 bits begins in the byte `place * bits / 8` and ends in the same or the next one. */
static struct {
    uint8_t shuffle[9][2 * UNITS];    /* for each number the two bytes that hold it */
    uint16_t multiply[9][UNITS];      /* moves its highest bit to bit 15 */
    int16_t shift[9][UNITS];          /* minus the place of its lowest bit */
    uint8_t halves[9][UNITS];         /* the bytes of the first 8 numbers, then those of the last 8 */
    uint8_t places[9][UNITS];         /* the first bit of each number in its half */
    uint8_t mask[9];
    uint8_t bias[9];
} tables;

static void make_tables(void) {
    for (int bits = 0; bits < 9; bits++) {
        tables.mask[bits] = (uint8_t)((1 << bits) - 1);
        tables.bias[bits] = (uint8_t)((1 << bits) >> 1);
        for (int place = 0; place < UNITS; place++) {
            const int bit = place * bits, byte = bit >> 3, in = bit & 7;
            tables.shuffle[bits][2 * place] = (uint8_t)byte;
            tables.shuffle[bits][2 * place + 1] = (uint8_t)(byte < 15 ? byte + 1 : 0x80);
            tables.multiply[bits][place] = (uint16_t)(bits ? 1u << (16 - bits - in) : 0);
            tables.shift[bits][place] = (int16_t)-in;
            tables.halves[bits][place] = (uint8_t)((place & 7) < bits ? (place & 7) + (place >> 3) * bits : 0x80);
            tables.places[bits][place] = (uint8_t)((place & 7) * bits);
        }
    }
}

#if HAS_SSE
#define INLINE_AVX2 FOR("avx2") static inline __attribute__((always_inline))
#define INLINE_VBMI FOR("avx2,avx512vl,avx512bw,avx512vbmi") static inline __attribute__((always_inline))
#define ADD_AVX2 FOR("avx2") static
#define ADD_VBMI FOR("avx2,avx512vl,avx512bw,avx512vbmi") static

/* 16 numbers of at most 8 bits as bytes. */
INLINE_AVX2 __m128i numbers_avx2(const uint8_t *data, int64_t bits) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)data));
    const __m256i pairs = _mm256_shuffle_epi8(both, _mm256_loadu_si256((const __m256i *)tables.shuffle[bits]));
    const __m256i top = _mm256_mullo_epi16(pairs, _mm256_loadu_si256((const __m256i *)tables.multiply[bits]));
    const __m256i low = _mm256_srl_epi16(top, _mm_cvtsi32_si128((int)(16 - bits)));
    return _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}

INLINE_VBMI __m128i numbers_vbmi(const uint8_t *data, int64_t bits) {
    const __m128i halves =
        _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data), _mm_loadu_si128((const __m128i *)tables.halves[bits]));
    const __m128i found = _mm_multishift_epi64_epi8(_mm_loadu_si128((const __m128i *)tables.places[bits]), halves);
    return _mm_and_si128(found, _mm_set1_epi8((char)tables.mask[bits]));
}

/* Interleaves 16 red, green and blue bytes, and adds them to 48 bytes of `line`. */
INLINE_AVX2 void add_interleaved(uint8_t *line, __m128i red, __m128i green, __m128i blue) {
    const char no = (char)0x80;
    const __m128i r0 = _mm_setr_epi8(0, no, no, 1, no, no, 2, no, no, 3, no, no, 4, no, no, 5);
    const __m128i g0 = _mm_setr_epi8(no, 0, no, no, 1, no, no, 2, no, no, 3, no, no, 4, no, no);
    const __m128i b0 = _mm_setr_epi8(no, no, 0, no, no, 1, no, no, 2, no, no, 3, no, no, 4, no);
    const __m128i r1 = _mm_setr_epi8(no, no, 6, no, no, 7, no, no, 8, no, no, 9, no, no, 10, no);
    const __m128i g1 = _mm_setr_epi8(5, no, no, 6, no, no, 7, no, no, 8, no, no, 9, no, no, 10);
    const __m128i b1 = _mm_setr_epi8(no, 5, no, no, 6, no, no, 7, no, no, 8, no, no, 9, no, no);
    const __m128i r2 = _mm_setr_epi8(no, 11, no, no, 12, no, no, 13, no, no, 14, no, no, 15, no, no);
    const __m128i g2 = _mm_setr_epi8(no, no, 11, no, no, 12, no, no, 13, no, no, 14, no, no, 15, no);
    const __m128i b2 = _mm_setr_epi8(10, no, no, 11, no, no, 12, no, no, 13, no, no, 14, no, no, 15);
#define JOINED(which)                                                                      \
    _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(red, r##which), _mm_shuffle_epi8(green, g##which)), \
                 _mm_shuffle_epi8(blue, b##which))
    __m128i *const at = (__m128i *)line;
    _mm_storeu_si128(at, _mm_add_epi8(_mm_loadu_si128(at), JOINED(0)));
    _mm_storeu_si128(at + 1, _mm_add_epi8(_mm_loadu_si128(at + 1), JOINED(1)));
    _mm_storeu_si128(at + 2, _mm_add_epi8(_mm_loadu_si128(at + 2), JOINED(2)));
#undef JOINED
}

/* The functions are the same for each instruction set but for how 16 numbers are unpacked. */
#define DEFINE_ADDS(SET, INLINE_SET, ADD)                                                                            \
    INLINE_SET __m128i bytes_##SET(const uint8_t *data, int64_t bits) {                                              \
        return _mm_sub_epi8(numbers_##SET(data, bits), _mm_set1_epi8((char)tables.bias[bits]));                      \
    }                                                                                                                \
    ADD const uint8_t *add_bytes_##SET(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,           \
                                       const uint8_t *data) {                                                        \
        for (int64_t group = 0; group < count; group++, line += UNITS) {                                             \
            const int64_t bits = code_at(widths, first + group);                                                     \
            __m128i *const at = (__m128i *)line;                                                                     \
            _mm_storeu_si128(at, _mm_add_epi8(_mm_loadu_si128(at), bytes_##SET(data, bits)));                        \
            data += 2 * bits;                                                                                        \
        }                                                                                                            \
        return data;                                                                                                 \
    }                                                                                                                \
    ADD const uint8_t *add_colors_##SET(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,          \
                                        const uint8_t *data) {                                                       \
        for (int64_t group = 0; group < count; group++, line += 3 * UNITS, first += 3) {                             \
            const int64_t bits_g = code_at(widths, first), bits_r = code_at(widths, first + 1),                      \
                          bits_b = code_at(widths, first + 2);                                                       \
            const __m128i green = bytes_##SET(data, bits_g);                                                         \
            const __m128i red = bytes_##SET(data + 2 * bits_g, bits_r);                                              \
            const __m128i blue = bytes_##SET(data + 2 * (bits_g + bits_r), bits_b);                                  \
            add_interleaved(line, _mm_add_epi8(red, green), green, _mm_add_epi8(blue, green));                       \
            data += 2 * (bits_g + bits_r + bits_b);                                                                  \
        }                                                                                                            \
        return data;                                                                                                 \
    }                                                                                                                \
    INLINE_SET void words_##SET(const uint8_t *data, int64_t bits, __m128i *first, __m128i *last) {                  \
        const int64_t low_bits = bits < 8 ? bits : 8;                                                                \
        const __m128i low = numbers_##SET(data, low_bits), high = numbers_##SET(data + 2 * low_bits, bits - low_bits); \
        const __m128i bias = _mm_set1_epi16((short)((1 << bits) >> 1));                                              \
        *first = _mm_sub_epi16(_mm_unpacklo_epi8(low, high), bias);                                                  \
        *last = _mm_sub_epi16(_mm_unpackhi_epi8(low, high), bias);                                                   \
    }                                                                                                                \
    ADD const uint8_t *add_words_##SET(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,           \
                                       const uint8_t *data) {                                                        \
        for (int64_t group = 0; group < count; group++, line += 2 * UNITS) {                                         \
            const int64_t bits = width_of(code_at(widths, first + group));                                           \
            __m128i *const at = (__m128i *)line;                                                                     \
            __m128i a, b;                                                                                            \
            words_##SET(data, bits, &a, &b);                                                                         \
            _mm_storeu_si128(at, _mm_add_epi16(_mm_loadu_si128(at), a));                                             \
            _mm_storeu_si128(at + 1, _mm_add_epi16(_mm_loadu_si128(at + 1), b));                                     \
            data += 2 * bits;                                                                                        \
        }                                                                                                            \
        return data;                                                                                                 \
    }                                                                                                                \
    ADD const uint8_t *add_halves_##SET(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,          \
                                        const uint8_t *data) {                                                       \
        for (int64_t group = 0; group < count; group++, line += 4 * UNITS, first += 2) {                             \
            const int64_t bits_a = width_of(code_at(widths, first)), bits_b = width_of(code_at(widths, first + 1));  \
            __m128i *const at = (__m128i *)line;                                                                     \
            __m128i low[2], high[2];                                                                                 \
            words_##SET(data, bits_a, &low[0], &low[1]);                                                             \
            words_##SET(data + 2 * bits_a, bits_b, &high[0], &high[1]);                                              \
            for (int half = 0; half < 2; half++) {                                                                   \
                const __m128i a = _mm_unpacklo_epi16(low[half], high[half]);                                         \
                const __m128i b = _mm_unpackhi_epi16(low[half], high[half]);                                         \
                _mm_storeu_si128(at + 2 * half, _mm_add_epi16(_mm_loadu_si128(at + 2 * half), a));                   \
                _mm_storeu_si128(at + 2 * half + 1, _mm_add_epi16(_mm_loadu_si128(at + 2 * half + 1), b));           \
            }                                                                                                        \
            data += 2 * (bits_a + bits_b);                                                                           \
        }                                                                                                            \
        return data;                                                                                                 \
    }

DEFINE_ADDS(avx2, INLINE_AVX2, ADD_AVX2)
DEFINE_ADDS(vbmi, INLINE_VBMI, ADD_VBMI)
#endif

#if defined(__aarch64__)
static inline uint8x16_t numbers_neon(const uint8_t *data, int64_t bits) {
    const uint8x16_t found = vld1q_u8(data);
    const uint8x16_t first = vqtbl1q_u8(found, vld1q_u8(tables.shuffle[bits]));
    const uint8x16_t last = vqtbl1q_u8(found, vld1q_u8(tables.shuffle[bits] + UNITS));
    const uint16x8_t a = vshlq_u16(vreinterpretq_u16_u8(first), vld1q_s16(tables.shift[bits]));
    const uint16x8_t b = vshlq_u16(vreinterpretq_u16_u8(last), vld1q_s16(tables.shift[bits] + 8));
    return vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)), vdupq_n_u8(tables.mask[bits]));
}

static inline uint8x16_t bytes_neon(const uint8_t *data, int64_t bits) {
    return vsubq_u8(numbers_neon(data, bits), vdupq_n_u8(tables.bias[bits]));
}

static const uint8_t *add_bytes_neon(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,
                                     const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += UNITS) {
        const int64_t bits = code_at(widths, first + group);
        vst1q_u8(line, vaddq_u8(vld1q_u8(line), bytes_neon(data, bits)));
        data += 2 * bits;
    }
    return data;
}

static const uint8_t *add_colors_neon(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,
                                      const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 3 * UNITS, first += 3) {
        const int64_t bits_g = code_at(widths, first), bits_r = code_at(widths, first + 1),
                      bits_b = code_at(widths, first + 2);
        const uint8x16_t green = bytes_neon(data, bits_g);
        const uint8x16_t red = bytes_neon(data + 2 * bits_g, bits_r);
        const uint8x16_t blue = bytes_neon(data + 2 * (bits_g + bits_r), bits_b);
        uint8x16x3_t above = vld3q_u8(line);
        above.val[0] = vaddq_u8(above.val[0], vaddq_u8(red, green));
        above.val[1] = vaddq_u8(above.val[1], green);
        above.val[2] = vaddq_u8(above.val[2], vaddq_u8(blue, green));
        vst3q_u8(line, above);
        data += 2 * (bits_g + bits_r + bits_b);
    }
    return data;
}

static inline uint16x8x2_t words_neon(const uint8_t *data, int64_t bits) {
    const int64_t low_bits = bits < 8 ? bits : 8;
    const uint8x16_t low = numbers_neon(data, low_bits), high = numbers_neon(data + 2 * low_bits, bits - low_bits);
    const uint16x8_t bias = vdupq_n_u16((uint16_t)((1 << bits) >> 1));
    uint16x8x2_t found;
    found.val[0] = vsubq_u16(vreinterpretq_u16_u8(vzip1q_u8(low, high)), bias);
    found.val[1] = vsubq_u16(vreinterpretq_u16_u8(vzip2q_u8(low, high)), bias);
    return found;
}

static const uint8_t *add_words_neon(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,
                                     const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 2 * UNITS) {
        const int64_t bits = width_of(code_at(widths, first + group));
        const uint16x8x2_t found = words_neon(data, bits);
        for (int half = 0; half < 2; half++) {
            uint8_t *const at = line + 16 * half;
            vst1q_u8(at, vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(vld1q_u8(at)), found.val[half])));
        }
        data += 2 * bits;
    }
    return data;
}

static const uint8_t *add_halves_neon(uint8_t *line, const uint8_t *widths, int64_t first, int64_t count,
                                      const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 4 * UNITS, first += 2) {
        const int64_t bits_a = width_of(code_at(widths, first)), bits_b = width_of(code_at(widths, first + 1));
        const uint16x8x2_t low = words_neon(data, bits_a), high = words_neon(data + 2 * bits_a, bits_b);
        for (int half = 0; half < 2; half++) {
            const uint16x8_t both[2] = {vzip1q_u16(low.val[half], high.val[half]), vzip2q_u16(low.val[half], high.val[half])};
            for (int part = 0; part < 2; part++) {
                uint8_t *const at = line + 32 * half + 16 * part;
                vst1q_u8(at, vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(vld1q_u8(at)), both[part])));
            }
        }
        data += 2 * (bits_a + bits_b);
    }
    return data;
}
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
    const int best = best_instructions();
    make_tables();
    const int chosen = wanted < 0 || wanted > best ? best : wanted;
    atomic_store(&instructions, chosen);
    return chosen;
}

static AddRow add_row_of(int64_t unit) {
    int set = atomic_load(&instructions);
    if (set < 0) set = halofeed_instructions(-1); /* several threads write the same bytes */
    static const AddRow plain[] = {0, add_bytes, add_words, add_colors, add_halves};
#if HAS_SSE
    static const AddRow avx2[] = {0, add_bytes_avx2, add_words_avx2, add_colors_avx2, add_halves_avx2};
    static const AddRow vbmi[] = {0, add_bytes_vbmi, add_words_vbmi, add_colors_vbmi, add_halves_vbmi};
    const AddRow *const of_set = set == 2 ? vbmi : set == 1 ? avx2 : plain;
#elif defined(__aarch64__)
    static const AddRow neon[] = {0, add_bytes_neon, add_words_neon, add_colors_neon, add_halves_neon};
    const AddRow *const of_set = set ? neon : plain;
#else
    const AddRow *const of_set = plain;
#endif
    return of_set[unit];
}

/* Reading bands. ------------------------------------------------------------------------------------------------------- */

#define EACH_BYTE 0x0101010101010101u
#define EACH_HALF 0x1111111111111111u

/* The sum of the numbers of bits of `count` groups, whose first code is number `first`; negative if a code is wrong. */
static int64_t sum_widths(const uint8_t *widths, int64_t first, int64_t count, int are_words) {
    int64_t sum = 0, longest = 0;
    for (; count && first & 1; first++, count--) {
        const int64_t code = code_at(widths, first);
        sum += are_words ? width_of(code) : code;
        longest |= code > 8;
    }
    const uint8_t *at = widths + (first >> 1);
    uint64_t wrong = 0;
    for (; count >= 16; count -= 16, at += 8) {
        const uint64_t codes = read_u64(at), halves = EACH_BYTE * 15;
        sum += (int64_t)(((codes & halves) + (codes >> 4 & halves)) * EACH_BYTE >> 56);
        if (are_words) {
            uint64_t full = codes & codes >> 1 & codes >> 2 & codes >> 3 & EACH_HALF; /* codes of 15 */
            full = (full & EACH_BYTE) + (full >> 4 & EACH_BYTE);
            sum += (int64_t)(full * EACH_BYTE >> 56);
        }
        wrong |= codes & ((codes & EACH_HALF * 7) + EACH_HALF * 7) & EACH_HALF * 8; /* codes above 8 */
    }
    for (int64_t number = 0; number < count; number++) {
        const int64_t code = code_at(at, number);
        sum += are_words ? width_of(code) : code;
        longest |= code > 8;
    }
    return !are_words && (wrong || longest) ? -1 : sum;
}

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
    int backwards, streams;
    int64_t held; /* bytes of rows in `strip`, which go before `target` */
    int64_t strip_rows;
} Rows;

static void flush(Rows *rows) {
    if (rows->held) stream(rows->target - rows->held, rows->strip, rows->held);
    rows->held = 0;
}

static void put_row(Rows *rows) {
    const uint8_t *shown = rows->line + rows->offset;
    uint8_t *out = rows->strip_rows ? rows->strip + rows->held : rows->target;
    if (rows->backwards)
        mirror(out, shown, rows->bytes / rows->layout->pixel, rows->layout->pixel);
    else if (rows->streams && !rows->strip_rows)
        stream(out, shown, rows->bytes);
    else
        memcpy(out, shown, rows->bytes);
    rows->target += rows->stride;
    if (rows->strip_rows) {
        rows->held += rows->bytes;
        if (rows->held + rows->bytes > STRIP) flush(rows);
    }
}

static int unpack_raw(Rows *rows, const uint8_t *band, const uint8_t *end) {
    if (end - band != rows->rows * rows->sizes->row) return 0;
    const int64_t start = rows->group * UNITS * rows->layout->unit;
    for (int64_t row = rows->first; row < rows->last; row++) {
        memcpy(rows->line + rows->offset, band + row * rows->sizes->row + start + rows->offset, rows->bytes);
        put_row(rows);
    }
    return 1;
}

static int unpack_groups(Rows *rows, const uint8_t *band, const uint8_t *end) {
    const Sizes *sizes = rows->sizes;
    const int64_t unit = rows->layout->unit, codes = sizes->groups * sizes->parts;
    const int are_words = unit == 2 || unit == 4;
    const uint8_t *widths = band + sizes->groups * unit, *data = widths + rows->rows * sizes->widths;
    if (end - band < sizes->groups * unit + rows->rows * sizes->widths) return 0;
    int64_t sum = 0;
    for (int64_t row = 0; row < rows->rows; row++) {
        const uint8_t *of_row = widths + row * sizes->widths;
        const int64_t found = sum_widths(of_row, 0, codes, are_words);
        if (found < 0 || (codes & 1 && of_row[codes >> 1] >> 4)) return 0;
        sum += found;
    }
    if (end - data != 2 * sum) return 0;
    /* The row above the first one has one value in each group. */
    uint8_t *at = rows->line;
    for (const uint8_t *base = band + rows->group * unit; at < rows->line + rows->groups * UNITS * unit; base += unit)
        for (int64_t place = 0; place < UNITS; place++, at += unit)
            for (int64_t byte = 0; byte < unit; byte++) at[byte] = base[byte];
    const AddRow add = add_row_of(unit);
    const int64_t before = rows->group * sizes->parts, inside = rows->groups * sizes->parts;
    const int64_t after = codes - before - inside;
    for (int64_t row = 0; row < rows->last; row++, widths += sizes->widths) {
        if (before) data += 2 * sum_widths(widths, 0, before, are_words);
        data = add(rows->line, widths, before, rows->groups, data);
        if (after) data += 2 * sum_widths(widths, before + inside, after, are_words);
        if (row >= rows->first) put_row(rows);
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
        if (row >= rows->first && row < rows->last) put_row(rows);
    }
    return band == end;
}

/* Unpacks the rows of one band; 0 if it is damaged. */
static int unpack_band(Rows *rows, const uint8_t *band, const uint8_t *end) {
    int done = 0;
    if (band[0] == RAW) done = unpack_raw(rows, band + 1, end);
    if (band[0] == GROUPS) done = unpack_groups(rows, band + 1, end);
    if (band[0] == PATCHES) done = unpack_patches(rows, band + 1, end);
    return done;
}

/* Where a band is in its value; 0 if that is outside, or its checksum is wrong. */
static int find_band(const Unpack *unpack, const Sizes *sizes, int64_t number, Extend extend, const uint8_t **band,
                     const uint8_t **end) {
    const uint8_t *value = (const uint8_t *)unpack->value, *entry = value + HEAD + ENTRY * number;
    const int64_t begin = number ? read_u32(entry - ENTRY) : sizes->table, stop = read_u32(entry);
    if (begin < sizes->table || stop <= begin || stop > unpack->size - SLACK) return 0;
    *band = value + begin, *end = value + stop;
    if (!unpack->flags) return 1;
    uint8_t *flags = unpack->flags == 1 ? 0 : (uint8_t *)unpack->flags;
    if (flags && flags[number]) return 1;
    if (extend(0, *band, (size_t)(stop - begin)) != read_u32(entry + 4)) return 0;
    if (flags) flags[number] = 1;
    return 1;
}

static int is_table(const Unpack *unpack, const Sizes *sizes, Extend extend) {
    const uint8_t *value = (const uint8_t *)unpack->value;
    if (unpack->size < sizes->table + SLACK || read_u32(value) != VERSION) return 0;
    return !unpack->flags || extend(0, value + HEAD, (size_t)(sizes->table - HEAD)) == read_u32(value + 4);
}

/* Bytes of memory that a window needs. */
static int64_t memory_of(const Unpack *unpack) {
    const Layout *layout = (const Layout *)unpack->layout;
    return unpack->shape[2] * layout->pixel + 3 * UNITS * layout->unit + STRIP + 2 * LINE;
}

static int unpack_window(const Unpack *unpack, uint8_t *memory, int streams, Extend extend) {
    const Layout *layout = (const Layout *)unpack->layout;
    const Sizes sizes = sizes_of(layout);
    if (!is_table(unpack, &sizes, extend)) return 0;
    const int64_t *start = unpack->start, *shape = unpack->shape, *stride = unpack->target_stride;
    if (!shape[0] || !shape[1] || !shape[2]) return 1;
    const int64_t group_bytes = UNITS * layout->unit, low = start[2] * layout->pixel, bytes = shape[2] * layout->pixel;
    Rows rows = {.layout = layout, .sizes = &sizes, .bytes = bytes, .streams = streams};
    rows.group = low / group_bytes;
    rows.groups = (low + bytes + group_bytes - 1) / group_bytes - rows.group;
    rows.offset = low - rows.group * group_bytes;
    rows.strip = memory + (-(intptr_t)memory & (LINE - 1)), rows.line = rows.strip + STRIP;
    rows.backwards = (int)unpack->backwards[2];
    const int upwards = (int)unpack->backwards[1];
    rows.stride = upwards ? -stride[1] : stride[1];
    rows.strip_rows = streams && stride[1] == bytes && !upwards && 2 * bytes <= STRIP;
    for (int64_t plane = 0; plane < shape[0]; plane++) {
        const int64_t seen = unpack->backwards[0] ? shape[0] - 1 - plane : plane, stop = start[1] + shape[1];
        rows.target = (uint8_t *)unpack->target + seen * stride[0] + (upwards ? (shape[1] - 1) * stride[1] : 0);
        for (int64_t place = start[1] / ROWS; place * ROWS < stop; place++) {
            const uint8_t *band, *end;
            const int64_t number = (start[0] + plane) * sizes.bands_of_plane + place, first = place * ROWS;
            rows.rows = layout->height - first < ROWS ? layout->height - first : ROWS;
            rows.first = start[1] > first ? start[1] - first : 0;
            rows.last = stop - first < rows.rows ? stop - first : rows.rows;
            if (!find_band(unpack, &sizes, number, extend, &band, &end) || !unpack_band(&rows, band, end)) return 0;
        }
        flush(&rows);
    }
#if HAS_SSE
    _mm_sfence();
#endif
    return 1;
}

static int is_framed(const Unpack *unpack) {
    const uint8_t *header = (const uint8_t *)unpack->header, *footer = (const uint8_t *)unpack->footer;
    return read_u64(header) == (uint64_t)unpack->length && read_u32(footer) == (uint32_t)unpack->checksum &&
           (unpack->length_checksum < 0 || read_u32(header + 8) == (uint32_t)unpack->length_checksum);
}

/* Unpacks the windows of a table from `next` on; any number of threads may call it at the same time. */
void halofeed_unpack(Unpack *unpacks, int64_t count, _Atomic int64_t *next, int streams, Extend extend) {
    int64_t size = 0;
    for (int64_t at = 0; at < count; at++) {
        const int64_t needed = memory_of(&unpacks[at]);
        if (needed > size) size = needed;
    }
    uint8_t *memory = malloc((size_t)size + 1);
    if (!memory) return; /* the windows are left, and the caller unpacks them otherwise */
    for (int64_t at; (at = atomic_fetch_add(next, 1)) < count;) {
        Unpack *unpack = &unpacks[at];
        if (unpack->header && !is_framed(unpack)) continue;
        unpack->done = unpack_window(unpack, memory, streams, extend);
    }
    free(memory);
}

/* Packing. ------------------------------------------------------------------------------------------------------------- */

/* A band while it is packed: the differences of one row, part by part, and where codes and data go. */
typedef struct {
    const Layout *layout;
    const Sizes *sizes;
    uint8_t *deltas; /* 8 or 16 bits [part, groups * 16] */
    uint8_t *above;  /* the row above, with whole groups */
    uint8_t *current;
} Packing;

static inline int64_t bits_of_bytes(uint64_t a, uint64_t b) {
    const uint64_t any = a | b;
    if (!any) return 0;
    const uint64_t negative_a = (a >> 7 & EACH_BYTE) * 255, negative_b = (b >> 7 & EACH_BYTE) * 255;
    uint64_t found = (a ^ negative_a) | (b ^ negative_b);
    found |= found >> 32, found |= found >> 16, found |= found >> 8;
    const uint32_t largest = (uint32_t)(found & 255);
    return 1 + (largest ? 32 - __builtin_clz(largest) : 0);
}

#define EACH_WORD 0x0001000100010001u

static inline int64_t bits_of_words(const uint64_t *words) {
    uint64_t any = 0, found = 0;
    for (int at = 0; at < 4; at++) {
        any |= words[at];
        found |= words[at] ^ (words[at] >> 15 & EACH_WORD) * 65535;
    }
    if (!any) return 0;
    found |= found >> 32, found |= found >> 16;
    const uint32_t largest = (uint32_t)(found & 65535);
    const int64_t bits = 1 + (largest ? 32 - __builtin_clz(largest) : 0);
    return bits == 15 ? 16 : bits;
}

static inline void write_code(uint8_t *codes, int64_t number, int64_t bits) {
    const uint8_t code = (uint8_t)(bits < 15 ? bits : 15);
    if (number & 1)
        codes[number >> 1] |= (uint8_t)(code << 4);
    else
        codes[number >> 1] = code;
}

/* The bytes of a unit's parts, repeated to whole groups. */
static void load_row(const Packing *packing, const uint8_t *row) {
    const int64_t unit = packing->layout->unit, filled = packing->sizes->groups * UNITS * unit;
    memcpy(packing->current, row, packing->sizes->row);
    for (int64_t at = packing->sizes->row; at < filled; at++) packing->current[at] = packing->current[at - unit];
}

/* Writes the bases, and the row above the first row that they are. */
static void pack_bases(const Packing *packing, uint8_t *bases) {
    const int64_t unit = packing->layout->unit, groups = packing->sizes->groups;
    const int64_t step = unit == 3 ? 1 : unit == 1 ? 1 : 2, many = unit / step;
    for (int64_t group = 0; group < groups; group++)
        for (int64_t part = 0; part < many; part++) {
            uint32_t least = 65535, most = 0;
            for (int64_t place = 0; place < UNITS; place++) {
                uint16_t value = 0;
                memcpy(&value, packing->current + (group * UNITS + place) * unit + part * step, step);
                if (value < least) least = value;
                if (value > most) most = value;
            }
            const uint16_t base = (uint16_t)((least + most + 1) >> 1);
            memcpy(bases + group * unit + part * step, &base, step);
            for (int64_t place = 0; place < UNITS; place++)
                memcpy(packing->above + (group * UNITS + place) * unit + part * step, &base, step);
        }
}

#define DEFINE_PACK(SET, FEATURES, SQUEEZE)                                                                            \
    FEATURES static void find_deltas_##SET(const Packing *packing) {                                                   \
        const int64_t count = packing->sizes->groups * UNITS;                                                          \
        uint8_t *restrict deltas = packing->deltas, *restrict above = packing->above;                                  \
        const uint8_t *restrict current = packing->current;                                                            \
        const int64_t unit = packing->layout->unit;                                                                    \
        if (unit == 1) {                                                                                               \
            for (int64_t at = 0; at < count; at++) deltas[at] = (uint8_t)(current[at] - above[at]);                    \
        } else if (unit == 3) {                                                                                        \
            for (int64_t at = 0; at < count; at++) {                                                                   \
                const uint8_t green = (uint8_t)(current[3 * at + 1] - above[3 * at + 1]);                              \
                deltas[at] = green;                                                                                    \
                deltas[count + at] = (uint8_t)(current[3 * at] - above[3 * at] - green);                               \
                deltas[2 * count + at] = (uint8_t)(current[3 * at + 2] - above[3 * at + 2] - green);                   \
            }                                                                                                          \
        } else {                                                                                                       \
            const uint16_t *restrict now = (const uint16_t *)current, *restrict before = (const uint16_t *)above;      \
            uint16_t *restrict found = (uint16_t *)deltas;                                                             \
            if (unit == 2)                                                                                             \
                for (int64_t at = 0; at < count; at++) found[at] = (uint16_t)(now[at] - before[at]);                   \
            else                                                                                                       \
                for (int64_t at = 0; at < count; at++) {                                                               \
                    found[at] = (uint16_t)(now[2 * at] - before[2 * at]);                                              \
                    found[count + at] = (uint16_t)(now[2 * at + 1] - before[2 * at + 1]);                              \
                }                                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    FEATURES static uint8_t *pack_row_##SET(const Packing *packing, uint8_t *codes, uint8_t *data) {                   \
        const int64_t groups = packing->sizes->groups, parts = packing->sizes->parts;                                  \
        const int are_words = packing->layout->unit == 2 || packing->layout->unit == 4;                                \
        find_deltas_##SET(packing);                                                                                    \
        for (int64_t group = 0, number = 0; group < groups; group++)                                                   \
            for (int64_t part = 0; part < parts; part++, number++) {                                                   \
                const int64_t place = (part * groups + group) * UNITS;                                                 \
                if (!are_words) {                                                                                      \
                    const uint64_t a = read_u64(packing->deltas + place), b = read_u64(packing->deltas + place + 8);   \
                    const int64_t bits = bits_of_bytes(a, b);                                                          \
                    const uint64_t mask = EACH_BYTE * ((1u << bits) - 1), sign = EACH_BYTE * ((1u << bits) >> 1);      \
                    write_code(codes, number, bits);                                                                   \
                    write_u64(data, SQUEEZE((a ^ sign) & mask, bits, mask));                                           \
                    write_u64(data + bits, SQUEEZE((b ^ sign) & mask, bits, mask));                                    \
                    data += 2 * bits;                                                                                  \
                    continue;                                                                                          \
                }                                                                                                      \
                uint64_t words[4], low[2], high[2];                                                                    \
                memcpy(words, packing->deltas + 2 * place, sizeof words);                                              \
                const int64_t bits = bits_of_words(words), low_bits = bits < 8 ? bits : 8;                             \
                const uint64_t mask = EACH_WORD * ((1u << bits) - 1), sign = EACH_WORD * ((1u << bits) >> 1);          \
                for (int at = 0; at < 4; at++) words[at] = (words[at] ^ sign) & mask;                                  \
                for (int at = 0; at < 2; at++) {                                                                       \
                    low[at] = even_bytes(words[2 * at]) | even_bytes(words[2 * at + 1]) << 32;                         \
                    high[at] = even_bytes(words[2 * at] >> 8) | even_bytes(words[2 * at + 1] >> 8) << 32;              \
                }                                                                                                      \
                write_code(codes, number, bits);                                                                       \
                for (int at = 0; at < 2; at++)                                                                         \
                    write_u64(data + at * low_bits,                                                                    \
                              SQUEEZE(low[at], low_bits, EACH_BYTE * ((1u << low_bits) - 1)));                         \
                data += 2 * low_bits;                                                                                  \
                for (int at = 0; at < 2; at++)                                                                         \
                    write_u64(data + at * (bits - low_bits),                                                           \
                              SQUEEZE(high[at], bits - low_bits, EACH_BYTE * ((1u << (bits - low_bits)) - 1)));        \
                data += 2 * (bits - low_bits);                                                                         \
            }                                                                                                          \
        return data;                                                                                                   \
    }

/* The even bytes of a number, the lowest first, in its lower half. */
static inline uint64_t even_bytes(uint64_t words) {
    words &= 0x00ff00ff00ff00ffu;
    words = (words | words >> 8) & 0x0000ffff0000ffffu;
    return (words | words >> 16) & 0xffffffffu;
}

#define SQUEEZE_PLAIN(bytes, bits, mask) squeeze(bytes, bits)
DEFINE_PACK(plain, , SQUEEZE_PLAIN)
#if HAS_SSE
#define SQUEEZE_BMI2(bytes, bits, mask) _pext_u64(bytes, mask)
DEFINE_PACK(bmi2, FOR("avx2,bmi2"), SQUEEZE_BMI2)
#endif

/* Packs the rows of a band in groups, and returns the end of its bytes. */
static uint8_t *pack_groups(const Packing *packing, const uint8_t *source, int64_t rows, uint8_t *out) {
    const Sizes *sizes = packing->sizes;
    uint8_t *codes = out + sizes->groups * packing->layout->unit, *data = codes + rows * sizes->widths;
    uint8_t *(*pack_row)(const Packing *, uint8_t *, uint8_t *) = pack_row_plain;
#if HAS_SSE
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) pack_row = pack_row_bmi2;
#endif
    Packing now = *packing;
    for (int64_t row = 0; row < rows; row++, codes += sizes->widths) {
        load_row(&now, source + row * sizes->row);
        if (!row) pack_bases(&now, out);
        codes[sizes->widths - 1] = 0;
        data = pack_row(&now, codes, data);
        uint8_t *above = now.above;
        now.above = now.current, now.current = above;
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
    memset(packing->above, 0, sizes->row);
    const uint8_t *above = packing->above;
    for (int64_t row = 0; row < rows; row++, source += sizes->row) {
        out = pack_patches_of(source, above, sizes->units, packing->layout->unit, out, size - (out - begin));
        if (!out || out - begin >= size) return 0;
        above = source;
    }
    return out;
}

/* Bytes of memory beside the value that a layout's packing needs. */
static int64_t packing_memory(const Sizes *sizes, int64_t unit) {
    const int64_t row = sizes->groups * UNITS * unit, band = ROWS * (row + sizes->widths) + sizes->groups * unit;
    return 3 * (row + 2 * LINE) + 2 * (band + 64);
}

/* Packs an array into `target`, which has room for the layout's `max_bytes`. Returns the value's size, 0 without memory. */
int64_t halofeed_pack(const Layout *layout, const uint8_t *source, uint8_t *target, int tries_patches, Extend extend) {
    const Sizes sizes = sizes_of(layout);
    const int64_t row = sizes.groups * UNITS * layout->unit;
    uint8_t *memory = malloc((size_t)packing_memory(&sizes, layout->unit));
    if (!memory) return 0;
    Packing packing = {.layout = layout, .sizes = &sizes, .deltas = memory, .above = memory + row + LINE};
    packing.current = packing.above + row + LINE;
    uint8_t *const groups = packing.current + row + LINE;
    uint8_t *const patches = groups + ROWS * (row + sizes.widths) + sizes.groups * layout->unit + 64;
    uint8_t *out = target + sizes.table, *entry = target + HEAD;
    for (int64_t band = 0; band < sizes.bands; band++, entry += ENTRY) {
        const int64_t place = band % sizes.bands_of_plane * ROWS;
        const int64_t rows = layout->height - place < ROWS ? layout->height - place : ROWS;
        uint8_t *const begin = out;
        const uint8_t *best = source;
        int64_t size = rows * sizes.row;
        *out++ = RAW;
        uint8_t *end = pack_groups(&packing, source, rows, groups);
        if (end - groups < size) *begin = GROUPS, best = groups, size = end - groups;
        if (tries_patches && (end = pack_patches(&packing, source, rows, patches, size)))
            *begin = PATCHES, best = patches, size = end - patches;
        memcpy(out, best, size);
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
