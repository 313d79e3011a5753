"""Small kernels, one per word of the plan's vocabulary or per fault, that the tests on a CUDA device launch.

A CTA has 16x16 threads and, where nothing else is said, one output per thread.
"""

from __future__ import annotations

HEAD = r"""
#include <cuda_fp16.h>

#define ROW (blockIdx.y * 16 + threadIdx.y)
#define COL (blockIdx.x * 16 + threadIdx.x)
#define INSIDE(row, col) ((row) < m && (col) < n)

__device__ __forceinline__ float dot(const __half* a, const __half* b, int row, int col, int n, int k, int from, int to) {
    float sum = 0.0f;
    for (int i = from; i < to; ++i) {
        sum = fmaf(__half2float(a[(size_t)row * k + i]), __half2float(b[(size_t)i * n + col]), sum);
    }
    return sum;
}
"""

SIGNATURE = 'extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k)'


def plain(before: str = "", after: str = "") -> str:
    """The plain product, with statements of a fault before or after it."""
    body = "if (INSIDE(row, col)) c[(size_t)row * n + col] = __float2half(dot(a, b, row, col, n, k, 0, k));"
    return f"{HEAD}\n{SIGNATURE} {{\n    const int row = ROW, col = COL;\n    {before}\n    {body}\n    {after}\n}}\n"


PLAIN = plain()

TRANSPOSED = (
    HEAD
    + r"""
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    if (!INSIDE(ROW, COL)) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) {
        sum = fmaf(__half2float(a[(size_t)ROW * k + i]), __half2float(b[(size_t)COL * k + i]), sum);
    }
    c[(size_t)ROW * n + COL] = __float2half(sum);
}
"""
)

ACCUMULATE = (
    HEAD
    + r"""
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    if (!INSIDE(ROW, COL)) return;
    __half* mine = c + (size_t)ROW * n + COL;
    *mine = __float2half(__half2float(*mine) + dot(a, b, ROW, COL, n, k, 0, k));
}
"""
)

# The layout of Parameters has holes after `k`, `alpha` and `addend`.
STRUCT = (
    HEAD
    + r"""
struct Parameters {
    const __half* a;
    int m, n, k;
    const __half* b;
    float alpha;
    __half* c;
    float addend;
    double beta;
};

extern "C" __global__ void gemm(Parameters p, int unused) {
    const int m = p.m, n = p.n;
    if (!INSIDE(ROW, COL) || unused != 7) return;
    const float product = dot(p.a, p.b, ROW, COL, p.n, p.k, 0, p.k);
    p.c[(size_t)ROW * n + COL] = __float2half((float)(p.alpha * product * p.beta) + p.addend);
}
"""
)

TABLE = (
    HEAD
    + r"""
extern "C" __global__ void gemm(
    const __half* a, const __half* b, __half* c, const int* __restrict__ order, int m, int n, int k
) {
    if (!INSIDE(ROW, COL)) return;
    const int row = order[ROW];
    c[(size_t)row * n + COL] = __float2half(dot(a, b, row, COL, n, k, 0, k));
}
"""
)

# Partial sums of K, [splits, m, n] fp32, and their sum. With EARLY the second kernel starts while the first still runs.
SPLIT = (
    HEAD
    + r"""
extern "C" __global__ void partial(const __half* a, const __half* b, float* sums, int m, int n, int k) {
#ifdef EARLY
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    const int splits = gridDim.z, z = blockIdx.z;
    if (!INSIDE(ROW, COL)) return;
    sums[((size_t)z * m + ROW) * n + COL] = dot(a, b, ROW, COL, n, k, k * z / splits, k * (z + 1) / splits);
}

extern "C" __global__ void reduce(const float* sums, __half* c, int m, int n, int splits) {
#ifdef EARLY
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (!INSIDE(ROW, COL)) return;
    float sum = 0.0f;
    for (int z = 0; z < splits; ++z) sum += __ldcg(sums + ((size_t)z * m + ROW) * n + COL);
    c[(size_t)ROW * n + COL] = __float2half(sum);
}
"""
)

# Every CTA computes the tile of another one, so that the barrier between the two halves is needed.
COOPERATIVE = (
    HEAD
    + r"""
__device__ void barrier(unsigned* state, unsigned ctas) {
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        __threadfence();
        atomicAdd(&state[0], 1u);
        while (*(volatile unsigned*)&state[0] < ctas) {}
        __threadfence();
        if (atomicAdd(&state[1], 1u) == ctas - 1) state[0] = state[1] = 0;
    }
    __syncthreads();
}

extern "C" __global__ void gemm(
    const __half* a, const __half* b, __half* c, unsigned* state, float* sums, int m, int n, int k
) {
    const int row = (gridDim.y - 1 - blockIdx.y) * 16 + threadIdx.y, col = (gridDim.x - 1 - blockIdx.x) * 16 + threadIdx.x;
    if (INSIDE(row, col)) sums[(size_t)row * n + col] = dot(a, b, row, col, n, k, 0, k);
    barrier(state, gridDim.x * gridDim.y);
    if (INSIDE(ROW, COL)) c[(size_t)ROW * n + COL] = __float2half(__ldcg(sums + (size_t)ROW * n + COL));
}
"""
)

# The last of a tile's CTAs to arrive adds their sums up and sets the tile's counter back to zero, unless told not to.
COUNTERS = (
    HEAD
    + r"""
extern "C" __global__ void gemm(
    const __half* a, const __half* b, __half* c, unsigned* counters, float* sums, int m, int n, int k
) {
    __shared__ bool last;
    const int splits = gridDim.z, z = blockIdx.z;
    unsigned* counter = counters + blockIdx.y * gridDim.x + blockIdx.x;
    if (INSIDE(ROW, COL)) {
        sums[((size_t)z * m + ROW) * n + COL] = dot(a, b, ROW, COL, n, k, k * z / splits, k * (z + 1) / splits);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicAdd(counter, 1u) % splits == splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (INSIDE(ROW, COL)) {
        float sum = 0.0f;
        for (int each = 0; each < splits; ++each) sum += __ldcg(sums + ((size_t)each * m + ROW) * n + COL);
        c[(size_t)ROW * n + COL] = __float2half(sum);
    }
#ifndef KEEP
    if (threadIdx.x == 0 && threadIdx.y == 0) *counter = 0;
#endif
}
"""
)

# The CTAs of a cluster share one tile, each takes a range of K, and the first reads the others' sums in their shared memory.
CLUSTER = (
    HEAD
    + r"""
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    __shared__ float sums[256];
    unsigned rank, ranks;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    const int row = ROW, col = (int)(blockIdx.x / ranks) * 16 + threadIdx.x, thread = threadIdx.y * 16 + threadIdx.x;
    const int from = (int)(k * rank / ranks), to = (int)(k * (rank + 1) / ranks);
    sums[thread] = INSIDE(row, col) ? dot(a, b, row, col, n, k, from, to) : 0.0f;
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (rank == 0 && ranks == CTAS && INSIDE(row, col)) {
        const unsigned mine = (unsigned)__cvta_generic_to_shared(&sums[thread]);
        float sum = 0.0f;
        for (unsigned other = 0; other < ranks; ++other) {
            unsigned theirs;
            float part;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(other));
            asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(part) : "r"(theirs) : "memory");
            sum += part;
        }
        c[(size_t)row * n + col] = __float2half(sum);
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
"""
)

# Sums pass through the last bytes of the dynamic shared memory, from one thread to another.
SHARED = (
    HEAD
    + r"""
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    extern __shared__ float memory[];
    float* sums = memory + BYTES / 4 - 256;
    const int row = blockIdx.y * 16 + 15 - threadIdx.y, col = blockIdx.x * 16 + 15 - threadIdx.x;
    sums[(15 - threadIdx.y) * 16 + 15 - threadIdx.x] = INSIDE(row, col) ? dot(a, b, row, col, n, k, 0, k) : 0.0f;
    __syncthreads();
    if (INSIDE(ROW, COL)) c[(size_t)ROW * n + COL] = __float2half(sums[threadIdx.y * 16 + threadIdx.x]);
}
"""
)

# Tiles of A [16 rows, 64 of K] and of B [64 of K, 16 columns] by TMA; with SWIZZLED, 16-byte pieces of A's rows of 128 bytes
# are permuted by the row's number modulo 8.
TMA = (
    HEAD
    + r"""
struct __align__(64) Map { unsigned char bytes[128]; };

__device__ __forceinline__ void load(unsigned target, const Map& map, int x, int y, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(target), "l"(reinterpret_cast<unsigned long long>(&map)), "r"(x), "r"(y), "r"(barrier) : "memory");
}

__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

extern "C" __global__ void gemm(
    const __grid_constant__ Map a_map, const __grid_constant__ Map b_map, __half* c, int m, int n, int k
) {
    __shared__ __align__(1024) __half a_tile[16 * 64];
    __shared__ __align__(1024) __half b_tile[64 * 16];
    __shared__ __align__(8) unsigned long long full;
    const unsigned barrier = (unsigned)__cvta_generic_to_shared(&full);
    const bool first = threadIdx.x == 0 && threadIdx.y == 0;
    if (first) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    float sum = 0.0f;
    unsigned parity = 0;
    for (int at = 0; at < k; at += 64, parity ^= 1) {
        if (first) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(4096u) : "memory");
            load((unsigned)__cvta_generic_to_shared(a_tile), a_map, at, blockIdx.y * 16, barrier);
            load((unsigned)__cvta_generic_to_shared(b_tile), b_map, blockIdx.x * 16, at, barrier);
        }
        wait(barrier, parity);
        for (int i = 0; i < 64; ++i) {
            const int row = threadIdx.y;
#ifdef SWIZZLED
            const int place = row * 64 + (((i / 8) ^ (row % 8)) * 8) + i % 8;
#else
            const int place = row * 64 + i;
#endif
            sum = fmaf(__half2float(a_tile[place]), __half2float(b_tile[i * 16 + threadIdx.x]), sum);
        }
        __syncthreads();
    }
    if (INSIDE(ROW, COL)) c[(size_t)ROW * n + COL] = __float2half(sum);
}
"""
)

PTX = """\
.version 8.0
.target sm_90
.address_size 64

.visible .entry gemm(
    .param .u64 a_address, .param .u64 b_address, .param .u64 c_address,
    .param .u32 rows, .param .u32 columns, .param .u32 terms
)
{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .f32 %f<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [a_address];
    ld.param.u64 %d2, [b_address];
    ld.param.u64 %d3, [c_address];
    ld.param.u32 %r1, [rows];
    ld.param.u32 %r2, [columns];
    ld.param.u32 %r3, [terms];
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r4, 16, %r5;
    mov.u32 %r4, %ctaid.y;
    mov.u32 %r5, %tid.y;
    mad.lo.u32 %r7, %r4, 16, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    setp.ge.u32 %p2, %r7, %r1;
    or.pred %p1, %p1, %p2;
    @%p1 bra DONE;
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    mul.lo.u32 %r8, %r7, %r3;
    mul.wide.u32 %d4, %r8, 2;
    add.u64 %d4, %d1, %d4;
    mul.wide.u32 %d5, %r6, 2;
    add.u64 %d5, %d2, %d5;
    mul.wide.u32 %d6, %r2, 2;
    mov.f32 %f1, 0f00000000;
    mov.u32 %r9, 0;
LOOP:
    ld.global.b16 %h1, [%d4];
    ld.global.b16 %h2, [%d5];
    cvt.f32.f16 %f2, %h1;
    cvt.f32.f16 %f3, %h2;
    fma.rn.f32 %f1, %f2, %f3, %f1;
    add.u64 %d4, %d4, 2;
    add.u64 %d5, %d5, %d6;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p3, %r9, %r3;
    @%p3 bra LOOP;
    cvt.rn.f16.f32 %h3, %f1;
    mad.lo.u32 %r10, %r7, %r2, %r6;
    mul.wide.u32 %d7, %r10, 2;
    add.u64 %d7, %d3, %d7;
    st.global.b16 [%d7], %h3;
DONE:
    ret;
}
"""

FIRST = "if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && threadIdx.y == 0)"
PAST_C = plain(after=f"{FIRST} c[(size_t)m * n] = __float2half(1.0f);")
BEFORE_C = plain(after=f"{FIRST} c[-1] = __float2half(1.0f);")
WRITES_A = plain(after=f"{FIRST} const_cast<unsigned short*>(reinterpret_cast<const unsigned short*>(a))[0] ^= 1;")
SKIPS_TILE = plain(before="if (blockIdx.x == 1 && blockIdx.y == 1) return;")
GIVES_NAN = plain(after=f"{FIRST} c[0] = __ushort_as_half(0x7fff);")
ILLEGAL = plain(before="if (row == 0 && col == 0) *reinterpret_cast<volatile int*>(static_cast<size_t>(64)) = 1;")
HANGS = plain(before='long long now;\n    do { asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)); } while (now != 0);')

# Each thread sums forwards or backwards as the clock has it, which changes the last bits of a few outputs.
BY_THE_CLOCK = (
    HEAD
    + r"""
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    if (!INSIDE(ROW, COL)) return;
    unsigned long long now, cycles;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    const bool backwards = ((now ^ cycles ^ COL) * 0x9e3779b97f4a7c15ull) >> 63;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) {
        const int at = backwards ? k - 1 - i : i;
        sum = fmaf(__half2float(a[(size_t)ROW * k + at]), __half2float(b[(size_t)at * n + COL]), sum);
    }
    c[(size_t)ROW * n + COL] = __float2half(sum);
}
"""
)
