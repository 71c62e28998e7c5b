/* Attention in fp32 over keys and values [tokens, DIM], block by block. DIM is defined before this file is included. */

#pragma once
#include "vectors.h"

#define KEYS 64 /* of one block */
#define QUERIES 6
#if LANES == 16
#define HELD 4 /* vectors of sums for each of so many queries, which the registers hold */
#define BY_PARTS(first, vectors) enum { first = 0 };
#else
#define HELD 2
#define BY_PARTS(first, vectors) for (int first = 0; first < vectors; first += HELD)
#endif

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
    enum { WIDTH_HELD = DIM / LANES < HELD ? DIM / LANES : HELD };
    BY_PARTS(lowest, DIM / LANES) {
        vec held[QUERIES][WIDTH_HELD];
        for (int q = 0; q < count; q++)
            for (int i = 0; i < WIDTH_HELD; i++) held[q][i] = load(sums + q * DIM + LANES * (lowest + i));
        for (int64_t key = 0; key < keys; key++)
            for (int q = 0; q < count; q++)
                for (int i = 0; i < WIDTH_HELD; i++)
                    held[q][i] += weights[q][key] * load(values + key * DIM + LANES * (lowest + i));
        for (int q = 0; q < count; q++)
            for (int i = 0; i < WIDTH_HELD; i++) store(sums + q * DIM + LANES * (lowest + i), held[q][i]);
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
