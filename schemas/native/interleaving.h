/* Interleaving of red, green and blue bytes with AVX2's shuffles, for packed.c and coloring.c. */

#ifndef HALOFEED_INTERLEAVING_H
#define HALOFEED_INTERLEAVING_H

#include "copying.h"

#if HAS_SSE
typedef struct {
    __m128i of[3];
} Interleaved;

/* Returns 16 pixels, 48 bytes, of 16 bytes of each color. Each result takes its bytes of each color by a shuffle, which
   writes 0 where the place is negative, and unites the three. */
__attribute__((target("avx2"), always_inline)) static inline Interleaved interleave(__m128i red, __m128i green, __m128i blue) {
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
#define UNITED(r, g, b) \
    _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(red, r), _mm_shuffle_epi8(green, g)), _mm_shuffle_epi8(blue, b))
    return (Interleaved){{UNITED(r0, g0, b0), UNITED(r1, g1, b1), UNITED(r2, g2, b2)}};
#undef UNITED
}
#endif

#endif
