/* Tile registers (AMX), for CPUs without them: what the instructions do, as functions that machine code calls.
   Intel Instruction Set Extensions Programming Reference, chapter 3. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static __thread struct { int configured, rows[8], bytes[8]; uint32_t words[8][16][16]; } tiles;

long made_tdpbf16ps, made_tdpbusd;

static void need(int condition) { if (!condition) abort(); }

void emulated_ldtilecfg(const uint8_t *data) {
    need(data[0] == 1 && (uintptr_t)data % 64 == 0);
    memset(&tiles, 0, sizeof tiles);
    tiles.configured = 1;
    for (int i = 0; i < 8; i++) {
        tiles.rows[i] = data[48 + i];
        tiles.bytes[i] = data[16 + 2 * i] + 256 * data[17 + 2 * i];
        need(tiles.rows[i] <= 16 && tiles.bytes[i] <= 64);
    }
}

void emulated_tilerelease(void) { memset(&tiles, 0, sizeof tiles); }

void emulated_tilezero(int8_t t) { need(tiles.configured); memset(tiles.words[t], 0, sizeof tiles.words[t]); }

void emulated_tileloadd64(int8_t t, const char *from, int64_t stride) {
    need(tiles.configured);
    memset(tiles.words[t], 0, sizeof tiles.words[t]);
    for (int m = 0; m < tiles.rows[t]; m++) memcpy(tiles.words[t][m], from + m * stride, tiles.bytes[t]);
}

void emulated_tilestored64(int8_t t, char *to, int64_t stride) {
    need(tiles.configured);
    for (int m = 0; m < tiles.rows[t]; m++) memcpy(to + m * stride, tiles.words[t][m], tiles.bytes[t]);
}

static float half(uint32_t word, int second) {
    uint32_t bits = second ? word & 0xffff0000u : word << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static float without_subnormal(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value; }

void emulated_tdpbf16ps(int8_t c, int8_t a, int8_t b) {
    __atomic_add_fetch(&made_tdpbf16ps, 1, __ATOMIC_RELAXED);
    need(tiles.configured && tiles.rows[c] == tiles.rows[a] && tiles.bytes[a] == 4 * tiles.rows[b]);
    for (int m = 0; m < tiles.rows[c]; m++)
        for (int n = 0; n < tiles.bytes[c] / 4; n++) {
            float sums[2] = {0, 0}, total;
            for (int k = 0; k < tiles.rows[b]; k++)
                for (int i = 0; i < 2; i++)
                    sums[i] = fmaf(half(tiles.words[a][m][k], i), half(tiles.words[b][k][n], i), sums[i]);
            memcpy(&total, &tiles.words[c][m][n], 4);
            total = without_subnormal(without_subnormal(total) + (sums[0] + sums[1]));
            memcpy(&tiles.words[c][m][n], &total, 4);
        }
}

void emulated_tdpbusd(int8_t c, int8_t a, int8_t b) {
    __atomic_add_fetch(&made_tdpbusd, 1, __ATOMIC_RELAXED);
    need(tiles.configured && tiles.rows[c] == tiles.rows[a] && tiles.bytes[a] == 4 * tiles.rows[b]);
    for (int m = 0; m < tiles.rows[c]; m++)
        for (int n = 0; n < tiles.bytes[c] / 4; n++)
            for (int k = 0; k < tiles.rows[b]; k++)
                for (int i = 0; i < 4; i++) {
                    uint8_t value = tiles.words[a][m][k] >> 8 * i;
                    int8_t weight = tiles.words[b][k][n] >> 8 * i;
                    tiles.words[c][m][n] += (uint32_t)(value * weight);
                }
}
