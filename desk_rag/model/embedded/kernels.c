/* Passes of the embedded models on an x86-64 CPU: with AMX, with AVX-512 and VNNI, or with AVX2. kernels.py compiles and
   calls this.

   Matrices are int8 codes with a scale per row. Activations are two int8 numbers per value, the second for what the
   first leaves over (int8_linear.py): products are sums of whole numbers, so a row's result does not depend on the
   rows beside it. Everything else is fp32. One thread; callers share out work. */

#include "products.h"
#if TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define KEYS 64  /* keys of one block of attention */
#define GROUP (LANES == 16 ? 128 : 96) /* rows that go through a layer's MLP together */
#define DIM 64   /* width of a head */
#define QUERIES 6
#if LANES == 16
#define HELD 4 /* vectors of sums for each of so many queries, which the registers hold */
#define BY_PARTS(first, vectors) enum { first = 0 };
#else
#define HELD 2
#define BY_PARTS(first, vectors) for (int first = 0; first < vectors; first += HELD)
#endif
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

/* One block of keys for COUNT queries: their sums of values, largest scores and weights so far are brought up to date.
   `seen` is how many keys of the block each query sees. */
INLINE void attend_block(const float *queries, float *sums, float *largest, float *total, const int64_t *seen,
                         const float *turned, const float *values, int64_t keys, const int count) {
    vec scores[QUERIES][KEYS / LANES];
    float weights[QUERIES][KEYS] __attribute__((aligned(64)));
    BY_PARTS(first, KEYS / LANES) {
        for (int q = 0; q < count; q++)
            for (int k = first; k < first + HELD; k++) scores[q][k] = all(0);
        for (int d = 0; d < DIM; d++)
            for (int q = 0; q < count; q++)
                for (int k = first; k < first + HELD; k++)
                    scores[q][k] += queries[q * DIM + d] * load(turned + d * KEYS + LANES * k);
    }
    for (int q = 0; q < count; q++) {
        vec most = all(-1e30f), sum = all(0);
        for (int k = 0; k < KEYS / LANES; k++) {
            if (seen[q] < KEYS) {
                ivec sees = NUMBERED + (float)LANES * k < (float)seen[q];
                scores[q][k] = (vec)(((ivec)scores[q][k] & sees) | ((ivec)all(-1e30f) & ~sees));
            }
            most = larger(most, scores[q][k]);
        }
        float now = largest_of(most);
        if (now > largest[q]) {
            float shrink = exponential(all(largest[q] - now))[0];
            largest[q] = now;
            total[q] *= shrink;
            for (int i = 0; i < DIM; i += LANES) store(sums + q * DIM + i, load(sums + q * DIM + i) * shrink);
        }
        for (int k = 0; k < KEYS / LANES; k++) {
            vec weight = exponential(scores[q][k] - largest[q]);
            store(weights[q] + LANES * k, weight);
            sum += weight;
        }
        total[q] += sum_of(sum);
    }
    BY_PARTS(lowest, DIM / LANES) {
        vec held[QUERIES][HELD];
        for (int q = 0; q < count; q++)
            for (int i = 0; i < HELD; i++) held[q][i] = load(sums + q * DIM + LANES * (lowest + i));
        for (int64_t key = 0; key < keys; key++)
            for (int q = 0; q < count; q++)
                for (int i = 0; i < HELD; i++)
                    held[q][i] += weights[q][key] * load(values + key * DIM + LANES * (lowest + i));
        for (int q = 0; q < count; q++)
            for (int i = 0; i < HELD; i++) store(sums + q * DIM + LANES * (lowest + i), held[q][i]);
    }
}

/* Attention of `rows` tokens behind `start` others over one head of keys and values.
   queries, sums [rows * group, DIM]; largest, total [rows * group]; turned [DIM, KEYS]. */
static void attend(const float *queries, float *sums, float *largest, float *total, float *turned, const float *keys,
                   const float *values, int64_t start, int64_t rows, int64_t group) {
    const int64_t all_queries = rows * group;
    for (int64_t q = 0; q < all_queries; q++) largest[q] = -1e30f, total[q] = 0;
    memset(sums, 0, all_queries * DIM * sizeof(float));
    for (int64_t begin = 0; begin < start + rows; begin += KEYS) {
        const int64_t count = start + rows - begin < KEYS ? start + rows - begin : KEYS;
        for (int64_t key = 0; key < count; key += LANES) {
            const float *from = keys + (begin + key) * DIM;
            for (int d = 0; d < DIM; d += LANES) turn(turned + d * KEYS + key, KEYS, from + d, DIM, count - key);
        }
        const int64_t first = begin > start ? begin - start : 0; /* tokens before it do not see this block */
        for (int64_t q = first * group; q < all_queries; q += QUERIES) {
            int64_t seen[QUERIES];
            const int left = all_queries - q < QUERIES ? all_queries - q : QUERIES;
            for (int i = 0; i < left; i++) seen[i] = start + (q + i) / group + 1 - begin;
#define BLOCK(n) \
    case n: attend_block(queries + q * DIM, sums + q * DIM, largest + q, total + q, seen, turned, \
                         values + begin * DIM, count, n); break;
            switch (left) {
                BLOCK(1)
                BLOCK(2) BLOCK(3) BLOCK(4) BLOCK(5) BLOCK(6)
            }
        }
    }
    for (int64_t q = 0; q < all_queries; q++)
        for (int i = 0; i < DIM; i += LANES) store(sums + q * DIM + i, load(sums + q * DIM + i) / total[q]);
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

/* Ask the system for AMX once per process; 0 if it may be used or is not needed. */
int prepare(void) {
#if TILES
    return (int)syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
#else
    return 0;
#endif
}
