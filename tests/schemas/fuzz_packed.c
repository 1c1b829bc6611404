/* Unpacks random windows of damaged packed values with every instruction set; tests/schemas/test_packed_kernel.py builds it
   with sanitizers. It ends with an error if a row is written outside its window, if instruction sets differ, or if a window
   whose checksums were compared has wrong pixels. Sanitizers end it if a byte outside a value is read.

   usage: fuzz_packed COUNT SEED     COUNT damaged values
          fuzz_packed threads        threads that share a table, for ThreadSanitizer
          fuzz_packed vectors        unpacks and packs again values from standard input, as `read_vectors` says */

#include <pthread.h>
#include <stdio.h>

#include "packed.c"
#include "packing.c"

#define GUARD 0xa5
#define SETS 3

static uint64_t state;

static uint64_t any(void) { /* xorshift64*, G. Marsaglia and S. Vigna */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull >> 16;
}

static int64_t below(int64_t limit) { return (int64_t)(any() % (uint64_t)limit); }

static void fail(const char *what) {
    printf("%s\n", what);
    exit(1);
}

static uint32_t extend(uint32_t checksum, const uint8_t *data, size_t size) { /* CRC32C */
    static uint32_t of_byte[256];
    if (!of_byte[1])
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t found = byte;
            for (int bit = 0; bit < 8; bit++) found = found >> 1 ^ (found & 1 ? 0x82f63b78u : 0);
            of_byte[byte] = found;
        }
    checksum = ~checksum;
    for (size_t at = 0; at < size; at++) checksum = checksum >> 8 ^ of_byte[(checksum ^ data[at]) & 255];
    return ~checksum;
}

static Layout any_layout(void) {
    const int64_t unit = 1 + below(4), channels = unit == 3 ? 1 : 1 + below(3);
    Layout layout = {1 + below(3), 1 + below(below(3) ? 40 : 100), 1 + below(below(3) ? 40 : 90), unit * channels, unit};
    if (!below(200)) layout.height = 1 + below(3), layout.width = 1 + below(9000); /* rows that no strip holds */
    return layout;
}

static int64_t bytes_of_array(const Layout *layout) {
    return layout->planes * layout->height * layout->width * layout->pixel;
}

/* Constant, sloping, noisy or patchy numbers. Signed ones of 16 bits are around 0. */
static void fill_source(const Layout *layout, uint8_t *source) {
    const int64_t size = bytes_of_array(layout), item = layout->unit == 3 ? 1 : layout->unit;
    const int64_t slope = below(4), noise = (int64_t)1 << below(8 * item > 16 ? 31 : 8 * item + 1), patch = 1 + below(30);
    const int kind = (int)below(4);
    int64_t number = below(256);
    for (int64_t at = 0; at < size / item; at++) {
        if (kind == 3 && !below(patch)) number = below(5);
        const int64_t value = kind == 3 ? number : kind == 0 ? number : number + slope * at + below(noise) - noise / 2;
        memcpy(source + at * item, &value, (size_t)item);
    }
}

/* Packs an array with each instruction set; the bytes must be the same. */
static uint8_t *pack_all(const Layout *layout, const uint8_t *source, int patches, int64_t *size) {
    const Sizes sizes = sizes_of(layout);
    /* PackedLayout.packing_bytes */
    const int64_t most = sizes.table + sizes.bands + bytes_of_array(layout) + SLACK +
                         ROWS * sizes.groups * (UNITS * layout->unit + sizes.parts) + layout->unit + 4 * SLACK +
                         sizes.groups * layout->unit;
    uint8_t *first = malloc((size_t)most), *next = malloc((size_t)most);
    halofeed_instructions(0);
    *size = halofeed_pack(layout, source, first, patches, extend);
    halofeed_instructions(-1);
    const int64_t same = halofeed_pack(layout, source, next, patches, extend);
    if (same != *size || memcmp(first, next, (size_t)same)) fail("instruction sets pack other bytes");
    free(next);
    return realloc(first, (size_t)*size); /* to the value's size, so that no byte after it may be read */
}

/* Sets all checksums to those of the bytes, as far as the table's ends are in the value. */
static void correct_checksums(const Sizes *sizes, uint8_t *value, int64_t size) {
    if (size < sizes->table) return;
    int64_t begin = sizes->table;
    for (int64_t band = 0; band < sizes->bands; band++) {
        uint8_t *entry = value + HEAD + ENTRY * band;
        const int64_t end = read_u32(entry);
        if (begin <= end && end <= size) write_u32(entry + 4, extend(0, value + begin, (size_t)(end - begin)));
        begin = end;
    }
    write_u32(value + 4, extend(0, value + HEAD, (size_t)(sizes->table - HEAD)));
}

static void flip(uint8_t *value, int64_t from, int64_t to) {
    if (from < to) value[from + below(to - from)] ^= (uint8_t)(1 << below(8));
}

static void damage_band(const Sizes *sizes, const Layout *layout, uint8_t *value, int64_t size, int64_t from, int64_t to) {
    const int64_t codes = from + 1 + sizes->groups * layout->unit;
    switch (below(8)) {
        case 0: value[from] = (uint8_t)below(4); break; /* mode */
        case 1: flip(value, from, to); break;
        case 2: /* widths */
            for (int64_t many = 1 + below(4); many; many--) flip(value, codes < to ? codes : from, to < size ? to : size);
            break;
        case 3:
            for (int64_t at = from + 1; at < to; at++) value[at] = (uint8_t)any();
            break;
        case 4: { /* widths of two groups are exchanged, so that their sum stays right */
            const int64_t a = codes + below(sizes->widths * ROWS), b = codes + below(sizes->widths * ROWS);
            if (a < to && b < to) {
                const uint8_t kept = value[a];
                value[a] = value[b], value[b] = kept;
            }
            break;
        }
        case 5: /* patches with large counts */
            value[from] = PATCHES;
            for (int64_t at = from + 1; at < to; at++) value[at] = (uint8_t)(below(3) ? below(4) : below(256));
            break;
        case 6: memset(value + from + 1, (int)(below(2) ? 255 : below(256)), (size_t)below(to - from)); break;
        default: { /* bytes of another place */
            const int64_t many = 1 + below(to - from), other = below(size - many + 1);
            memmove(value + from, value + other, (size_t)many);
        }
    }
}

/* Gives a code what another one loses, so that the sum of all widths stays right. */
static void move_bits(uint8_t *codes, int64_t count) {
    const int64_t a = below(count), b = below(count), shift_a = 4 * (a & 1), shift_b = 4 * (b & 1);
    const int64_t code_a = codes[a >> 1] >> shift_a & 15, code_b = codes[b >> 1] >> shift_b & 15;
    const int64_t most = code_b < 15 - code_a ? code_b : 15 - code_a, moved = below(most + 1);
    if (a == b) return;
    codes[a >> 1] = (uint8_t)(codes[a >> 1] + (moved << shift_a));
    codes[b >> 1] = (uint8_t)(codes[b >> 1] - (moved << shift_b));
}

/* Moves a valid band to the value's last bytes, of which 16 belong to no band. */
static void move_to_end(const Sizes *sizes, uint8_t *value, int64_t size, int64_t band, int64_t from, int64_t to) {
    if (!band || band + 1 == sizes->bands) return;
    const int64_t end = size - below(below(2) ? 2 : SLACK + 2);
    if (end - (to - from) < sizes->table) return;
    memmove(value + end - (to - from), value + from, (size_t)(to - from));
    write_u32(value + HEAD + ENTRY * (band - 1), (uint32_t)(end - (to - from)));
    write_u32(value + HEAD + ENTRY * band, (uint32_t)end);
}

/* Damages a value; `*size` may change, and the value is in memory of just this size. */
static uint8_t *damaged(const Layout *layout, const uint8_t *value, int64_t *size) {
    const Sizes sizes = sizes_of(layout);
    int64_t kept = *size;
    if (!below(12)) kept = below(*size + 1);
    if (!below(12)) kept = *size - below(*size < 40 ? *size : 40);
    uint8_t *found = malloc((size_t)kept + 1);
    memcpy(found, value, (size_t)kept);
    *size = kept;
    for (int64_t many = below(8) ? 1 : 1 + below(5); many; many--) {
        const int64_t band = below(sizes.bands);
        uint8_t *entry = found + HEAD + ENTRY * band;
        if (kept < sizes.table + sizes.bands + SLACK) break;
        const int64_t from = band ? read_u32(entry - ENTRY) : sizes.table, to = read_u32(entry);
        const int64_t codes = from + 1 + sizes.groups * layout->unit;
        const int is_band = from >= sizes.table && from < to && to <= kept;
        switch (is_band ? below(10) : below(3)) {
            case 0: write_u32(entry, (uint32_t)(to + below(41) - 20)); break;
            case 1: write_u32(entry, below(2) ? (uint32_t)any() : (uint32_t)below(kept + 1)); break;
            case 2: flip(found, 0, kept); break;
            case 3: move_to_end(&sizes, found, kept, band, from, to); break;
            case 4:
                if (found[from] == GROUPS && codes + sizes.widths < to)
                    move_bits(found + codes, sizes.groups * sizes.parts);
                break;
            default: damage_band(&sizes, layout, found, kept, from, to);
        }
    }
    if (!below(3)) correct_checksums(&sizes, found, kept);
    return found;
}

/* A target whose rows have guard bytes around them. */
typedef struct {
    uint8_t *memory;
    int64_t size, row, stride[3], offset;
} Target;

static Target any_target(const Layout *layout, const int64_t *shape) {
    Target target;
    const int64_t gap = below(2) ? 0 : below(70);
    target.row = shape[2] * layout->pixel;
    target.offset = below(70);
    target.stride[1] = target.row + gap;
    target.stride[0] = target.stride[1] * shape[1] + (below(2) ? 0 : below(40));
    target.size = target.offset + shape[0] * target.stride[0] + below(40);
    target.memory = malloc((size_t)target.size + 1);
    return target;
}

/* Whether all bytes between the rows are as before. */
static int is_guarded(const Target *target, const int64_t *shape) {
    int64_t next = 0;
    for (int64_t plane = 0; plane < shape[0]; plane++)
        for (int64_t row = 0; row < shape[1]; row++) {
            const int64_t begin = target->offset + plane * target->stride[0] + row * target->stride[1];
            for (; next < begin; next++)
                if (target->memory[next] != GUARD) return 0;
            next = begin + target->row;
        }
    for (; next < target->size; next++)
        if (target->memory[next] != GUARD) return 0;
    return 1;
}

/* Whether the target has the window's pixels, one by one. */
static int is_window(const Layout *layout, const Unpack *unpack, const Target *target, const uint8_t *source) {
    const int64_t *shape = unpack->shape;
    for (int64_t plane = 0; plane < shape[0]; plane++)
        for (int64_t row = 0; row < shape[1]; row++)
            for (int64_t column = 0; column < shape[2]; column++) {
                const int64_t seen[3] = {plane, row, column};
                int64_t stored[3];
                for (int axis = 0; axis < 3; axis++)
                    stored[axis] =
                        unpack->start[axis] + (unpack->backwards[axis] ? shape[axis] - 1 - seen[axis] : seen[axis]);
                const uint8_t *from =
                    source + ((stored[0] * layout->height + stored[1]) * layout->width + stored[2]) * layout->pixel;
                const uint8_t *to = target->memory + target->offset + plane * target->stride[0] +
                                    row * target->stride[1] + column * layout->pixel;
                if (memcmp(from, to, (size_t)layout->pixel)) return 0;
            }
    return 1;
}

static Unpack any_window(const Layout *layout) {
    Unpack unpack = {.layout = (int64_t)(intptr_t)layout};
    const int64_t sizes[3] = {layout->planes, layout->height, layout->width};
    for (int axis = 0; axis < 3; axis++) {
        unpack.start[axis] = below(3) ? below(sizes[axis]) : 0;
        /* At an edge of a group or a band */
        if (!below(3)) unpack.start[axis] = below(sizes[axis] / UNITS + 1) * UNITS + below(3) - 1;
        if (unpack.start[axis] < 0 || unpack.start[axis] >= sizes[axis]) unpack.start[axis] = 0;
        const int64_t left = sizes[axis] - unpack.start[axis];
        unpack.shape[axis] = below(3) ? 1 + below(below(3) ? left : left < 3 ? left : 3) : left;
        unpack.backwards[axis] = below(2);
    }
    return unpack;
}

/* Windows that are not in the array must be left. */
static void misplace(Unpack *unpack) {
    const int axis = (int)below(3);
    const int64_t wrong[] = {-1, INT64_MAX, INT64_MIN, 1 << 20};
    (below(2) ? unpack->start : unpack->shape)[axis] = wrong[below(4)];
}

/* Unpacks a window with every instruction set, each in the same target. `source` is what the value was made of; `is_valid`
   says that the value is not damaged. */
static void unpack_all(const Layout *layout, const uint8_t *value, int64_t size, const uint8_t *source, int is_valid) {
    const Sizes sizes = sizes_of(layout);
    Unpack unpack = any_window(layout);
    const Target target = any_target(layout, unpack.shape);
    uint8_t *flags = calloc((size_t)sizes.bands, 1), *first = malloc((size_t)target.size + 1);
    const int64_t ways[] = {0, 1, (int64_t)(intptr_t)flags};
    const int64_t way = ways[below(3)];
    const int is_misplaced = !below(50);
    if (is_misplaced) misplace(&unpack);
    unpack.value = (int64_t)(intptr_t)value, unpack.size = size;
    unpack.target = (int64_t)(intptr_t)(target.memory + target.offset);
    memcpy(unpack.target_stride, target.stride, sizeof unpack.target_stride);
    int64_t done = 0;
    const int sets = halofeed_instructions(-1) + 1;
    for (int number = 0; number < 2 * sets; number++) {
        _Atomic int64_t next = 0;
        memset(target.memory, GUARD, (size_t)target.size);
        memset(flags, 0, (size_t)sizes.bands);
        unpack.flags = way, unpack.done = 0;
        halofeed_instructions(number / 2);
        halofeed_unpack(&unpack, 1, &next, number & 1, extend);
        if (is_misplaced) {
            if (unpack.done) fail("a window outside of the array was unpacked");
            continue;
        }
        if (!is_guarded(&target, unpack.shape)) fail("a byte outside the window was written");
        if (number && (unpack.done != done || (done && memcmp(first, target.memory, (size_t)target.size))))
            fail("instruction sets differ");
        if (!number) memcpy(first, target.memory, (size_t)target.size);
        done = unpack.done;
    }
    if (is_valid && !is_misplaced && !(done && is_window(layout, &unpack, &target, source)))
        fail("a valid value was not unpacked");
    free(target.memory), free(flags), free(first);
}

/* Unpacks a damaged value whose checksums are those of the undamaged one: it may be rejected, but never be wrong. */
static void unpack_compared(const Layout *layout, const uint8_t *value, int64_t size, const uint8_t *source) {
    Unpack unpack = any_window(layout);
    const Target target = any_target(layout, unpack.shape);
    _Atomic int64_t next = 0;
    unpack.value = (int64_t)(intptr_t)value, unpack.size = size, unpack.flags = 1;
    unpack.target = (int64_t)(intptr_t)(target.memory + target.offset);
    memcpy(unpack.target_stride, target.stride, sizeof unpack.target_stride);
    halofeed_unpack(&unpack, 1, &next, -1, extend);
    if (unpack.done && !is_window(layout, &unpack, &target, source)) fail("damage was not found");
    free(target.memory);
}

static void fuzz(int64_t count) {
    for (int64_t done = 0; done < count;) {
        const Layout layout = any_layout();
        uint8_t *source = malloc((size_t)bytes_of_array(&layout));
        fill_source(&layout, source);
        int64_t size;
        uint8_t *value = pack_all(&layout, source, (int)below(2), &size);
        unpack_all(&layout, value, size, source, 1);
        for (int each = 0; each < 20 && done < count; each++, done++) {
            int64_t kept = size;
            uint8_t *found = damaged(&layout, value, &kept);
            /* At any address, and ending where its memory ends. */
            const int64_t before = below(4);
            uint8_t *memory = malloc((size_t)(before + kept)), *moved = memory + before;
            memcpy(moved, found, (size_t)kept);
            unpack_all(&layout, moved, kept, source, 0);
            if (kept == size) {
                memcpy(moved, value, (size_t)size);
                for (int64_t many = 1 + below(3); many; many--) flip(moved, 0, kept);
                unpack_compared(&layout, moved, kept, source);
            }
            free(found), free(memory);
        }
        free(source), free(value);
    }
}

/* Threads. */

typedef struct {
    Unpack *unpacks;
    int64_t count;
    _Atomic int64_t *next;
    pthread_barrier_t *start;
} Work;

static void *work(void *given) {
    const Work *of = given;
    pthread_barrier_wait(of->start);
    halofeed_unpack(of->unpacks, of->count, of->next, -1, extend);
    return 0;
}

static void run_threads(void) {
    enum { WINDOWS = 200, THREADS = 4 };
    const Layout layout = {4, 150, 200, 3, 3}; /* so large that threads work at the same time */
    uint8_t *source = malloc((size_t)bytes_of_array(&layout));
    extend(0, source, 0); /* makes the table of this program's checksum */
    fill_source(&layout, source);
    int64_t size = 3 * bytes_of_array(&layout) + 100000;
    uint8_t *value = malloc((size_t)size), *flags = calloc((size_t)sizes_of(&layout).bands, 1);
    /* Plain C, so that threads choose the instructions of unpacking at the same time. */
    atomic_store(&instructions, 0);
    size = halofeed_pack(&layout, source, value, 1, extend);
    atomic_store(&instructions, -1);
    static Unpack unpacks[WINDOWS];
    static Target targets[WINDOWS];
    for (int at = 0; at < WINDOWS; at++) {
        unpacks[at] = any_window(&layout);
        targets[at] = any_target(&layout, unpacks[at].shape);
        unpacks[at].value = (int64_t)(intptr_t)value, unpacks[at].size = size;
        unpacks[at].flags = (int64_t)(intptr_t)flags;
        unpacks[at].target = (int64_t)(intptr_t)(targets[at].memory + targets[at].offset);
        memcpy(unpacks[at].target_stride, targets[at].stride, sizeof unpacks[at].target_stride);
    }
    _Atomic int64_t next = 0;
    pthread_barrier_t start;
    pthread_barrier_init(&start, 0, THREADS);
    Work shared = {unpacks, WINDOWS, &next, &start};
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], 0, work, &shared);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], 0);
    for (int at = 0; at < WINDOWS; at++) {
        if (!unpacks[at].done || !is_window(&layout, &unpacks[at], &targets[at], source)) fail("a window is wrong");
        free(targets[at].memory);
    }
    free(source), free(value), free(flags);
}

/* Values of the reference: for each one 5 numbers of a layout, whether patches were tried, sizes of the array and of the
   value, int64, then the array and the value. */
static void read_vectors(void) {
    int64_t head[8], count = 0;
    for (; fread(head, sizeof *head, 8, stdin) == 8; count++) {
        const Layout layout = {head[0], head[1], head[2], head[3], head[4]};
        uint8_t *source = malloc((size_t)head[6]), *value = malloc((size_t)head[7]);
        if (fread(source, 1, (size_t)head[6], stdin) + fread(value, 1, (size_t)head[7], stdin) !=
            (size_t)(head[6] + head[7]))
            fail("a vector is too short");
        int64_t size;
        uint8_t *packed = pack_all(&layout, source, (int)head[5], &size);
        if (size != head[7] || memcmp(packed, value, (size_t)size)) fail("the reference packs other bytes");
        for (int window = 0; window < 5; window++) unpack_all(&layout, value, size, source, 1);
        free(source), free(value), free(packed);
    }
    printf("%lld vectors, %d instruction sets\n", (long long)count, halofeed_instructions(-1) + 1);
}

int main(int count, char **arguments) {
    state = count > 2 ? strtoull(arguments[2], 0, 10) * 2 + 1 : 1;
    if (count > 1 && !strcmp(arguments[1], "threads"))
        run_threads();
    else if (count > 1 && !strcmp(arguments[1], "vectors"))
        read_vectors();
    else
        fuzz(count > 1 ? strtoll(arguments[1], 0, 10) : 1000);
    printf("done\n");
    return 0;
}
