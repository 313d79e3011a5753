#include "tiled.cuh"

struct Fours {
    using Word = int;
    using Sum = int;
    static constexpr int NUMBERS = 4;
    static constexpr bool IN_CHUNKS = false, EXACT_ENDS = false;
    static constexpr float SCALE = 24.0f;
    static __device__ __forceinline__ int word(const __half *numbers) {
        int word = 0;
        for (int i = 3; i >= 0; --i) {
            const float rounded = fminf(fmaxf(rintf(__half2float(numbers[i]) * SCALE), -127.0f), 127.0f);
            word = word << 8 | ((int)rounded & 255);
        }
        return word;
    }
    static __device__ __forceinline__ void add(int &sum, int x, int y) { sum = __dp4a(x, y, sum); }
    static __device__ __forceinline__ float value(int sum) { return sum / (SCALE * SCALE); }
};

TILED gemm(ARGUMENTS) { product<Fours>(a, b, c, m, n, k); }
