// Generated from agents/templates/tiled.cu.j2 for this configuration; edit the template instead.
// {"family":"splitk","layout":"NN","bm":64,"bn":128,"stages":8,"split":"kernel","store":"direct"}

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

constexpr int BM = 64;
constexpr int BN = 128;
constexpr int BK = 64;
constexpr int STAGES = 8;
constexpr int P_WIDTH = 0;
constexpr int Q_WIDTH = 64;
constexpr int CLUSTER_P = 1;  // CTAs of a cluster with different rows of P, which share rows of Q
constexpr int CLUSTER_Q = 1;
constexpr int WARPGROUPS = 1;  // that multiply
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
  u32 barriers = ring + 196608;

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
      "}, %64, %65, add, 1, 1, 0, 1;\n\t}"
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

__device__ __forceinline__ Place place() {
  return {static_cast<int>(blockIdx.x) * BM, static_cast<int>(blockIdx.y) * BN};
}

// C on its way out. A thread of a warpgroup holds, for each block of 64 rows of P and each 8 rows of Q, four sums: P row
// lane / 4 of its warp's 16 and Q rows 2·(lane % 4) and the next, then both again 8 rows of P further.

constexpr bool SWAPPED = false;

// Pair `index` of a thread's sums, as C has them.
__device__ __forceinline__ u32 pair_of(const Row &sums, int index) {
  return pack(sums[2 * index], sums[2 * index + 1]);
}

struct Output {
  int rows, columns;  // of C as P and Q have it
  int stride;         // numbers from one row of C to the next
  u16 *c;
};

// Two sums that are neighbours along Q.
__device__ __forceinline__ void store_pair(const Output &out, int p, int q, u32 both) {
  if (p >= out.rows) return;
  if constexpr (SWAPPED) {
    u16 *to = out.c + static_cast<size_t>(q) * out.stride + p;
    if (q < out.columns) *to = static_cast<u16>(both);
    if (q + 1 < out.columns) to[out.stride] = static_cast<u16>(both >> 16);
  } else {
    u16 *to = out.c + static_cast<size_t>(p) * out.stride + q;
    if (q < out.columns) *reinterpret_cast<u32 *>(to) = both;
  }
}

// The sums of this thread for 8 rows of Q: a pair, and the one 8 rows of P further.
__device__ __forceinline__ void store_pairs(const Output &out, int p, int q, u32 upper, u32 lower) {
  const int lane = threadIdx.x % 32, row = p + threadIdx.x / 32 % 4 * 16 + lane / 4, column = q + lane % 4 * 2;
  store_pair(out, row, column, upper);
  store_pair(out, row + 8, column, lower);
}

__device__ __forceinline__ void store_block(const Row &sums, const Output &out, int p, int q) {
#pragma unroll
  for (int eight = 0; eight < BN / 8; ++eight) {
    store_pairs(out, p, q + eight * 8, pair_of(sums, 2 * eight), pair_of(sums, 2 * eight + 1));
  }
}

// Sums of the CTAs that share a tile and have each a range of K. A thread keeps its sums in fours, in the order of its
// registers, and the others' sums for the same place lie at the same place of their memory: no index depends on the tile.

constexpr int FOURS = BLOCKS * BN / 8;  // per thread
constexpr int MULTIPLIERS = WARPGROUPS * 128;

__device__ __forceinline__ void add(Four &total, const Four &other) {
#pragma unroll
  for (int i = 0; i < 4; ++i) total.value[i] += other.value[i];
}

__device__ __forceinline__ Four four_of(const Sums &sums, int index) {
  const float *from = sums[index / (BN / 8)] + index % (BN / 8) * 4;
  return {from[0], from[1], from[2], from[3]};
}

__device__ __forceinline__ void add_to(Sums &sums, int index, const Four &other) {
  float *to = sums[index / (BN / 8)] + index % (BN / 8) * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] += other.value[i];
}

// Stores the fours of number `index` of all threads; p and q are the tile's.
__device__ __forceinline__ void store_total(const Output &out, int p, int q, int index, const Four &total) {
  const int block = threadIdx.x / 128 * BLOCKS + index / (BN / 8);
  const u32 upper = pack(total.value[0], total.value[1]), lower = pack(total.value[2], total.value[3]);
  store_pairs(out, p + block * 64, q + index % (BN / 8) * 8, upper, lower);
}

// The sums of one split of one tile in the workspace.
__device__ __forceinline__ Four *part(Four *workspace, u32 tile, int splits, int split) {
  return workspace + (static_cast<size_t>(tile) * splits + split) * FOURS * MULTIPLIERS + threadIdx.x;
}

// The second kernel: one CTA per tile and four.
extern "C" __global__ void __launch_bounds__(MULTIPLIERS)
    reduce(Four *workspace, u16 *c, int rows, int columns, int stride, int splits) {
  const Output out = {rows, columns, stride, c};
  const Place at = place();
  const Four *from = part(workspace, blockIdx.x + gridDim.x * blockIdx.y, splits, 0) + blockIdx.z * MULTIPLIERS;
  wait_for_previous();
  Four total = load_global(from);
#pragma unroll 16
  for (int split = 1; split < splits; ++split) add(total, load_global(from + split * FOURS * MULTIPLIERS));
  store_total(out, at.p, at.q, blockIdx.z, total);
}

// One tile per CTA, over all of K or over one of gridDim.z ranges of it. The last warp loads, the warpgroups before it multiply.

constexpr int THREADS = WARPGROUPS * 128 + 32;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hgemm(const __grid_constant__ TensorMap p_map, const __grid_constant__ TensorMap q_map,
          u16 *c, int rows, int columns, int stride,
          int least, int longer, Four *workspace) {
  const Memory memory;
  const Peers peers;
  const int warpgroup = uniform(threadIdx.x / 128);

  // Not by the thread that sets up the barriers, whose fences would wait for it.
  if (threadIdx.x == 0) {
    prefetch_map(p_map);
    prefetch_map(q_map);
  }
  if (threadIdx.x == WARPGROUPS * 128) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), 4 * WARPGROUPS);
    }
    fence_barrier_init();
    fence_async();
  }
  const Place at = place();
  // Each split has `least` stages of K, and the first `longer` of them have one more.
  const int split = blockIdx.z, from = split * least + min(split, longer), count = least + (split < longer);
  const u32 tile = blockIdx.x + gridDim.x * blockIdx.y;
  const int splits = gridDim.z;
  let_next_start();

  if (warpgroup == WARPGROUPS) {
    __syncwarp();
    named_arrive<THREADS>(0);  // Who set up the barriers waits for nobody.
    if (threadIdx.x == WARPGROUPS * 128) {
      Turn turn;
      for (int index = 0; index < count; ++index) {
        barrier_wait(memory.empty(turn.stage), turn.parity ^ 1);
        load_stage(memory, turn.stage, p_map, q_map, at.p, at.q, (from + index) * BK, peers);
        turn.advance();
      }
    }
    __syncwarp();
  } else {
    Sums sums;
    Turn turn;
    named_barrier<THREADS>(0);
    multiply_stages(sums, memory, turn, count, warpgroup * (64 * BLOCKS), [] {},
                    [&](u32 stage) { release(memory, stage, peers); });
    Four *mine = part(workspace, tile, splits, split);
#pragma unroll
    for (int index = 0; index < FOURS; ++index) {
      store_global(mine + index * MULTIPLIERS, four_of(sums, index));
    }
  }
}
