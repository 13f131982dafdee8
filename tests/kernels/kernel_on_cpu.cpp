// cuda_swap.cu run by a CPU, behind the few calls of the driver that launch it.
//
// Threads of the register form do not talk to each other, so they run one after the other. The ring
// has one thread a CTA; its bulk copies are simulated by the worst hardware that keeps the rules:
// a load writes its slot at a random time before it is waited for, a store reads its slot at a
// random time before the wait for reads demands it.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

struct Dim { unsigned x, y, z; };
static Dim gridDim, blockIdx, blockDim, threadIdx;
static int broken = 0;  // a rule was violated

#define KV_OPS "kernel_on_cpu_ops.hpp"
#include "cuda_swap.cu"

typedef void (*Kernel)(KV_POOL);
static const struct { const char* name; Kernel kernel; } kernels[] = {
    {"kv_gather", kv_gather}, {"kv_scatter", kv_scatter},
    {"kv_gather_ring", kv_gather_ring}, {"kv_scatter_ring", kv_scatter_ring}};

extern "C" {
void* last_stream = nullptr;
int rules_broken() { return broken; }
void set_seed(unsigned seed) { srand(seed); broken = 0; }

int cuModuleLoadData(void** module, const void*) { *module = (void*)1; return 0; }
int cuFuncSetAttribute(void*, int attribute, int value) {
  return attribute == 8 && value <= 227 * 1024 ? 0 : 1;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  for (auto& k : kernels)
    if (!strcmp(k.name, name)) { *function = (void*)k.kernel; return 0; }
  return 500;
}
int cuGetErrorString(int, const char** words) { *words = "named symbol not found"; return 0; }
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned, void* stream, void** a, void** extra) {
  if (extra || gy * gz * by * bz != 1) return 1;
  last_stream = stream;
  gridDim = {gx, 1, 1};
  blockDim = {bx, 1, 1};
  for (unsigned b = 0; b < gx; ++b)
    for (unsigned t = 0; t < bx; ++t) {
      blockIdx = {b, 0, 0};
      threadIdx = {t, 0, 0};
      ((Kernel)f)(*(const i64**)a[0], *(const i64**)a[1], *(const i64**)a[2], *(const i64**)a[3],
                  *(const i64**)a[4], *(char**)a[5], *(i64*)a[6], *(int*)a[7], *(int*)a[8]);
    }
  return 0;
}
}
