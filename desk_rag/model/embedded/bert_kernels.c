/* The embedder's BERT in bfloat16 on a CPU with AMX; see kernels.py.

   Numbers in bfloat16 lie in tiles, [rows / 16][columns / 32][16][32], so that a tile is read in one go. Products and
   attention round to bfloat16 where bert_bf16.py does, but for sums that are added in fp32 at once. */

#include "vectors.h"

#if TILES

#define WIDTH 32     /* of a head */
#define LONGEST 512  /* rows of a text */
#define PANEL 32     /* rows and columns that a product's tiles cover */

/* Weights [out / 16][in / 2][16][2], as a row of an AMX tile takes them. */
typedef struct {
    const half *weights;
    const float *bias;
    int64_t out, in;
} HalfMatrix;

typedef struct {
    HalfMatrix inward, outward, widen, narrow;
    const float *attention_weight, *attention_bias, *output_weight, *output_bias; /* of the norms */
} BertLayer;

enum Then { TO_HALF, GELU, ADD };

/* Place of a number in an array of tiles with so many columns. */
INLINE int64_t place(int64_t row, int64_t column, int64_t columns) {
    return ((row / 16) * (columns / 32) + column / 32) * 512 + row % 16 * 32 + column % 32;
}

INLINE void store_half(half *to, vec value) { _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)value)); }

INLINE vec as_half(vec value) {
    __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)value));
    return (vec)_mm512_slli_epi32(wide, 16);
}

/* rows [count, in] times a matrix, PANEL columns at a time, so that they stay near while all rows pass. Memory behind
   the last row must be readable up to a multiple of PANEL rows. */
INLINE void multiply_half(const half *rows, int64_t count, const HalfMatrix *m, half *to, float *sums,
                          const enum Then then) {
    float tiles[2][2][16][16] __attribute__((aligned(64)));
    const int64_t in = m->in;
    for (int64_t column = 0; column < m->out; column += PANEL) {
        const half *left = m->weights + column * in, *right = left + 16 * in;
        for (int64_t row = 0; row < count; row += PANEL) {
            const half *upper = rows + row * in, *lower = upper + 16 * in;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t k = 0; k < in; k += 32) {
                _tile_loadd(4, upper + 16 * k, 64);
                _tile_loadd(6, left + 16 * k, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, right + 16 * k, 64);
                _tile_dpbf16ps(1, 4, 7);
                _tile_loadd(5, lower + 16 * k, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, tiles[0][0], 64);
            _tile_stored(1, tiles[0][1], 64);
            _tile_stored(2, tiles[1][0], 64);
            _tile_stored(3, tiles[1][1], 64);
            const int64_t here = count - row < PANEL ? count - row : PANEL;
            for (int64_t r = 0; r < here; r++)
                for (int c = 0; c < 2; c++) {
                    vec value = load(tiles[r / 16][c][r % 16]) + load(m->bias + column + 16 * c);
                    if (then == ADD) {
                        float *sum = sums + (row + r) * m->out + column + 16 * c;
                        store(sum, load(sum) + value);
                    } else
                        store_half(to + place(row + r, column + 16 * c, m->out),
                                   then == GELU ? gelu(as_half(value)) : value);
                }
        }
    }
}

/* Attention of every row to all rows; `parts` [rows, 3 * width] has queries, keys and values side by side. */
static void attend_all(const half *parts, int64_t rows, int64_t heads, half *out) {
    half turned[LONGEST / 16][16][32] __attribute__((aligned(64)));
    half values[LONGEST / 32][2][16][32] __attribute__((aligned(64)));
    float scores[16][LONGEST] __attribute__((aligned(64)));
    half weights[16][LONGEST] __attribute__((aligned(64)));
    float sums[2][16][16] __attribute__((aligned(64)));
    const int64_t width = heads * WIDTH, steps = (rows + 31) / 32, padded = 32 * steps;
    const vec number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t head = 0; head < heads; head++) {
        for (int64_t key = 0; key < padded; key += 16) { /* pairs of numbers are turned as one */
            const half *keys = parts + place(key, width + head * WIDTH, 3 * width);
            turn((float *)turned[key / 16], 16, (const float *)keys, 16, rows - key);
        }
        for (int64_t key = 0; key < padded; key += 2)
            for (int side = 0; side < 2; side++) {
                const __m256i zero = _mm256_setzero_si256();
                const half *from = parts + place(key, 2 * width + head * WIDTH + 16 * side, 3 * width);
                __m256i first = key < rows ? _mm256_loadu_si256((const __m256i *)from) : zero;
                __m256i second = key + 1 < rows ? _mm256_loadu_si256((const __m256i *)(from + 32)) : zero;
                __m512i low = _mm512_cvtepu16_epi32(first), high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16);
                _mm512_storeu_si512(values[key / 32][side][key / 2 % 16], _mm512_or_si512(low, high));
            }
        for (int64_t row = 0; row < rows; row += 16) {
            float totals[16];
            _tile_loadd(4, parts + place(row, head * WIDTH, 3 * width), 64);
            for (int64_t tile = 0; tile < padded / 16; tile++) {
                _tile_zero(0);
                _tile_loadd(6, turned[tile], 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_stored(0, scores[0] + 16 * tile, sizeof scores[0]);
            }
            const int64_t here = rows - row < 16 ? rows - row : 16;
            for (int64_t r = 0; r < here; r++) {
                vec most = all(-1e30f), total = all(0);
                for (int64_t key = rows / 16 * 16; key < padded; key += 16) { /* filled up */
                    ivec sees = number + (float)key < (float)rows;
                    vec score = load(scores[r] + key);
                    store(scores[r] + key, (vec)(((ivec)score & sees) | ((ivec)all(-1e30f) & ~sees)));
                }
                for (int64_t key = 0; key < padded; key += 16) most = larger(most, load(scores[r] + key));
                const float scale = LOG2_E * 0.17677670f /* WIDTH ** -0.5 */, largest = largest_of(most) * scale;
                for (int64_t key = 0; key < padded; key += 16) {
                    vec weight = power_of_two(load(scores[r] + key) * scale - largest);
                    total += weight;
                    store_half(weights[r] + key, weight);
                }
                totals[r] = sum_of(total);
            }
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t step = 0; step < steps; step++) {
                _tile_loadd(5, weights[0] + 32 * step, sizeof weights[0]);
                _tile_loadd(6, values[step][0], 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_loadd(7, values[step][1], 64);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(2, sums[0], 64);
            _tile_stored(3, sums[1], 64);
            for (int64_t r = 0; r < here; r++)
                for (int side = 0; side < 2; side++)
                    store_half(out + place(row + r, head * WIDTH + 16 * side, width), load(sums[side][r]) / totals[r]);
        }
    }
}

/* Normalise a row in place, and round it into its tiles. */
static void layer_norm(float *x, half *rounded, int64_t row, const float *weight, const float *bias, int64_t width, float eps) {
    vec total = all(0), squares = all(0);
    for (int64_t i = 0; i < width; i += 16) total += load(x + i);
    const float mean = sum_of(total) / width;
    for (int64_t i = 0; i < width; i += 16) squares += (load(x + i) - mean) * (load(x + i) - mean);
    const float factor = 1.0f / __builtin_sqrtf(sum_of(squares) / width + eps);
    for (int64_t i = 0; i < width; i += 16) {
        vec value = (load(x + i) - mean) * factor * load(weight + i) + load(bias + i);
        store(x + i, value);
        store_half(rounded + place(row, i, width), value);
    }
}

/* Run layers over one text x [rows, width], in place; rows <= LONGEST. `work` holds (rows + PANEL) * (width + the widest
   matrix) bfloat16 numbers. */
void run_bert(const BertLayer *layers, int64_t count, int64_t width, int64_t heads, float eps, float *x, int64_t rows,
              half *work) {
    half *narrow = work, *wide = work + (rows + PANEL) * width;
    TileConfig before = whole_tiles();
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i += 16) store_half(narrow + place(row, i, width), load(x + row * width + i));
    for (int64_t number = 0; number < count; number++) {
        const BertLayer *layer = layers + number;
        multiply_half(narrow, rows, &layer->inward, wide, NULL, TO_HALF);
        attend_all(wide, rows, heads, narrow);
        multiply_half(narrow, rows, &layer->outward, NULL, x, ADD);
        for (int64_t row = 0; row < rows; row++)
            layer_norm(x + row * width, narrow, row, layer->attention_weight, layer->attention_bias, width, eps);
        multiply_half(narrow, rows, &layer->widen, wide, NULL, GELU);
        multiply_half(wide, rows, &layer->narrow, NULL, x, ADD);
        for (int64_t row = 0; row < rows; row++)
            layer_norm(x + row * width, narrow, row, layer->output_weight, layer->output_bias, width, eps);
    }
    restore_tiles(before);
}

/* Weights [out, in] as `HalfMatrix.weights`. */
void pack_half(const half *weights, int64_t out, int64_t in, half *packed) {
    for (int64_t row = 0; row < out; row++)
        for (int64_t k = 0; k < in; k++)
            packed[(row / 16) * in * 16 + (k / 2) * 32 + (row % 16) * 2 + k % 2] = weights[row * in + k];
}

#endif
