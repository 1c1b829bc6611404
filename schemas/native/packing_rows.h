/* Packing of the differences of a row to the row above, for one set of instructions.

   packing.c includes this file once for each set. NAME(function) is the function's name for the set, FOR_SET the attribute
   of its functions. The set has its own NAME(bits_of_bytes) and NAME(bits_of_words), which find how many bits 16
   differences need, NAME(split_words), and NAME(squeeze), which packs 8 numbers of at most 8 bits. */

FOR_SET static void NAME(find_deltas)(const Packing *packing) {
    const int64_t count = packing->sizes->groups * UNITS, unit = packing->layout->unit;
    uint8_t *restrict deltas = packing->deltas;
    const uint8_t *restrict current = packing->current, *restrict above = packing->above;
    /* Rows of a source begin at any address. */
    Word *restrict words = (Word *)packing->deltas;
    const Word *restrict now = (const Word *)packing->current, *restrict before = (const Word *)packing->above;
    switch (unit) {
        case 1:
            for (int64_t at = 0; at < count; at++) deltas[at] = (uint8_t)(current[at] - above[at]);
            break;
        case 2:
            for (int64_t at = 0; at < count; at++) words[at] = (uint16_t)(now[at] - before[at]);
            break;
        case 3:
            for (int64_t at = 0; at < count; at++) {
                const uint8_t green = (uint8_t)(current[3 * at + 1] - above[3 * at + 1]);
                deltas[at] = green;
                deltas[count + at] = (uint8_t)(current[3 * at] - above[3 * at] - green);
                deltas[2 * count + at] = (uint8_t)(current[3 * at + 2] - above[3 * at + 2] - green);
            }
            break;
        default:
            for (int64_t at = 0; at < count; at++) {
                words[at] = (uint16_t)(now[2 * at] - before[2 * at]);
                words[count + at] = (uint16_t)(now[2 * at + 1] - before[2 * at + 1]);
            }
    }
}

/* Packs 16 numbers of `bits` bits each, at most 8. It writes up to 8 bytes too many, which the next group overwrites. */
FOR_SET static inline uint8_t *NAME(put_bytes)(uint8_t *data, uint64_t first, uint64_t last, int64_t bits) {
    write_u64(data, NAME(squeeze)(first, bits));
    write_u64(data + bits, NAME(squeeze)(last, bits));
    return data + 2 * bits;
}

/* Packs 16 differences of 8 bits; `*bits` becomes the bits of each of them. Half of their range is added to them, which is
   the same as an inverted sign. */
FOR_SET static inline uint8_t *NAME(pack_bytes)(const uint8_t *deltas, uint8_t *data, int64_t *bits) {
    *bits = NAME(bits_of_bytes)(deltas);
    const uint64_t mask = EACH_BYTE * ((1u << *bits) - 1), sign = EACH_BYTE * ((1u << *bits) >> 1);
    return NAME(put_bytes)(data, (read_u64(deltas) ^ sign) & mask, (read_u64(deltas + 8) ^ sign) & mask, *bits);
}

/* The same of 16 bits: first the low bytes of all of them, then what is above. */
FOR_SET static inline uint8_t *NAME(pack_words)(const uint8_t *deltas, uint8_t *data, int64_t *bits) {
    *bits = NAME(bits_of_words)(deltas);
    const int64_t low_bits = *bits < 8 ? *bits : 8;
    uint64_t low[2], high[2];
    NAME(split_words)(deltas, *bits, low, high);
    data = NAME(put_bytes)(data, low[0], low[1], low_bits);
    return NAME(put_bytes)(data, high[0], high[1], *bits - low_bits);
}

/* Packs a row, and returns the end of its data. */
FOR_SET static uint8_t *NAME(pack_row)(const Packing *packing, uint8_t *codes, uint8_t *data) {
    const int64_t groups = packing->sizes->groups, parts = packing->sizes->parts;
    const int are_words = has_words(packing->layout);
    NAME(find_deltas)(packing);
    codes[packing->sizes->widths - 1] = 0; /* half of this byte may be unused */
    for (int64_t group = 0, number = 0; group < groups; group++)
        for (int64_t part = 0; part < parts; part++, number++) {
            const int64_t place = (part * groups + group) * UNITS;
            int64_t bits;
            data = are_words ? NAME(pack_words)(packing->deltas + 2 * place, data, &bits)
                             : NAME(pack_bytes)(packing->deltas + place, data, &bits);
            write_code(codes, number, bits);
        }
    return data;
}

#undef NAME
#undef FOR_SET
