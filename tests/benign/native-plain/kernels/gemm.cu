#include "gemm.cuh"

RUN { return launch(SIZES, BUFFERS, QUEUE); }
