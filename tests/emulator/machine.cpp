#include "machine.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace emulator {

Here here;

namespace {

constexpr std::size_t STACK_BYTES = 1 << 16;
constexpr unsigned GRANULE = 16;  // of shared memory, whose unfenced writes are counted

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Barrier {
  unsigned arrivals = 0, pending = 0;
  long expected_bytes = 0;
  unsigned phase = 0;
  bool fenced = false;
};

// Several threads that wait for each other.
struct Meeting {
  unsigned expected = 0, arrived = 0;
  std::uint64_t generation = 0;
  bool any = false, result = false;
};

struct Warp {
  Meeting meeting;
  unsigned words[32][8];
};

struct Cluster;

struct Cta {
  Cluster *cluster;
  unsigned rank, live;
  unsigned stalled = 0;  // passes that its threads are left out of
  std::vector<unsigned char> memory;
  std::vector<unsigned short> unfenced;  // per granule, writes that the asynchronous units do not see yet
  std::unordered_map<unsigned, Barrier> barriers;
  Meeting named[16];
  std::vector<Warp> warps;

  unsigned char *at(unsigned address, unsigned bytes) {
    const long offset = long(within_cta(address)) - SHARED_BASE;
    if (live == 0) fail("shared memory of CTA %ld is used after its end", rank);
    if (offset < 0 || offset + bytes > long(memory.size())) fail("address %ld of shared memory is outside", offset);
    return memory.data() + offset;
  }
  Barrier &barrier(unsigned address) {
    at(address, 8);
    const auto found = barriers.find(within_cta(address));
    if (found == barriers.end()) fail("there is no barrier at %ld", long(within_cta(address)) - SHARED_BASE);
    return found->second;
  }
};

struct Store {
  Cta *cta;
  Map map;
  Corner corner;
  unsigned from;
  bool done = false;
};
using Stores = std::vector<std::shared_ptr<Store>>;

struct Load {
  Cta *cta;
  Map map;
  Corner corner;
  unsigned to, barrier;
};

struct Thread {
  Cta *cta;
  Here here;
  ucontext_t context;  // where it begins
  jmp_buf place;  // where it goes on
  void *stack;
  bool begun = false, done = false;
  bool (*ready)(const void *) = nullptr;
  const void *ready_context = nullptr;
  const char *waits_for = "nothing";
  std::vector<unsigned> unfenced;
  std::deque<Stores> stores;  // committed groups that no wait has ended
  Stores open_stores;
  std::deque<std::vector<Multiply>> multiplies;
  std::vector<Multiply> open_multiplies;
  bool registers_fenced = false;
  bool awaits_cluster = false;
  std::uint64_t cluster_generation = 0;

  ~Thread();
};

struct Cluster {
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<std::unique_ptr<Thread>> threads;
  Meeting meeting;
  unsigned live = 0;
};

struct Options {
  unsigned grid[3], block[3], cluster[3], shared_bytes, resident, late;
  std::uint64_t seed;
};

const std::vector<float> FLOATS = [] {
  std::vector<float> all(1 << 16);
  for (unsigned each = 0; each < all.size(); ++each) {
    const unsigned short word = each;
    _Float16 half;
    std::memcpy(&half, &word, 2);
    all[each] = half;
  }
  return all;
}();

Options options;
void (*kernel)(void *const *);
void *const *arguments;
Thread *current = nullptr;
jmp_buf scheduler;
std::string failure;
std::mt19937_64 chance;
std::vector<void *> stacks;
std::vector<Load> loads;
std::vector<std::shared_ptr<Store>> late_stores;
std::vector<std::unique_ptr<Cluster>> clusters;

Thread::~Thread() { stacks.push_back(stack); }

bool one_in(unsigned count) { return chance() % count == 0; }

unsigned swizzled(unsigned address, unsigned line_bytes) {
  return line_bytes > 16 ? address ^ (address >> 3 & (line_bytes - 16)) : address;
}

void complete(Barrier &barrier) {
  if (barrier.pending != 0 || barrier.expected_bytes != 0) return;
  barrier.pending = barrier.arrivals;
  barrier.phase ^= 1;
}

unsigned numbers_of(const Map &map) { return map.box[0] * map.box[1] * map.box[2] * map.box[3] * map.box[4]; }

// Goes through the numbers of a box that lie in the matrix or beside it: number, its address in shared memory, whether inside.
template <class Visit>
void visit_box(const Map &map, const Corner &corner, unsigned shared, const Visit &visit) {
  const unsigned line = map.line_bytes ? map.line_bytes : 16, width = 2 * map.box[0];
  for (const auto side : map.box) {
    if (width % 16 || width > line || side > 256) fail("a box is %ld bytes wide", width);
  }
  if (shared % std::max(8 * line, 128u)) fail("a box lies at %ld, across the swizzle's period", long(shared));
  for (unsigned number = 0; number < numbers_of(map); ++number) {
    std::uint64_t address = map.base, rest = number;
    bool inside = true;
    for (unsigned side = 0; side < 5; ++side) {
      const long at = corner.at[side] + long(rest % map.box[side]);
      rest /= map.box[side];
      inside &= at >= 0 && at < long(map.extents[side]);
      address += at * long(side ? map.strides_bytes[side - 1] : 2);
    }
    visit(reinterpret_cast<unsigned short *>(address), swizzled(shared + 2 * number, line), inside);
  }
}

void check_fenced(Cta &cta, unsigned address) {
  if (cta.unfenced[(within_cta(address) - SHARED_BASE) / GRANULE]) fail("shared memory at %ld was written without a fence", long(address));
}

void deliver(const Load &load) {
  Cta &cta = *load.cta;
  Barrier &barrier = cta.barrier(load.barrier);
  if (!barrier.fenced) fail("a barrier's init was not fenced");
  visit_box(load.map, load.corner, load.to, [&](const unsigned short *number, unsigned address, bool inside) {
    check_fenced(cta, address);
    const unsigned short value = inside ? *number : 0;
    std::memcpy(cta.at(address, 2), &value, 2);
  });
  barrier.expected_bytes -= long(2 * numbers_of(load.map));
  complete(barrier);
}

void deliver(Store &store) {
  if (store.done) return;
  store.done = true;
  visit_box(store.map, store.corner, store.from, [&](unsigned short *number, unsigned address, bool inside) {
    check_fenced(*store.cta, address);
    if (inside) std::memcpy(number, store.cta->at(address, 2), 2);
  });
}

// Where number `k` of a row of an operand lies, as its descriptor says.
unsigned operand_address(std::uint64_t descriptor, bool across, unsigned row, unsigned k) {
  const unsigned start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const unsigned stride = (descriptor >> 32 & 0x3fff) << 4, kind = descriptor >> 62;
  const unsigned line = kind == 0 ? 16 : 256 >> kind, numbers = line / 2;
  if (descriptor >> 49 & 7) fail("a descriptor has an offset of its base");
  if (across) {
    const unsigned at = start + row / numbers * leading + k / 8 * stride + k % 8 * line + row % numbers * 2;
    return swizzled(at, line);
  }
  const unsigned along = kind == 0 ? k / 8 * leading + k % 8 * 2 : k * 2;
  return swizzled(start + row / 8 * stride + row % 8 * line + along, line);
}

void read_operand(Thread &thread, std::uint64_t descriptor, bool across, unsigned row, float (&to)[16]) {
  // Of a row that is not read across, eight numbers lie in one granule, whatever the swizzle.
  const unsigned step = across ? 1 : GRANULE / 2;
  for (unsigned k = 0; k < 16; k += step) {
    const unsigned address = operand_address(descriptor, across, row, k);
    check_fenced(*thread.cta, address);
    unsigned short halves[GRANULE / 2];
    std::memcpy(halves, thread.cta->at(address, 2 * step), 2 * step);
    for (unsigned each = 0; each < step; ++each) to[k + each] = float_of(halves[each]);
  }
}

void add_to(const Multiply &m, unsigned eight, unsigned lower, unsigned odd, float total) {
  if (m.halves) {
    auto *half = static_cast<unsigned short *>(m.sums) + eight * 4 + lower * 2 + odd;
    *half = half_of((m.add ? float_of(*half) : 0.0f) + total);
  } else {
    float *sum = static_cast<float *>(m.sums) + eight * 4 + lower * 2 + odd;
    *sum = (m.add ? *sum : 0.0f) + total;
  }
}

// This thread's share of a warpgroup's instruction.
void compute(Thread &thread, const Multiply &m) {
  const unsigned lane = thread.here.lane, row = thread.here.warp % 4 * 16 + lane / 4;
  float p[2][16], q[16];
  for (unsigned lower = 0; lower < 2; ++lower) read_operand(thread, m.p, m.p_across, row + 8 * lower, p[lower]);
  for (unsigned eight = 0; eight < m.columns / 8; ++eight) {
    for (unsigned odd = 0; odd < 2; ++odd) {
      read_operand(thread, m.q, m.q_across, eight * 8 + lane % 4 * 2 + odd, q);
      for (unsigned lower = 0; lower < 2; ++lower) {
        float total = 0.0f;
        for (unsigned k = 0; k < 16; ++k) total += p[lower][k] * q[k];
        add_to(m, eight, lower, odd, total);
      }
    }
  }
}

// Arrives, and goes on when `expected` threads have, unless `wait` is false.
bool meet(Meeting &meeting, unsigned expected, bool wait, bool value, const char *what) {
  if (meeting.arrived && meeting.expected != expected) fail("a barrier is used with %ld and %ld threads", meeting.expected, expected);
  const auto generation = meeting.generation;
  meeting.expected = expected;
  meeting.any |= value;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
    meeting.result = meeting.any;
    meeting.any = false;
  } else if (wait) {
    wait_until([&meeting, generation] { return meeting.generation != generation; }, what);
  }
  return meeting.result;
}

Warp &warp() { return current->cta->warps[here.warp]; }

Cta &cta_of(int rank) {
  if (rank < 0) return *current->cta;
  auto &ctas = current->cta->cluster->ctas;
  if (unsigned(rank) >= ctas.size()) fail("the cluster has no CTA %ld", rank);
  return *ctas[rank];
}

void end(Thread &thread) {
  if (!thread.stores.empty() || !thread.open_stores.empty()) fail("a thread ended while its stores may read shared memory");
  if (!thread.multiplies.empty() || !thread.open_multiplies.empty()) fail("a thread ended before its multiplies");
  thread.done = true;
  --thread.cta->cluster->live;
  if (--thread.cta->live == 0) {
    for (const Load &load : loads) {
      if (load.cta == thread.cta) fail("CTA %ld ended before a load into it", thread.cta->rank);
    }
  }
}

// Back to who called `enter`. Unlike swapcontext, neither of the two asks the kernel for the signals' mask.
void leave() {
  if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
}

// Lets a thread go on until it leaves.
void enter(Thread &thread) {
  if (_setjmp(scheduler) != 0) return;
  if (thread.begun) _longjmp(thread.place, 1);
  thread.begun = true;
  setcontext(&thread.context);
}

void run_thread() {
  kernel(arguments);
  end(*current);
  leave();
}

void start_thread(Cluster &cluster, Cta &cta, Dim index, unsigned number) {
  auto thread = std::make_unique<Thread>();
  const unsigned *size = options.block;
  thread->cta = &cta;
  thread->here = {{number % size[0], number / size[0] % size[1], number / size[0] / size[1]},
                  index,
                  {options.grid[0], options.grid[1], options.grid[2]},
                  number % 32,
                  number / 32};
  thread->stack = stacks.empty() ? ::operator new(STACK_BYTES) : stacks.back();
  if (!stacks.empty()) stacks.pop_back();
  getcontext(&thread->context);
  thread->context.uc_stack = {.ss_sp = thread->stack, .ss_flags = 0, .ss_size = STACK_BYTES};
  thread->context.uc_link = nullptr;
  makecontext(&thread->context, run_thread, 0);
  cluster.threads.push_back(std::move(thread));
}

void start_cluster(unsigned number) {
  const unsigned *size = options.cluster, *grid = options.grid;
  const unsigned threads = options.block[0] * options.block[1] * options.block[2];
  const unsigned across[] = {grid[0] / size[0], grid[1] / size[1]};
  const Dim origin = {number % across[0] * size[0], number / across[0] % across[1] * size[1],
                      number / (across[0] * across[1]) * size[2]};
  auto cluster = std::make_unique<Cluster>();
  for (unsigned rank = 0; rank < size[0] * size[1] * size[2]; ++rank) {
    auto cta = std::make_unique<Cta>();
    cta->cluster = cluster.get();
    cta->rank = rank;
    cta->live = threads;
    cta->memory.assign(options.shared_bytes, 0xff);  // of halves, NaN
    cta->unfenced.assign(options.shared_bytes / GRANULE + 1, 0);
    cta->warps.resize(threads / 32);
    const Dim index = {origin.x + rank % size[0], origin.y + rank / size[0] % size[1], origin.z + rank / (size[0] * size[1])};
    for (unsigned thread = 0; thread < threads; ++thread) start_thread(*cluster, *cta, index, thread);
    cluster->live += threads;
    cluster->ctas.push_back(std::move(cta));
  }
  clusters.push_back(std::move(cluster));
}

// Runs every warp that can go on, from a warp drawn by lot. If `lazy`, some are left out, and some CTAs for long. Whether any
// thread ran.
bool pass(Cluster &cluster, bool lazy) {
  const std::size_t warps = cluster.threads.size() / 32, first = chance() % warps;
  bool ran = false;
  for (const auto &cta : cluster.ctas) {
    if (cta->stalled) --cta->stalled;
    if (lazy && one_in(50)) cta->stalled = chance() % 400;
  }
  for (std::size_t step = 0; step < warps; ++step) {
    if (lazy && (one_in(3) || cluster.threads[(first + step) % warps * 32]->cta->stalled)) continue;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      Thread &thread = *cluster.threads[(first + step) % warps * 32 + lane];
      if (thread.done || (thread.ready && !thread.ready(thread.ready_context))) continue;
      thread.ready = nullptr;
      current = &thread;
      here = thread.here;
      enter(thread);
      current = nullptr;
      if (!failure.empty()) throw Failure(failure);
      ran = true;
    }
  }
  return ran;
}

// Lets asynchronous units do some of what is due, or all. Whether anything was.
bool deliver_some(bool all) {
  const bool any = !loads.empty() || !late_stores.empty();
  std::shuffle(loads.begin(), loads.end(), chance);
  const std::size_t left = all ? 0 : loads.size() - (loads.size() + 1) / 2;
  while (loads.size() > left) {
    const Load load = loads.back();
    loads.pop_back();
    deliver(load);
  }
  for (auto &store : late_stores) {
    if (all || one_in(8)) deliver(*store);
  }
  std::erase_if(late_stores, [](const auto &store) { return store->done; });
  return any;
}

void fail_stuck() {
  std::string text = "nothing goes on:";
  for (const auto &cluster : clusters) {
    for (const auto &thread : cluster->threads) {
      if (thread->done || text.size() > 400 || thread->here.thread.x % 32) continue;
      text += " thread " + std::to_string(thread->here.thread.x) + " of CTA " + std::to_string(thread->here.block.x) +
              " waits for " + thread->waits_for + ";";
    }
  }
  throw Failure(text);
}

void run() {
  const unsigned *size = options.cluster, *grid = options.grid;
  const unsigned count = grid[0] / size[0] * (grid[1] / size[1]) * (grid[2] / size[2]);
  for (unsigned next = 0; next < count || !clusters.empty();) {
    while (next < count && clusters.size() < options.resident) start_cluster(next++);
    bool ran = false;
    for (const bool lazy : {true, false}) {
      for (const auto &cluster : clusters) ran |= (lazy || !ran) && pass(*cluster, lazy);
    }
    if (!deliver_some(!ran) && !ran) fail_stuck();
    std::erase_if(clusters, [](const auto &cluster) { return cluster->live == 0; });
  }
}

}  // namespace

void fail(const char *what, long a, long b) {
  char text[200];
  std::snprintf(text, sizeof text, what, a, b);
  if (current == nullptr) throw Failure(text);
  failure = std::string(text) + " (thread " + std::to_string(here.thread.x) + " of CTA " + std::to_string(here.block.x) + ")";
  leave();
  std::abort();
}

void block(bool (*ready)(const void *), const void *context, const char *what) {
  if (ready(context)) return;
  current->ready = ready;
  current->ready_context = context;
  current->waits_for = what;
  leave();
}

void write_shared(unsigned to, const void *from, unsigned bytes) {
  Cta &cta = *current->cta;
  std::memcpy(cta.at(to, bytes), from, bytes);
  const unsigned granule = (within_cta(to) - SHARED_BASE) / GRANULE;
  ++cta.unfenced[granule];
  current->unfenced.push_back(granule);
}

void read_shared(int rank, unsigned from, void *to, unsigned bytes) { std::memcpy(to, cta_of(rank).at(from, bytes), bytes); }

void fence_async() {
  for (const unsigned granule : current->unfenced) --current->cta->unfenced[granule];
  current->unfenced.clear();
}

void barrier_init(unsigned barrier, unsigned arrivals) {
  current->cta->at(barrier, 8);
  current->cta->barriers[within_cta(barrier)] = {arrivals, arrivals};
}

void barrier_init_fence() {
  for (auto &[address, barrier] : current->cta->barriers) barrier.fenced = true;
}

void barrier_arrive(int rank, unsigned address, unsigned expected_bytes) {
  Barrier &barrier = cta_of(rank).barrier(address);
  if (rank >= 0 && !barrier.fenced) fail("a barrier's init was not fenced");
  barrier.expected_bytes += expected_bytes;
  if (barrier.pending == 0) fail("a barrier counts more arrivals than %ld", barrier.arrivals);
  --barrier.pending;
  complete(barrier);
}

void barrier_wait(unsigned address, unsigned parity) {
  const Barrier &barrier = current->cta->barrier(address);
  wait_until([&barrier, parity] { return barrier.phase != parity; }, "a barrier in shared memory");
}

void named_barrier(unsigned name, unsigned threads, bool wait) {
  meet(current->cta->named[name], threads, wait, false, "a named barrier");
}

bool named_any(unsigned name, unsigned threads, bool value) {
  return meet(current->cta->named[name], threads, true, value, "a named barrier");
}

void block_barrier() { meet(current->cta->named[0], current->cta->warps.size() * 32, true, false, "all threads of its CTA"); }

void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

void cluster_arrive() {
  Cluster &cluster = *current->cta->cluster;
  if (current->awaits_cluster) fail("a thread arrived at its cluster's barrier twice");
  current->awaits_cluster = true;
  current->cluster_generation = cluster.meeting.generation;
  meet(cluster.meeting, cluster.threads.size(), false, false, "its cluster");
}

void cluster_wait() {
  if (!current->awaits_cluster) fail("a thread waits at its cluster's barrier without having arrived");
  current->awaits_cluster = false;
  const auto &meeting = current->cta->cluster->meeting;
  const auto generation = current->cluster_generation;
  wait_until([&meeting, generation] { return meeting.generation != generation; }, "its cluster");
}

unsigned cluster_rank() { return current->cta->rank; }

void warp_barrier() { meet(warp().meeting, 32, true, false, "its warp"); }

unsigned from_lane(unsigned value, unsigned lane) {
  warp().words[here.lane][0] = value;
  warp_barrier();
  const unsigned found = warp().words[lane][0];
  warp_barrier();
  return found;
}

void store_matrices(unsigned row, const unsigned *values, int count, bool transposed) {
  warp().words[here.lane][0] = row;
  warp_barrier();
  for (int matrix = 0; matrix < count; ++matrix) {
    for (unsigned odd = 0; odd < 2; ++odd) {
      const unsigned outer = here.lane / 4, inner = here.lane % 4 * 2 + odd;
      const unsigned line = transposed ? inner : outer, column = transposed ? outer : inner;
      const unsigned address = warp().words[matrix * 8 + line][0];
      if (address % 16) fail("a matrix row lies at %ld", long(address));
      const unsigned short half = values[matrix] >> 16 * odd;
      write_shared(address + column * 2, &half, 2);
    }
  }
  warp_barrier();
}

void load_box(unsigned ctas, unsigned to, const Map &map, Corner corner, unsigned barrier) {
  for (unsigned rank = 0; rank < current->cta->cluster->ctas.size(); ++rank) {
    if (!(ctas >> rank & 1)) continue;
    const Load load = {&cta_of(rank), map, corner, to, barrier};
    if (options.late) {
      loads.push_back(load);
    } else {
      deliver(load);
    }
  }
}

void store_box(const Map &map, Corner corner, unsigned from) {
  auto store = std::make_shared<Store>(Store{current->cta, map, corner, from});
  if (options.late) {
    late_stores.push_back(store);
  } else {
    deliver(*store);
  }
  current->open_stores.push_back(std::move(store));
}

void commit_stores() {
  current->stores.push_back(std::move(current->open_stores));
  current->open_stores.clear();
}

void wait_stores(unsigned pending) {
  while (current->stores.size() > pending) {
    for (auto &store : current->stores.front()) deliver(*store);
    current->stores.pop_front();
  }
}

// A warp's threads come here together, as to a wait: without this, one could be a phase ahead of the others.
void multiply_begin() {
  warp_barrier();
  current->registers_fenced = true;
}

void multiply(const Multiply &m) {
  if (!current->registers_fenced) fail("a multiply follows no fence");
  if (options.late) {
    current->open_multiplies.push_back(m);
  } else {
    compute(*current, m);
  }
}

void multiply_commit() {
  current->multiplies.push_back(std::move(current->open_multiplies));
  current->open_multiplies.clear();
}

void multiply_wait(unsigned pending) {
  warp_barrier();
  while (current->multiplies.size() > pending) {
    for (const Multiply &m : current->multiplies.front()) compute(*current, m);
    current->multiplies.pop_front();
  }
  current->registers_fenced = false;
}

void multiply_warp(float *sums, const unsigned *a, const unsigned *b) {
  auto &words = warp().words;
  std::copy(a, a + 4, words[here.lane]);
  std::copy(b, b + 2, words[here.lane] + 4);
  warp_barrier();
  for (unsigned index = 0; index < 4; ++index) {
    const unsigned line = here.lane / 4, lower = index / 2, column = here.lane % 4 * 2 + index % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned part = k % 8 / 2, shift = 16 * (k % 2);
      const unsigned left = words[line * 4 + part][k / 8 * 2 + lower], right = words[column * 4 + part][4 + k / 8];
      sums[index] += float_of(left >> shift & 0xffff) * float_of(right >> shift & 0xffff);
    }
  }
  warp_barrier();
}

unsigned short half_of(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  unsigned short bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

float float_of(unsigned short bits) { return FLOATS[bits]; }

}  // namespace emulator

// Runs a launch to its end; what went wrong, or nothing.
extern "C" const char *emulate(void (*call)(void *const *), void *const *at, const emulator::Options *options) {
  using namespace emulator;
  static std::string result;
  kernel = call;
  arguments = at;
  emulator::options = *options;
  chance.seed(options->seed);
  failure.clear();
  result.clear();
  try {
    run();
  } catch (const Failure &found) {
    result = found.what();
  }
  clusters.clear();
  loads.clear();
  late_stores.clear();
  return result.c_str();
}
