/* Passes of the reader on an x86-64 CPU: with AMX, with AVX-512 and VNNI, or with AVX2. kernels.py compiles and
   calls this.

   Matrices are int8 codes with a scale per row. Activations are two int8 numbers per value, the second for what the
   first leaves over (int8_linear.py): products are sums of whole numbers, so a row's result does not depend on the
   rows beside it. Everything else is fp32. One thread; callers share out work. */

#include "products.h"
#define DIM 64 /* width of a head */
#include "attention.h"
#if TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define GROUP (LANES == 16 ? 128 : 96) /* rows that go through a layer's MLP together */
#define WIDEST_ROW 1024

typedef struct {
    const float *before_attention, *query_norm, *key_norm, *before_mlp;
    Matrix inward, outward, widen, narrow;
} Layer;

typedef struct {
    float *keys, *values; /* [kv_heads][capacity][DIM] */
    int64_t capacity;
} Slab;

typedef struct {
    int64_t width, heads, kv_heads, inner;
    float eps;
} Shape;

/* ---- A decoder layer --------------------------------------------------------------------------------------------- */

static void rms_norm(float *out, const float *x, const float *weight, int64_t width, float eps) {
    vec squares = all(0);
    for (int64_t i = 0; i < width; i += LANES) squares += load(x + i) * load(x + i);
    float factor = 1.0f / __builtin_sqrtf(sum_of(squares) / width + eps);
    for (int64_t i = 0; i < width; i += LANES) store(out + i, load(x + i) * factor * load(weight + i));
}

/* Rotate one head; of cosines and sines [DIM] the second half repeats the first. */
INLINE void rotate(float *out, const float *x, const float *cosines, const float *sines) {
    for (int i = 0; i < DIM / 2; i += LANES) {
        vec low = load(x + i), high = load(x + i + DIM / 2), c = load(cosines + i), s = load(sines + i);
        store(out + i, low * c - high * s);
        store(out + i + DIM / 2, high * c + low * s);
    }
}

INLINE int64_t group_of(int64_t rows) { return rows < BATCH ? BATCH : rows < GROUP ? rows : GROUP; }

/* Run layers over x [rows, width], in place. `cosines`, `sines` [rows, DIM]; keys before their rotation are kept
   in `bare` [layers, rows, kv_heads * DIM] unless it is NULL. `work` is memory of work_size() floats. */
void run_layers(const Layer *layers, const Slab *slabs, int64_t count, const Shape *shape, float *x, int64_t rows,
                int64_t start, const float *cosines, const float *sines, float *bare, float *work) {
    const int64_t width = shape->width, group = shape->heads / shape->kv_heads, inner = shape->inner;
    const int64_t q_width = shape->heads * DIM, kv_width = shape->kv_heads * DIM, wide = q_width + 2 * kv_width;
    const float scale = 0.125f; /* DIM ** -0.5 */
    float *queries = work, *attended = queries + rows * q_width, *sums = attended + rows * q_width;
    float *totals = sums + rows * group * DIM, *turned = totals + 2 * rows * group, *wider = turned + DIM * KEYS;
    float *normed = wider + group_of(rows) * (wide > 2 * inner ? wide : 2 * inner);
    Code planes[CODES] __attribute__((aligned(64)));
    Coded coded = {.planes = planes};
#if TILES
    TileConfig before = whole_tiles();
#endif
    for (int64_t number = 0; number < count; number++) {
        const Layer *layer = layers + number;
        const Slab *slab = slabs + number;
        for (int64_t base = 0; base < rows; base += BATCH) {
            const int64_t here = rows - base < BATCH ? rows - base : BATCH;
            for (int64_t row = 0; row < here; row++) {
                rms_norm(normed, x + (base + row) * width, layer->before_attention, width, shape->eps);
                code_row(&coded, normed, width, row, here);
            }
            multiply_coded(&coded, here, &layer->inward, wider, wide);
            for (int64_t row = 0; row < here; row++) {
                const float *c = cosines + (base + row) * DIM, *s = sines + (base + row) * DIM;
                float *heads = wider + row * wide, head[DIM];
                for (int64_t h = 0; h < shape->heads; h++) {
                    rms_norm(head, heads + h * DIM, layer->query_norm, DIM, shape->eps);
                    for (int i = 0; i < DIM; i += LANES) store(head + i, load(head + i) * scale);
                    rotate(queries + (((h / group) * rows + base + row) * group + h % group) * DIM, head, c, s);
                }
                for (int64_t h = 0; h < shape->kv_heads; h++) {
                    const int64_t slot = (h * slab->capacity + start + base + row) * DIM;
                    rms_norm(head, heads + q_width + h * DIM, layer->key_norm, DIM, shape->eps);
                    if (bare) memcpy(bare + ((number * rows + base + row) * shape->kv_heads + h) * DIM, head, sizeof head);
                    rotate(slab->keys + slot, head, c, s);
                    memcpy(slab->values + slot, heads + q_width + kv_width + h * DIM, sizeof head);
                }
            }
        }
        for (int64_t h = 0; h < shape->kv_heads; h++) {
            const int64_t at = h * slab->capacity * DIM;
            attend(queries + h * rows * group * DIM, sums, totals, totals + rows * group, turned, slab->keys + at,
                   slab->values + at, start, rows, group);
            for (int64_t row = 0; row < rows; row++)
                memcpy(attended + row * q_width + h * group * DIM, sums + row * group * DIM, group * DIM * sizeof(float));
        }
        for (int64_t base = 0; base < rows; base += GROUP) {
            const int64_t end = rows - base < GROUP ? rows : base + GROUP;
            for (int64_t part = base; part < end; part += BATCH) {
                const int64_t here = end - part < BATCH ? end - part : BATCH;
                for (int64_t row = 0; row < here; row++)
                    code_row(&coded, attended + (part + row) * q_width, q_width, row, here);
                multiply_coded(&coded, here, &layer->outward, wider, width);
                for (int64_t row = 0; row < here; row++)
                    for (int64_t i = 0; i < width; i += LANES) {
                        float *to = x + (part + row) * width + i;
                        store(to, load(to) + load(wider + row * width + i));
                    }
            }
            for (int64_t part = base; part < end; part += BATCH) {
                const int64_t here = end - part < BATCH ? end - part : BATCH;
                for (int64_t row = 0; row < here; row++) {
                    rms_norm(normed, x + (part + row) * width, layer->before_mlp, width, shape->eps);
                    code_row(&coded, normed, width, row, here);
                }
                multiply_coded(&coded, here, &layer->widen, wider + (part - base) * 2 * inner, 2 * inner);
            }
            for (int64_t part = base; part < end; part += BATCH) {
                const int64_t here = end - part < BATCH ? end - part : BATCH;
                for (int64_t row = 0; row < here; row++) {
                    float *gate = wider + (part - base + row) * 2 * inner;
                    for (int64_t i = 0; i < inner; i += LANES) {
                        vec g = load(gate + i);
                        store(gate + i, g / (exponential(-larger(g, all(-87.0f))) + 1.0f) * load(gate + inner + i));
                    }
                    code_row(&coded, gate, inner, row, here);
                }
                float out[BATCH * WIDEST_ROW];
                multiply_coded(&coded, here, &layer->narrow, out, width);
                for (int64_t row = 0; row < here; row++)
                    for (int64_t i = 0; i < width; i += LANES) {
                        float *to = x + (part + row) * width + i;
                        store(to, load(to) + load(out + row * width + i));
                    }
            }
        }
    }
#if TILES
    restore_tiles(before);
#endif
}

/* Floats that run_layers() needs for so many rows. */
int64_t work_size(const Shape *shape, int64_t rows) {
    const int64_t group = shape->heads / shape->kv_heads;
    const int64_t wide = (shape->heads + 2 * shape->kv_heads) * DIM;
    return rows * (2 * shape->heads * DIM + group * (DIM + 2)) + DIM * KEYS +
           group_of(rows) * (wide > 2 * shape->inner ? wide : 2 * shape->inner) + shape->width;
}

/* x [rows, in] -> out [rows, out]. */
void multiply(const Matrix *matrix, const float *x, int64_t rows, float *out) {
    Code planes[CODES] __attribute__((aligned(64)));
    Coded coded = {.planes = planes};
#if TILES
    TileConfig before = whole_tiles();
#endif
    for (int64_t base = 0; base < rows; base += BATCH) {
        const int64_t here = rows - base < BATCH ? rows - base : BATCH;
        for (int64_t row = 0; row < here; row++) code_row(&coded, x + (base + row) * matrix->in, matrix->in, row, here);
        multiply_coded(&coded, here, matrix, out + base * matrix->out, matrix->out);
    }
#if TILES
    restore_tiles(before);
#endif
}

#if LANES == 8
/* Codes [out, in] as `Matrix.codes`. */
void pack(const int8_t *codes, int64_t out, int64_t in, uint8_t *packed) {
    for (int64_t row = 0; row < out; row++)
        for (int64_t k = 0; k < in; k += 2)
            memcpy(packed + (row / 16) * in * 16 + k * 16 + (row % 16) * 2, codes + row * in + k, 2);
}
#endif

/* Ask the system for AMX once per process; 0 if it may be used or is not needed. */
int prepare(void) {
#if TILES
    return (int)syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
#else
    return 0;
#endif
}
