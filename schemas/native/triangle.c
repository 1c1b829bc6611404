/* Shrinking of pictures of three colors of 8 bits with the triangle filter of Pillow (src/libImaging/Resample.c), with
   the same integers, so the same result: 22 bits of each weight, a rounded picture between the passes along rows and
   along columns.

   A weight is divided into 11 high and 11 low bits, because AVX2 multiplies 16 pairs of 16-bit numbers in the time of 4
   products of 32 bits. Both sums are exact. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "copying.h"

/* halofeed.schemas.native.shrinking.shrink; strides and box in bytes and pixels */
typedef struct {
    int64_t source, source_stride, height, width;
    int64_t target, target_stride, out_height, out_width;
} Shrink;

/* 1: done; 0: no memory, or a processor without AVX2; nothing is written then. */
int halofeed_shrink(const Shrink *shrink, const float *box);

#if HAS_SSE

#define COLORS 3
#define PRECISION 22
#define HALF 11
#define TAPS 4 /* of one multiplication along rows */
#define ROWS 4 /* that are filtered at once along rows, so that weights are loaded once */
#define PAD 32 /* bytes after a row that loads and stores may touch */
#define AVX2 __attribute__((target("avx2")))

typedef struct {
    int64_t count, taps; /* of outputs, and of weights per output, a multiple of TAPS */
    int32_t *first;      /* first source pixel of each output */
    int32_t *used;       /* weights of each output that are not padding */
    int16_t *low, *high; /* bits of weights [output, tap] */
} Filter;

static void free_filter(Filter *filter)
{
    free(filter->first);
    free(filter->used);
    free(filter->low);
    free(filter->high);
}

/* `precompute_coeffs` and `normalize_coeffs_8bpc` of Resample.c, for a part from `low` to `high` of `size` pixels. */
static int make_filter(Filter *filter, int64_t size, float low, float high, int64_t count)
{
    double scale = (double)(high - low) / (double)count, reach = scale < 1 ? 1 : scale;
    int64_t most = (int64_t)ceil(reach) * 2 + 1;
    filter->count = count;
    filter->taps = (most + TAPS - 1) / TAPS * TAPS;
    filter->first = malloc(count * sizeof(int32_t));
    filter->used = malloc(count * sizeof(int32_t));
    filter->low = calloc(count * filter->taps, sizeof(int16_t));
    filter->high = calloc(count * filter->taps, sizeof(int16_t));
    double *weights = malloc(most * sizeof(double));
    int is_made = filter->first && filter->used && filter->low && filter->high && weights;
    for (int64_t out = 0; is_made && out < count; out++) {
        double center = low + (out + 0.5) * scale, total = 0, inverse = 1.0 / reach;
        int64_t begin = (int64_t)(center - reach + 0.5), end = (int64_t)(center + reach + 0.5);
        if (begin < 0) begin = 0;
        if (end > size) end = size;
        for (int64_t tap = 0; tap < end - begin; tap++) {
            double place = fabs((tap + begin - center + 0.5) * inverse);
            weights[tap] = place < 1.0 ? 1.0 - place : 0.0;
            total += weights[tap];
        }
        filter->first[out] = (int32_t)begin;
        filter->used[out] = (int32_t)(end - begin);
        for (int64_t tap = 0; tap < end - begin; tap++) {
            if (total != 0.0) weights[tap] /= total;
            int32_t weight = (int32_t)(0.5 + weights[tap] * (1 << PRECISION));
            filter->low[out * filter->taps + tap] = weight & ((1 << HALF) - 1);
            filter->high[out * filter->taps + tap] = weight >> HALF;
        }
    }
    free(weights);
    return is_made;
}

/* Sums of the low and of the high parts as rounded levels. */
AVX2 static inline __m256i levels(__m256i low, __m256i high)
{
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, HALF), low);
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (PRECISION - 1))), PRECISION);
}

/* Two weights, and in the upper half the next two, for pairs of pixels. */
AVX2 static inline __m256i two_pairs(const int16_t *weights)
{
    int32_t first, second;
    memcpy(&first, weights, 4);
    memcpy(&second, weights + 2, 4);
    return _mm256_inserti128_si256(_mm256_set1_epi32(first), _mm_set1_epi32(second), 1);
}

/* Filter ROWS rows along their pixels. Loads reach 13 bytes behind a row, and stores one byte. */
AVX2 static void filter_rows(const Filter *filter, const uint8_t *const *rows, uint8_t *const *into)
{
    /* Bytes R0 R1, G0 G1, B0 B1 as 16-bit numbers; in the upper half those of pixels 2 and 3. */
    const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
                                           6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    for (int64_t out = 0; out < filter->count; out++) {
        __m256i low[ROWS], high[ROWS];
        for (int row = 0; row < ROWS; row++) low[row] = high[row] = _mm256_setzero_si256();
        for (int64_t tap = 0; tap < filter->used[out]; tap += TAPS) {
            int64_t at = out * filter->taps + tap, byte = (filter->first[out] + tap) * COLORS;
            __m256i low_weights = two_pairs(filter->low + at), high_weights = two_pairs(filter->high + at);
            for (int row = 0; row < ROWS; row++) {
                __m128i loaded = _mm_loadu_si128((const __m128i *)(rows[row] + byte));
                __m256i pixels = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(loaded), pairs);
                low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(pixels, low_weights));
                high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(pixels, high_weights));
            }
        }
        for (int row = 0; row < ROWS; row++) {
            __m128i lows = _mm_add_epi32(_mm256_castsi256_si128(low[row]), _mm256_extracti128_si256(low[row], 1));
            __m128i highs = _mm_add_epi32(_mm256_castsi256_si128(high[row]), _mm256_extracti128_si256(high[row], 1));
            __m128i sum = _mm256_castsi256_si128(levels(_mm256_castsi128_si256(lows), _mm256_castsi128_si256(highs)));
            sum = _mm_packus_epi16(_mm_packus_epi32(sum, sum), sum);
            int32_t pixel = _mm_cvtsi128_si32(sum);
            memcpy(into[row] + out * COLORS, &pixel, 4);
        }
    }
}

/* Filter 16 bytes of rows along columns. */
AVX2 static inline __m128i filter_columns(const uint8_t *first, int64_t stride, int32_t used, const int16_t *low_weights,
                                          const int16_t *high_weights)
{
    __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, high[2] = {low[0], low[0]};
    for (int32_t tap = 0; tap < used; tap += 2) {
        const uint8_t *row = first + tap * stride, *next = tap + 1 < used ? row + stride : row;
        __m128i above = _mm_loadu_si128((const __m128i *)row), below = _mm_loadu_si128((const __m128i *)next);
        int32_t two_low, two_high;
        memcpy(&two_low, low_weights + tap, 4);
        memcpy(&two_high, high_weights + tap, 4);
        __m256i pixels[2] = {_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(above, below)),
                             _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(above, below))};
        for (int half = 0; half < 2; half++) {
            low[half] = _mm256_add_epi32(low[half], _mm256_madd_epi16(pixels[half], _mm256_set1_epi32(two_low)));
            high[half] = _mm256_add_epi32(high[half], _mm256_madd_epi16(pixels[half], _mm256_set1_epi32(two_high)));
        }
    }
    /* Packing works in each half of a register, so the second and third quarters are exchanged. */
    __m256i words = _mm256_packus_epi32(levels(low[0], high[0]), levels(low[1], high[1]));
    words = _mm256_permute4x64_epi64(words, 0xD8);
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static void filter_all_rows(const Shrink *shrink, const Filter *across, int64_t top, int64_t count, uint8_t *between,
                            int64_t pitch, uint8_t *last)
{
    const uint8_t *source = (const uint8_t *)shrink->source;
    /* Bytes behind the last row belong to nobody. */
    memcpy(last, source + (shrink->height - 1) * shrink->source_stride, shrink->width * COLORS);
    for (int64_t row = 0; row < count; row += ROWS) {
        const uint8_t *rows[ROWS];
        uint8_t *into[ROWS];
        for (int64_t one = 0; one < ROWS; one++) {
            int64_t at = row + one < count ? row + one : count - 1;
            rows[one] = top + at == shrink->height - 1 ? last : source + (top + at) * shrink->source_stride;
            into[one] = between + at * pitch;
        }
        filter_rows(across, rows, into);
    }
}

AVX2 static void filter_all_columns(const Shrink *shrink, const Filter *down, int64_t top, const uint8_t *between,
                                    int64_t pitch)
{
    int64_t bytes = shrink->out_width * COLORS;
    for (int64_t out = 0; out < down->count; out++) {
        uint8_t *target = (uint8_t *)shrink->target + out * shrink->target_stride;
        const uint8_t *first = between + (down->first[out] - top) * pitch;
        const int16_t *low = down->low + out * down->taps, *high = down->high + out * down->taps;
        for (int64_t at = 0; at < bytes; at += 16) {
            __m128i done = filter_columns(first + at, pitch, down->used[out], low, high);
            if (at + 16 <= bytes)
                _mm_storeu_si128((__m128i *)(target + at), done);
            else {
                uint8_t rest[16];
                _mm_storeu_si128((__m128i *)rest, done);
                memcpy(target + at, rest, bytes - at);
            }
        }
    }
}

int halofeed_shrink(const Shrink *shrink, const float *box)
{
    if (!__builtin_cpu_supports("avx2")) return 0;
    Filter down = {0}, across = {0};
    uint8_t *between = NULL, *last = NULL;
    int is_done = make_filter(&down, shrink->height, box[0], box[2], shrink->out_height) &&
                  make_filter(&across, shrink->width, box[1], box[3], shrink->out_width);
    if (is_done) {
        int64_t bottom = down.count - 1, top = down.first[0];
        int64_t count = down.first[bottom] + down.used[bottom] - top, pitch = shrink->out_width * COLORS + PAD;
        between = malloc(count * pitch);
        last = calloc(shrink->width * COLORS + PAD, 1);
        is_done = between && last;
        if (is_done) {
            filter_all_rows(shrink, &across, top, count, between, pitch, last);
            filter_all_columns(shrink, &down, top, between, pitch);
        }
    }
    free(between);
    free(last);
    free_filter(&down);
    free_filter(&across);
    return is_done;
}

#else

int halofeed_shrink(const Shrink *shrink, const float *box)
{
    (void)shrink, (void)box;
    return 0;
}

#endif
