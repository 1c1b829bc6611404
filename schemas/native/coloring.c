/* Color planes: RGB pictures as luma and chroma of half the height and width, as docs/color-planes.md specifies them.

   A value is the luma [height, width], then pairs of Cb and Cr [height / 2, width / 2]. Integer arithmetic gives the same
   bits on every machine and in halofeed.schemas.color_planes. */

#include <stdatomic.h>
#include <stdlib.h>

#include "checking.h"
#include "copying.h"
#include "interleaving.h"

#if HAS_SSE
#define FOR(features) __attribute__((target(features)))
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Coefficients of ITU-T T.871 (JFIF), section 7, times 2^16. */
#define Y_RED 19595
#define Y_GREEN 38470
#define Y_BLUE 7471
#define CB_RED (-11059)
#define CB_GREEN (-21709)
#define CR_GREEN (-27439)
#define CR_BLUE (-5329)
#define RED_CR 91881
#define GREEN_CB (-22554)
#define GREEN_CR (-46802)
#define BLUE_CB 116130
#define HALF 32768

/* A row of halofeed.schemas.native.coloring.Colorings: a window of a picture, whose first stored pixel is `start`. */
typedef struct {
    int64_t value, height, width;
    int64_t start[2], shape[2], backwards[2];
    int64_t target, target_stride;
    int64_t header, length, length_checksum, footer, checksum; /* as in Move of kernel.c */
    int64_t size, block, checksums, flags;                     /* as in Move, of the value */
    int64_t done;
} Coloring;

int64_t halofeed_coloring_columns(void) { return sizeof(Coloring) / sizeof(int64_t); }

static inline uint8_t clamp(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* Finds what each chroma sample adds to the luma of its four pixels: red, green, blue [count]. */
static inline __attribute__((always_inline)) void find_adds(const uint8_t *restrict chroma, int64_t count,
                                                            int16_t *restrict red, int16_t *restrict green,
                                                            int16_t *restrict blue) {
    for (int64_t at = 0; at < count; at++) {
        const int32_t cb = chroma[2 * at] - 128, cr = chroma[2 * at + 1] - 128;
        red[at] = (int16_t)((RED_CR * cr + HALF) >> 16);
        green[at] = (int16_t)((GREEN_CB * cb + GREEN_CR * cr + HALF) >> 16);
        blue[at] = (int16_t)((BLUE_CB * cb + HALF) >> 16);
    }
}

/* Writes `count` pixels of a row; the first one is at an even column. */
static void color_row_plain(const uint8_t *luma, const int16_t *red, const int16_t *green, const int16_t *blue,
                            int64_t count, uint8_t *out) {
    for (int64_t at = 0; at < count; at++, out += 3) {
        out[0] = clamp(luma[at] + red[at >> 1]);
        out[1] = clamp(luma[at] + green[at >> 1]);
        out[2] = clamp(luma[at] + blue[at >> 1]);
    }
}

typedef void (*ColorRow)(const uint8_t *luma, const int16_t *red, const int16_t *green, const int16_t *blue,
                         int64_t count, uint8_t *out);

static void find_adds_plain(const uint8_t *chroma, int64_t count, int16_t *red, int16_t *green, int16_t *blue) {
    find_adds(chroma, count, red, green, blue);
}

#if HAS_SSE
FOR("avx2") static void find_adds_avx2(const uint8_t *chroma, int64_t count, int16_t *red, int16_t *green, int16_t *blue) {
    find_adds(chroma, count, red, green, blue);
}

/* Adds 8 sums, each to two pixels, to 16 pixels' luma, and clamps to 0 to 255. */
FOR("avx2") static inline __attribute__((always_inline)) __m128i added(__m128i low, __m128i high, const int16_t *adds) {
    const __m128i sums = _mm_loadu_si128((const __m128i *)adds);
    return _mm_packus_epi16(_mm_add_epi16(low, _mm_unpacklo_epi16(sums, sums)),
                            _mm_add_epi16(high, _mm_unpackhi_epi16(sums, sums)));
}

FOR("avx2") static void color_row_avx2(const uint8_t *luma, const int16_t *red, const int16_t *green, const int16_t *blue,
                                       int64_t count, uint8_t *out) {
    int64_t at = 0;
    for (; at + 16 <= count; at += 16, out += 48) {
        const __m128i found = _mm_loadu_si128((const __m128i *)(luma + at)), zero = _mm_setzero_si128();
        const __m128i low = _mm_unpacklo_epi8(found, zero), high = _mm_unpackhi_epi8(found, zero);
        const Interleaved colors = interleave(added(low, high, red + (at >> 1)), added(low, high, green + (at >> 1)),
                                              added(low, high, blue + (at >> 1)));
        for (int third = 0; third < 3; third++) _mm_storeu_si128((__m128i *)out + third, colors.of[third]);
    }
    color_row_plain(luma + at, red + (at >> 1), green + (at >> 1), blue + (at >> 1), count - at, out);
}
#endif

#if defined(__aarch64__)
static inline uint8x16_t added(uint8x16_t luma, const int16_t *adds) {
    const int16x8_t sums = vld1q_s16(adds);
    const int16x8_t low = vaddq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(luma))), vzip1q_s16(sums, sums));
    const int16x8_t high = vaddq_s16(vreinterpretq_s16_u16(vmovl_high_u8(luma)), vzip2q_s16(sums, sums));
    return vcombine_u8(vqmovun_s16(low), vqmovun_s16(high));
}

static void color_row_neon(const uint8_t *luma, const int16_t *red, const int16_t *green, const int16_t *blue,
                           int64_t count, uint8_t *out) {
    int64_t at = 0;
    for (; at + 16 <= count; at += 16, out += 48) {
        const uint8x16_t found = vld1q_u8(luma + at);
        const uint8x16x3_t colors = {{added(found, red + (at >> 1)), added(found, green + (at >> 1)),
                                      added(found, blue + (at >> 1))}};
        vst3q_u8(out, colors);
    }
    color_row_plain(luma + at, red + (at >> 1), green + (at >> 1), blue + (at >> 1), count - at, out);
}
#endif

/* Bytes of memory that a window needs: three rows of sums, and a row of colors from an even column on. */
static int64_t memory_of(const Coloring *coloring) {
    const int64_t width = coloring->shape[1] + 2 * LINE;
    return 3 * width * (int64_t)sizeof(int16_t) + 3 * width + 5 * LINE;
}

static void color_window(const Coloring *coloring, uint8_t *memory, int streams) {
    ColorRow color_row = color_row_plain;
    void (*adds)(const uint8_t *, int64_t, int16_t *, int16_t *, int16_t *) = find_adds_plain;
#if HAS_SSE
    if (__builtin_cpu_supports("avx2")) color_row = color_row_avx2, adds = find_adds_avx2;
#elif defined(__aarch64__)
    color_row = color_row_neon;
#endif
    const int64_t top = coloring->start[0], left = coloring->start[1] & ~(int64_t)1, skipped = coloring->start[1] - left;
    const int64_t height = coloring->shape[0], width = coloring->shape[1], count = width + skipped;
    if (!height || !width) return;
    const int64_t step = (coloring->shape[1] / LINE + 2) * LINE;
    uint8_t *const row = memory + (-(intptr_t)memory & (LINE - 1));
    int16_t *const red = (int16_t *)(row + 3 * step), *const green = red + step, *const blue = green + step;
    const uint8_t *const luma = (const uint8_t *)coloring->value, *const chroma = luma + coloring->height * coloring->width;
    uint8_t *target = (uint8_t *)coloring->target + (coloring->backwards[0] ? (height - 1) * coloring->target_stride : 0);
    const int64_t stride = coloring->backwards[0] ? -coloring->target_stride : coloring->target_stride;
    for (int64_t line = top; line < top + height; line++, target += stride) {
        if (line == top || !(line & 1))
            adds(chroma + (line >> 1) * coloring->width + left, (count + 1) / 2, red, green, blue);
        color_row(luma + line * coloring->width + left, red, green, blue, count, row);
        if (coloring->backwards[1])
            mirror(target, row + 3 * skipped, width, 3);
        else if (streams)
            stream(target, row + 3 * skipped, 3 * width);
        else
            memcpy(target, row + 3 * skipped, 3 * width);
    }
#if HAS_SSE
    _mm_sfence();
#endif
}

/* Verifies the rows of both planes that a window shows. */
static int verify_rows(const Coloring *coloring, Extend extend) {
    if (!coloring->flags || !coloring->shape[0] || !coloring->shape[1]) return 1;
    const int64_t low = coloring->start[0], high = low + coloring->shape[0], width = coloring->width;
    const int64_t chroma = coloring->height * width;
    const Blocks blocks = {coloring->value, coloring->size, coloring->block, coloring->checksums, coloring->flags};
    return verify_blocks(&blocks, low * width, high * width, extend) &&
           verify_blocks(&blocks, chroma + (low >> 1) * width, chroma + ((high + 1) >> 1) * width, extend);
}

/* Colors the windows of a table from `next` on; any number of threads may call it at the same time. */
void halofeed_color(Coloring *colorings, int64_t count, _Atomic int64_t *next, int streams, Extend extend) {
    int64_t size = 0;
    for (int64_t at = 0; at < count; at++) {
        const int64_t needed = memory_of(&colorings[at]);
        if (needed > size) size = needed;
    }
    uint8_t *memory = malloc((size_t)size + 1);
    if (!memory) return; /* the windows are left, and the caller colors them otherwise */
    for (int64_t at; (at = atomic_fetch_add(next, 1)) < count;) {
        Coloring *coloring = &colorings[at];
        if (coloring->header && !is_framed(coloring->header, coloring->footer, coloring->length, coloring->length_checksum,
                                           coloring->checksum))
            continue;
        if (!verify_rows(coloring, extend)) continue;
        color_window(coloring, memory, streams);
        coloring->done = 1;
    }
    free(memory);
}

/* Writes the planes of two rows of pixels; `parts` has room for 3 rows of `width` numbers. */
static inline __attribute__((always_inline)) void split_rows(const uint8_t *restrict pixels, int64_t width,
                                                             uint8_t *restrict luma, uint8_t *restrict chroma,
                                                             int32_t *restrict parts) {
    int32_t *restrict red = parts, *restrict green = parts + width, *restrict blue = parts + 2 * width;
    for (int64_t line = 0; line < 2; line++)
        for (int64_t at = 0; at < width; at++) {
            const uint8_t *pixel = pixels + 3 * (line * width + at);
            const int32_t r = pixel[0], g = pixel[1], b = pixel[2];
            luma[line * width + at] = (uint8_t)((Y_RED * r + Y_GREEN * g + Y_BLUE * b + HALF) >> 16);
            red[at] = line ? red[at] + r : r, green[at] = line ? green[at] + g : g, blue[at] = line ? blue[at] + b : b;
        }
    for (int64_t at = 0; at < width / 2; at++) {
        const int32_t r = red[2 * at] + red[2 * at + 1], g = green[2 * at] + green[2 * at + 1],
                      b = blue[2 * at] + blue[2 * at + 1];
        /* Four pixels: the mean is a shift by two bits more. 128 and a half are added before. */
        const int32_t offset = (128 << 18) + (1 << 17);
        chroma[2 * at] = clamp((CB_RED * r + CB_GREEN * g + HALF * b + offset) >> 18);
        chroma[2 * at + 1] = clamp((HALF * r + CR_GREEN * g + CR_BLUE * b + offset) >> 18);
    }
}

static void split_rows_plain(const uint8_t *pixels, int64_t width, uint8_t *luma, uint8_t *chroma, int32_t *parts) {
    split_rows(pixels, width, luma, chroma, parts);
}

#if HAS_SSE
FOR("avx2") static void split_rows_avx2(const uint8_t *pixels, int64_t width, uint8_t *luma, uint8_t *chroma, int32_t *parts) {
    split_rows(pixels, width, luma, chroma, parts);
}
#endif

/* Writes the planes of RGB pixels [height, width, 3]; returns 0 without memory. */
int halofeed_split_colors(const uint8_t *pixels, int64_t height, int64_t width, uint8_t *planes) {
    void (*split)(const uint8_t *, int64_t, uint8_t *, uint8_t *, int32_t *) = split_rows_plain;
#if HAS_SSE
    if (__builtin_cpu_supports("avx2")) split = split_rows_avx2;
#endif
    int32_t *parts = malloc((size_t)(3 * width) * sizeof(int32_t) + 1);
    if (!parts) return 0;
    uint8_t *luma = planes, *chroma = planes + height * width;
    for (int64_t line = 0; line < height; line += 2, pixels += 6 * width, luma += 2 * width, chroma += width)
        split(pixels, width, luma, chroma, parts);
    free(parts);
    return 1;
}
