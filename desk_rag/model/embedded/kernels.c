/* Passes of the embedded models on an x86-64 CPU that multiplies int8 (AVX-512 with VNNI; AMX where it has that).
   kernels.py compiles and calls this.

   Matrices are int8 codes with a scale per row. Activations are two int8 numbers per value, the second for what the
   first leaves over (int8_linear.py): products are sums of whole numbers, so a row's result does not depend on the
   rows beside it. Everything else is fp32. One thread; callers share out work. */

#include "vectors.h"
#if TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define FINE 254.0f
#define KEYS 64  /* keys of one block of attention */
#define GROUP 128 /* rows that go through a layer's MLP together */
#define DIM 64   /* width of a head */
#define QUERIES 6 /* whose sums the registers hold */
#define WIDEST 1536 /* inputs of a matrix */
#define WIDEST_ROW 1024

/* Codes plus 128, [out / 16][in / 4][16][4]: what one VNNI instruction, or one row of an AMX tile, takes. */
typedef struct {
    const uint8_t *codes;
    const float *scales; /* [out] */
    const float *bias;   /* [out], or NULL */
    int64_t out, in;
} Matrix;

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

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Two planes of codes of up to 32 rows: [2][rows up to a multiple of 16][in], with their steps and sums. */
typedef struct {
    int8_t *planes;
    float step[32];
    int32_t sum[2][32];
} Coded;

INLINE int64_t padded(int64_t rows) { return rows <= 16 ? 16 : 32; }

static void code_row(Coded *coded, const float *x, int64_t width, int64_t row, int64_t rows) {
    v16 most = all(0);
    for (int64_t i = 0; i < width; i += 16) {
        v16 v = load(x + i);
        most = larger(most, larger(v, -v));
    }
    float step = largest_of(most) / 127.0f;
    step = step > 1e-30f ? step : 1e-30f;
    float inverse = 1.0f / step;
    int8_t *coarse = coded->planes + row * width, *fine = coarse + padded(rows) * width;
    i16v sums = {}, fine_sums = {};
    for (int64_t i = 0; i < width; i += 16) {
        v16 exact = load(x + i) * inverse;
        v16 whole = (exact + MAGIC) - MAGIC;
        v16 rest = ((exact - whole) * FINE + MAGIC) - MAGIC;
        i16v first = __builtin_convertvector(whole, i16v), second = __builtin_convertvector(rest, i16v);
        *(b16 *)(coarse + i) = __builtin_convertvector(first, b16);
        *(b16 *)(fine + i) = __builtin_convertvector(second, b16);
        sums += first;
        fine_sums += second;
    }
    coded->step[row] = step;
    coded->sum[0][row] = whole_sum_of(sums);
    coded->sum[1][row] = whole_sum_of(fine_sums);
}

INLINE v16 product_of(i16v coarse, i16v fine, const Coded *coded, int64_t row, const Matrix *m, int64_t column) {
    v16 whole = __builtin_convertvector(coarse - 128 * coded->sum[0][row], v16);
    v16 rest = __builtin_convertvector(fine - 128 * coded->sum[1][row], v16);
    /* Fused by name, so that it rounds alike wherever the compiler puts it. */
    __m512 product = _mm512_fmadd_ps((__m512)rest, _mm512_set1_ps(1.0f / FINE), (__m512)whole);
    __m512 scale = (__m512)(load(m->scales + column) * coded->step[row]);
    if (!m->bias) return (v16)_mm512_mul_ps(product, scale);
    return (v16)_mm512_fmadd_ps(product, scale, (__m512)load(m->bias + column));
}

/* acc + dot products of 4 unsigned codes with 4 signed ones, which are the same for all 16 columns. */
INLINE i16v dots(i16v acc, const uint8_t *codes, const int8_t *row) {
    int32_t four;
    memcpy(&four, row, 4);
    return (i16v)_mm512_dpbusd_epi32((__m512i)acc, _mm512_loadu_si512(codes), _mm512_set1_epi32(four));
}

/* Products of COUNT rows with 16 columns, by PARTS independent sums. */
INLINE void few_rows(const Coded *coded, int64_t row, int64_t rows, const Matrix *m, int64_t tile, float *out,
                     int64_t stride, const int count, const int parts) {
    const uint8_t *codes = m->codes + tile * m->in * 16;
    const int8_t *planes = coded->planes + row * m->in;
    const int64_t apart = padded(rows) * m->in;
    i16v coarse[4][4] = {}, fine[4][4] = {};
    for (int64_t k = 0; k < m->in; k += 4 * parts)
        for (int part = 0; part < parts; part++) {
            const int64_t at = k + 4 * part;
            __builtin_prefetch(codes + 16 * at + 2048);
            for (int r = 0; r < count; r++) {
                coarse[r][part] = dots(coarse[r][part], codes + 16 * at, planes + r * m->in + at);
                fine[r][part] = dots(fine[r][part], codes + 16 * at, planes + apart + r * m->in + at);
            }
        }
    for (int r = 0; r < count; r++) {
        for (int part = 1; part < parts; part++) coarse[r][0] += coarse[r][part], fine[r][0] += fine[r][part];
        store(out + r * stride + 16 * tile, product_of(coarse[r][0], fine[r][0], coded, row + r, m, 16 * tile));
    }
}

#if TILES
/* Products of up to 32 rows with all columns, 16 at a time. */
static void many_rows(const Coded *coded, int64_t rows, const Matrix *m, float *out, int64_t stride) {
    int32_t sums[4][16][16] __attribute__((aligned(64)));
    const int64_t height = padded(rows), in = m->in;
    const int8_t *coarse = coded->planes, *fine = coarse + height * in;
    for (int64_t tile = 0; tile < m->out / 16; tile++) {
        const uint8_t *codes = m->codes + tile * in * 16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        if (height == 32)
            for (int64_t k = 0; k < in; k += 64) {
                _tile_loadd(6, codes + 16 * k, 64);
                for (int i = 0; i < 16; i++) __builtin_prefetch(codes + 16 * k + 4096 + 64 * i);
                _tile_loadd(4, coarse + k, in);
                _tile_dpbsud(0, 4, 6);
                _tile_loadd(5, fine + k, in);
                _tile_dpbsud(1, 5, 6);
                _tile_loadd(4, coarse + 16 * in + k, in);
                _tile_dpbsud(2, 4, 6);
                _tile_loadd(5, fine + 16 * in + k, in);
                _tile_dpbsud(3, 5, 6);
            }
        else
            for (int64_t k = 0; k < in; k += 64) {
                _tile_loadd(6, codes + 16 * k, 64);
                for (int i = 0; i < 16; i++) __builtin_prefetch(codes + 16 * k + 4096 + 64 * i);
                _tile_loadd(4, coarse + k, in);
                _tile_dpbsud(0, 4, 6);
                _tile_loadd(5, fine + k, in);
                _tile_dpbsud(1, 5, 6);
            }
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        if (height == 32) {
            _tile_stored(2, sums[2], 64);
            _tile_stored(3, sums[3], 64);
        }
        for (int64_t row = 0; row < rows; row++) {
            const int half = 2 * (row / 16), at = row % 16;
            i16v whole = *(i16v *)sums[half][at], rest = *(i16v *)sums[half + 1][at];
            store(out + row * stride + 16 * tile, product_of(whole, rest, coded, row, m, 16 * tile));
        }
    }
}
#endif

/* Products of up to 32 coded rows with a matrix, to out [rows, stride]. */
static void multiply_coded(const Coded *coded, int64_t rows, const Matrix *m, float *out, int64_t stride) {
    const int64_t tiles = m->out / 16;
#if TILES
    if (rows > 3) {
        many_rows(coded, rows, m, out, stride);
        return;
    }
#endif
    if (rows == 1) {
        for (int64_t tile = 0; tile < tiles; tile++) few_rows(coded, 0, rows, m, tile, out, stride, 1, 4);
        return;
    }
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4)
            few_rows(coded, row, rows, m, tile, out + row * stride, stride, 4, 1);
        for (; row < rows; row++) few_rows(coded, row, rows, m, tile, out + row * stride, stride, 1, 4);
    }
}

/* ---- A decoder layer --------------------------------------------------------------------------------------------- */

static void rms_norm(float *out, const float *x, const float *weight, int64_t width, float eps) {
    v16 squares = all(0);
    for (int64_t i = 0; i < width; i += 16) squares += load(x + i) * load(x + i);
    float factor = 1.0f / __builtin_sqrtf(sum_of(squares) / width + eps);
    for (int64_t i = 0; i < width; i += 16) store(out + i, load(x + i) * factor * load(weight + i));
}

/* Rotate one head; of cosines and sines [DIM] the second half repeats the first. */
INLINE void rotate(float *out, const float *x, const float *cosines, const float *sines) {
    for (int i = 0; i < DIM / 2; i += 16) {
        v16 low = load(x + i), high = load(x + i + DIM / 2), c = load(cosines + i), s = load(sines + i);
        store(out + i, low * c - high * s);
        store(out + i + DIM / 2, high * c + low * s);
    }
}

/* One block of keys for COUNT queries: their sums of values, largest scores and weights so far are brought up to date.
   `seen` is how many keys of the block each query sees. */
INLINE void attend_block(const float *queries, float *sums, float *largest, float *total, const int64_t *seen,
                         const float *turned, const float *values, int64_t keys, const int count) {
    v16 scores[QUERIES][KEYS / 16];
    float weights[QUERIES][KEYS] __attribute__((aligned(64)));
    const v16 number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int q = 0; q < count; q++)
        for (int k = 0; k < KEYS / 16; k++) scores[q][k] = all(0);
    for (int d = 0; d < DIM; d++)
        for (int q = 0; q < count; q++)
            for (int k = 0; k < KEYS / 16; k++) scores[q][k] += queries[q * DIM + d] * load(turned + d * KEYS + 16 * k);
    for (int q = 0; q < count; q++) {
        v16 most = all(-1e30f), sum = all(0);
        for (int k = 0; k < KEYS / 16; k++) {
            if (seen[q] < KEYS) {
                i16v sees = number + 16.0f * k < (float)seen[q];
                scores[q][k] = (v16)(((i16v)scores[q][k] & sees) | ((i16v)all(-1e30f) & ~sees));
            }
            most = larger(most, scores[q][k]);
        }
        float now = largest_of(most);
        if (now > largest[q]) {
            float shrink = exponential(all(largest[q] - now))[0];
            largest[q] = now;
            total[q] *= shrink;
            for (int i = 0; i < DIM; i += 16) store(sums + q * DIM + i, load(sums + q * DIM + i) * shrink);
        }
        for (int k = 0; k < KEYS / 16; k++) {
            v16 weight = exponential(scores[q][k] - largest[q]);
            store(weights[q] + 16 * k, weight);
            sum += weight;
        }
        total[q] += sum_of(sum);
    }
    v16 kept[QUERIES][DIM / 16];
    for (int q = 0; q < count; q++)
        for (int i = 0; i < DIM / 16; i++) kept[q][i] = load(sums + q * DIM + 16 * i);
    for (int64_t key = 0; key < keys; key++)
        for (int q = 0; q < count; q++)
            for (int i = 0; i < DIM / 16; i++) kept[q][i] += weights[q][key] * load(values + key * DIM + 16 * i);
    for (int q = 0; q < count; q++)
        for (int i = 0; i < DIM / 16; i++) store(sums + q * DIM + 16 * i, kept[q][i]);
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
        for (int64_t key = 0; key < count; key += 16) {
            const float *from = keys + (begin + key) * DIM;
            for (int d = 0; d < DIM; d += 16) turn(turned + d * KEYS + key, KEYS, from + d, DIM, count - key);
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
        for (int i = 0; i < DIM; i += 16) store(sums + q * DIM + i, load(sums + q * DIM + i) / total[q]);
}

INLINE int64_t group_of(int64_t rows) { return rows < 32 ? 32 : rows < GROUP ? rows : GROUP; }

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
    int8_t planes[2 * 32 * WIDEST] __attribute__((aligned(64)));
    Coded coded = {.planes = planes};
#if TILES
    TileConfig before = whole_tiles();
#endif
    for (int64_t number = 0; number < count; number++) {
        const Layer *layer = layers + number;
        const Slab *slab = slabs + number;
        for (int64_t base = 0; base < rows; base += 32) {
            const int64_t here = rows - base < 32 ? rows - base : 32;
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
                    for (int i = 0; i < DIM; i += 16) store(head + i, load(head + i) * scale);
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
            for (int64_t part = base; part < end; part += 32) {
                const int64_t here = end - part < 32 ? end - part : 32;
                for (int64_t row = 0; row < here; row++)
                    code_row(&coded, attended + (part + row) * q_width, q_width, row, here);
                multiply_coded(&coded, here, &layer->outward, wider, width);
                for (int64_t row = 0; row < here; row++)
                    for (int64_t i = 0; i < width; i += 16) {
                        float *to = x + (part + row) * width + i;
                        store(to, load(to) + load(wider + row * width + i));
                    }
            }
            for (int64_t part = base; part < end; part += 32) {
                const int64_t here = end - part < 32 ? end - part : 32;
                for (int64_t row = 0; row < here; row++) {
                    rms_norm(normed, x + (part + row) * width, layer->before_mlp, width, shape->eps);
                    code_row(&coded, normed, width, row, here);
                }
                multiply_coded(&coded, here, &layer->widen, wider + (part - base) * 2 * inner, 2 * inner);
            }
            for (int64_t part = base; part < end; part += 32) {
                const int64_t here = end - part < 32 ? end - part : 32;
                for (int64_t row = 0; row < here; row++) {
                    float *gate = wider + (part - base + row) * 2 * inner;
                    for (int64_t i = 0; i < inner; i += 16) {
                        v16 g = load(gate + i);
                        store(gate + i, g / (exponential(-larger(g, all(-87.0f))) + 1.0f) * load(gate + inner + i));
                    }
                    code_row(&coded, gate, inner, row, here);
                }
                float out[32 * WIDEST_ROW];
                multiply_coded(&coded, here, &layer->narrow, out, width);
                for (int64_t row = 0; row < here; row++)
                    for (int64_t i = 0; i < width; i += 16) {
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
    int8_t planes[2 * 32 * WIDEST] __attribute__((aligned(64)));
    Coded coded = {.planes = planes};
#if TILES
    TileConfig before = whole_tiles();
#endif
    for (int64_t base = 0; base < rows; base += 32) {
        const int64_t here = rows - base < 32 ? rows - base : 32;
        for (int64_t row = 0; row < here; row++) code_row(&coded, x + (base + row) * matrix->in, matrix->in, row, here);
        multiply_coded(&coded, here, matrix, out + base * matrix->out, matrix->out);
    }
#if TILES
    restore_tiles(before);
#endif
}

/* Codes [out, in] as `Matrix.codes`. */
void pack(const int8_t *codes, int64_t out, int64_t in, uint8_t *packed) {
    for (int64_t row = 0; row < out; row++)
        for (int64_t k = 0; k < in; k += 4)
            for (int i = 0; i < 4; i++)
                packed[(row / 16) * in * 16 + k * 16 + (row % 16) * 4 + i] = (uint8_t)(codes[row * in + k + i] + 128);
}

/* Ask the system for AMX once per process; 0 if it may be used or is not needed. */
int prepare(void) {
#if TILES
    return (int)syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
#else
    return 0;
#endif
}
