/* Decoding of parts of baseline JPEG pictures with restart intervals, with the integers of libjpeg-turbo's accurate
   decoder, so the same pixels: its transform "islow" (jidctint.c), its smooth upsampling of 4:2:0 chroma (jdsample.c,
   h2v2_fancy_upsample) and its conversion of colors (jdcolor.c).

   Huffman decoding waits for each symbol before it can find the next one. Restart intervals are independent, so two of
   them are decoded in turns, symbol by symbol, and one is shifted while the other's table is loaded.

   Input may be damaged. Loads and stores stay within the given memory whatever the data are. Anything that a decoder
   would report ends with 0, and the caller decodes by libjpeg-turbo, which says what is wrong. */

#include <stdlib.h>
#include <string.h>

#include "copying.h"

#define LOOK 11          /* bits of a symbol that one load of a table decodes, with its value */
#define ENTRIES (1 << LOOK)
#define TABLE (2 * ENTRIES + 3 * 18 + 256) /* int32 numbers: entries, symbols with their length, and codes by length */
#define END_RUN 127      /* run of the symbol "end of block", after which no coefficient can follow */
#define SLACK 512        /* bytes behind the data that damaged symbols of one block may reach */
#define MARGIN 32        /* bytes around rows of samples that loads and stores may touch */

/* halofeed.schemas.native.jpeg_decoding; sizes in pixels, in bytes for strides */
typedef struct {
    int64_t file, ends;                    /* bytes, and int64 of the byte at which each interval ends */
    int64_t start;                         /* first byte of the compressed data */
    int64_t height, width, components, is_subsampled;
    int64_t interval;                      /* coded units of an interval, which divide those of a row */
    int64_t top, bottom, left, right;      /* the part to decode */
    int64_t target, target_stride;
    int64_t quantization;                  /* int16 [component, 64], in the order of rows */
    int64_t tables;                        /* int32 [component, 2, TABLE]: of the first and of the other coefficients */
    int64_t memory, memory_size;
} Job;

int64_t halofeed_jpeg_table(const uint8_t *counts, const uint8_t *symbols, int64_t count, int is_first, int32_t *table);
int64_t halofeed_jpeg_memory(const Job *job);
int halofeed_decodes_jpeg(void); /* whether this processor has the instructions */
int halofeed_jpeg(const Job *job); /* 1: done; 0: damaged data, or another processor */

/* Entries of a table: 16 bits of the value, 8 of the run of zeros before it, 8 of the number of bits; 0: a longer code. */
static int32_t entry(int32_t value, int32_t run, int32_t bits) { return (int32_t)((uint32_t)value << 16 | run << 8 | bits); }

/* The value of `size` bits (T.81, F.2.2.1, EXTEND). */
static int32_t extended(int32_t value, int32_t size)
{
    return size && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

static int32_t of_symbol(uint64_t bits, int32_t symbol, int32_t length, int is_first)
{
    int32_t size = is_first ? symbol : symbol & 15, run = is_first ? 0 : symbol >> 4;
    if (!is_first && !size) return entry(0, run == 15 ? 15 : END_RUN, length);
    int32_t value = size ? (int32_t)(bits << length >> (64 - size)) : 0;
    return entry(extended(value, size), run, length + size);
}

/* Write the table of a Huffman code of `counts` [16] and `symbols` (T.81, annex C); return 1, or 0 if it is no code. */
int64_t halofeed_jpeg_table(const uint8_t *counts, const uint8_t *symbols, int64_t count, int is_first, int32_t *table)
{
    int32_t *first = table + 2 * ENTRIES, *above = first + 18, *number = above + 18, *values = number + 18;
    int32_t code = 0, at = 0;
    memset(table, 0, TABLE * sizeof(int32_t));
    for (int length = 1; length <= 16; length++, code <<= 1) {
        first[length] = code;
        number[length] = at;
        for (int one = 0; one < counts[length - 1]; one++, code++, at++) {
            int32_t symbol = at < count ? symbols[at] : 256, size = is_first ? symbol : symbol & 15;
            if (at >= 256 || symbol > 255 || size > (is_first ? 11 : 10) || code >= 1 << length) return 0;
            /* Other symbols without a size belong to progressive pictures. */
            if (!is_first && !size && symbol != 0 && symbol != 0xF0) return 0;
            values[at] = symbol;
            for (int32_t rest = 0; length <= LOOK && rest < 1 << (LOOK - length); rest++) {
                int32_t index = code << (LOOK - length) | rest;
                if (length + size <= LOOK)
                    table[index] = of_symbol((uint64_t)index << (64 - LOOK), symbol, length, is_first);
                table[ENTRIES + index] = symbol << 8 | length;
            }
        }
        above[length] = code;
    }
    return at == count;
}

static int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

typedef struct {
    int64_t unit, rows, columns; /* pixels of a coded unit; intervals to decode, down and across */
    int64_t first_row, first_column, across;
    int64_t width[3], height[3], offset[3]; /* samples of each component's plane, and its first byte in the memory */
    int64_t bytes, data; /* of all planes, and at most of an interval */
} Plan;

static void make_plan(const Job *job, Plan *plan)
{
    const int64_t *ends = (const int64_t *)(uintptr_t)job->ends;
    int64_t unit = plan->unit = job->is_subsampled ? 16 : 8, wide = unit * job->interval;
    /* One pixel more, whose color is mixed with that of the edge. */
    int64_t reach = job->is_subsampled ? 1 : 0;
    int64_t top = job->top - reach < 0 ? 0 : job->top - reach, left = job->left - reach < 0 ? 0 : job->left - reach;
    int64_t bottom = job->bottom + reach > job->height ? job->height : job->bottom + reach;
    int64_t right = job->right + reach > job->width ? job->width : job->right + reach;
    plan->first_row = top / unit;
    plan->first_column = left / wide;
    plan->rows = (bottom + unit - 1) / unit - plan->first_row;
    plan->columns = (right + wide - 1) / wide - plan->first_column;
    plan->across = (job->width + unit - 1) / unit / job->interval;
    plan->bytes = 0;
    for (int component = 0; component < job->components; component++) {
        int64_t half = component && job->is_subsampled ? 2 : 1;
        plan->width[component] = plan->columns * wide / half;
        plan->height[component] = plan->rows * unit / half;
        plan->offset[component] = plan->bytes + MARGIN;
        plan->bytes += round_up(plan->width[component] * plan->height[component] + 2 * MARGIN, 64);
    }
    int64_t begin = plan->first_row * plan->across, end = (plan->first_row + plan->rows) * plan->across - 1;
    plan->data = ends[end] - (begin ? ends[begin - 1] : job->start);
}

/* Two rows of 16-bit sums of colors, and two of upsampled colors. */
static int64_t row_bytes(const Plan *plan) { return round_up(2 * plan->width[0] + 4 * MARGIN, 64); }

/* Planes, rows, two intervals without stuffed bytes, and what damaged ones may reach. */
static int64_t memory_of(const Plan *plan) { return plan->bytes + 4 * row_bytes(plan) + 2 * (plan->data + SLACK); }

int64_t halofeed_jpeg_memory(const Job *job)
{
    Plan plan;
    make_plan(job, &plan);
    return memory_of(&plan);
}

#if HAS_SSE

/* The entry of a code or of a value that is longer than LOOK bits; 0 if there is no such code. */
static int32_t long_entry(const int32_t *table, uint64_t bits, int is_first)
{
    const int32_t *first = table + 2 * ENTRIES, *above = first + 18, *number = above + 18, *values = number + 18;
    int32_t known = table[ENTRIES + (bits >> (64 - LOOK))];
    if (known) return of_symbol(bits, known >> 8, known & 255, is_first);
    for (int length = LOOK + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code < above[length] && code >= first[length])
            return of_symbol(bits, values[number[length] + code - first[length]], length, is_first);
    }
    return 0;
}

#define AVX2 __attribute__((target("avx2,bmi2")))
#define CODED 208 /* places of a block, of which those behind the 64th receive what is behind its end */

typedef struct {
    uint64_t bits; /* the next bits, from the highest on */
    int64_t left;  /* number of them that are read */
    const uint8_t *next, *end;
    int64_t row, column;    /* the interval's, from the first that is decoded */
    int64_t unit, number;   /* coded unit of the interval, and block of that, that is decoded */
    int64_t place;          /* of the next coefficient of the block */
    const int32_t *others;  /* table of the block's coefficients that are not the first one */
    int32_t before[3];      /* first coefficient of the block before, of each component */
    int16_t block[CODED];
} Interval;

/* Order of coefficients in a file; those behind the end go to a place that nobody reads. */
static const uint8_t zigzag[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                   12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                   35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                   58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

#define REFILL(bits, left, next)                                                                                        \
    do {                                                                                                                \
        uint64_t word;                                                                                                  \
        memcpy(&word, next, 8);                                                                                         \
        bits |= __builtin_bswap64(word) >> left;                                                                        \
        next += (63 - left) >> 3;                                                                                       \
        left |= 56;                                                                                                     \
    } while (0)

/* Decode one coefficient that is not the first one, with the zeros before it. Local variables, so that they are in
   registers, have the names of members of Interval and a letter. */
#define STEP(x)                                                                                                         \
    do {                                                                                                                \
        REFILL(x##bits, x##left, x##next);                                                                              \
        int32_t found = x##others[x##bits >> (64 - LOOK)];                                                              \
        if (__builtin_expect(!found, 0) && !(found = long_entry(x##others, x##bits, 0))) return 0;                      \
        x##place += found >> 8 & 255;                                                                                   \
        x->block[order[x##place++]] = (int16_t)(found >> 16);                                                           \
        x##bits <<= found & 31;                                                                                         \
        x##left -= found & 31;                                                                                          \
    } while (0)

#define FIX_0_298 2446
#define FIX_0_390 3196
#define FIX_0_541 4433
#define FIX_0_765 6270
#define FIX_0_899 7373
#define FIX_1_175 9633
#define FIX_1_501 12299
#define FIX_1_847 15137
#define FIX_1_961 16069
#define FIX_2_053 16819
#define FIX_2_562 20995
#define FIX_3_072 25172

#define PAIR(first, second) _mm256_set1_epi32((int32_t)((uint32_t)(second) << 16 | (uint16_t)(first)))

/* Products of 8 columns' numbers of two rows with two constants, added. */
AVX2 static inline __m256i interleaved(__m128i first, __m128i second)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(first, second)),
                                   _mm_unpackhi_epi16(first, second), 1);
}

AVX2 static inline void descaled(__m256i even, __m256i odd, int bits, __m256i *sum, __m256i *difference)
{
    __m256i rounding = _mm256_set1_epi32(1 << (bits - 1));
    even = _mm256_add_epi32(even, rounding);
    *sum = _mm256_srai_epi32(_mm256_add_epi32(even, odd), bits);
    *difference = _mm256_srai_epi32(_mm256_sub_epi32(even, odd), bits);
}

AVX2 static inline void packed(__m256i first, __m256i second, __m128i *rows)
{
    __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xD8);
    rows[0] = _mm256_castsi256_si128(both);
    rows[1] = _mm256_extracti128_si256(both, 1);
}

/* One pass of jpeg_idct_islow along columns. Its sums of products are the same whatever their order. */
AVX2 static inline void transform(__m128i *rows, int bits)
{
    __m256i zero_four = interleaved(rows[0], rows[4]), two_six = interleaved(rows[2], rows[6]);
    __m256i one_three = interleaved(rows[1], rows[3]), five_seven = interleaved(rows[5], rows[7]);
    __m256i sum = _mm256_madd_epi16(zero_four, PAIR(8192, 8192));
    __m256i difference = _mm256_madd_epi16(zero_four, PAIR(8192, -8192));
    __m256i third = _mm256_madd_epi16(two_six, PAIR(FIX_0_541 + FIX_0_765, FIX_0_541));
    __m256i second = _mm256_madd_epi16(two_six, PAIR(FIX_0_541, FIX_0_541 - FIX_1_847));
    __m256i even[4] = {_mm256_add_epi32(sum, third), _mm256_add_epi32(difference, second),
                       _mm256_sub_epi32(difference, second), _mm256_sub_epi32(sum, third)};
    __m256i odd[4];
    odd[0] = _mm256_add_epi32(
        _mm256_madd_epi16(one_three, PAIR(FIX_1_501 - FIX_0_899 - FIX_0_390 + FIX_1_175, FIX_1_175)),
        _mm256_madd_epi16(five_seven, PAIR(FIX_1_175 - FIX_0_390, FIX_1_175 - FIX_0_899)));
    odd[1] = _mm256_add_epi32(
        _mm256_madd_epi16(one_three, PAIR(FIX_1_175, FIX_3_072 - FIX_2_562 - FIX_1_961 + FIX_1_175)),
        _mm256_madd_epi16(five_seven, PAIR(FIX_1_175 - FIX_2_562, FIX_1_175 - FIX_1_961)));
    odd[2] = _mm256_add_epi32(
        _mm256_madd_epi16(one_three, PAIR(FIX_1_175 - FIX_0_390, FIX_1_175 - FIX_2_562)),
        _mm256_madd_epi16(five_seven, PAIR(FIX_2_053 - FIX_2_562 - FIX_0_390 + FIX_1_175, FIX_1_175)));
    odd[3] = _mm256_add_epi32(
        _mm256_madd_epi16(one_three, PAIR(FIX_1_175 - FIX_0_899, FIX_1_175 - FIX_1_961)),
        _mm256_madd_epi16(five_seven, PAIR(FIX_1_175, FIX_0_298 - FIX_0_899 - FIX_1_961 + FIX_1_175)));
    __m256i out[8];
    for (int row = 0; row < 4; row++) descaled(even[row], odd[row], bits, &out[row], &out[7 - row]);
    for (int row = 0; row < 8; row += 2) packed(out[row], out[row + 1], rows + row);
}

AVX2 static inline void transpose(__m128i *rows)
{
    __m128i pairs[8], fours[8];
    for (int row = 0; row < 4; row++) {
        pairs[2 * row] = _mm_unpacklo_epi16(rows[2 * row], rows[2 * row + 1]);
        pairs[2 * row + 1] = _mm_unpackhi_epi16(rows[2 * row], rows[2 * row + 1]);
    }
    for (int half = 0; half < 2; half++)
        for (int side = 0; side < 2; side++) {
            fours[4 * half + 2 * side] = _mm_unpacklo_epi32(pairs[4 * half + side], pairs[4 * half + 2 + side]);
            fours[4 * half + 2 * side + 1] = _mm_unpackhi_epi32(pairs[4 * half + side], pairs[4 * half + 2 + side]);
        }
    for (int row = 0; row < 4; row++) {
        rows[2 * row] = _mm_unpacklo_epi64(fours[row], fours[4 + row]);
        rows[2 * row + 1] = _mm_unpackhi_epi64(fours[row], fours[4 + row]);
    }
}

/* Samples of a block; of one with its first coefficient alone all are equal. */
AVX2 static inline void samples_of(const int16_t *block, const int16_t *quantization, int is_plain, uint8_t *out,
                                   int64_t stride)
{
    __m128i rows[8], center = _mm_set1_epi8((char)128);
    if (is_plain) {
        __m128i level = _mm_set1_epi16((int16_t)(block[0] * quantization[0]));
        level = _mm_srai_epi16(_mm_adds_epi16(level, _mm_set1_epi16(4)), 3);
        level = _mm_add_epi8(_mm_packs_epi16(level, level), center);
        for (int row = 0; row < 8; row++) _mm_storel_epi64((__m128i *)(out + row * stride), level);
        return;
    }
    for (int row = 0; row < 8; row++)
        rows[row] = _mm_mullo_epi16(_mm_loadu_si128((const __m128i *)(block + 8 * row)),
                                    _mm_loadu_si128((const __m128i *)(quantization + 8 * row)));
    transform(rows, 11);
    transpose(rows);
    transform(rows, 18);
    transpose(rows);
    for (int row = 0; row < 8; row += 2) {
        __m128i two = _mm_add_epi8(_mm_packs_epi16(rows[row], rows[row + 1]), center);
        _mm_storel_epi64((__m128i *)(out + row * stride), two);
        _mm_storeh_pd((double *)(out + (row + 1) * stride), _mm_castsi128_pd(two));
    }
}

/* Copy compressed data without the zeros that follow each FF; return the end of the copy. */
static uint8_t *unstuffed(const uint8_t *from, const uint8_t *end, uint8_t *into)
{
    while (from < end) {
        const uint8_t *found = memchr(from, 0xFF, end - from);
        const uint8_t *stop = found ? found + 1 : end;
        memcpy(into, from, stop - from);
        into += stop - from;
        from = found ? stop + 1 : end;
    }
    return into;
}

/* Begin a block with its first coefficient; 0 if the data are damaged. */
static inline int begin_block(const Job *job, Interval *x)
{
    int luma = job->is_subsampled ? 4 : 1, component = x->number < luma ? 0 : (int)x->number - luma + 1;
    const int32_t *table = (const int32_t *)job->tables + 2 * TABLE * component;
    memset(x->block, 0, 64 * sizeof(int16_t));
    REFILL(x->bits, x->left, x->next);
    int32_t found = table[x->bits >> (64 - LOOK)];
    if (!found && !(found = long_entry(table, x->bits, 1))) return 0;
    x->bits <<= found & 31;
    x->left -= found & 31;
    x->block[0] = (int16_t)(x->before[component] += found >> 16);
    x->others = table + TABLE;
    x->place = 1;
    return 1;
}

/* Open an interval with its data without stuffed bytes. */
static int open_interval(const Job *job, const Plan *plan, int64_t at, Interval *x, uint8_t *data)
{
    const int64_t *ends = (const int64_t *)job->ends;
    const uint8_t *file = (const uint8_t *)job->file;
    x->row = at / plan->columns;
    x->column = at % plan->columns;
    int64_t number = (plan->first_row + x->row) * plan->across + plan->first_column + x->column;
    x->bits = 0;
    x->left = x->unit = x->number = 0;
    memset(x->before, 0, sizeof(x->before));
    x->next = data;
    x->end = unstuffed(file + (number ? ends[number - 1] + 2 : job->start), file + ends[number], data);
    /* What damaged data are read after their end. */
    memset((uint8_t *)x->end, 0, SLACK);
    return begin_block(job, x);
}

enum { DAMAGED, MORE, FINISHED };

/* Transform a block whose coefficients are complete, and begin the next one of the interval. */
AVX2 static __attribute__((noinline)) int end_block(const Job *job, const Plan *plan, uint8_t *planes, Interval *x)
{
    /* A run that ends behind the block is damage. */
    if ((x->place != 64 && x->place <= END_RUN + 1) || x->next > x->end + 8) return DAMAGED;
    int luma = job->is_subsampled ? 4 : 1, count = luma + (job->components == 3 ? 2 : 0);
    int component = x->number < luma ? 0 : (int)x->number - luma + 1;
    int64_t step = component || !job->is_subsampled ? 8 : 16, stride = plan->width[component];
    int64_t down = component ? 0 : (x->number >> 1) * 8, right = component ? 0 : (x->number & 1) * 8;
    int64_t row = x->row * step + down, column = (x->column * job->interval + x->unit) * step + right;
    samples_of(x->block, (const int16_t *)job->quantization + 64 * component, x->place == END_RUN + 2,
               planes + plan->offset[component] + row * stride + column, stride);
    if (++x->number == count) {
        x->number = 0;
        x->unit++;
    }
    if (x->unit < job->interval) return begin_block(job, x) ? MORE : DAMAGED;
    /* All bits were used but those that fill the last byte. */
    int64_t unused = (x->end - x->next) * 8 + x->left;
    return unused >= 0 && unused < 8 ? FINISHED : DAMAGED;
}

#define LOAD(x)                                                                                                         \
    do {                                                                                                                \
        x##bits = x->bits, x##left = x->left, x##next = x->next, x##place = x->place, x##others = x->others;            \
    } while (0)
#define STORE(x)                                                                                                        \
    do {                                                                                                                \
        x->bits = x##bits, x->left = x##left, x->next = x##next, x->place = x##place;                                   \
    } while (0)

/* End the block, and the interval with its last one; then another one is opened. */
#define END_BLOCK(x)                                                                                                    \
    do {                                                                                                                \
        STORE(x);                                                                                                       \
        int state = end_block(job, plan, planes, x);                                                                    \
        if (state == FINISHED && at < count) state = open_interval(job, plan, at++, x, x##data) ? MORE : DAMAGED;       \
        if (state == DAMAGED) return 0;                                                                                 \
        if (state == FINISHED) x##is_open = 0;                                                                          \
        LOAD(x);                                                                                                        \
    } while (0)

/* Decode all intervals into the planes, two at a time. */
AVX2 static int decode_planes(const Job *job, const Plan *plan, uint8_t *planes, uint8_t *data)
{
    Interval intervals[2], *a = &intervals[0], *b = &intervals[1];
    uint8_t order[CODED], *adata = data, *bdata = data + plan->data + SLACK;
    int64_t count = plan->rows * plan->columns, at = 0;
    int ais_open = 1, bis_open = count > 1;
    uint64_t abits, bbits = 0;
    int64_t aleft, bleft = 0, aplace, bplace = 0;
    const uint8_t *anext, *bnext = NULL;
    const int32_t *aothers, *bothers = NULL;
    memset(order, 64, sizeof(order));
    memcpy(order, zigzag, sizeof(zigzag));
    if (!open_interval(job, plan, at++, a, adata)) return 0;
    LOAD(a);
    if (bis_open) {
        if (!open_interval(job, plan, at++, b, bdata)) return 0;
        LOAD(b);
    }
    while (ais_open && bis_open) {
        STEP(a);
        STEP(b);
        if (aplace >= 64) END_BLOCK(a);
        if (bplace >= 64) END_BLOCK(b);
    }
    while (ais_open) {
        STEP(a);
        if (aplace >= 64) END_BLOCK(a);
    }
    while (bis_open) {
        STEP(b);
        if (bplace >= 64) END_BLOCK(b);
    }
    return 1;
}

/* Upsample a row of colors to twice its width, from the nearer and the farther row (h2v2_fancy_upsample). `first` and
   `last` are the first and the last sample that exist; `sums` has room for a number before and after. */
AVX2 static void upsampled(const uint8_t *near, const uint8_t *far, int64_t first, int64_t last, int16_t *sums,
                           uint8_t *out)
{
    int64_t at;
    for (at = first; at <= last; at += 16) {
        __m256i close = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(near + at)));
        __m256i distant = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(far + at)));
        __m256i triple = _mm256_add_epi16(close, _mm256_add_epi16(close, close));
        _mm256_storeu_si256((__m256i *)(sums + at), _mm256_add_epi16(triple, distant));
    }
    sums[first - 1] = sums[first];
    sums[last + 1] = sums[last];
    for (at = first; at <= last; at += 16) {
        __m256i here = _mm256_loadu_si256((const __m256i *)(sums + at));
        __m256i before = _mm256_loadu_si256((const __m256i *)(sums + at - 1));
        __m256i after = _mm256_loadu_si256((const __m256i *)(sums + at + 1));
        here = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        before = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, before), _mm256_set1_epi16(8)), 4);
        after = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, after), _mm256_set1_epi16(7)), 4);
        _mm256_storeu_si256((__m256i *)(out + 2 * at), _mm256_or_si256(before, _mm256_slli_epi16(after, 8)));
    }
}

/* Half of a product with a constant of 16 bits, rounded as a shift by 16 bits of the complete product. */
AVX2 static inline __m256i scaled(__m256i color, int16_t constant)
{
    __m256i product = _mm256_mulhi_epi16(_mm256_add_epi16(color, color), _mm256_set1_epi16(constant));
    return _mm256_srai_epi16(_mm256_add_epi16(product, _mm256_set1_epi16(1)), 1);
}

AVX2 static inline __m128i bytes_of(__m256i words)
{
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0xD8);
    return _mm256_castsi256_si128(both);
}

/* Green minus luma of 8 colors in each half: -0.34414 blue - 0.71414 red; -0.71414 is 0.28586 - 1. */
AVX2 static inline __m256i green_of(__m256i blue, __m256i red)
{
    __m256i weights = PAIR(-22554, 18734), rounding = _mm256_set1_epi32(1 << 15);
    __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(blue, red), weights);
    __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(blue, red), weights);
    low = _mm256_srai_epi32(_mm256_add_epi32(low, rounding), 16);
    high = _mm256_srai_epi32(_mm256_add_epi32(high, rounding), 16);
    return _mm256_sub_epi16(_mm256_packs_epi32(low, high), red);
}

/* Convert a row of YCbCr to RGB (jdcolor.c, ycc_rgb_convert). */
AVX2 static void converted(const uint8_t *luma, const uint8_t *blues, const uint8_t *reds, int64_t count, uint8_t *out)
{
    const __m256i center = _mm256_set1_epi16(128);
    const __m128i spread[3][3] = {
        {_mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5),
         _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1),
         _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1)},
        {_mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1),
         _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10),
         _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1)},
        {_mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1),
         _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1),
         _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15)},
    };
    for (int64_t at = 0; at < count; at += 16) {
        __m256i light = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(luma + at)));
        __m256i blue = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(blues + at))), center);
        __m256i red = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(reds + at))), center);
        /* 1.402 is 1 + 0.402; 1.772 is 2 - 0.228. */
        __m256i more_red = _mm256_add_epi16(red, scaled(red, 26345));
        __m256i more_blue = _mm256_add_epi16(_mm256_add_epi16(blue, blue), scaled(blue, -14942));
        __m128i colors[3] = {bytes_of(_mm256_add_epi16(light, more_red)),
                             bytes_of(_mm256_add_epi16(light, green_of(blue, red))),
                             bytes_of(_mm256_add_epi16(light, more_blue))};
        uint8_t pixels[48];
        uint8_t *target = at + 16 <= count ? out + 3 * at : pixels;
        for (int third = 0; third < 3; third++) {
            __m128i joined = _mm_shuffle_epi8(colors[0], spread[third][0]);
            for (int color = 1; color < 3; color++)
                joined = _mm_or_si128(joined, _mm_shuffle_epi8(colors[color], spread[third][color]));
            _mm_storeu_si128((__m128i *)(target + 16 * third), joined);
        }
        if (target == pixels) memcpy(out + 3 * at, pixels, 3 * (count - at));
    }
}

/* Write the pixels of the part. */
static void write_pixels(const Job *job, const Plan *plan, const uint8_t *planes, uint8_t *rows)
{
    int64_t origin_row = plan->first_row * plan->unit, origin_column = plan->first_column * plan->unit * job->interval;
    int64_t left = job->left - origin_column, count = job->right - job->left, bytes = row_bytes(plan);
    uint8_t *colors[2] = {rows + MARGIN, rows + bytes + MARGIN};
    int16_t *sums = (int16_t *)(rows + 2 * bytes) + MARGIN;
    /* The last samples of the picture; what a file holds behind them is not shown. */
    int64_t last_row = (job->height + 1) / 2 - 1 - origin_row / 2, last = (job->width + 1) / 2 - 1 - origin_column / 2;
    if (last > plan->width[1] - 1) last = plan->width[1] - 1;
    for (int64_t row = job->top; row < job->bottom; row++) {
        int64_t inside = row - origin_row;
        const uint8_t *luma = planes + plan->offset[0] + inside * plan->width[0] + left;
        uint8_t *target = (uint8_t *)job->target + (row - job->top) * job->target_stride;
        if (job->components == 1) {
            memcpy(target, luma, count);
            continue;
        }
        const uint8_t *shown[2];
        for (int one = 0; one < 2; one++) {
            const uint8_t *plane = planes + plan->offset[one + 1];
            int64_t width = plan->width[one + 1];
            if (!job->is_subsampled) {
                shown[one] = plane + inside * width + left;
                continue;
            }
            int64_t near = inside / 2, far = inside & 1 ? near + 1 : near - 1;
            if (far < 0) far = 0;
            if (far > last_row) far = last_row;
            upsampled(plane + near * width, plane + far * width, 0, last, sums, colors[one]);
            shown[one] = colors[one] + left;
        }
        converted(luma, shown[0], shown[1], count, target);
    }
}

int halofeed_decodes_jpeg(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"); }

int halofeed_jpeg(const Job *job)
{
    if (!halofeed_decodes_jpeg()) return 0;
    Plan plan;
    make_plan(job, &plan);
    if (memory_of(&plan) > job->memory_size) return 0;
    uint8_t *planes = (uint8_t *)job->memory, *rows = planes + plan.bytes;
    if (!decode_planes(job, &plan, planes, rows + 4 * row_bytes(&plan))) return 0;
    write_pixels(job, &plan, planes, rows);
    return 1;
}

#else

int halofeed_decodes_jpeg(void) { return 0; }

int halofeed_jpeg(const Job *job)
{
    (void)job;
    return 0;
}

#endif
