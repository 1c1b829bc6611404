/* Adding the differences of a row to the row above, for one set of vector instructions.

   packed.c includes this file once for each set. NAME(function) is the function's name for the set, FOR_SET the attribute
   of its functions, and NAME(numbers) unpacks 16 numbers of at most 8 bits. There is no branch per group, because the
   number of bits is as good as random and a wrong prediction costs more than the group.

   `line` receives the units of `count` groups, and `above` holds those of the row above; it may be `line`. `number` is that
   of the first group's first code in `codes`, and `data` begins with that group. */

/* 16 differences of at most 8 bits. Packed numbers are differences plus half of their range. */
FOR_SET static inline Vector NAME(bytes)(const uint8_t *data, int64_t bits) {
    return sub_bytes(NAME(numbers)(data, bits), load(constants[bits].bias));
}

/* 16 differences of at most 16 bits: the low bytes of all of them are packed first, then what is above. */
FOR_SET static inline Vectors NAME(words)(const uint8_t *data, int64_t bits) {
    const int64_t low_bits = bits < 8 ? bits : 8;
    const Vector low = NAME(numbers)(data, low_bits), high = NAME(numbers)(data + 2 * low_bits, bits - low_bits);
    const Vector bias = load((const uint8_t *)word_bias[bits]);
    return (Vectors){{sub_words(first_bytes(low, high), bias), sub_words(last_bytes(low, high), bias)}};
}

FOR_SET static void NAME(add_bytes)(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number,
                                    int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += UNITS, above += UNITS) {
        const int64_t bits = codes_at(codes, number + group) & 15;
        store(line, sum_bytes(load(above), NAME(bytes)(data, bits)));
        data += 2 * bits;
    }
}

FOR_SET static void NAME(add_colors)(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number,
                                     int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 3 * UNITS, above += 3 * UNITS, number += 3) {
        const uint32_t found = codes_at(codes, number);
        const int64_t bits_g = found & 15, bits_r = found >> 4 & 15, bits_b = found >> 8 & 15;
        const Vector green = NAME(bytes)(data, bits_g);
        const Vector red = NAME(bytes)(data + 2 * bits_g, bits_r);
        const Vector blue = NAME(bytes)(data + 2 * (bits_g + bits_r), bits_b);
        add_interleaved(line, above, sum_bytes(red, green), green, sum_bytes(blue, green));
        data += 2 * (bits_g + bits_r + bits_b);
    }
}

FOR_SET static void NAME(add_words)(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number,
                                    int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 2 * UNITS, above += 2 * UNITS) {
        const int64_t bits = width_of(codes_at(codes, number + group) & 15);
        const Vectors found = NAME(words)(data, bits);
        store(line, sum_words(load(above), found.of[0]));
        store(line + 16, sum_words(load(above + 16), found.of[1]));
        data += 2 * bits;
    }
}

FOR_SET static void NAME(add_halves)(uint8_t *line, const uint8_t *above, const uint8_t *codes, int64_t number,
                                     int64_t count, const uint8_t *data) {
    for (int64_t group = 0; group < count; group++, line += 4 * UNITS, above += 4 * UNITS, number += 2) {
        const uint32_t both = codes_at(codes, number);
        const int64_t low_bits = width_of(both & 15), high_bits = width_of(both >> 4 & 15);
        const Vectors low = NAME(words)(data, low_bits), high = NAME(words)(data + 2 * low_bits, high_bits);
        for (int half = 0; half < 2; half++) {
            uint8_t *const at = line + 32 * half;
            const uint8_t *const from = above + 32 * half;
            store(at, sum_words(load(from), first_words(low.of[half], high.of[half])));
            store(at + 16, sum_words(load(from + 16), last_words(low.of[half], high.of[half])));
        }
        data += 2 * (low_bits + high_bits);
    }
}

#undef NAME
#undef FOR_SET
