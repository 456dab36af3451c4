/* Plays a WAV file through a network in C: amplifier IN.wav OUT.wav.

The files are 16 bit, mono. The sound comes in blocks, as an audio callback
gets it: one state, no memory, no waiting. `amplifier.py` makes amp.c and
compiles both. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "amp.h"

enum { BLOCK = 256, HEADER = 44 };

static uint32_t little_endian(const unsigned char *bytes, int count) {
  uint32_t value = 0;
  for (int i = count - 1; i >= 0; i--) value = value << 8 | bytes[i];
  return value;
}

int main(int argc, char **argv) {
  unsigned char header[HEADER], block[2 * BLOCK];
  float x[BLOCK], y[BLOCK];
  amp_state state;
  FILE *in = argc > 2 ? fopen(argv[1], "rb") : NULL;
  FILE *out = argc > 2 ? fopen(argv[2], "wb") : NULL;
  if (!in || !out || fread(header, 1, HEADER, in) != HEADER ||
      memcmp(header, "RIFF", 4) || little_endian(header + 22, 2) != 1 ||
      little_endian(header + 34, 2) != 16) {
    fprintf(stderr, "usage: amplifier IN.wav OUT.wav (16 bit, mono)\n");
    return 1;
  }
  fwrite(header, 1, HEADER, out);
  amp_init(&state);
  size_t count, samples = 0;
  clock_t spent = 0;
  while ((count = fread(block, 2, BLOCK, in)) > 0) {
    for (size_t i = 0; i < count; i++) {
      x[i] = (int16_t)little_endian(block + 2 * i, 2) / 32768.0f;
    }
    const clock_t start = clock();
    amp_run(&state, x, count, y, NULL);
    spent += clock() - start;
    for (size_t i = 0; i < count; i++) {
      const float above = y[i] < -1.0f ? -1.0f : y[i];
      const float limited = above > 1.0f ? 1.0f : above;
      const uint16_t value = (uint16_t)(int16_t)(limited * 32767.0f);
      block[2 * i] = value & 255, block[2 * i + 1] = value >> 8;
    }
    fwrite(block, 2, count, out);
    samples += count;
  }
  const double seconds = (double)spent / CLOCKS_PER_SEC;
  const double length = samples / (double)little_endian(header + 24, 4);
  printf("%.0f s of sound in %.3f s, at %.0f x its speed\n", length,
         seconds, length / seconds);
  return fclose(in) || fclose(out);
}
