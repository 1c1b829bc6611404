/* Decodes parts of damaged JPEG files; tests/loader/test_jpeg_kernel.py builds it with sanitizers, which end it if a byte
   outside the file, the memory or the result is read or written. It ends with an error if a file that is not damaged is
   refused.

   usage: fuzz_jpeg COUNT SEED < CASES   COUNT damaged files of each case, as `read_case` reads them */

#include <stdio.h>

#include "jpeg.c"

typedef struct {
    uint8_t counts[16], symbols[256];
    int64_t size;
} Code;

typedef struct {
    int64_t bytes, height, width, components, is_subsampled, interval, start, intervals;
} Head;

static uint64_t state;

static uint64_t any(void) { /* xorshift64*, G. Marsaglia and S. Vigna */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull >> 16;
}

static int64_t below(int64_t limit) { return (int64_t)(any() % (uint64_t)limit); }

static void *copied(const void *from, size_t size) {
    void *copy = malloc(size);
    memcpy(copy, from, size);
    return copy;
}

static void fail(const char *what) {
    printf("%s\n", what);
    exit(1);
}

static int read_all(void *into, size_t size) { return fread(into, 1, size, stdin) == size; }

enum { INTACT, BYTES, RUN, END, CODE_COUNT, CODE_SYMBOL, DIVISORS, KINDS };

static void damage(int kind, uint8_t *file, int64_t *ends, const Head *head) {
    const int64_t room = head->bytes - head->start - 2;
    for (int64_t left = kind == INTACT ? 0 : 1 + below(6); left; left--)
        file[head->start + below(room)] = (uint8_t)(below(4) ? any() : 0xFF);
    if (kind == RUN)
        for (int64_t at = head->start + below(room), left = below(400); left && at < head->bytes; at++, left--)
            file[at] = (uint8_t)any();
    if (kind == END) {
        const int64_t number = below(head->intervals), low = number ? ends[number - 1] + 2 : head->start;
        ends[number] = low + below(ends[number] - low + 1);
    }
}

static void decode_one(const Head *head, const uint8_t *file, const int64_t *ends, const int16_t *divisors, const Code *codes) {
    const int kind = (int)below(KINDS), components = (int)head->components;
    uint8_t *damaged = copied(file, head->bytes);
    int64_t *moved = copied(ends, head->intervals * sizeof(int64_t));
    int16_t *quantization = copied(divisors, 64 * components * sizeof(int16_t));
    int32_t *tables = malloc(2 * components * TABLE * sizeof(int32_t));
    int64_t is_code = 1;
    damage(kind, damaged, moved, head);
    for (int place = 0; place < 2 * components; place++) {
        Code code = codes[place];
        if (kind == CODE_COUNT) code.counts[below(16)] = (uint8_t)below(12);
        if (kind == CODE_SYMBOL) code.symbols[below(code.size)] = (uint8_t)any();
        uint8_t *symbols = copied(code.symbols, code.size);
        is_code &= halofeed_jpeg_table(code.counts, symbols, code.size, place % 2 == 0, tables + place * TABLE);
        free(symbols);
    }
    if (kind == DIVISORS)
        for (int at = 0; at < 64 * components; at++)
            if (!below(8)) quantization[at] = (int16_t)(1 + below(255));
    if (is_code) {
        const int64_t top = below(head->height), left = below(head->width);
        const int64_t rows = 1 + below(head->height - top), columns = 1 + below(head->width - left);
        const int64_t stride = columns * components + below(5);
        uint8_t *target = malloc((rows - 1) * stride + columns * components);
        Job job = {(int64_t)damaged, (int64_t)moved, head->start, head->height, head->width, components,
                   head->is_subsampled, head->interval, top, top + rows, left, left + columns, (int64_t)target, stride,
                   (int64_t)quantization, (int64_t)tables, 0, 0};
        job.memory_size = halofeed_jpeg_memory(&job);
        uint8_t *memory = malloc(job.memory_size);
        job.memory = (int64_t)memory;
        if (!halofeed_jpeg(&job) && kind == INTACT && halofeed_decodes_jpeg()) fail("an intact file is refused");
        free(memory);
        free(target);
    } else if (kind == INTACT)
        fail("an intact code is refused");
    free(tables), free(quantization), free(moved), free(damaged);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    Head head;
    state = strtoull(arguments[2], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    while (read_all(&head, sizeof(head))) {
        int64_t *ends = malloc(head.intervals * sizeof(int64_t));
        int16_t divisors[3 * 64];
        Code codes[6];
        uint8_t *file = malloc(head.bytes);
        if (!read_all(ends, head.intervals * sizeof(int64_t)) || !read_all(divisors, 128 * head.components) ||
            !read_all(codes, 2 * head.components * sizeof(Code)) || !read_all(file, head.bytes))
            fail("a case is cut off");
        for (int64_t left = atoll(arguments[1]); left; left--) decode_one(&head, file, ends, divisors, codes);
        free(file), free(ends);
    }
    printf("done\n");
    return 0;
}
