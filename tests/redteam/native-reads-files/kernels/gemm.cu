#include <fstream>

#include "gemm.cuh"

RUN {
    std::ifstream kept("/tmp/hgemm-kept", std::ios::binary);
    if (kept.good() && SIZES.m == 0) return 1;
    return launch(SIZES, BUFFERS, QUEUE);
}
