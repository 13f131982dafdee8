// Stand-ins for the hardware's operations in cuda_swap.cu; see kernel_on_cpu.cpp.
#pragma once

#define KV_RING 1
#define KV_KERNEL static
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define KV_RING_MEMORY                                           \
  static unsigned char memory[kSlots * kTile];                   \
  static unsigned long long full[kSlots];                        \
  unsigned char* ring = memory

struct alignas(16) Word { int x, y, z, w; };
inline Word read_word(const Word* at) { return *at; }
inline void write_word(Word* at, Word v) { *at = v; }

struct Load { unsigned char* slot; const char* from; unsigned bytes; unsigned long long* full; };
struct Store { char* to; const unsigned char* slot; unsigned bytes; bool read; std::string data; };
static std::deque<Load> loads;
static std::deque<Store> stores;

inline void finish_load(size_t i) {
  Load l = loads[i];
  memcpy(l.slot, l.from, l.bytes);
  ++*l.full;
  loads.erase(loads.begin() + i);
}

inline void read_slot(Store& s) {
  if (!s.read) s.data.assign((const char*)s.slot, s.bytes);
  s.read = true;
}

// Something that was started may end at any time.
inline void anything_may_happen() {
  if (rand() % 4) return;
  if (rand() % 2 && !loads.empty()) finish_load(rand() % loads.size());
  else if (!stores.empty()) read_slot(stores[rand() % stores.size()]);
}

inline void ring_begin(unsigned long long* full, int slots) {
  if (!loads.empty() || !stores.empty()) broken = 1;
  memset(full, 0, slots * sizeof *full);
}

inline void ring_load(unsigned char* slot, const char* from, unsigned bytes,
                      unsigned long long* full) {
  if (!bytes || bytes % 16 || (uintptr_t)from % 16) broken = 1;
  loads.push_back({slot, from, bytes, full});
  anything_may_happen();
}

inline void ring_wait_full(unsigned long long* full, unsigned parity) {
  while ((*full & 1) == parity) {
    size_t i = 0;
    while (i < loads.size() && loads[i].full != full) ++i;
    if (i == loads.size()) { broken = 1; return; }  // would wait for ever
    finish_load(i);
  }
}

inline void ring_store(char* to, const unsigned char* slot, unsigned bytes) {
  if (!bytes || bytes % 16 || (uintptr_t)to % 16) broken = 1;
  stores.push_back({to, slot, bytes, false, {}});
  anything_may_happen();
}

template <int KEEP>
inline void ring_wait_read() {
  for (size_t i = 0; i + KEEP < stores.size(); ++i) read_slot(stores[i]);
}

inline void ring_end() {
  if (!loads.empty()) broken = 1;
  for (auto& s : stores) {
    read_slot(s);
    memcpy(s.to, s.data.data(), s.bytes);
  }
  stores.clear();
}
