// A Hopper that a CPU plays: the threads of some clusters as coroutines, their shared memory, barriers and asynchronous units.
// What a programmer may not rely on varies with the seed: the order of threads, and when an asynchronous unit reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace emulator {

struct Dim {
  unsigned x, y, z;
};

// Of the thread that runs.
struct Here {
  Dim thread, block, grid;
  unsigned lane, warp;
};
extern Here here;

// What the words of a tensor map mean here: a base address, sizes in numbers of 16 bits, a pitch and a swizzled line in bytes.
struct Map {
  std::uint64_t base, extents[5], strides_bytes[4], box[5], line_bytes;  // innermost first; sides that are not there are 1
};

// Where a box begins, innermost first.
struct Corner {
  int at[5];
};

[[noreturn]] void fail(const char *what, long a = 0, long b = 0);

// Goes on once `ready(context)` holds.
void block(bool (*ready)(const void *), const void *context, const char *what);
template <class Ready>
void wait_until(const Ready &ready, const char *what) {
  block([](const void *context) { return (*static_cast<const Ready *>(context))(); }, &ready, what);
}

// Shared memory by generic instructions; `rank` is a CTA of the cluster, -1 this one.
// The upper byte of an address is the CTA's rank: only the rest of it fits the descriptor of an operand.
constexpr unsigned SHARED_BASE = 1024, RANK_SHIFT = 24;
constexpr unsigned within_cta(unsigned address) { return address & ((1u << RANK_SHIFT) - 1); }
void write_shared(unsigned to, const void *from, unsigned bytes);
void read_shared(int rank, unsigned from, void *to, unsigned bytes);
void fence_async();

void barrier_init(unsigned barrier, unsigned arrivals);
void barrier_init_fence();
void barrier_arrive(int rank, unsigned barrier, unsigned expected_bytes);
void barrier_wait(unsigned barrier, unsigned parity);
void named_barrier(unsigned name, unsigned threads, bool wait);
bool named_any(unsigned name, unsigned threads, bool value);
void block_barrier();
void cluster_barrier();
void cluster_arrive();
void cluster_wait();
unsigned cluster_rank();

// Of all lanes of a warp.
void warp_barrier();
unsigned from_lane(unsigned value, unsigned lane);
void store_matrices(unsigned row, const unsigned *values, int count, bool transposed);

// Tensor memory accelerator.
void load_box(unsigned ctas, unsigned to, const Map &map, Corner corner, unsigned barrier);
void store_box(const Map &map, Corner corner, unsigned from);
void commit_stores();
void wait_stores(unsigned pending);

// Warpgroup multiply; sums of 32 bits or pairs of 16.
struct Multiply {
  void *sums;
  unsigned columns;
  bool halves;
  std::uint64_t p, q;
  bool add, p_across, q_across;
};
void multiply_begin();
void multiply(const Multiply &multiply);
void multiply_commit();
void multiply_wait(unsigned pending);
void multiply_warp(float *sums, const unsigned *a, const unsigned *b);

unsigned short half_of(float value);
float float_of(unsigned short half);

// Calls a kernel with parameters at these addresses.
template <class... Parameters, std::size_t... I>
void apply(void (*kernel)(Parameters...), void *const *at, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<Parameters> *>(at[I])...);
}
template <class... Parameters>
void apply(void (*kernel)(Parameters...), void *const *at) {
  apply(kernel, at, std::index_sequence_for<Parameters...>{});
}

}  // namespace emulator

#define EMULATED(kernel) \
  extern "C" void call_##kernel(void *const *at) { emulator::apply(kernel, at); }
