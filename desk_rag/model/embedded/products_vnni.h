/* products.h for a CPU that multiplies bytes in vectors of 16 numbers (AVX-512 with VNNI), or in tiles (AMX).

   Matrices are codes plus 128, [out / 16][in / 4][16][4]: what one VNNI instruction, or one row of an AMX tile, takes. */

typedef int8_t bvec __attribute__((vector_size(16), aligned(1)));
typedef int8_t Code;
#define BATCH 32 /* rows that are multiplied together */
#define CODES (2 * BATCH * WIDEST)

INLINE int32_t whole_sum_of(ivec v) { return _mm512_reduce_add_epi32((__m512i)v); }

/* Two planes of codes of up to 32 rows: [2][rows up to a multiple of 16][in], with their steps and sums. */
typedef struct {
    Code *planes;
    float step[32];
    int32_t sum[2][32];
} Coded;

INLINE int64_t padded(int64_t rows) { return rows <= 16 ? 16 : 32; }

static void code_row(Coded *coded, const float *x, int64_t width, int64_t row, int64_t rows) {
    vec most = all(0);
    for (int64_t i = 0; i < width; i += 16) {
        vec v = load(x + i);
        most = larger(most, larger(v, -v));
    }
    float step = largest_of(most) / 127.0f;
    step = step > 1e-30f ? step : 1e-30f;
    float inverse = 1.0f / step;
    int8_t *coarse = coded->planes + row * width, *fine = coarse + padded(rows) * width;
    ivec sums = {}, fine_sums = {};
    for (int64_t i = 0; i < width; i += 16) {
        vec exact = load(x + i) * inverse;
        vec whole = (exact + MAGIC) - MAGIC;
        vec rest = ((exact - whole) * FINE + MAGIC) - MAGIC;
        ivec first = __builtin_convertvector(whole, ivec), second = __builtin_convertvector(rest, ivec);
        *(bvec *)(coarse + i) = __builtin_convertvector(first, bvec);
        *(bvec *)(fine + i) = __builtin_convertvector(second, bvec);
        sums += first;
        fine_sums += second;
    }
    coded->step[row] = step;
    coded->sum[0][row] = whole_sum_of(sums);
    coded->sum[1][row] = whole_sum_of(fine_sums);
}

INLINE vec product_of(ivec coarse, ivec fine, const Coded *coded, int64_t row, const Matrix *m, int64_t column) {
    vec whole = __builtin_convertvector(coarse - 128 * coded->sum[0][row], vec);
    vec rest = __builtin_convertvector(fine - 128 * coded->sum[1][row], vec);
    /* Fused by name, so that it rounds alike wherever the compiler puts it. */
    __m512 product = _mm512_fmadd_ps((__m512)rest, _mm512_set1_ps(1.0f / FINE), (__m512)whole);
    __m512 scale = (__m512)(load(m->scales + column) * coded->step[row]);
    if (!m->bias) return (vec)_mm512_mul_ps(product, scale);
    return (vec)_mm512_fmadd_ps(product, scale, (__m512)load(m->bias + column));
}

/* acc + dot products of 4 unsigned codes with 4 signed ones, which are the same for all 16 columns. */
INLINE ivec dots(ivec acc, const uint8_t *codes, const int8_t *row) {
    int32_t four;
    memcpy(&four, row, 4);
    return (ivec)_mm512_dpbusd_epi32((__m512i)acc, _mm512_loadu_si512(codes), _mm512_set1_epi32(four));
}

/* Products of COUNT rows with 16 columns, by PARTS independent sums. */
INLINE void few_rows(const Coded *coded, int64_t row, int64_t rows, const Matrix *m, int64_t tile, float *out,
                     int64_t stride, const int count, const int parts) {
    const uint8_t *codes = m->codes + tile * m->in * 16;
    const int8_t *planes = coded->planes + row * m->in;
    const int64_t apart = padded(rows) * m->in;
    ivec coarse[4][4] = {}, fine[4][4] = {};
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
            ivec whole = *(ivec *)sums[half][at], rest = *(ivec *)sums[half + 1][at];
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

/* Codes [out, in] as `Matrix.codes`. */
void pack(const int8_t *codes, int64_t out, int64_t in, uint8_t *packed) {
    for (int64_t row = 0; row < out; row++)
        for (int64_t k = 0; k < in; k += 4)
            for (int i = 0; i < 4; i++)
                packed[(row / 16) * in * 16 + k * 16 + (row % 16) * 4 + i] = (uint8_t)(codes[row * in + k + i] + 128);
}
