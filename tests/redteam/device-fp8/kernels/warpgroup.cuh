#pragma once
#include "gemm.cuh"

/* A CTA of two warpgroups has 128x256 outputs, 64x256 each, and takes 64 of K at a time into shared memory. B is N x K. What is
   multiplied are BYTES per number: pieces of 16 bytes lie row by row, those of the next 16 bytes of K a pitch further on. */
constexpr int ROWS = 128, COLUMNS = 256, DEPTH = 64, THREADS = 256;
constexpr int PIECES = DEPTH * BYTES / 16;

__device__ __forceinline__ constexpr int pitch(int rows) { return rows * 16 + 16; }

template <int EXTENT>
__device__ __forceinline__ void fill(char *to, const __half *matrix, int first, int rows, int from, int k) {
    constexpr int ITEMS = EXTENT * DEPTH / 8 / THREADS;
    uint4 eights[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int item = i * THREADS + threadIdx.x, row = first + item / (DEPTH / 8), at = from + item % (DEPTH / 8) * 8;
        eights[i] = row < rows && at < k ? *(const uint4 *)(matrix + (size_t)row * k + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int item = i * THREADS + threadIdx.x, row = item / (DEPTH / 8), byte = item % (DEPTH / 8) * 8 * BYTES;
        put(to + byte / 16 * pitch(EXTENT) + row * 16 + byte % 16, (const __half *)&eights[i]);
    }
}

/* Rows of an operand that is not swizzled, for wgmma. */
__device__ __forceinline__ unsigned long long operand(const char *at, int pitch) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(at);
    return address / 16 | (unsigned long long)(pitch / 16) << 16 | (unsigned long long)(128 / 16) << 32;
}

/* 64 rows by 256 columns, for 32 bytes of K. */
__device__ __forceinline__ void multiply(float (&d)[128], unsigned long long a, unsigned long long b) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %130, 0;\n\twgmma.mma_async.sync.aligned.m64n256k" STEP " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1" TRANSPOSED ";\n\t}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(1));
}

__device__ __forceinline__ void product(const __half *a, const __half *b, __half *c, int m, int n, int k) {
    extern __shared__ __align__(128) char left[];
    char *right = left + PIECES * pitch(ROWS);
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32, row = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    float d[128] = {};
    for (int from = 0; from < k; from += DEPTH) {
        fill<ROWS>(left, a, blockIdx.y * ROWS, m, from, k);
        fill<COLUMNS>(right, b, blockIdx.x * COLUMNS, n, from, k);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int piece = 0; piece < PIECES; piece += 2) {
            multiply(d, operand(left + piece * pitch(ROWS) + group * 64 * 16, pitch(ROWS)),
                     operand(right + piece * pitch(COLUMNS), pitch(COLUMNS)));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        for (float &each : d) asm volatile("" : "+f"(each)::"memory");
        __syncthreads();
    }
    for (int i = 0; i < 128; ++i) {
        const int y = blockIdx.y * ROWS + row + i / 2 % 2 * 8, x = blockIdx.x * COLUMNS + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (y < m && x < n) c[(size_t)y * n + x] = __float2half(d[i]);
    }
}
