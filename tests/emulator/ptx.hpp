// The functions of agents/templates/pieces/ptx.cuh.j2, played by the emulator, and what CUDA C++ adds to C++.
#pragma once

#include <cstring>

#include "machine.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define threadIdx emulator::here.thread
#define blockIdx emulator::here.block
#define gridDim emulator::here.grid

using std::size_t;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
  u64 words[16];
};
struct alignas(16) Four {
  float value[4];
};

template <class Left, class Right>
std::common_type_t<Left, Right> min(Left left, Right right) { return left < right ? left : right; }
template <class Left, class Right>
std::common_type_t<Left, Right> max(Left left, Right right) { return left > right ? left : right; }

inline u64 __umul64hi(u64 left, u64 right) { return static_cast<u64>(static_cast<unsigned __int128>(left) * right >> 64); }

inline const emulator::Map &map_of(const TensorMap &map) { return reinterpret_cast<const emulator::Map &>(map); }

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp() { emulator::warp_barrier(); }

inline u32 shared_memory() { return emulator::SHARED_BASE + (emulator::cluster_rank() << emulator::RANK_SHIFT); }
inline u32 uniform(u32 value) { return emulator::from_lane(value, 0); }

inline void barrier_init(u32 barrier, u32 arrivals) { emulator::barrier_init(barrier, arrivals); }
inline void fence_barrier_init() { emulator::barrier_init_fence(); }
inline void barrier_arrive(u32 barrier) { emulator::barrier_arrive(-1, barrier, 0); }
inline void barrier_arrive_at(u32 barrier, u32 rank) { emulator::barrier_arrive(rank, barrier, 0); }
inline void barrier_arrive_expect(u32 barrier, u32 bytes) { emulator::barrier_arrive(-1, barrier, bytes); }
inline void barrier_wait(u32 barrier, u32 parity) { emulator::barrier_wait(barrier, parity); }
template <int THREADS>
void named_barrier(u32 name) { emulator::named_barrier(name, THREADS, true); }
template <int THREADS>
void named_arrive(u32 name) { emulator::named_barrier(name, THREADS, false); }
template <int THREADS>
bool any_of(u32 name, bool value) { return emulator::named_any(name, THREADS, value); }
inline u32 cluster_rank() { return emulator::cluster_rank(); }
inline void cluster_barrier() { emulator::cluster_barrier(); }
inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }

inline void prefetch_map(const TensorMap &) {}
inline u64 policy_evict_first() { return 1; }
inline void fetch_box(const TensorMap &, int, int) {}
inline void load_box(u32 to, const TensorMap &map, int x, int y, u32 barrier) {
  emulator::load_box(1u << emulator::cluster_rank(), to, map_of(map), {x, y}, barrier);
}
inline void load_box_for(u16 ctas, u32 to, const TensorMap &map, int x, int y, u32 barrier) {
  emulator::load_box(ctas, to, map_of(map), {x, y}, barrier);
}
inline void load_groups(u32 to, const TensorMap &map, int k, int group, u32 barrier) {
  emulator::load_box(1u << emulator::cluster_rank(), to, map_of(map), {k, 0, 0, 0, group}, barrier);
}
inline void load_groups_for(u16 ctas, u32 to, const TensorMap &map, int k, int group, u32 barrier) {
  emulator::load_box(ctas, to, map_of(map), {k, 0, 0, 0, group}, barrier);
}
inline void store_box(const TensorMap &map, int x, int y, u32 from, u64 = 0) { emulator::store_box(map_of(map), {x, y}, from); }
inline void commit_stores() { emulator::commit_stores(); }
template <int PENDING>
void wait_stores() { emulator::wait_stores(PENDING); }
inline void fence_async() { emulator::fence_async(); }

inline void multiply_begin() { emulator::multiply_begin(); }
inline void multiply_commit() { emulator::multiply_commit(); }
template <int PENDING>
void multiply_wait() { emulator::multiply_wait(PENDING); }
template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}

inline u32 pack(float first, float second) { return emulator::half_of(first) | u32{emulator::half_of(second)} << 16; }
inline void store_matrices(u32 row, u32 a, u32 b, u32 c, u32 d) {
  const u32 values[] = {a, b, c, d};
  emulator::store_matrices(row, values, 4, false);
}
inline void store_matrices(u32 row, u32 a, u32 b) {
  const u32 values[] = {a, b};
  emulator::store_matrices(row, values, 2, false);
}
inline void store_matrices_transposed(u32 row, u32 a, u32 b, u32 c, u32 d) {
  const u32 values[] = {a, b, c, d};
  emulator::store_matrices(row, values, 4, true);
}
inline void store_matrices_transposed(u32 row, u32 a, u32 b) {
  const u32 values[] = {a, b};
  emulator::store_matrices(row, values, 2, true);
}
inline void store_shared(u32 to, const Four &four) { emulator::write_shared(to, &four, sizeof four); }
inline Four load_shared(u32 from) {
  Four four;
  emulator::read_shared(emulator::cluster_rank(), from, &four, sizeof four);
  return four;
}
inline Four load_from(u32 address, u32 rank) {
  Four four;
  emulator::read_shared(rank, address, &four, sizeof four);
  return four;
}
inline Four load_global(const Four *from) { return *from; }
inline void store_global(Four *to, const Four &four) { *to = four; }
inline void store_eight(u16 *to, u32 a, u32 b, u32 c, u32 d) {
  if (reinterpret_cast<u64>(to) % 16) emulator::fail("16 bytes are stored across a boundary of 16");
  const u32 values[] = {a, b, c, d};
  std::memcpy(to, values, sizeof values);
}
inline void store_eight(u16 *to, u32 a, u32 b, u32 c, u32 d, u64) { store_eight(to, a, b, c, d); }
inline void add_global(Four *to, const Four &four) {
  for (int i = 0; i < 4; ++i) to->value[i] += four.value[i];
}
inline void set_flag(u32 *flag) { *flag = 1; }
inline void wait_for_flag(const u32 *flag) {
  emulator::wait_until([flag] { return *flag != 0; }, "a flag in global memory");
}
inline u32 count_up(u32 *counter) { return (*counter)++; }
inline void multiply_warp(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 b[] = {b0, b1};
  emulator::multiply_warp(c, a, b);
}
inline void let_next_start() {}
inline void wait_for_previous() {}
