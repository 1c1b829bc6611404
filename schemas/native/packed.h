/* Format of packed values, for packed.c, which unpacks, and packing.c, which packs. docs/packed.md specifies it. */

#ifndef HALOFEED_PACKED_H
#define HALOFEED_PACKED_H

#include "checking.h"
#include "copying.h"

#if HAS_SSE
#define FOR(features) __attribute__((target(features)))
#endif

#define VERSION 1
#define ROWS 32  /* of a band */
#define UNITS 16 /* of a group */
#define HEAD 8
#define ENTRY 8
#define SLACK 16

enum { RAW, GROUPS, PATCHES };

#define EACH_BYTE 0x0101010101010101u
#define EACH_WORD 0x0001000100010001u

/* halofeed.schemas.packed.packed_layout.PackedLayout.numbers */
typedef struct {
    int64_t planes, height, width, pixel, unit;
} Layout;

/* Sizes and counts that follow from a layout; PackedLayout has the same properties: bytes of a row, of the widths of a row
   of groups, and of the value before its first band. */
typedef struct {
    int64_t row, units, groups, parts, widths, bands_of_plane, bands, table;
} Sizes;

/* The instruction set in use: 0 plain C, 1 AVX2 or NEON, 2 AVX-512 with VBMI. */
int halofeed_instructions_used(void);

static inline Sizes sizes_of(const Layout *layout) {
    Sizes sizes;
    sizes.row = layout->width * layout->pixel;
    sizes.units = sizes.row / layout->unit;
    sizes.groups = (sizes.units + UNITS - 1) / UNITS;
    sizes.parts = layout->unit == 3 ? 3 : layout->unit == 4 ? 2 : 1;
    sizes.widths = (sizes.groups * sizes.parts + 1) / 2;
    sizes.bands_of_plane = (layout->height + ROWS - 1) / ROWS;
    sizes.bands = layout->planes * sizes.bands_of_plane;
    sizes.table = HEAD + ENTRY * sizes.bands;
    return sizes;
}

/* Whether a unit's parts are numbers of 16 bits, not of 8. */
static inline int has_words(const Layout *layout) { return layout->unit == 2 || layout->unit == 4; }

/* Numbers of a value may begin at any address. */
static inline uint32_t read_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static inline uint64_t read_u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static inline void write_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

static inline void write_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }

#endif
