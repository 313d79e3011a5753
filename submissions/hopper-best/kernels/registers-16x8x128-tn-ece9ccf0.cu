// Generated from agents/templates/registers.cu.j2 for this configuration; edit the template instead.
// {"family":"registers","layout":"TN","bm":16,"bn":8,"bk":128,"stages":1,"store":"direct"}

// Instructions of sm_90a, one function each. Addresses of shared memory are 32-bit, in the shared window of this CTA.

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
  u64 words[16];
};

struct alignas(16) Four {
  float value[4];
};

__device__ __forceinline__ u32 shared_memory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return static_cast<u32>(__cvta_generic_to_shared(memory));
}

// A number that all threads of a warp have alike, so that the compiler keeps it, and what follows from it, in uniform registers.
__device__ __forceinline__ u32 uniform(u32 value) { return __shfl_sync(0xffffffff, value, 0); }

// Barriers in shared memory: `init` sets the arrivals of a phase, a wait names the parity of the phase that must be over.

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier of the same address in another CTA of the cluster. It orders nothing that this thread wrote: a release
// for the whole cluster costs a fence of all memory, and what is handed over was only read, by instructions that have ended.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n\t.reg .b32 there;\n\t"
      "mapa.shared::cluster.u32 there, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "AGAIN_%=:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra AGAIN_%=;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

template <int THREADS>
__device__ __forceinline__ void named_barrier(u32 name) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void named_arrive(u32 name) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}

// A named barrier that also tells whether any of its threads called it with `value` set.
template <int THREADS>
__device__ __forceinline__ bool any_of(u32 name, bool value) {
  u32 any;
  asm volatile(
      "{\n\t.reg .pred given, found;\n\tsetp.ne.u32 given, %1, 0;\n\t"
      "barrier.cta.red.or.pred found, %2, %3, given;\n\tselp.u32 %0, 1, 0, found;\n\t}"
      : "=r"(any)
      : "r"(static_cast<u32>(value)), "r"(name), "n"(THREADS)
      : "memory");
  return any != 0;
}

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of the cluster arrives; what it wrote before is visible to the others after it.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same in two halves, without waiting for what this thread wrote: a release would wait until all its stores have landed.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Tensor memory accelerator.

__device__ __forceinline__ void prefetch_map(const TensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<u64>(&map)) : "memory");
}

__device__ __forceinline__ u64 policy_evict_first() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void load_box(u32 to, const TensorMap &map, int x, int y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %2, %3}], [%4];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// The box lands at the same address, and is counted by the same barrier, in every CTA of the cluster whose bit is set.
__device__ __forceinline__ void load_box_for(u16 ctas, u32 to, const TensorMap &map, int x, int y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, { %2, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(barrier), "h"(ctas)
      : "memory");
}

// The box comes into L2 only.
__device__ __forceinline__ void fetch_box(const TensorMap &map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, { %1, %2}];" ::"l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y)
               : "memory");
}

// As load_box for 64 of K and groups of 32 rows, whose rows land in the order that the map says.
__device__ __forceinline__ void load_groups(u32 to, const TensorMap &map, int k, int group, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %2, %5, %5, %5, %3}], [%4];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(k), "r"(group), "r"(barrier), "r"(0)
      : "memory");
}

__device__ __forceinline__ void load_groups_for(u16 ctas, u32 to, const TensorMap &map, int k, int group, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, { %2, %6, %6, %6, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(k), "r"(group), "r"(barrier), "h"(ctas), "r"(0)
      : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap &map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, { %1, %2}], [%3];" ::"l"(reinterpret_cast<u64>(&map)),
               "r"(x), "r"(y), "r"(from)
               : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap &map, int x, int y, u32 from, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, { %1, %2}], [%3], %4;" ::"l"(
          reinterpret_cast<u64>(&map)),
      "r"(x), "r"(y), "r"(from), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most PENDING groups of this thread's stores still read shared memory.
template <int PENDING>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// What threads wrote to shared memory before it is seen by the asynchronous units after it.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Warpgroup matrix multiply. The statement for each width is in the piece that holds `multiply`.

__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Two neighbours of C in one register, the first in the lower half.
__device__ __forceinline__ u32 pack(float first, float second) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

__device__ __forceinline__ void store_matrices(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void store_matrices(u32 row, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], { %1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], { %1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(u32 row, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], { %1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, const Four &four) {
  asm volatile("st.shared.v4.f32 [%0], { %1, %2, %3, %4};" ::"r"(to), "f"(four.value[0]), "f"(four.value[1]),
               "f"(four.value[2]), "f"(four.value[3])
               : "memory");
}

__device__ __forceinline__ Four load_shared(u32 from) {
  Four four;
  asm volatile("ld.shared.v4.f32 { %0, %1, %2, %3}, [%4];"
               : "=f"(four.value[0]), "=f"(four.value[1]), "=f"(four.value[2]), "=f"(four.value[3])
               : "r"(from)
               : "memory");
  return four;
}

// Four numbers at the same address in another CTA of the cluster.
__device__ __forceinline__ Four load_from(u32 address, u32 rank) {
  Four four;
  asm volatile(
      "{\n\t.reg .b32 there;\n\t"
      "mapa.shared::cluster.u32 there, %4, %5;\n\t"
      "ld.shared::cluster.v4.f32 { %0, %1, %2, %3}, [there];\n\t}"
      : "=f"(four.value[0]), "=f"(four.value[1]), "=f"(four.value[2]), "=f"(four.value[3])
      : "r"(address), "r"(rank)
      : "memory");
  return four;
}

// Sums that other CTAs wrote: past the L1, which does not see them.
__device__ __forceinline__ Four load_global(const Four *from) {
  Four four;
  asm volatile("ld.global.cg.v4.f32 { %0, %1, %2, %3}, [%4];"
               : "=f"(four.value[0]), "=f"(four.value[1]), "=f"(four.value[2]), "=f"(four.value[3])
               : "l"(from)
               : "memory");
  return four;
}

__device__ __forceinline__ void store_global(Four *to, const Four &four) {
  asm volatile("st.global.cg.v4.f32 [%0], { %1, %2, %3, %4};" ::"l"(to), "f"(four.value[0]), "f"(four.value[1]),
               "f"(four.value[2]), "f"(four.value[3])
               : "memory");
}

// Eight neighbours of C.
__device__ __forceinline__ void store_eight(u16 *to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.v4.b32 [%0], { %1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_eight(u16 *to, u32 a, u32 b, u32 c, u32 d, u64 policy) {
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], { %1, %2, %3, %4}, %5;" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d), "l"(policy)
               : "memory");
}

// Adds to four numbers, one by one, while others may do the same.
__device__ __forceinline__ void add_global(Four *to, const Four &four) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], { %1, %2, %3, %4};" ::"l"(to), "f"(four.value[0]), "f"(four.value[1]),
               "f"(four.value[2]), "f"(four.value[3])
               : "memory");
}

// A flag that one thread sets, and one that waits until it is set. What a thread did before, and what others of its CTA did before
// a barrier that they shared with it, is seen by those who meet the waiting thread at a barrier.
__device__ __forceinline__ void set_flag(u32 *flag) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

__device__ __forceinline__ void wait_for_flag(const u32 *flag) {
  u32 value;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  } while (value == 0);
}

// Counts up and returns the count before; it orders memory as a flag does, set by one and awaited by another.
__device__ __forceinline__ u32 count_up(u32 *counter) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Multiply of one warp: c += a·b, 16 x 8 over 16 of K.
__device__ __forceinline__ void multiply_warp(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Between the kernels of one operation: lets the next one start, and waits until the one before has ended.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Operands go from global memory straight into the registers of mma.sync: no shared memory, no barrier and no descriptor before
// the first product, and all of K is under way at once where it is short. Both operands must have K innermost. Every warp
// computes the whole tile over its share of K; the warps' sums are added up in a fixed order.
//
// A thread loads 16 bytes of a row, eight neighbours along K, where mma.sync wants two pairs eight apart. Both operands are
// loaded alike, so the products match; only the order in which K is summed up differs.

constexpr int BM = 16;
constexpr int BN = 8;
constexpr int BK = 128;  // of one warp at a time
constexpr int WARPS = 4;
constexpr int ROWS = BM / 16;
constexpr int COLUMNS = BN / 8;
constexpr int CHUNKS = BK / 32;
constexpr int PITCH = BN + 4;  // of the sums in shared memory

struct alignas(16) Eight {
  u32 pair[4];
};

__device__ __forceinline__ Eight load_eight(const u16 *from, bool inside) {
  Eight eight = {0, 0, 0, 0};
  if (inside) eight = *reinterpret_cast<const Eight *>(from);
  return eight;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    hgemm(const u16 *__restrict__ a, const u16 *__restrict__ b, u16 *__restrict__ c, int m, int n, int k) {
  __shared__ float shared[WARPS][BM][PITCH];
  const int row = blockIdx.x * BM, column = blockIdx.y * BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, part = lane % 4;

  float sums[ROWS][COLUMNS][4] = {};
#pragma unroll 1
  for (int from = warp * BK; from < k; from += WARPS * BK) {
    Eight rows[CHUNKS][ROWS][2], columns[CHUNKS][COLUMNS];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const int at = from + chunk * 32 + part * 8;
#pragma unroll
      for (int i = 0; i < ROWS * 2; ++i) {
        const int r = row + i * 8 + line;
        rows[chunk][i / 2][i % 2] = load_eight(a + static_cast<size_t>(r) * k + at, r < m && at < k);
      }
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        const int t = column + j * 8 + line;
        columns[chunk][j] = load_eight(b + static_cast<size_t>(t) * k + at, t < n && at < k);
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
          const Eight &upper = rows[chunk][i][0], &lower = rows[chunk][i][1];
          const u32 fragment[4] = {upper.pair[2 * step], lower.pair[2 * step], upper.pair[2 * step + 1],
                                   lower.pair[2 * step + 1]};
#pragma unroll
          for (int j = 0; j < COLUMNS; ++j) {
            const Eight &other = columns[chunk][j];
            multiply_warp(sums[i][j], fragment, other.pair[2 * step], other.pair[2 * step + 1]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
      for (int each = 0; each < 4; ++each) {
        shared[warp][i * 16 + each / 2 * 8 + line][j * 8 + part * 2 + each % 2] = sums[i][j][each];
      }
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int index = threadIdx.x; index < BM * BN / 2; index += WARPS * 32) {
    const int r = index / (BN / 2), t = index % (BN / 2) * 2;
    float first = 0.0f, second = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      first += shared[other][r][t];
      second += shared[other][r][t + 1];
    }
    const u32 both = pack(first, second);
    if (row + r >= m) continue;
    u16 *to = c + static_cast<size_t>(row + r) * n + column + t;
    if (column + t < n) *reinterpret_cast<u32 *>(to) = both;
  }
}
