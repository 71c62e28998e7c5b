/* The embedder's BERT on a CPU without AMX; see kernels.py. Matrices and what is multiplied by them are whole numbers
   (products_wide.h); everything else is fp32. */

#include "vectors.h"

#if !TILES

#define DIM 32 /* width of a head */
#include "attention.h"
#include "products_wide.h"

typedef struct {
    Matrix inward, outward, widen, narrow; /* wide ones */
    const float *attention_weight, *attention_bias, *output_weight, *output_bias; /* of the norms */
} BertLayer;

/* x = norm(x + added). */
static void add_norm(float *x, const float *added, const float *weight, const float *bias, int64_t width, float eps) {
    vec total = all(0), squares = all(0);
    for (int64_t i = 0; i < width; i += LANES) {
        vec sum = load(x + i) + load(added + i);
        store(x + i, sum);
        total += sum;
    }
    const float mean = sum_of(total) / width;
    for (int64_t i = 0; i < width; i += LANES) squares += (load(x + i) - mean) * (load(x + i) - mean);
    const float factor = 1.0f / __builtin_sqrtf(sum_of(squares) / width + eps);
    for (int64_t i = 0; i < width; i += LANES)
        store(x + i, (load(x + i) - mean) * factor * load(weight + i) + load(bias + i));
}

/* Bytes that run_bert() needs for so many rows. */
int64_t bert_work_size(int64_t width, int64_t inner, int64_t rows) {
    return sizeof(float) * (rows * (3 * width + width + 4 * DIM + 2) + DIM * KEYS + WIDE_BATCH * (inner + width));
}

/* Run layers over one text x [rows, width], in place. `work` holds bert_work_size(). */
void run_bert(const BertLayer *layers, int64_t count, int64_t width, int64_t heads, float eps, float *x, int64_t rows,
              float *work) {
    const float scale = 0.17677670f; /* DIM ** -0.5 */
    float *parts = work, *attended = parts + rows * 3 * width, *queries = attended + rows * width;
    float *keys = queries + rows * DIM, *values = keys + rows * DIM, *sums = values + rows * DIM;
    float *totals = sums + rows * DIM, *turned = totals + 2 * rows, *wide = turned + DIM * KEYS;
    WideRows coded;
    for (int64_t number = 0; number < count; number++) {
        const BertLayer *layer = layers + number;
        float *out = wide + WIDE_BATCH * layer->widen.out;
        for (int64_t base = 0; base < rows; base += WIDE_BATCH) {
            const int64_t here = rows - base < WIDE_BATCH ? rows - base : WIDE_BATCH;
            multiply_wide(&coded, x + base * width, here, &layer->inward, parts + base * 3 * width);
        }
        for (int64_t head = 0; head < heads; head++) {
            for (int64_t row = 0; row < rows; row++) {
                const float *from = parts + row * 3 * width + head * DIM;
                for (int i = 0; i < DIM; i += LANES) {
                    store(queries + row * DIM + i, load(from + i) * scale);
                    store(keys + row * DIM + i, load(from + width + i));
                    store(values + row * DIM + i, load(from + 2 * width + i));
                }
            }
            /* As queries of the last row alone, all of them see every key. */
            attend(queries, sums, totals, totals + rows, turned, keys, values, rows - 1, 1, rows);
            for (int64_t row = 0; row < rows; row++)
                memcpy(attended + row * width + head * DIM, sums + row * DIM, DIM * sizeof(float));
        }
        for (int64_t base = 0; base < rows; base += WIDE_BATCH) {
            const int64_t here = rows - base < WIDE_BATCH ? rows - base : WIDE_BATCH;
            float *own = x + base * width;
            multiply_wide(&coded, attended + base * width, here, &layer->outward, out);
            for (int64_t row = 0; row < here; row++)
                add_norm(own + row * width, out + row * width, layer->attention_weight, layer->attention_bias, width, eps);
            multiply_wide(&coded, own, here, &layer->widen, wide);
            for (int64_t i = 0; i < here * layer->widen.out; i += LANES) store(wide + i, gelu(load(wide + i)));
            multiply_wide(&coded, wide, here, &layer->narrow, out);
            for (int64_t row = 0; row < here; row++)
                add_norm(own + row * width, out + row * width, layer->output_weight, layer->output_bias, width, eps);
        }
    }
}

/* Codes [out, in] as `Matrix.codes` of a wide matrix. */
void pack_wide(const int16_t *codes, int64_t out, int64_t in, int16_t *packed) {
    for (int64_t row = 0; row < out; row++)
        for (int64_t k = 0; k < in; k += 2)
            memcpy(packed + (row / PANEL) * in * PANEL + k * PANEL + (row % PANEL) * 2, codes + row * in + k, 4);
}

#endif
