// Gather and scatter between a paged pool and rows of a stage.
//
// Two forms. The register form (any GPU) moves 16 bytes a thread, four of them in flight. The ring
// form (sm_90 and newer) lets one thread a CTA drive the bulk copy unit through a ring of shared
// memory; it needs almost no registers and no issue slots, so it disturbs the model least. Either
// may read and write mapped host memory in place of the stage.
//
// No header is included and nothing but kernels is defined, so that nvcc and NVRTC both take the
// file. What is special to the hardware is in the small functions at the top; a test replaces them
// (KV_OPS names the file) and runs the kernels below on a CPU.

typedef long long i64;

#ifdef KV_OPS
#include KV_OPS
#else

#define KV_KERNEL extern "C" __global__

struct alignas(16) Word {
  int x, y, z, w;
};

// Streaming accesses: what is moved is not used again soon, so it must not push the model's data
// out of the first-level cache.
__device__ __forceinline__ Word read_word(const Word* at) {
  Word v;
  asm volatile("ld.global.L1::no_allocate.v4.s32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

__device__ __forceinline__ void write_word(Word* at, Word v) {
  asm volatile("st.global.L1::no_allocate.v4.s32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return (unsigned)__cvta_generic_to_shared(at);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ void ring_begin(unsigned long long* full, int slots) {
  for (int s = 0; s < slots; ++s)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + s)));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Start filling a slot; `full` completes its phase when all bytes are there.
__device__ __forceinline__ void ring_load(unsigned char* slot, const char* from, unsigned bytes,
                                          unsigned long long* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(full)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(slot)),
      "l"(from), "r"(bytes), "r"(shared_address(full))
      : "memory");
}

__device__ __forceinline__ void ring_wait_full(unsigned long long* full, unsigned parity) {
  unsigned done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2; selp.u32 %0,1,0,q;}"
        : "=r"(done)
        : "r"(shared_address(full)), "r"(parity)
        : "memory");
}

// Start emptying a slot; one group of stores each.
__device__ __forceinline__ void ring_store(char* to, const unsigned char* slot, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(slot)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Wait until all stores but the last KEEP have read their slots.
template <int KEEP>
__device__ __forceinline__ void ring_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(KEEP) : "memory");
}

// Wait until all stores have been made.
__device__ __forceinline__ void ring_end() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#define KV_RING_MEMORY                                       \
  extern __shared__ __align__(128) unsigned char ring[]; \
  __shared__ __align__(8) unsigned long long full[kSlots]
#define KV_RING 1
#endif
#endif

#ifndef KV_KEEP
#define KV_KEEP 1
#endif

constexpr int kUnroll = 4;
constexpr int kThreads = 512;

// Tables of the pool, one entry a region; all in bytes.
struct Pool {
  const i64* bases;
  const i64* strides;
  const i64* pages;
  const i64* offsets;
  const i64* blocks;
  char* stage;
  i64 row;
  int regions;
};

// A job is one page; jobs of a row follow each other, so that a stage is written in order.
template <bool TO_STAGE>
__device__ __forceinline__ void page_of(const Pool& p, i64 job, const char*& from, char*& to) {
  const i64 i = job / p.regions;
  const int r = (int)(job - i * p.regions);
  char* paged = (char*)(p.bases[r] + p.blocks[i] * p.strides[r]);
  char* row = p.stage + i * p.row + p.offsets[r];
  from = TO_STAGE ? paged : row;
  to = TO_STAGE ? row : paged;
}

template <bool TO_STAGE>
__device__ __forceinline__ void move_by_registers(const Pool& p, int n) {
  const i64 jobs = (i64)n * p.regions;
  for (i64 job = blockIdx.x; job < jobs; job += gridDim.x) {
    const char* source;
    char* target;
    page_of<TO_STAGE>(p, job, source, target);
    const Word* from = (const Word*)source;
    Word* to = (Word*)target;
    const int words = (int)(p.pages[job % p.regions] / (int)sizeof(Word));
    const int step = (int)blockDim.x;
    int k = (int)threadIdx.x;
    for (; k + (kUnroll - 1) * step < words; k += kUnroll * step) {
      Word v[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) v[u] = read_word(from + k + u * step);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) write_word(to + k + u * step, v[u]);
    }
    for (; k < words; k += step) write_word(to + k, read_word(from + k));
  }
}

#ifdef KV_RING
constexpr int kTile = 16384;
constexpr int kSlots = 8;

// A place among this CTA's tiles: a page is moved in tiles of kTile bytes.
struct Cursor {
  i64 job;
  i64 at;
};

// 1. Loads run ahead of stores by up to kSlots - 1 tiles; the tile that is being emptied keeps the
//    last slot.
// 2. The slot of tile t was last used by tile t - kSlots. When t is loaded, stores of all tiles but
//    the newest one, at the most, must have read theirs: KV_KEEP = 1.
template <bool TO_STAGE>
__device__ __forceinline__ void move_by_ring(const Pool& p, int n, unsigned char* ring,
                                             unsigned long long* full) {
  if (threadIdx.x != 0) return;
  ring_begin(full, kSlots);
  const i64 jobs = (i64)n * p.regions;
  Cursor load{(i64)blockIdx.x, 0}, store{(i64)blockIdx.x, 0};
  i64 loaded = 0, stored = 0;
  while (store.job < jobs) {
    const char* from;
    char* to;
    while (load.job < jobs && loaded - stored < kSlots - 1) {
      page_of<TO_STAGE>(p, load.job, from, to);
      const i64 page = p.pages[load.job % p.regions];
      const i64 left = page - load.at;
      const unsigned bytes = (unsigned)(left < kTile ? left : kTile);
      const int slot = (int)(loaded % kSlots);
      if (loaded >= kSlots) ring_wait_read<KV_KEEP>();
      ring_load(ring + slot * kTile, from + load.at, bytes, full + slot);
      ++loaded;
      load.at += bytes;
      if (load.at >= page) load = Cursor{load.job + (i64)gridDim.x, 0};
    }
    const int slot = (int)(stored % kSlots);
    ring_wait_full(full + slot, (unsigned)((stored / kSlots) & 1));
    page_of<TO_STAGE>(p, store.job, from, to);
    const i64 page = p.pages[store.job % p.regions];
    const i64 left = page - store.at;
    const unsigned bytes = (unsigned)(left < kTile ? left : kTile);
    ring_store(to + store.at, ring + slot * kTile, bytes);
    ++stored;
    store.at += bytes;
    if (store.at >= page) store = Cursor{store.job + (i64)gridDim.x, 0};
  }
  ring_end();
}
#endif

#define KV_POOL                                                                           \
  const i64 *bases, const i64 *strides, const i64 *pages, const i64 *offsets,             \
      const i64 *blocks, char *stage, i64 row, int regions, int n
#define KV_AS_POOL Pool{bases, strides, pages, offsets, blocks, stage, row, regions}

KV_KERNEL void __launch_bounds__(kThreads) kv_gather(KV_POOL) {
  move_by_registers<true>(KV_AS_POOL, n);
}

KV_KERNEL void __launch_bounds__(kThreads) kv_scatter(KV_POOL) {
  move_by_registers<false>(KV_AS_POOL, n);
}

#ifdef KV_RING
KV_KERNEL void kv_gather_ring(KV_POOL) {
  KV_RING_MEMORY;
  move_by_ring<true>(KV_AS_POOL, n, ring, full);
}

KV_KERNEL void kv_scatter_ring(KV_POOL) {
  KV_RING_MEMORY;
  move_by_ring<false>(KV_AS_POOL, n, ring, full);
}
#endif
