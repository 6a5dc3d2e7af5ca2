// A CUDA that computes nothing, for tests on machines without a GPU: preloaded, it takes the place of libcudart,
// libcuda, cuBLAS and NCCL under the stock torch and under numba-cuda, which run unchanged.
//
// Kernels are counted, never run. Memory has limits, copies and fills by the host are real, and collectives of NCCL add
// up real numbers in shared memory. So everything that the host decides is real, and nothing that a kernel computes: one
// number that is read from a device is 1. Copies of pinned memory wait until the host waits: what is read too early is
// NaN, and what is overwritten too early is a problem. These are the functions that torch and numba-cuda call today;
// another one reaches the real library, which fails without a driver: add it.
//
//   FAKE_CUDA_KIND     B200 or T4
//   FAKE_CUDA_DEVICES  how many; CUDA_VISIBLE_DEVICES is obeyed
//   FAKE_CUDA_GIB      memory of each; without it that of the kind
//   FAKE_CUDA_LOG      folder: every process that uses a device leaves PID.txt, what it did
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
#define SUCCEEDS(name) API long name##_0() asm(#name); long name##_0() { return 0; } // and does nothing
#define LOCK std::lock_guard<std::recursive_mutex> guard(mutex)
using std::string;

static std::recursive_mutex mutex;
static string variable(const char *name, const char *otherwise = "") {
  const char *value = getenv(name);
  return value ? value : otherwise;
}

// ---------------------------------------------------------------------------------------------------- devices
struct Kind { const char *name; int major, minor, processors, shared_memory, l2; double gib; };
static const Kind &kind() {
  static const std::map<string, Kind> kinds = {
      {"B200", {"NVIDIA B200", 10, 0, 148, 232448, 132644864, 178}},
      {"T4", {"Tesla T4", 7, 5, 40, 65536, 4194304, 14.6}},
  };
  return kinds.at(variable("FAKE_CUDA_KIND", "B200"));
}
static const std::vector<int> &devices() { // numbers on the machine of the devices that this process sees
  static const std::vector<int> &visible = *new std::vector<int>([] { // never destroyed: read at exit
    int count = atoi(variable("FAKE_CUDA_DEVICES", "1").c_str());
    std::vector<int> found;
    if (!getenv("CUDA_VISIBLE_DEVICES")) {
      for (int i = 0; i < count; i++) found.push_back(i);
    } else {
      string list = variable("CUDA_VISIBLE_DEVICES");
      for (char *word = strtok(&list[0], ","); word && atoi(word) < count; word = strtok(nullptr, ","))
        found.push_back(atoi(word));
    }
    return found;
  }());
  return visible;
}
static size_t memory_size() {
  static size_t bytes = atof(variable("FAKE_CUDA_GIB", std::to_string(kind().gib).c_str()).c_str()) * (1ull << 30);
  return bytes;
}
static thread_local int device = 0; // of this thread
static thread_local cudaError_t last_error = cudaSuccess;
static cudaError_t fail(cudaError_t error) { return last_error = error; }

// ---------------------------------------------------------------------------------------------------- counts
struct Counts { size_t launches, syncs, reads, pageable, allocations, problems; };
static Counts counts;
static std::map<string, size_t> kernels, problems;
static std::map<int, size_t> launches_on;
static std::set<void *> streams_used;
static size_t used[64], peak[64];

static void problem(const string &what) { counts.problems++, problems[what]++; }
static void write_log() {
  string folder = variable("FAKE_CUDA_LOG");
  if (folder.empty() || launches_on.empty()) return;
  FILE *file = fopen((folder + "/" + std::to_string(getpid()) + ".txt").c_str(), "w");
  fprintf(file, "rank %s\n", variable("RANK", "-").c_str());
  for (auto &[number, launches] : launches_on)
    fprintf(file, "device %d launches %zu peak %zu\n", devices()[number], launches, peak[number]);
  for (auto &[what, times] : problems) fprintf(file, "problem %zu times: %s\n", times, what.c_str());
  fclose(file);
}
__attribute__((destructor)) static void at_exit() { write_log(); }
static size_t launched_like(const char *part) {
  size_t sum = 0;
  for (auto &[name, times] : kernels) sum += name.find(part) != string::npos ? times : 0;
  return sum;
}
API void fake_cuda_reset() { LOCK; counts = {}; kernels.clear(); streams_used.clear(); memcpy(peak, used, sizeof peak); }
API size_t fake_cuda_count(const char *name) {
  LOCK;
  const std::map<string, size_t> all = {
      {"launches", counts.launches}, {"syncs", counts.syncs},
      {"reads", counts.reads}, {"pageable copies", counts.pageable}, {"allocations", counts.allocations},
      {"problems", counts.problems}, {"streams", streams_used.size()}, {"searches", launched_like("search")}, {"all-reduces", launched_like("ncclAllReduce")}};
  return all.at(name);
}

// ---------------------------------------------------------------------------------------------------- streams
struct Stream { int device; int priority; };
static Stream default_stream[64];
static Stream *stream(cudaStream_t s) {
  if (s && s != cudaStreamLegacy && s != cudaStreamPerThread) return (Stream *)s;
  default_stream[device].device = device;
  return &default_stream[device];
}
static void add_work(Stream *s, const string &name) { // one kernel, copy or fill
  counts.launches++, kernels[name]++, launches_on[s->device]++, streams_used.insert(s);
  if (s->device != device) problem("work on a stream of another device: " + name);
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int priority) {
  *s = (cudaStream_t) new Stream{device, priority};
  return cudaSuccess;
}
static std::vector<std::function<void()>> &pending = *new std::vector<std::function<void()>>; // copies, in their order
static size_t issued, completed; // copies so far
static std::unordered_map<void *, size_t> recorded; // copies before an event
static void finish() {
  for (auto &work : std::exchange(pending, {})) work();
  completed = issued;
}
static cudaError_t waited() { LOCK; counts.syncs++; finish(); return cudaSuccess; }
API cudaError_t cudaStreamSynchronize(cudaStream_t) { return waited(); }
API cudaError_t cudaDeviceSynchronize() { return waited(); }
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status, unsigned long long *, cudaGraph_t *,
                                         const cudaGraphNode_t **, const cudaGraphEdgeData **, size_t *) { return cudaStreamIsCapturing(s, status); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { *e = (cudaEvent_t)malloc(1); return cudaSuccess; }
API cudaError_t cudaEventSynchronize(cudaEvent_t) { return waited(); }
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { *ms = 0.01f; return cudaSuccess; }

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t, unsigned) { LOCK; recorded[e] = issued; return cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
API cudaError_t cudaEventQuery(cudaEvent_t e) { // every second time, the copies are done
  LOCK;
  static size_t asked = 0;
  if (recorded[e] <= completed) return cudaSuccess;
  if (++asked % 2) return fail(cudaErrorNotReady);
  finish();
  return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t) { LOCK; finish(); return cudaSuccess; }

SUCCEEDS(cudaStreamDestroy) SUCCEEDS(cudaThreadExchangeStreamCaptureMode) SUCCEEDS(cudaEventDestroy)
SUCCEEDS(cudaStreamWaitEvent)
// ---------------------------------------------------------------------------------------------------- memory
struct Block { size_t bytes, mapped; int device; };
static std::map<uintptr_t, Block> on_device, pinned;
static const Block *block_of(const std::map<uintptr_t, Block> &blocks, const void *p) {
  auto next = blocks.upper_bound((uintptr_t)p);
  if (next == blocks.begin()) return nullptr;
  auto &[start, block] = *--next;
  return (uintptr_t)p < start + block.mapped ? &block : nullptr;
}
static void *map_pages(size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
API cudaError_t cudaMalloc(void **p, size_t n) {
  LOCK;
  counts.allocations++;
  if (used[device] + n > memory_size()) return fail(cudaErrorMemoryAllocation);
  size_t mapped = (n / 4096 + 2) * 4096;
  *p = map_pages(mapped);
  on_device[(uintptr_t)*p] = {n, mapped, device};
  used[device] += n, peak[device] = std::max(peak[device], used[device]);
  return cudaSuccess;
}
API cudaError_t cudaFree(void *p) {
  LOCK;
  if (!p) return cudaSuccess;
  auto found = on_device.find((uintptr_t)p);
  finish();
  if (found == on_device.end()) { problem("cudaFree of unknown memory"); return fail(cudaErrorInvalidValue); }
  munmap(p, found->second.mapped);
  used[found->second.device] -= found->second.bytes;
  on_device.erase(found);
  return cudaSuccess;
}
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) {
  LOCK;
  *p = map_pages(n + 4096);
  pinned[(uintptr_t)*p] = {n, n + 4096, 0};
  return cudaSuccess;
}
API cudaError_t cudaFreeHost(void *p) {
  LOCK;
  auto found = pinned.find((uintptr_t)p);
  finish();
  if (found != pinned.end()) { munmap(p, found->second.mapped); pinned.erase(found); }
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  LOCK;
  *total = memory_size(), *free = *total - used[device];
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
  LOCK;
  const Block *block = block_of(on_device, p);
  *a = {};
  a->type = block ? cudaMemoryTypeDevice : block_of(pinned, p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  if (block) a->device = block->device;
  if (a->type == cudaMemoryTypeHost) a->hostPointer = (void *)p;
  if (a->type != cudaMemoryTypeUnregistered) a->devicePointer = (void *)p;
  return cudaSuccess;
}
static cudaError_t copy(void *to, const void *from, size_t n, Stream *s) {
  const Block *to_device = block_of(on_device, to), *from_device = block_of(on_device, from);
  for (const Block *block : {to_device, from_device})
    if (block && block->device != s->device) problem("a copy touches memory of another device");
  bool is_pageable = (!to_device && !block_of(pinned, to)) || (!from_device && !block_of(pinned, from));
  counts.pageable += is_pageable;
  counts.reads += from_device && !to_device;
  add_work(s, from_device ? (to_device ? "copy on the device" : "copy to the host") : "copy to the device");
  if (from_device && to_device && n > 4096) return cudaSuccess;
  bool is_item = from_device && block_of(pinned, to); // Tensor.item() reads into pinned memory
  if (is_item) memset(to, 0xff, n); // NaN
  std::vector<char> before;
  if (to_device && !from_device) before.assign((const char *)from, (const char *)from + n);
  issued++;
  pending.push_back([=] {
    if (before.size() && memcmp(from, before.data(), n)) problem("memory was overwritten before it was copied");
    memmove(to, from, n);
    if (is_item && n == 1) *(char *)to = 1;
    if (is_item && n == 4) *(float *)to = 1;
  });
  if (is_pageable) finish(); // the host waits for it
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t s) { LOCK; return copy(to, from, n, stream(s)); }
API cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) {
  LOCK;
  add_work(stream(s), "fill");
  finish();
  if (n <= 4096) memset(p, value, n);
  return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------- properties
API cudaError_t cudaGetDeviceCount(int *n) { *n = devices().size(); return *n ? cudaSuccess : fail(cudaErrorNoDevice); }
API cudaError_t cudaGetDevice(int *d) { *d = device; return cudaSuccess; }
API cudaError_t cudaSetDevice(int d) {
  if (d >= (int)devices().size()) return fail(cudaErrorInvalidDevice);
  device = d;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
static int attribute(int a) {
  const std::map<int, int> known = {
      {cudaDevAttrComputeCapabilityMajor, kind().major}, {cudaDevAttrComputeCapabilityMinor, kind().minor},
      {cudaDevAttrMultiProcessorCount, kind().processors}, {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, kind().shared_memory},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, kind().shared_memory + 1024}, {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048}, {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536}, {cudaDevAttrWarpSize, 32}, {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMemoryClockRate, 3201000}, {cudaDevAttrGlobalMemoryBusWidth, 6144}, {cudaDevAttrL2CacheSize, kind().l2},
      {cudaDevAttrMemoryPoolsSupported, 1}, {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535}, {cudaDevAttrUnifiedAddressing, 1}, {cudaDevAttrCooperativeLaunch, 1}};
  auto found = known.find(a);
  return found == known.end() ? 0 : found->second;
}
API cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int) { *v = attribute(a); return cudaSuccess; }
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d) {
  *p = {};
  strcpy(p->name, kind().name);
  memset(p->uuid.bytes, devices()[d] + 1, 16);
  p->totalGlobalMem = memory_size(), p->sharedMemPerBlock = 49152, p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = kind().major, p->minor = kind().minor, p->multiProcessorCount = kind().processors, p->l2CacheSize = kind().l2;
  p->maxThreadsPerMultiProcessor = 2048, p->sharedMemPerMultiprocessor = kind().shared_memory + 1024;
  p->sharedMemPerBlockOptin = kind().shared_memory, p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = 1;
  p->asyncEngineCount = 3, p->memoryBusWidth = 6144, p->pciBusID = 16 + devices()[d], p->maxBlocksPerMultiProcessor = 32;
  p->memoryPoolsSupported = p->canMapHostMemory = 1;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) { *low = 0, *high = -5; return cudaSuccess; }
API cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
API cudaError_t cudaPeekAtLastError() { return last_error; }
API const char *cudaGetErrorName(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError"; }
API const char *cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "an error of the fake CUDA";
  }
}

// ---------------------------------------------------------------------------------------------------- kernels
static std::unordered_map<const void *, string> kernel_names;
struct Configuration { dim3 grid, block; size_t shared; void *stream; };
static thread_local std::vector<Configuration> configurations;
static bool start(const void *kernel, dim3 grid, dim3 block, void *s) {
  LOCK;
  auto found = kernel_names.find(kernel);
  string name = found == kernel_names.end() ? "unknown kernel" : found->second;
  add_work(stream((cudaStream_t)s), name);
  size_t threads = size_t(block.x) * block.y * block.z;
  bool is_valid = grid.x && grid.y && grid.z && grid.y < 65536 && grid.z < 65536 && threads && threads <= 1024;
  if (!is_valid) problem("a launch of an impossible size: " + name);
  return is_valid;
}
API void **__cudaRegisterFatBinary(void *) { static void *handle[4]; return handle; }
API void __cudaRegisterFatBinaryEnd(void **) {}
API void __cudaUnregisterFatBinary(void **) {}
API void __cudaRegisterFunction(void **, const char *f, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) { LOCK; kernel_names[f] = name; }
API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st *s) { configurations.push_back({grid, block, shared, s}); return 0; }
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *s) {
  Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared, *(void **)s = c.stream;
  return cudaSuccess;
}
static cudaError_t started(bool is_valid) { return is_valid ? cudaSuccess : fail(cudaErrorInvalidConfiguration); }
API cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **, size_t, cudaStream_t s) { return started(start(f, grid, block, s)); }
API cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **, size_t, cudaStream_t s) { return started(start(f, grid, block, s)); }
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *f) { *kernel = (cudaKernel_t)f; return cudaSuccess; }

// ---------------------------------------------------------------------------------------------------- driver API
static long succeed() { return 0; }
static CUresult driver(cudaError_t e) { return (CUresult)e; }
static char contexts[64];
API CUresult cuDriverGetVersion(int *v) { *v = CUDART_VERSION; return CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *n) { return driver(cudaGetDeviceCount(n)); }
API CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice) { *v = attribute(a); return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) { *flags = 0, *active = 1; return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)&contexts[d]; return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)&contexts[device]; return CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice *d) { *d = device; return CUDA_SUCCESS; }
API CUresult cuGetErrorString(CUresult, const char **s) { *s = "an error of the fake CUDA"; return CUDA_SUCCESS; }
API CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary, const char *name) { LOCK; *k = (CUkernel)strdup(name); kernel_names[*k] = string("compiled ") + name; return CUDA_SUCCESS; }
static void check_shared(const void *f, size_t bytes);
static CUresult launched(const void *f, dim3 grid, dim3 block, CUstream s) { return start(f, grid, block, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **, void **) { check_shared(f, shared); return launched(f, {gx, gy, gz}, {bx, by, bz}, s); }
API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **, void **) { check_shared(f, c->sharedMemBytes); return launched(f, {c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}, c->hStream); }
// What numba-cuda takes: every function by its name, libraries instead of modules, and attributes of kernels.
static std::map<const void *, int> allowed_shared; // bytes of dynamic shared memory that a kernel may have
API CUresult cuGetProcAddress_v2(const char *name, void **f, int, cuuint64_t, CUdriverProcAddressQueryResult *result) {
  string versions[] = {name, string(name) + "_v2"};
  *f = nullptr;
  for (auto &version : versions) if (!*f) *f = dlsym(RTLD_DEFAULT, version.c_str());
  if (!*f) *f = (void *)succeed;
  if (result) *result = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int n, CUdevice) { snprintf(name, n, "%s", kind().name); return CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice d) { memset(id->bytes, devices()[d] + 1, 16); return CUDA_SUCCESS; }
API CUresult cuCtxPushCurrent_v2(CUcontext c) { device = (char *)c - contexts; return CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent_v2(CUcontext *c) { *c = (CUcontext)&contexts[device]; return CUDA_SUCCESS; }
API CUresult cuLibraryLoadData(CUlibrary *l, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned) { *l = (CUlibrary)malloc(8); return CUDA_SUCCESS; }
API CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction) { *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0; return CUDA_SUCCESS; }
API CUresult cuKernelGetAttribute(int *v, CUfunction_attribute a, CUkernel, CUdevice) { return cuFuncGetAttribute(v, a, nullptr); }
API CUresult cuKernelSetAttribute(CUfunction_attribute a, int value, CUkernel k, CUdevice) {
  LOCK;
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) allowed_shared[k] = value;
  return value <= kind().shared_memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static void check_shared(const void *f, size_t bytes) {
  LOCK;
  if (bytes > 49152 && bytes > (size_t)allowed_shared[f]) problem("more shared memory than the kernel may have: " + kernel_names[f]);
}

// ---------------------------------------------------------------------------------------------------- cuBLAS
struct Blas { cudaStream_t stream; int math_mode; };
API int cublasCreate_v2(Blas **h) { *h = new Blas{}; return 0; }
API int cublasSetStream_v2(Blas *h, cudaStream_t s) { h->stream = s; return 0; }
API int cublasSetMathMode(Blas *h, int mode) { h->math_mode = mode; return 0; }
API int cublasGetMathMode(Blas *h, int *mode) { *mode = h->math_mode; return 0; }
#define PRODUCT(name) API int name(Blas *h, ...) { LOCK; add_work(stream(h->stream), #name); return 0; }
PRODUCT(cublasGemmEx) PRODUCT(cublasSgemm_v2)
API int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *, const void *, void *, size_t, cudaStream_t s) { LOCK; add_work(stream(s), "cublasLtMatmul"); return 0; }
API int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *result, int *n) { memset(result, 0, 80); *n = 1; return 0; }
#define DESCRIPTION(name) API int name##Create(void **d, ...) { *d = calloc(1, 256); return 0; } API int name##Destroy(void *d) { free(d); return 0; } API int name##SetAttribute(void *, int, const void *, size_t) { return 0; }
DESCRIPTION(cublasLtMatmulDesc) DESCRIPTION(cublasLtMatmulPreference) DESCRIPTION(cublasLtMatrixLayout)
SUCCEEDS(cublasSetWorkspace_v2)

// ---------------------------------------------------------------------------------------------------- NCCL
static const size_t SLOT = 96ull << 20; // bytes that a rank may hand over at once
static const int MAX_RANKS = 64, LONGEST_WAIT = 120; // seconds; then the watchdog of the real one would end the process
struct Meeting { std::atomic<int> arrived, turn; int devices[MAX_RANKS]; };
struct Group { int size, rank; Meeting *meeting; char *slots; };
struct GroupId { char name[128]; };
static void meet(Group *g, const char *what) {
  int turn = g->meeting->turn;
  time_t since = time(nullptr);
  if (++g->meeting->arrived == g->size) { g->meeting->arrived = 0; g->meeting->turn++; return; }
  while (g->meeting->turn == turn) {
    if (time(nullptr) - since > LONGEST_WAIT) { fprintf(stderr, "fake NCCL: rank %d waits alone in %s\n", g->rank, what); write_log(); _exit(1); }
    usleep(50);
  }
}
API int ncclGetUniqueId(GroupId *id) { *id = {}; snprintf(id->name, 100, "/fake-nccl-%d-%ld", getpid(), random()); return 0; }
API int ncclGetVersion(int *v) { *v = 22809; return 0; }
API int ncclCommInitRank(Group **group, int size, GroupId id, int rank) {
  string path = string("/dev/shm") + id.name;
  int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (size > MAX_RANKS || ftruncate(file, 4096 + SLOT * size)) return 1;
  char *memory = (char *)mmap(nullptr, 4096 + SLOT * size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  Group *g = *group = new Group{size, rank, (Meeting *)memory, memory + 4096};
  g->meeting->devices[rank] = devices()[device];
  meet(g, "init");
  if (!rank) unlink(path.c_str());
  for (int other = 0; other < size; other++)
    if (other != rank && g->meeting->devices[other] == devices()[device]) { fprintf(stderr, "Duplicate GPU detected\n"); return 5; }
  return 0;
}
API int ncclCommInitRankConfig(Group **g, int size, GroupId id, int rank, void *) { return ncclCommInitRank(g, size, id, rank); }
API int ncclCommGetAsyncError(Group *, int *error) { *error = 0; return 0; }
API const char *ncclGetLastError(void *) { return ""; }
static size_t width(int type) { return type <= 1 ? 1 : type == 6 || type == 9 ? 2 : type == 4 || type == 5 || type == 8 ? 8 : 4; }
template <class T> static void reduce(Group *g, void *to, size_t n, int op) {
  for (size_t i = 0; i < n; i++) {
    T x = ((T *)g->slots)[i];
    for (int rank = 1; rank < g->size; rank++) {
      T y = ((T *)(g->slots + rank * SLOT))[i];
      x = op == 2 ? std::max(x, y) : op == 3 ? std::min(x, y) : T(x + y);
    }
    ((T *)to)[i] = x;
  }
}
// Every rank hands over its bytes; `take` reads those of all.
template <class Take> static int collective(Group *g, const char *name, const void *from, size_t bytes, cudaStream_t s, Take take) {
  { LOCK; add_work(stream(s), name); finish(); }
  if (bytes > SLOT) { problem("more bytes than the fake NCCL can hand over"); return 5; }
  memcpy(g->slots + g->rank * SLOT, from, bytes);
  meet(g, name);
  take();
  meet(g, name);
  return 0;
}
API int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Group *g, cudaStream_t s) {
  return collective(g, "ncclAllReduce", from, n * width(type), s, [=] {
    if (type == 7) reduce<float>(g, to, n, op);
    else if (type == 8) reduce<double>(g, to, n, op);
    else if (type == 2) reduce<int>(g, to, n, op);
    else if (type == 4) reduce<long long>(g, to, n, op);
    else if (type <= 1) reduce<char>(g, to, n, op);
    else problem("an all-reduce of a type that the fake NCCL does not know");
  });
}
API int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Group *g, cudaStream_t s) {
  return collective(g, "ncclBroadcast", from, g->rank == root ? n * width(type) : 0, s, [=] { memcpy(to, g->slots + root * SLOT, n * width(type)); });
}
API int ncclBcast(void *p, size_t n, int type, int root, Group *g, cudaStream_t s) { return ncclBroadcast(p, p, n, type, root, g, s); }
API int ncclAllGather(const void *from, void *to, size_t n, int type, Group *g, cudaStream_t s) {
  return collective(g, "ncclAllGather", from, n * width(type), s, [=] {
    for (int rank = 0; rank < g->size; rank++) memcpy((char *)to + rank * n * width(type), g->slots + rank * SLOT, n * width(type));
  });
}

SUCCEEDS(ncclCommDestroy) SUCCEEDS(ncclCommFinalize)
// ------------------------------------------------------------------------------------- NVIDIA's management library
// Handles are numbers of the machine, from 1 on. Every GPU says something else: the first is 50% busy, the next 60%.
static unsigned gpu(void *handle) { return (size_t)handle - 1; }
API int nvmlDeviceGetCount_v2(unsigned *n) { *n = atoi(variable("FAKE_CUDA_DEVICES", "1").c_str()); return 0; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
API int nvmlDeviceGetUtilizationRates(void *handle, unsigned *busy) { busy[0] = busy[1] = 50 + 10 * gpu(handle); return 0; }
API int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *bytes) { bytes[2] = (gpu(handle) + 3ull) << 30; return 0; }
API int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { *milliwatts = 1000 * (gpu(handle) + 300); return 0; }
API int nvmlDeviceGetTemperature(void *handle, int, unsigned *celsius) { *celsius = gpu(handle) + 60; return 0; }
SUCCEEDS(nvmlInit) SUCCEEDS(nvmlInitWithFlags)
