/* Kernel that fills a batch's rows. It copies windows of stored arrays, mirrored along any axis, past the cache. It also
   reads records from their files and parses their numbers. Checksums are computed while the bytes are in the cache.

   A plain shared library without Python's headers. halofeed.schemas.native.kernel calls it with tables of 64-bit integers
   and without the interpreter's lock, so that several threads share one table. */

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "checking.h"
#include "copying.h"

#define PIECE 16384 /* bytes of rows that are assembled in the L1 cache before they are written */
#define SHORT 1024 /* rows up to this many bytes are assembled even if they are not mirrored */
#define AHEAD 2048 /* bytes of rows that are prefetched */
#define READ (1 << 18) /* bytes per read, which are still in the cache when their checksum is computed */
#define HEADER 12
#define FOOTER 4
#define SIZE_BITS 31 /* a record has less than 2 GiB */

/* A row of halofeed.schemas.native.kernel.Moves. Axes are depth, height, width. Strides are in bytes; a source stride is
   negative if the axis is reversed. `source` is the first pixel shown. `flags` has a byte for each block of the value of
   `size` bytes at `value`: 0 if its checksum was not compared yet; address 0: checksums are not compared. */
typedef struct {
    int64_t source, target;
    int64_t shape[3], source_stride[3], target_stride[3];
    int64_t pixel;
    int64_t header, length, length_checksum, footer, checksum; /* header 0: no frame; length_checksum < 0: not compared */
    int64_t value, size, block, checksums, flags; /* as in Blocks of checking.h */
    int64_t done;
} Move;

/* One record. `rest` receives its frame without the `count` raw values, which `values` describes. */
typedef struct {
    int64_t descriptor, offset, length, length_checksum, checksum;
    int64_t rest, values, count;
} Read;

/* A raw value: its file offset (in a `Rest` its address), its blocks' size and checksums, and its target address, 0 for
   none. A packed value is one block. */
typedef struct {
    int64_t start, size, target, checksums, block;
} Value;

/* A mapped record, of which all but the `count` values is verified; their checksums are combined with that of
   the rest. */
typedef struct {
    int64_t header, length, length_checksum, footer, checksum; /* as in Move */
    int64_t values, count;
    int64_t done;
} Rest;

/* A key of a record's numbers: `kind` is the number of FloatList or Int64List in a Feature of tf.train.Example, `count`
   how many numbers there must be, `place` where they go in the record's output. */
typedef struct {
    int64_t key, key_bytes, kind, count, place;
} Wanted;

/* A record's data whose numbers are parsed. */
typedef struct {
    int64_t data, length, output, done;
} Parse;

int64_t halofeed_version(void) { return 2; }

int64_t halofeed_columns(int64_t table) {
    const int64_t bytes[] = {sizeof(Move), sizeof(Read), sizeof(Value), sizeof(Rest), sizeof(Wanted), sizeof(Parse)};
    return bytes[table] / (int64_t)sizeof(int64_t);
}

/* By bit of a size and byte of a checksum: the effect of appending 2**bit zero bytes. */
static uint32_t zeros[SIZE_BITS][4][256];

static uint32_t append_power(uint32_t checksum, int bit) {
    return zeros[bit][0][checksum & 255] ^ zeros[bit][1][checksum >> 8 & 255] ^ zeros[bit][2][checksum >> 16 & 255] ^
           zeros[bit][3][checksum >> 24];
}

/* Fills `zeros`; the caller does so once, before the other functions. Appending zeros is linear, and 2**bit zeros are
   twice 2**(bit - 1). */
void halofeed_prepare(void) {
    for (int bit = 0; bit < SIZE_BITS; bit++)
        for (int byte = 0; byte < 4; byte++)
            for (uint32_t value = 1; value < 256; value++) {
                const uint32_t lowest = value & -value;
                uint32_t checksum = lowest << 8 * byte;
                if (value != lowest)
                    checksum = zeros[bit][byte][lowest] ^ zeros[bit][byte][value ^ lowest];
                else if (bit)
                    checksum = append_power(append_power(checksum, bit - 1), bit - 1);
                else
                    for (int at = 0; at < 8; at++) checksum = checksum >> 1 ^ (checksum & 1 ? 0x82f63b78u : 0);
                zeros[bit][byte][value] = checksum;
            }
}

static uint32_t append_zeros(uint32_t checksum, int64_t size) {
    for (int bit = 0; size; bit++, size >>= 1)
        if (size & 1) checksum = append_power(checksum, bit);
    return checksum;
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

/* Makes a move in parts of about a block: verifies the blocks of a part, and copies it while it is in the cache. */
static int move_verified(const Move *move, int streams, Extend extend) {
    const int64_t count = (move->size + move->block - 1) / move->block;
    if (!memchr((const void *)move->flags, 0, count)) {
        move_window(move, streams);
        return 1;
    }
    const Blocks blocks = {move->value, move->size, move->block, move->checksums, move->flags};
    const uint8_t *value = (const uint8_t *)move->value;
    const int64_t row = move->shape[2] * move->pixel, line = move->source_stride[1];
    const int64_t before = move->source_stride[2] < 0 ? row - move->pixel : 0; /* stored bytes before a row's first pixel */
    const int64_t stride = line < 0 ? -line : line, most = stride < move->block ? move->block / (stride + !stride) : 1;
    for (int64_t plane = 0; plane < move->shape[0]; plane++)
        for (int64_t first = 0; first < move->shape[1]; first += most) {
            Move part = *move;
            part.shape[0] = 1;
            part.shape[1] = move->shape[1] - first < most ? move->shape[1] - first : most;
            part.source += plane * move->source_stride[0] + first * line;
            part.target += plane * move->target_stride[0] + first * move->target_stride[1];
            const uint8_t *one = (const uint8_t *)part.source - before, *other = one + (part.shape[1] - 1) * line;
            const uint8_t *low = one < other ? one : other, *high = one < other ? other : one;
            if (!verify_blocks(&blocks, low - value, high + row - value, extend)) return 0;
            move_window(&part, streams);
        }
    return 1;
}

/* Makes the moves of a table from `next` on; any number of threads may call it at the same time. */
void halofeed_move(Move *moves, int64_t count, _Atomic int64_t *next, int streams, Extend extend) {
    for (int64_t at; (at = atomic_fetch_add(next, 1)) < count;) {
        Move *move = &moves[at];
        if (move->header && !is_framed(move->header, move->footer, move->length, move->length_checksum, move->checksum))
            continue;
        if (!move->flags)
            move_window(move, streams);
        else if (!move_verified(move, streams, extend))
            continue;
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
        const int64_t size = value->size - at < value->block ? value->size - at : value->block;
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
        *whole = append_zeros(*whole, size) ^ expected[block];
        at += size;
    }
    return 1;
}

/* TFRecord's form of a checksum. */
static uint32_t masked(uint32_t checksum) { return (checksum >> 15 | checksum << 17) + 0xa282ead8u; }

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
    const int64_t footer = (int64_t)(intptr_t)(rest - FOOTER);
    return masked(whole) == (uint32_t)read->checksum &&
           is_framed(read->rest, footer, read->length, read->length_checksum, read->checksum);
}

/* Compares one record's frame, and the checksum of its data without reading its values. */
static int verify_rest(const Rest *rest, Extend extend) {
    const Value *values = (const Value *)rest->values;
    const uint8_t *at = (const uint8_t *)rest->header + HEADER;
    uint32_t whole = 0;
    if (!is_framed(rest->header, rest->footer, rest->length, rest->length_checksum, rest->checksum)) return 0;
    for (int64_t number = 0; number < rest->count; number++) {
        const Value *value = &values[number];
        whole = extend(whole, at, (const uint8_t *)value->start - at);
        for (int64_t done = 0, block = 0; done < value->size; done += value->block, block++) {
            const int64_t left = value->size - done;
            whole = append_zeros(whole, left < value->block ? left : value->block) ^
                    ((const uint32_t *)value->checksums)[block];
        }
        at = (const uint8_t *)value->start + value->size;
    }
    whole = extend(whole, at, (const uint8_t *)rest->footer - at);
    return masked(whole) == (uint32_t)rest->checksum;
}

/* Verifies the records of a table. */
void halofeed_verify(Rest *rests, int64_t count, Extend extend) {
    for (int64_t at = 0; at < count; at++) rests[at].done = verify_rest(&rests[at], extend);
}

/* Reads a number in groups of 7 bits, the lowest first; 0 if it is damaged. */
static int read_number(const uint8_t **at, const uint8_t *end, uint64_t *number) {
    *number = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        *number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* Enters a field of bytes with this number, whose end is returned; 0 if the next field is another one. */
static const uint8_t *enter(const uint8_t **at, const uint8_t *end, int field) {
    uint64_t size;
    if (*at >= end || *(*at)++ != (field << 3 | 2) || !read_number(at, end, &size) || size > (uint64_t)(end - *at)) return 0;
    return *at + size;
}

/* Writes a list's numbers; 0 if they are not as many as expected, or stored in another form than the converter's. */
static int parse_list(const Wanted *wanted, const uint8_t *at, const uint8_t *end, uint8_t *output) {
    const uint8_t *list = enter(&at, end, (int)wanted->kind);
    if (list != end) return 0;
    const uint8_t *last = enter(&at, end, 1);
    if (last != end) return 0;
    output += wanted->place;
    if (wanted->kind == 2) {
        if (last - at != 4 * wanted->count) return 0;
        memcpy(output, at, last - at);
        return 1;
    }
    for (int64_t number = 0; number < wanted->count; number++) {
        uint64_t value;
        if (!read_number(&at, last, &value)) return 0;
        memcpy(output + 8 * number, &value, 8);
    }
    return at == last;
}

/* Parses the wanted numbers of one record; 0 if it has them not exactly once each in the converter's form. */
static int parse_record(const Parse *parse, const Wanted *wanted, int64_t count) {
    const uint8_t *at = (const uint8_t *)parse->data, *end = at + parse->length;
    uint64_t found = 0;
    if (enter(&at, end, 1) != end) return 0;
    while (at < end) {
        const uint8_t *entry = enter(&at, end, 1), *name = at, *key = entry ? enter(&name, entry, 1) : 0;
        if (!key) return 0;
        at = key;
        const uint8_t *value = enter(&at, entry, 2);
        if (value != entry) return 0;
        for (int64_t number = 0; number < count; number++) {
            if (key - name != wanted[number].key_bytes || memcmp(name, (const void *)wanted[number].key, key - name)) continue;
            if (found >> number & 1 || !parse_list(&wanted[number], at, entry, (uint8_t *)parse->output)) return 0;
            found |= (uint64_t)1 << number;
        }
        at = entry;
    }
    return found == ((uint64_t)1 << count) - 1;
}

/* Parses the wanted numbers, fewer than 64 keys, of each record of a table. */
void halofeed_parse(Parse *parses, int64_t count, const Wanted *wanted, int64_t keys) {
    for (int64_t at = 0; at < count; at++) parses[at].done = parse_record(&parses[at], wanted, keys);
}
