/* The C ABI of kind `native`: host code that the harness loads into a worker which it does not trust.
 *
 * cpu target: one function with the signature of HGEMM_CPU_ENTRY. It runs on one thread and has no state.
 *
 * CUDA targets: three functions, exported with C linkage, and no others.
 *
 *   hgemm_create   once per problem, untimed but recorded: attributes, tensor maps, tuning, allocations. What runs when the
 *                  library is loaded counts as part of it.
 *   hgemm_run      enqueues one C = A * B on `stream`, which is being captured: launches of its own kernels, memsets of C and of
 *                  the workspace, the same for every call. It allocates nothing, waits for nothing, uses no other stream,
 *                  changes no limit, and tunes nothing. It is called once for every buffer set of every window.
 *   hgemm_destroy  frees what hgemm_create made.
 *
 * The CUDA runtime that it calls is the worker's; docs/submissions.md says which of its functions may be called.
 *
 * All pointers are aligned to 256 bytes. Functions return 0, or another number to say that they could not.
 */
#ifndef HGEMM_H
#define HGEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HGEMM_ABI_VERSION 1

enum hgemm_layout {
    HGEMM_NN = 0, /* B is a k x n row-major array */
    HGEMM_TN = 1  /* B is stored transposed, as an n x k row-major array */
};

enum hgemm_track {
    HGEMM_F32 = 0, /* accumulate in fp32 */
    HGEMM_F16 = 1  /* fp16 accumulators are allowed */
};

typedef struct hgemm_problem {
    int64_t m, n, k;
    int32_t layout; /* enum hgemm_layout */
    int32_t track;  /* enum hgemm_track */
} hgemm_problem;

#if !defined(__cplusplus) && defined(__FLT16_MAX__)
/* Declares, or begins, the entry of a library for the cpu target. */
#define HGEMM_CPU_ENTRY(name) \
    void name(const _Float16 *a, const _Float16 *b, _Float16 *c, void *workspace, int64_t m, int64_t n, int64_t k)
#endif

int hgemm_create(const hgemm_problem *problem, void **state);
int hgemm_run(void *state, const void *a, const void *b, void *c, void *workspace, void *stream);
void hgemm_destroy(void *state);

#ifdef __cplusplus
}
#endif

#endif
