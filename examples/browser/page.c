/* What the page calls: one text at a time, with memory that JavaScript
fills and reads. */
#include "letters.h"

static double weights[(LETTERS_WEIGHTS + 7) / 8];
static letters_state state;
static float x[LETTERS_INPUT], y[LETTERS_OUTPUT];

void *weights_at(void) { return weights; }
float *x_at(void) { return x; }
float *y_at(void) { return y; }
int begin(void) { return letters_init(&state, weights); }
void step(void) { letters_step(&state, x, y); }
