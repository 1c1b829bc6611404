/* Sums from which prep/convert/record_measures.py computes the sharpness, the roughness and the entropy of a picture. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "copying.h"

#define INLINE static inline __attribute__((always_inline))
#define AT_ONCE 32768 /* squares of differences of bytes whose sum has 32 bits */

/* Sums the squares of the differences of bytes that are `apart` bytes apart. */
INLINE int64_t sum_bytes(const uint8_t *row, int64_t count, int64_t apart) {
    int64_t sum = 0;
    for (int64_t begin = 0; begin < count; begin += AT_ONCE) {
        const int64_t end = count - begin < AT_ONCE ? count : begin + AT_ONCE;
        uint32_t some = 0;
        for (int64_t at = begin; at < end; at++) {
            const int16_t difference = (int16_t)(row[at + apart] - row[at]);
            some += (uint32_t)(difference * difference);
        }
        sum += some;
    }
    return sum;
}

/* The same of numbers of 16 bits at any address. */
INLINE int64_t sum_halves(const uint8_t *row, int64_t count, int64_t apart) {
    int64_t sum = 0;
    for (int64_t at = 0; at < count; at++) {
        uint16_t first, second;
        memcpy(&first, row + 2 * at, sizeof first);
        memcpy(&second, row + 2 * (at + apart), sizeof second);
        const int64_t difference = (int64_t)second - first;
        sum += difference * difference;
    }
    return sum;
}

INLINE void sum_rows(const uint8_t *first, int64_t rows, int64_t stride, int64_t numbers, int64_t item, int64_t near,
                     int64_t far, int64_t *sums) {
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *const at = first + row * stride;
        if (row + 1 < rows) expect_row(at + stride, numbers * item);
        sums[0] += item == 1 ? sum_bytes(at, numbers - near, near) : sum_halves(at, numbers - near, near);
        sums[1] += item == 1 ? sum_bytes(at, numbers - far, far) : sum_halves(at, numbers - far, far);
    }
}

static void sum_rows_plain(const uint8_t *first, int64_t rows, int64_t stride, int64_t numbers, int64_t item, int64_t near,
                           int64_t far, int64_t *sums) {
    sum_rows(first, rows, stride, numbers, item, near, far, sums);
}

#if HAS_SSE
__attribute__((target("avx2"))) static void sum_rows_avx2(const uint8_t *first, int64_t rows, int64_t stride,
                                                          int64_t numbers, int64_t item, int64_t near, int64_t far,
                                                          int64_t *sums) {
    sum_rows(first, rows, stride, numbers, item, near, far, sums);
}
#endif

/* halofeed.schemas.native.measuring: rows `stride` bytes apart, each of `numbers` adjacent numbers of `item` bytes, 1 or
   2, without sign; `near` and `far` are numbers too. `counts` is the address of a histogram's `bins`. */
typedef struct {
    int64_t first, rows, stride, numbers, item, near, far;
    int64_t counts, bins;
} Measuring;

/* Sums the squared differences of the numbers that are `near` and `far` apart in the same row; returns the sum of
   n log2 n of the counts n. */
double halofeed_measure(const Measuring *measuring, int64_t *sums) {
    const uint8_t *const first = (const uint8_t *)measuring->first;
    const int64_t *const counts = (const int64_t *)measuring->counts;
    void (*sum)(const uint8_t *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t *) = sum_rows_plain;
#if HAS_SSE
    if (__builtin_cpu_supports("avx2")) sum = sum_rows_avx2;
#endif
    sums[0] = sums[1] = 0;
    sum(first, measuring->rows, measuring->stride, measuring->numbers, measuring->item, measuring->near, measuring->far, sums);
    double found = 0;
    for (int64_t bin = 0; bin < measuring->bins; bin++)
        if (counts[bin] > 1) found += (double)counts[bin] * log2((double)counts[bin]);
    return found;
}
