/* Copies of rows of pixels: past the cache, and mirrored; and rows that are expected in the cache. */

#ifndef HALOFEED_COPYING_H
#define HALOFEED_COPYING_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_SSE 1
#else
#define HAS_SSE 0
#endif

#define LINE 64

/* Prefetches a row, because the processor's own prefetching ends with each row. */
static inline void expect_row(const uint8_t *first, int64_t size) {
#if HAS_SSE
    for (int64_t at = -((intptr_t)first & (LINE - 1)); at < size; at += LINE)
        _mm_prefetch((const char *)first + at, _MM_HINT_T0);
#else
    (void)first, (void)size;
#endif
}

/* Copies past the cache. So the target is not read first, which would be a third of a copy's traffic. */
static inline void stream(uint8_t *target, const uint8_t *source, int64_t size) {
#if HAS_SSE
    int64_t head = -(intptr_t)target & (LINE - 1);
    if (head > size) head = size;
    memcpy(target, source, head);
    target += head, source += head, size -= head;
    for (; size >= LINE; size -= LINE, target += LINE, source += LINE) {
        _mm_prefetch((const char *)source + 16 * LINE, _MM_HINT_T0);
        const __m128i a = _mm_loadu_si128((const __m128i *)source), b = _mm_loadu_si128((const __m128i *)source + 1),
                      c = _mm_loadu_si128((const __m128i *)source + 2), d = _mm_loadu_si128((const __m128i *)source + 3);
        _mm_stream_si128((__m128i *)target, a);
        _mm_stream_si128((__m128i *)target + 1, b);
        _mm_stream_si128((__m128i *)target + 2, c);
        _mm_stream_si128((__m128i *)target + 3, d);
    }
#endif
    memcpy(target, source, size);
}

#if HAS_SSE
/* Mirrors as many pixels per shuffle as 16 bytes hold. The source is read forwards, as processors prefetch. Returns the
   count of pixels left at the source's end, and so at the target's start. */
__attribute__((target("ssse3"), always_inline)) static inline int64_t mirror_shuffled(
    uint8_t *target, const uint8_t *source, int64_t count, const int64_t pixel) {
    const int64_t each = 16 / pixel, bytes = each * pixel;
    uint8_t order[16];
    for (int64_t at = 0; at < 16; at++) {
        const int64_t byte = at - (16 - bytes);
        order[at] = byte < 0 ? 0x80 : (uint8_t)((each - 1 - byte / pixel) * pixel + byte % pixel);
    }
    const __m128i shuffle = _mm_loadu_si128((const __m128i *)order);
    /* A store may write bytes before its pixels, which the next one overwrites, but never before the row. */
    for (; count * pixel >= 16; count -= each, source += bytes) {
        const __m128i found = _mm_loadu_si128((const __m128i *)source);
        _mm_storeu_si128((__m128i *)(target + count * pixel - 16), _mm_shuffle_epi8(found, shuffle));
    }
    return count;
}

__attribute__((target("ssse3"))) static inline int64_t mirror_by_size(uint8_t *target, const uint8_t *source, int64_t count,
                                                               int64_t pixel) {
    switch (pixel) {
        case 1: return mirror_shuffled(target, source, count, 1);
        case 2: return mirror_shuffled(target, source, count, 2);
        case 3: return mirror_shuffled(target, source, count, 3);
        case 4: return mirror_shuffled(target, source, count, 4);
        case 6: return mirror_shuffled(target, source, count, 6);
        case 8: return mirror_shuffled(target, source, count, 8);
        default: return pixel <= 16 ? mirror_shuffled(target, source, count, pixel) : count;
    }
}
#endif

/* Copies `count` pixels in reverse order. */
static inline void mirror(uint8_t *target, const uint8_t *source, int64_t count, int64_t pixel) {
#if HAS_SSE
    if (__builtin_cpu_supports("ssse3")) {
        const int64_t left = mirror_by_size(target, source, count, pixel);
        source += (count - left) * pixel, count = left;
    }
#endif
    for (; count; target += pixel) memcpy(target, source + --count * pixel, pixel);
}

#endif
