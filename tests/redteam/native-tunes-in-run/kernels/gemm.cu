#define OWN_STATE
#include "gemm.cuh"

struct State {
    Sizes of;
    int calls;
};

int hgemm_create(const hgemm_problem *problem, void **state) {
    *state = new State{sizes(problem), 0};
    return 0;
}

void hgemm_destroy(void *state) { delete static_cast<State *>(state); }

RUN {
    auto *mine = static_cast<State *>(state);
    for (int tried = mine->calls++ == 0 ? 0 : 3; tried < 4; ++tried) {
        if (launch(mine->of, BUFFERS, QUEUE) != 0) return 1;
    }
    return 0;
}
