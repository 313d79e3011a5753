// Generated from agents/templates/persistent.cu.j2 for this configuration; edit the template instead.
// {"family":"ws_persistent","layout":"NN","swapped":true,"bm":128,"bn":128,"stages":6,"warpgroups":2,"buffers":2,"cache":"stream_c"}

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
// The product is computed as rows of P times rows of Q: P is A and Q the columns of B, or, with SWAPPED, the other way round,
// so that the 64 rows of a warpgroup instruction can lie along either side of C.
//
// A stage of the ring holds BM rows of P and BN rows of Q for BK of K. An operand whose rows run along K ("K-major", width 0)
// lies there as boxes of 64 of K, 128 bytes a row. One stored across K lies as panels of WIDTH rows, BK lines each. Both are
// swizzled as TMA writes them and wgmma reads them.

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 64;
constexpr int STAGES = 6;
constexpr int P_WIDTH = 64;
constexpr int Q_WIDTH = 0;
constexpr int CLUSTER_P = 1;  // CTAs of a cluster with different rows of P, which share rows of Q
constexpr int CLUSTER_Q = 1;
constexpr int WARPGROUPS = 2;  // that multiply
constexpr int BLOCKS = 1;  // of 64 rows of P, per warpgroup

constexpr int P_BYTES = BM * BK * 2;
constexpr int STAGE_BYTES = (BM + BN) * BK * 2;

using Row = float[BN / 2];  // of 64 rows of P

using Sums = Row[BLOCKS];

// One slot of the ring and the parity of its present phase.
struct Turn {
  u32 stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void skip(int count) {
    const u32 sum = stage + count;
    stage = sum % STAGES;
    parity ^= sum / STAGES & 1;
  }
};

// Where things are in shared memory: the ring, then (or over it) C on its way out, then the barriers.
struct Memory {
  u32 ring = shared_memory();
  u32 barriers = ring + 229376;

  __device__ __forceinline__ u32 stage(u32 index) const { return ring + index * STAGE_BYTES; }
  __device__ __forceinline__ u32 full(u32 index) const { return barriers + index * 8; }
  __device__ __forceinline__ u32 empty(u32 index) const { return barriers + (STAGES + index) * 8; }
};

// This CTA's place in its cluster.
struct Peers {
  u32 p = CLUSTER_P * CLUSTER_Q == 1 ? 0 : cluster_rank() % CLUSTER_P;
  u32 q = CLUSTER_P * CLUSTER_Q == 1 ? 0 : cluster_rank() / CLUSTER_P;

  static constexpr u32 COUNT = CLUSTER_P + CLUSTER_Q - 1;  // CTAs whose loads this one receives, itself included

  __device__ __forceinline__ u32 rank(u32 index) const {
    if (index < CLUSTER_P) return index + CLUSTER_P * q;
    const u32 other = index - CLUSTER_P;
    return p + CLUSTER_P * (other + (other >= q));
  }
  __device__ __forceinline__ u16 same_p() const {
    u32 mask = 0;
    for (u32 other = 0; other < CLUSTER_Q; ++other) mask |= 1u << (p + CLUSTER_P * other);
    return static_cast<u16>(mask);
  }
  __device__ __forceinline__ u16 same_q() const { return static_cast<u16>(((1u << CLUSTER_P) - 1) << (CLUSTER_P * q)); }
};

// What wgmma needs to know of 64 rows of P, or of all rows of Q, for 16 of K: `step` counts those in a stage. `row` is a multiple
// of 64. Addresses are in pieces of 16 bytes, of which only the lower half of the descriptor depends.
template <int ROWS, int WIDTH>
__device__ __forceinline__ u64 operand(u32 tile, u32 row, int step) {
  u32 low, high;
  if constexpr (WIDTH == 0) {
    low = (tile >> 4) + row * (128 / 16) + (step / 4 * (ROWS * 128) + step % 4 * 32) / 16 + (1 << 16);
    high = 8 * 128 / 16 | 1u << 30;
  } else {
    constexpr int LINE = 2 * WIDTH;
    low = (tile >> 4) + row / WIDTH * (BK * LINE / 16) + step * LINE + (BK * LINE / 16 << 16);
    high = 8 * LINE / 16 | (WIDTH == 64 ? 1u : WIDTH == 32 ? 2u : 3u) << 30;
  }
  return static_cast<u64>(high) << 32 | low;
}

// sums += P·Q^T over 16 of K: 64 rows of P against BN rows of Q, both described in shared memory. 0 for `add` overwrites.
__device__ __forceinline__ void multiply(Row &sums, u64 p, u64 q, int add) {
  asm volatile(
      "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, add, 1, 1, 1, 0;\n\t}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7]), 
        "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), 
        "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), 
        "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]), 
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]), "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), 
        "+f"(sums[40]), "+f"(sums[41]), "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47]), 
        "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]), "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), 
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]), "+f"(sums[62]), "+f"(sums[63])
        
      : "l"(p), "l"(q), "r"(add));
}

// The compiler must not read sums before a wait above this: nothing else tells it that they change there.
__device__ __forceinline__ void keep_after(Row &sums) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Loads one of SLICES parts of an operand's share of a stage, for all CTAs in `ctas` where there are several.
// GROUPED rows lie in groups of 32 in another order, so that sums which a thread has are neighbours in C: see store.cuh.
template <int ROWS, int WIDTH, int SLICES, bool GROUPED>
__device__ __forceinline__ void load_operand(u32 to, const TensorMap &map, int row, int k, u32 full, u32 slice, u16 ctas) {
  constexpr bool ACROSS = WIDTH != 0;
  constexpr int BOXES = ACROSS ? ROWS / (ACROSS ? WIDTH : 1) : BK / 64;
  constexpr int LINE = ACROSS ? 2 * WIDTH : 128;
  constexpr int LINES = ACROSS ? BK : ROWS;
#pragma unroll
  for (int box = 0; box < BOXES; ++box) {
    const u32 target = to + box * (LINES * LINE) + slice * (LINES / SLICES * LINE);
    const int x = ACROSS ? row + box * WIDTH : k + box * 64;
    const int y = (ACROSS ? k : row) + slice * (LINES / SLICES);
    if constexpr (GROUPED) {
      SLICES > 1 ? load_groups_for(ctas, target, map, x, y / 32, full) : load_groups(target, map, x, y / 32, full);
    } else if constexpr (SLICES > 1) {
      load_box_for(ctas, target, map, x, y, full);
    } else {
      load_box(target, map, x, y, full);
    }
  }
}
// Fills one stage; called by one thread, once the stage is empty in every CTA that it loads for.
__device__ __forceinline__ void load_stage(const Memory &memory, u32 stage, const TensorMap &p_map, const TensorMap &q_map,
                                           int p, int q, int k, const Peers &peers) {
  const u32 to = memory.stage(stage), full = memory.full(stage);
  barrier_arrive_expect(full, STAGE_BYTES);
  load_operand<BM, P_WIDTH, CLUSTER_Q, false>(to, p_map, p, k, full, peers.q, peers.same_p());
  load_operand<BN, Q_WIDTH, CLUSTER_P, false>(to + P_BYTES, q_map, q, k, full, peers.p, peers.same_q());
}

// Tells every CTA that loads into this stage that this warp has read it.
__device__ __forceinline__ void release(const Memory &memory, u32 stage, const Peers &peers) {
  const u32 lane = threadIdx.x % 32;
  if constexpr (Peers::COUNT == 1) {
    if (lane == 0) barrier_arrive(memory.empty(stage));
  } else {
    if (lane < Peers::COUNT) barrier_arrive_at(memory.empty(stage), peers.rank(lane));
  }
}

// One warpgroup multiplies its rows of P by Q over `count` stages. `issued` is called when its last instruction is on its way,
// `released` with every stage that it has read.
template <class Issued, class Released>
__device__ __forceinline__ void multiply_stages(Sums &sums, const Memory &memory, Turn &turn, int count, u32 row,
                                                Issued issued, Released released) {
  u32 previous = 0;
#pragma unroll 1
  for (int index = 0; index < count; ++index) {
    barrier_wait(memory.full(turn.stage), turn.parity);
    // In a cluster the upper bits of an address tell the CTA; in a descriptor they would spill into the distance of panels.
    const u32 tile = memory.stage(turn.stage) & 0x3ffff;
    const u32 q = tile + P_BYTES;
    multiply_begin();
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        multiply(sums[block], operand<BM, P_WIDTH>(tile, row + 64 * block, step),
                 operand<BN, Q_WIDTH>(q, 0, step), step == 0 ? index : 1);
      }
    }
    multiply_commit();
    if (index > 0) {
      multiply_wait<1>();
      released(previous);
    }
    previous = turn.stage;
    turn.advance();
  }
  issued();
  multiply_wait<0>();
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) keep_after(sums[block]);
  released(previous);
}

// Rows of P and Q of the CTA's tile.
struct Place {
  int p, q;
};

// n / d for numbers below 2^31, by the multiplier 2^63 / d, rounded up: a division would take longer than anything else before the
// first load.
__device__ __forceinline__ u32 divided(u32 n, u64 by) { return static_cast<u32>(__umul64hi(2ull * n, by)); }

// Clusters go through C in bands of `group` tiles along P, so that those at work share operands in L2.
struct Raster {
  u32 tiles_p, tiles_q, group;
  u64 by_band, by_group, by_rest;  // multipliers for the tiles of a band, the height of a band and that of the last one

  __device__ __forceinline__ Place place(u32 index, const Peers &peers) const {
    const u32 band = divided(index, by_band);
    const u32 within = index - band * group * tiles_q;
    const u32 height = min(group, tiles_p - band * group);
    const u32 column = divided(within, height == group ? by_group : by_rest);
    const u32 row = band * group + within - column * height;
    return {static_cast<int>((row * CLUSTER_P + peers.p) * BM), static_cast<int>((column * CLUSTER_Q + peers.q) * BN)};
  }
};

// C on its way out. A thread of a warpgroup holds, for each block of 64 rows of P and each 8 rows of Q, four sums: P row
// lane / 4 of its warp's 16 and Q rows 2·(lane % 4) and the next, then both again 8 rows of P further.

constexpr bool SWAPPED = true;

// Pair `index` of a thread's sums, as C has them.
__device__ __forceinline__ u32 pair_of(const Row &sums, int index) {
  return pack(sums[2 * index], sums[2 * index + 1]);
}

struct Output {
  int rows, columns;  // of C as P and Q have it
  int stride;         // numbers from one row of C to the next
  const TensorMap *map;
};

constexpr int PANEL = 64;  // rows of Q whose sums leave together
constexpr int PANELS = (BN + PANEL - 1) / PANEL;
constexpr int PANEL_BYTES = 64 * PANEL * 2;
constexpr int BUFFERS = 2;  // panels in shared memory, per warpgroup
constexpr int LINE = SWAPPED ? 128 : 2 * PANEL;  // bytes of a panel that are neighbours in C

// Where TMA expects the byte at `offset` of an aligned panel, and where no banks conflict: 16-byte pieces change places.
__device__ __forceinline__ u32 swizzled(u32 offset) { return offset ^ (offset >> 3 & (LINE - 16)); }

// Writes the sums of WIDTH rows of Q as C has them: rows of P or, swapped, rows of Q, one below the other. A warp has 16 of P.
template <int WIDTH>
__device__ __forceinline__ void write_panel(const Row &sums, int start, u32 to) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int pair = 0; pair < WIDTH / 16; ++pair) {
    const int from = (start + pair * 16) / 4;
    const u32 a = pair_of(sums, from), b = pair_of(sums, from + 1), c = pair_of(sums, from + 2), d = pair_of(sums, from + 3);
    if constexpr (SWAPPED) {
      const u32 row = pair * 16 + lane / 16 * 8 + lane % 8;
      store_matrices_transposed(to + swizzled(row * LINE + (warp * 2 + lane / 8 % 2) * 16), a, b, c, d);
    } else {
      const u32 row = warp * 16 + lane % 16;
      store_matrices(to + swizzled(row * LINE + (pair * 2 + lane / 16) * 16), a, b, c, d);
    }
  }
  if constexpr (WIDTH % 16 == 8) {
    constexpr int LAST = WIDTH / 16 * 16;
    const int from = (start + LAST) / 4;
    const u32 a = pair_of(sums, from), b = pair_of(sums, from + 1);
    if constexpr (SWAPPED) {
      store_matrices_transposed(to + swizzled((LAST + lane % 8) * LINE + (warp * 2 + lane / 8 % 2) * 16), a, b);
    } else {
      store_matrices(to + swizzled((warp * 16 + lane % 16) * LINE + LAST * 2), a, b);
    }
  }
}

constexpr int ROUND = 1;  // panels that are written between two barriers: 64 rows of Q where they are narrow

// The first row of Q of a panel: the last panel begins within the one before where it would not fit, and writes the same again.
__device__ __forceinline__ constexpr int start_of(int panel) {
  return panel * PANEL < BN - PANEL ? panel * PANEL : BN - PANEL;
}

// One warpgroup stores its 64 rows through its buffers, which it uses in turn; `buffer` is the next one.
__device__ __forceinline__ void store_block(const Row &sums, const Output &out, int p, int q, u32 buffers,
                                            u32 &buffer, u32 name) {
  const bool first = threadIdx.x % 128 == 0;
#pragma unroll
  for (int panel = 0; panel < PANELS; panel += ROUND) {
    const int end = panel + ROUND < PANELS ? panel + ROUND : PANELS;
    const auto place = [&](int each) {
      const u32 at = buffer + each - panel;
      return buffers + (at < BUFFERS ? at : at - BUFFERS) * PANEL_BYTES;
    };
    if (first) wait_stores<BUFFERS - ROUND>();
    named_barrier<128>(name);
#pragma unroll
    for (int each = panel; each < end; ++each) write_panel<PANEL>(sums, start_of(each), place(each));
    fence_async();
    named_barrier<128>(name);
    if (first) {
#pragma unroll
      for (int each = panel; each < end; ++each) {
        const int side = q + start_of(each);
        store_box(*out.map, SWAPPED ? p : side, SWAPPED ? side : p, place(each), policy_evict_first());
        commit_stores();
      }
    }
    buffer += end - panel;
    if (buffer >= BUFFERS) buffer -= BUFFERS;
  }
}

// Persistent and warp-specialised. The last warps load; each warpgroup before them multiplies: all share a tile, or, in turn
// (PING_PONG), each has a tile of its own and stores it while the other multiplies.

constexpr bool PING_PONG = false;
constexpr int LOADERS = 128;
constexpr int THREADS = WARPGROUPS * 128 + LOADERS;
constexpr u32 ORDER = 8;  // named barriers ORDER and ORDER + 1: whose turn it is to multiply
constexpr u32 CLUSTER = CLUSTER_P * CLUSTER_Q;

// Some stages of a tile.
struct Piece {
  u32 tile;
  int from, count;
};

// What a cluster has to do. Whole warps make one, and it stays in uniform registers, as the loops over it then do.
struct Work {
  u32 cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
  u32 tiles, tile;  // all, and the next that this cluster takes whole
  int stages;       // of a tile

  __device__ __forceinline__ Work(u32 tiles, int stages) : tiles(tiles), tile(cluster), stages(stages) {}

  __device__ __forceinline__ bool next(Piece &piece) {
    piece = {tile, 0, stages};
    tile += clusters;
    return piece.tile < tiles;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hgemm(const __grid_constant__ TensorMap p_map, const __grid_constant__ TensorMap q_map,
          const __grid_constant__ TensorMap c_map, int rows, int columns, int stride,
          int stages, int tiles_p, int tiles_q, int group, u64 by_band, u64 by_group,
          u64 by_rest) {
  const Memory memory;
  const Peers peers;
  const Raster raster = {static_cast<u32>(tiles_p), static_cast<u32>(tiles_q), static_cast<u32>(group), by_band, by_group, by_rest};
  const int warpgroup = uniform(threadIdx.x / 128);

  // Not by the thread that sets up the barriers, whose fences would wait for it.
  if (threadIdx.x == 0) {
    prefetch_map(p_map);
    prefetch_map(q_map);
    prefetch_map(c_map);
  }
  if (threadIdx.x == WARPGROUPS * 128) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), 4 * (PING_PONG ? 1 : WARPGROUPS) * Peers::COUNT);
    }
    fence_barrier_init();
    fence_async();
  }
  // Where to begin is worked out while others get here. Who set up the barriers waits for nobody but the cluster.
  __syncwarp();
  if constexpr (CLUSTER > 1) cluster_arrive();

  if (warpgroup == WARPGROUPS) {
    give_registers<40>();
    Work work(static_cast<u32>(tiles_p) * tiles_q, stages);
    Piece piece;
    bool more = work.next(piece);
    Place at = raster.place(piece.tile, peers);
    if constexpr (CLUSTER > 1) {
      cluster_wait();
    } else {
      named_arrive<THREADS>(0);
    }
    if (threadIdx.x == WARPGROUPS * 128) {
      Turn turn;
      while (more) {
#pragma unroll 1
        for (int index = 0; index < piece.count; ++index) {
          barrier_wait(memory.empty(turn.stage), turn.parity ^ 1);
          load_stage(memory, turn.stage, p_map, q_map, at.p, at.q, (piece.from + index) * BK, peers);
          turn.advance();
        }
        more = work.next(piece);
        if (more) at = raster.place(piece.tile, peers);
      }
    }
    __syncwarp();
  } else {
    take_registers<232>();
    const Output out = {rows, columns, stride, &c_map};
    const u32 buffers = memory.ring + STAGES * STAGE_BYTES + warpgroup * (BUFFERS * PANEL_BYTES);
    u32 buffer = 0;
    const int row = PING_PONG ? 0 : warpgroup * (64 * BLOCKS);
    Work work(static_cast<u32>(tiles_p) * tiles_q, stages);
    Turn turn;
    int turns = 0;
    if constexpr (CLUSTER > 1) {
      cluster_wait();
    } else {
      named_barrier<THREADS>(0);
    }
    if (PING_PONG && warpgroup == 1) named_arrive<256>(ORDER);
    for (Piece piece; work.next(piece); ++turns) {
      if (PING_PONG && turns % 2 != warpgroup) {
        turn.skip(piece.count);
        continue;
      }
      const Place at = raster.place(piece.tile, peers);
      Sums sums;
      if (PING_PONG) named_barrier<256>(ORDER + warpgroup);
      multiply_stages(
          sums, memory, turn, piece.count, row,
          [&] {
            if (PING_PONG) named_arrive<256>(ORDER + 1 - warpgroup);
          },
          [&](u32 stage) { release(memory, stage, peers); });
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        store_block(sums[block], out, at.p + row + 64 * block, at.q, buffers, buffer, 1 + warpgroup);
      }
    }
    if (threadIdx.x % 128 == 0) wait_stores<0>();
    __syncwarp();
  }
  // A CTA that has ended can neither receive its peers' loads nor count their arrivals.
  if constexpr (CLUSTER > 1) {
    cluster_arrive();
    cluster_wait();
  }
}
