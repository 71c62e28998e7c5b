/* Products of fp32 rows with matrices in 16 bits: codes from -MOST to MOST on both sides, whose rounding errors are a
   third of bfloat16's. For AVX2, and for AVX-512 with VNNI, which multiplies twice as many at once.

   Matrices are [out / PANEL][in / 2][PANEL][2], so that one instruction multiplies two inputs of LANES outputs and adds
   the two products. */

#pragma once
#include "matrix.h"

#define MOST 4095
#define EXACT_WIDE 128 /* inputs whose products 32 bits hold: 4095 * 4095 * 128 < 2^31 */
#define PANEL (2 * LANES) /* outputs that are summed side by side */
#define WIDE_ROWS 6 /* whose sums of PANEL outputs the registers hold */
#define WIDE_BATCH 48 /* rows that are multiplied together */

/* Codes of up to WIDE_BATCH rows, [rows][in], with what a step of a code is worth. */
typedef struct {
    int16_t codes[WIDE_BATCH * WIDEST] __attribute__((aligned(64)));
    float step[WIDE_BATCH];
} WideRows;

/* Two vectors of numbers as codes. */
INLINE void store_codes(int16_t *to, vec low, vec high) {
#if LANES == 16
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32((__m512)low)));
    _mm256_storeu_si256((__m256i *)(to + LANES), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32((__m512)high)));
#else
    __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32((__m256)low), _mm256_cvtps_epi32((__m256)high));
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(packed, 0xd8));
#endif
}

static void code_wide(WideRows *rows, const float *x, int64_t width, int64_t row) {
    vec most = all(0);
    for (int64_t i = 0; i < width; i += LANES) {
        vec v = load(x + i);
        most = larger(most, larger(v, -v));
    }
    float step = largest_of(most) / MOST;
    step = step > 1e-30f ? step : 1e-30f;
    const float inverse = 1.0f / step;
    for (int64_t i = 0; i < width; i += 2 * LANES)
        store_codes(rows->codes + row * width + i, load(x + i) * inverse, load(x + i + LANES) * inverse);
    rows->step[row] = step;
}

/* Products of COUNT rows with one panel, by PARTS independent sums each. */
INLINE void panel_of(const WideRows *rows, int64_t row, const Matrix *m, int64_t panel, float *out, const int count,
                     const int parts) {
    vec total[2 * WIDE_ROWS] = {};
    for (int64_t begin = 0; begin < m->in; begin += EXACT_WIDE) {
        const int64_t inputs = m->in - begin < EXACT_WIDE ? m->in - begin : EXACT_WIDE;
        const int16_t *codes = (const int16_t *)m->codes + (panel * m->in + begin) * PANEL;
        const int16_t *own = rows->codes + row * m->in + begin;
        ivec sums[2 * WIDE_ROWS] = {};
        for (int64_t k = 0; k < inputs; k += 2 * parts) {
            for (int part = 0; part < parts; part++) {
                const ivec left = *(const ivec *)(codes + 2 * PANEL * part);
                const ivec right = *(const ivec *)(codes + 2 * PANEL * part + PANEL);
                for (int r = 0; r < count; r++) {
                    int32_t pair;
                    memcpy(&pair, own + r * m->in + 2 * part, 4);
                    ivec *to = sums + 2 * r * parts + part;
                    to[0] = dots_of_pairs(to[0], left, pair);
                    to[parts] = dots_of_pairs(to[parts], right, pair);
                }
            }
            codes += 2 * PANEL * parts, own += 2 * parts;
            __builtin_prefetch(codes + 32 * PANEL);
        }
        for (int i = 0; i < 2 * count; i++) {
            for (int part = 1; part < parts; part++) sums[i * parts] += sums[i * parts + part];
            total[i] += __builtin_convertvector(sums[i * parts], vec);
        }
    }
    for (int r = 0; r < count; r++)
        for (int side = 0; side < 2; side++) {
            const int64_t column = PANEL * panel + LANES * side;
            const vec scale = load(m->scales + column) * rows->step[row + r];
            store(out + r * m->out + column, FUSED(total[2 * r + side], scale, load(m->bias + column)));
        }
}

/* Products of up to WIDE_BATCH rows x [count, in] with a matrix, to out [count, out]. */
static void multiply_wide(WideRows *rows, const float *x, int64_t count, const Matrix *m, float *out) {
    for (int64_t row = 0; row < count; row++) code_wide(rows, x + row * m->in, m->in, row);
    for (int64_t panel = 0; panel < m->out / PANEL; panel++)
        for (int64_t row = 0; row < count; row += WIDE_ROWS) {
            float *to = out + row * m->out;
            switch (count - row) {
                case 1: panel_of(rows, row, m, panel, to, 1, 4); break;
                case 2: panel_of(rows, row, m, panel, to, 2, 2); break;
                case 3: panel_of(rows, row, m, panel, to, 3, 2); break;
                case 4: panel_of(rows, row, m, panel, to, 4, 1); break;
                case 5: panel_of(rows, row, m, panel, to, 5, 1); break;
                default: panel_of(rows, row, m, panel, to, WIDE_ROWS, 1);
            }
        }
}
