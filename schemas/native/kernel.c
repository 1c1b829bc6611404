/* Kernel that fills a batch's rows. It copies windows of stored arrays, mirrored along any axis, past the cache. It also
   reads records from their files, and computes checksums while the bytes are in the cache.

   A plain shared library without Python's headers. halofeed.schemas.native.kernel calls it with tables of 64-bit integers
   and without the interpreter's lock, so that several threads share one table. */

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "copying.h"

#define PIECE 16384 /* bytes of rows that are assembled in the L1 cache before they are written */
#define SHORT 1024 /* rows up to this many bytes are assembled even if they are not mirrored */
#define AHEAD 2048 /* bytes of rows that are prefetched */
#define READ (1 << 18) /* bytes per read, which are still in the cache when their checksum is computed */
#define BLOCK (1 << 20)
#define HEADER 12
#define FOOTER 4

/* A row of halofeed.schemas.native.kernel.Moves. Axes are depth, height, width. Strides are in bytes; a source stride is
   negative if the axis is reversed. `source` is the first pixel shown. */
typedef struct {
    int64_t source, target;
    int64_t shape[3], source_stride[3], target_stride[3];
    int64_t pixel;
    int64_t header, length, length_checksum, footer, checksum; /* header 0: no frame; length_checksum < 0: not compared */
    int64_t done;
} Move;

/* One record. `rest` receives its frame without the `count` raw values, which `values` describes. */
typedef struct {
    int64_t descriptor, offset, length, length_checksum, checksum;
    int64_t rest, values, count;
} Read;

/* A raw value: its file offset, its blocks' checksums, and its target address, 0 for none. `shifts` are tables by checksum
   byte: the effect of appending a block's length of zeros, and of appending the last block's length. */
typedef struct {
    int64_t start, size, target, checksums, shifts;
} Value;

typedef uint32_t (*Extend)(uint32_t checksum, const uint8_t *data, size_t size);

int64_t halofeed_version(void) { return 1; }

int64_t halofeed_columns(int64_t table) {
    const int64_t bytes[] = {sizeof(Move), sizeof(Read), sizeof(Value)};
    return bytes[table] / (int64_t)sizeof(int64_t);
}

static int is_framed(const uint8_t *header, const uint8_t *footer, int64_t length, int64_t length_checksum,
                     int64_t checksum) {
    uint64_t found_length;
    uint32_t found_length_checksum, found_checksum;
    memcpy(&found_length, header, 8);
    memcpy(&found_length_checksum, header + 8, 4);
    memcpy(&found_checksum, footer, 4);
    return found_length == (uint64_t)length && found_checksum == (uint32_t)checksum &&
           (length_checksum < 0 || found_length_checksum == (uint32_t)length_checksum);
}

/* Prefetches a row, because the processor's own prefetching ends with each row. */
static void expect_row(const uint8_t *first, int64_t size) {
#if HAS_SSE
    for (int64_t at = -((intptr_t)first & (LINE - 1)); at < size; at += LINE)
        _mm_prefetch((const char *)first + at, _MM_HINT_T0);
#endif
}

/* Copies rows that are contiguous in the target: assembles them in the L1 cache, then writes them past the cache. */
static void move_in_pieces(const Move *move, int forwards) {
    uint8_t piece[PIECE] __attribute__((aligned(LINE)));
    const int64_t pixel = move->pixel, width = move->shape[2], row = width * pixel, height = move->shape[1];
    const int64_t rows = move->shape[0] * height, most = PIECE / row, ahead = AHEAD / row + 1;
    const uint8_t *first = (const uint8_t *)move->source - (forwards ? 0 : row - pixel), *next = first, *asked = first;
    uint8_t *target = (uint8_t *)move->target;
    const int64_t line_stride = move->source_stride[1];
    const int64_t plane_stride = move->source_stride[0] - height * line_stride;
    for (int64_t number = -ahead, held = 0; number < rows; number++) {
        if (number + ahead < rows) {
            expect_row(asked, row);
            asked += line_stride + ((number + ahead + 1) % height ? 0 : plane_stride);
        }
        if (number < 0) continue;
        if (forwards)
            memcpy(piece + held * row, next, row);
        else
            mirror(piece + held * row, next, width, pixel);
        next += line_stride + ((number + 1) % height ? 0 : plane_stride);
        if (++held == most || number + 1 == rows) {
            stream(target, piece, held * row);
            target += held * row, held = 0;
        }
    }
}

static void move_window(const Move *move, int streams) {
    int64_t depth = move->shape[0], height = move->shape[1], width = move->shape[2];
    const int64_t pixel = move->pixel, row = width * pixel;
    const int forwards = move->source_stride[2] == pixel;
    int64_t run = row;
    /* Merge rows, and then planes, that are contiguous in source and target. */
    if (forwards && move->source_stride[1] == run && move->target_stride[1] == run) {
        run *= height, height = 1;
        if (move->source_stride[0] == run && move->target_stride[0] == run) run *= depth, depth = 1;
    }
    const int is_dense = move->target_stride[1] == row &&
                         (move->shape[0] == 1 || move->target_stride[0] == row * move->shape[1]);
    if (streams && is_dense && run <= (forwards ? SHORT : PIECE)) {
        move_in_pieces(move, forwards);
        depth = 0;
    }
    for (int64_t plane = 0; plane < depth; plane++)
        for (int64_t line = 0; line < height; line++) {
            const uint8_t *source =
                (const uint8_t *)move->source + plane * move->source_stride[0] + line * move->source_stride[1];
            uint8_t *target = (uint8_t *)move->target + plane * move->target_stride[0] + line * move->target_stride[1];
            if (!forwards)
                mirror(target, source - (width - 1) * pixel, width, pixel);
            else if (streams)
                stream(target, source, run);
            else
                memcpy(target, source, run);
        }
#if HAS_SSE
    _mm_sfence();
#endif
}

/* Makes the moves of a table from `next` on; any number of threads may call it at the same time. */
void halofeed_move(Move *moves, int64_t count, _Atomic int64_t *next, int streams) {
    for (int64_t at; (at = atomic_fetch_add(next, 1)) < count;) {
        Move *move = &moves[at];
        if (move->header && !is_framed((const uint8_t *)move->header, (const uint8_t *)move->footer, move->length,
                                       move->length_checksum, move->checksum))
            continue;
        move_window(move, streams);
        move->done = 1;
    }
}

/* Makes one move without comparing its frame. */
void halofeed_copy(const Move *move, int streams) { move_window(move, streams); }

static int read_all(int64_t descriptor, uint8_t *target, int64_t size, int64_t at) {
    while (size) {
        const ssize_t got = pread((int)descriptor, target, size, at);
        if (got <= 0) return 0; /* the caller reads again and reports the error */
        target += got, size -= got, at += got;
    }
    return 1;
}

/* Reads a value and compares each block; extends `whole`, the checksum of everything before it. */
static int read_value(const Value *value, int64_t descriptor, Extend extend, uint32_t *whole) {
    const uint32_t *expected = (const uint32_t *)value->checksums;
    for (int64_t block = 0, at = 0; at < value->size; block++) {
        const int64_t size = value->size - at < BLOCK ? value->size - at : BLOCK;
        const uint32_t *shift = (const uint32_t *)value->shifts + (size == BLOCK ? 0 : 4 * 256);
        if (value->target) {
            uint32_t checksum = 0;
            for (int64_t done = 0; done < size;) {
                uint8_t *target = (uint8_t *)value->target + at + done;
                const int64_t many = size - done < READ ? size - done : READ;
                if (!read_all(descriptor, target, many, value->start + at + done)) return 0;
                checksum = extend(checksum, target, many);
                done += many;
            }
            if (checksum != expected[block]) return 0;
        }
        *whole = shift[*whole & 255] ^ shift[256 + (*whole >> 8 & 255)] ^ shift[512 + (*whole >> 16 & 255)] ^
                 shift[768 + (*whole >> 24)] ^ expected[block];
        at += size;
    }
    return 1;
}

/* Reads one record, and returns whether all checksums are right; `extend` computes CRC32C. */
int halofeed_read(const Read *read, Extend extend) {
    const Value *values = (const Value *)read->values;
    const int64_t end = read->offset + HEADER + read->length + FOOTER;
    uint8_t *rest = (uint8_t *)read->rest;
    uint32_t whole = 0;
    for (int64_t number = 0, at = read->offset; number <= read->count; number++) {
        const int64_t stop = number < read->count ? values[number].start : end, size = stop - at;
        const int64_t before = number ? 0 : HEADER, after = number < read->count ? 0 : FOOTER;
        if (!read_all(read->descriptor, rest, size, at)) return 0;
        whole = extend(whole, rest + before, size - before - after);
        rest += size;
        if (number < read->count) {
            if (!read_value(&values[number], read->descriptor, extend, &whole)) return 0;
            at = stop + values[number].size;
        }
    }
    whole = (whole >> 15 | whole << 17) + 0xa282ead8u; /* TFRecord's masked checksum */
    return whole == (uint32_t)read->checksum && is_framed((const uint8_t *)read->rest, rest - FOOTER, read->length,
                                                          read->length_checksum, read->checksum);
}
