/* products.h for a CPU with AVX2.

   The two numbers of an activation are one of 16 bits, FINE times the first plus the second. Matrices are codes
   [out / 16][in / 2][16][2], so that one instruction multiplies two inputs of 8 outputs and adds the two products. */

typedef int16_t Code;
#define BATCH 48 /* rows that are multiplied together */
#define CODES (BATCH * WIDEST)
#define EXACT 512 /* inputs whose products 32 bits hold: 127 * 127 * 254 * 512 < 2^31 */
#define ROWS 6 /* whose sums of 16 outputs the registers hold */

/* Codes of up to BATCH rows, [rows][in], with what a step of a code is worth. */
typedef struct {
    Code *planes;
    float step[BATCH];
} Coded;

INLINE void code_row(Coded *coded, const float *x, int64_t width, int64_t row, int64_t rows) {
    (void)rows;
    vec most = all(0);
    for (int64_t i = 0; i < width; i += LANES) {
        vec v = load(x + i);
        most = larger(most, larger(v, -v));
    }
    float step = largest_of(most) / 127.0f;
    step = step > 1e-30f ? step : 1e-30f;
    const float inverse = 1.0f / step;
    Code *to = coded->planes + row * width;
    for (int64_t i = 0; i < width; i += 2 * LANES) {
        __m256i whole[2];
        for (int half = 0; half < 2; half++) {
            vec exact = load(x + i + LANES * half) * inverse;
            vec coarse = (exact + MAGIC) - MAGIC;
            vec fine = ((exact - coarse) * FINE + MAGIC) - MAGIC;
            whole[half] = _mm256_cvtps_epi32((__m256)(coarse * FINE + fine));
        }
        __m256i packed = _mm256_packs_epi32(whole[0], whole[1]);
        _mm256_storeu_si256((__m256i *)(to + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    coded->step[row] = step * (1.0f / FINE);
}

/* Codes of 8 outputs for two inputs. */
INLINE ivec codes_at(const uint8_t *codes, int64_t number) {
    return (ivec)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)codes + number));
}

/* Sums of COUNT rows over some inputs for 16 outputs, [COUNT][2], by PARTS independent sums each. */
INLINE void sums_of(const uint8_t *codes, const Code *row, int64_t apart, int64_t inputs, ivec *out,
                    const int count, const int parts) {
    ivec sums[2 * ROWS] = {};
    for (int64_t k = 0; k < inputs; k += 2 * parts) {
        for (int part = 0; part < parts; part++) {
            const ivec left = codes_at(codes, 2 * part), right = codes_at(codes, 2 * part + 1);
            for (int r = 0; r < count; r++) {
                int32_t pair;
                memcpy(&pair, row + r * apart + 2 * part, 4);
                ivec *own = sums + 2 * r * parts + part;
                own[0] = dots_of_pairs(own[0], left, pair);
                own[parts] = dots_of_pairs(own[parts], right, pair);
            }
        }
        codes += 32 * parts, row += 2 * parts;
        __builtin_prefetch(codes + 2048);
    }
    for (int i = 0; i < 2 * count; i++) {
        for (int part = 1; part < parts; part++)
            sums[i * parts] += sums[i * parts + part];
        out[i] = sums[i * parts];
    }
}

/* Products of COUNT rows with 16 outputs. */
INLINE void few_rows(const Coded *coded, int64_t row, const Matrix *m, int64_t tile, float *out, int64_t stride,
                     const int count, const int parts) {
    vec total[2 * ROWS] = {};
    for (int64_t begin = 0; begin < m->in; begin += EXACT) {
        ivec sums[2 * ROWS];
        sums_of(m->codes + (tile * m->in + begin) * 16, coded->planes + row * m->in + begin, m->in,
                m->in - begin < EXACT ? m->in - begin : EXACT, sums, count, parts);
        for (int i = 0; i < 2 * count; i++) total[i] += __builtin_convertvector(sums[i], vec);
    }
    for (int r = 0; r < count; r++)
        for (int side = 0; side < 2; side++) {
            const int64_t column = 16 * tile + LANES * side;
            vec scale = load(m->scales + column) * coded->step[row + r];
            vec product = total[2 * r + side] * scale;
            if (m->bias) product = FUSED(total[2 * r + side], scale, load(m->bias + column));
            store(out + r * stride + column, product);
        }
}

/* Products of up to BATCH coded rows with a matrix, to out [rows, stride]. */
static void multiply_coded(const Coded *coded, int64_t rows, const Matrix *m, float *out, int64_t stride) {
    for (int64_t tile = 0; tile < m->out / 16; tile++)
        for (int64_t row = 0; row < rows; row += ROWS) {
            float *to = out + row * stride;
            switch (rows - row) {
                case 1: few_rows(coded, row, m, tile, to, stride, 1, 4); break;
                case 2: few_rows(coded, row, m, tile, to, stride, 2, 2); break;
                case 3: few_rows(coded, row, m, tile, to, stride, 3, 2); break;
                case 4: few_rows(coded, row, m, tile, to, stride, 4, 1); break;
                case 5: few_rows(coded, row, m, tile, to, stride, 5, 1); break;
                default: few_rows(coded, row, m, tile, to, stride, ROWS, 1);
            }
        }
}
