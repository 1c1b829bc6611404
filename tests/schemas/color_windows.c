/* Windows of color planes at all edges of small pictures, for builds with sanitizers and for other processors.

   Every array has exactly its size, so that a sanitizer sees a byte outside it. Pixels are compared with the formulas of
   docs/color-planes.md, and planes with those of the same pixels. It prints "done". */

#include <stdio.h>
#include <stdlib.h>

#include "coloring.c"

static uint32_t state = 1;

static uint8_t next_byte(void) {
    state = state * 1664525u + 1013904223u;
    return (uint8_t)(state >> 24);
}

static uint8_t limited(int64_t value) { return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value; }

/* Rounds a quotient down. */
static int64_t divided(int64_t value, int64_t by) { return value >= 0 ? value / by : -((-value + by - 1) / by); }

static void expected_pixel(const uint8_t *value, int64_t height, int64_t width, int64_t row, int64_t column, uint8_t *out) {
    const uint8_t *chroma = value + height * width + row / 2 * width + column / 2 * 2;
    const int64_t luma = value[row * width + column], blue = chroma[0] - 128, red = chroma[1] - 128;
    out[0] = limited(luma + divided(91881 * red + 32768, 65536));
    out[1] = limited(luma + divided(-22554 * blue - 46802 * red + 32768, 65536));
    out[2] = limited(luma + divided(116130 * blue + 32768, 65536));
}

static int sums_are_right = 1;

static uint32_t sum(uint32_t start, const uint8_t *data, size_t size) {
    for (size_t at = 0; at < size; at++) start = start * 31 + data[at];
    return sums_are_right ? start : ~start;
}

static void fail(const char *what, const Coloring *window) {
    printf("%s: %lld x %lld, rows from %lld, columns from %lld, %lld x %lld\n", what, (long long)window->height,
           (long long)window->width, (long long)window->start[0], (long long)window->start[1],
           (long long)window->shape[0], (long long)window->shape[1]);
    exit(1);
}

static void check_window(Coloring *window, const uint8_t *value, int streams) {
    const int64_t height = window->shape[0], width = window->shape[1], size = 3 * height * width;
    uint8_t *out = malloc((size_t)size + !size), expected[3];
    window->target = (intptr_t)out, window->target_stride = 3 * width, window->done = 0;
    _Atomic int64_t next = 0;
    halofeed_color(window, 1, &next, streams, sum);
    if (window->done != sums_are_right) fail("done", window);
    for (int64_t row = 0; window->done && row < height; row++)
        for (int64_t column = 0; column < width; column++) {
            const int64_t y = window->start[0] + (window->backwards[0] ? height - 1 - row : row);
            const int64_t x = window->start[1] + (window->backwards[1] ? width - 1 - column : column);
            expected_pixel(value, window->height, window->width, y, x, expected);
            if (memcmp(expected, out + 3 * (row * width + column), 3)) fail("pixels", window);
        }
    free(out);
}

/* All blocks with bytes that a window shows were compared. */
static void check_flags(const Coloring *window) {
    const uint8_t *flags = (const uint8_t *)window->flags;
    for (int64_t row = window->start[0]; row < window->start[0] + window->shape[0]; row++)
        for (int64_t column = window->start[1]; column < window->start[1] + window->shape[1]; column++) {
            const int64_t chroma = window->height * window->width + row / 2 * window->width + column / 2 * 2;
            if (!flags[(row * window->width + column) / window->block] || !flags[chroma / window->block] ||
                !flags[(chroma + 1) / window->block])
                fail("flags", window);
        }
}

static void check_picture(int64_t height, int64_t width, int64_t step) {
    const int64_t size = height * width * 3 / 2, block = 37, blocks = (size + block - 1) / block;
    uint8_t *value = malloc((size_t)size), *pixels = malloc((size_t)(2 * size)), *flags = calloc((size_t)blocks, 1);
    uint32_t *sums = malloc((size_t)blocks * sizeof(uint32_t));
    for (int64_t at = 0; at < 2 * size; at++) pixels[at] = next_byte();
    if (!halofeed_split_colors(pixels, height, width, value)) exit(1);
    for (int64_t at = 0; at < size; at++) value[at] ^= at % 3 ? 0 : next_byte(); /* all luma with all chroma */
    for (int64_t at = 0; at < blocks; at++)
        sums[at] = sum(0, value + at * block, (size_t)(size - at * block < block ? size - at * block : block));
    for (int64_t top = 0; top <= height; top++)
        for (int64_t bottom = top; bottom <= height; bottom++)
            for (int64_t left = 0; left <= width; left += left < 4 ? 1 : step)
                for (int64_t right = left; right <= width; right += right < left + 4 ? 1 : step)
                    for (int64_t ways = 0; ways < 8; ways++) {
                        Coloring window = {.value = (intptr_t)value, .height = height, .width = width};
                        window.start[0] = top, window.shape[0] = bottom - top, window.backwards[0] = ways & 1;
                        window.start[1] = left, window.shape[1] = right - left, window.backwards[1] = ways >> 1 & 1;
                        if (ways & 4) {
                            memset(flags, 0, (size_t)blocks);
                            window.size = size, window.block = block;
                            window.checksums = (intptr_t)sums, window.flags = (intptr_t)flags;
                        }
                        check_window(&window, value, ways >> 1 & 1);
                        if (window.flags && bottom > top && right > left) {
                            check_flags(&window);
                            memset(flags, 0, (size_t)blocks);
                            sums_are_right = 0;
                            check_window(&window, value, 0);
                            sums_are_right = 1;
                        }
                    }
    free(value), free(pixels), free(flags), free(sums);
}

int main(void) {
    const int64_t widths[] = {2, 4, 14, 16, 18, 34};
    for (int at = 0; at < 6; at++) check_picture(4, widths[at], 3);
    check_picture(2, 130, 11);
    puts("done");
    return 0;
}
