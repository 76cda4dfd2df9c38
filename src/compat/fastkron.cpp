// The functions of mercer/compat/fastkron.h.
#include "mercer/compat/fastkron.h"

#include <algorithm>
#include <memory>
#include <span>

#include "compat/fastkron_handle.h"
#include "compat/fastkron_product.h"
#include "core/devices/cuda_driver.h"
#include "mercer/compat/fastkronMg.h"

namespace mercer::compat::fastkron {

void check_backend(const char* op, const Handle& handle, std::uint32_t backend, fastKronError missing) {
  require_or(fastKronBackendNotAvailable, backend == fastKronBackend_X86 || backend == fastKronBackend_CUDA,
             "{}: the backend must be fastKronBackend_X86 or fastKronBackend_CUDA. Received {}.", op, backend);
  require_or(missing, (handle.backends & backend) != 0,
             "{}: the handle must be made for the backend {}. Received one made for {}.", op, backend, handle.backends);
  require_or(fastKronBackendNotAvailable, backend == fastKronBackend_X86 || cuda_device_count() > 0,
             "{}: fastKronBackend_CUDA needs a CUDA device. Received none{}{}.", op, cuda_why_not().empty() ? "" : ": ",
             cuda_why_not());
}

namespace {

fastKronError init(const char* op, fastKronHandle* handle, std::uint32_t backends) {
  return answered([&] {
    require(handle != nullptr, "{}: handle must be given. Received a null pointer.", op);
    *handle = nullptr;
    require((backends & ~kBackends) == 0,
            "{}: backends must be of fastKronBackend_X86 and fastKronBackend_CUDA. Received {}.", op, backends);
    auto made = std::make_unique<Handle>();
    made->backends = backends;
    *handle = made.release();
  });
}

fastKronError set_stream(const char* op, fastKronHandle handle, std::uint32_t backend, const void* stream) {
  return answered([&] {
    Handle& own = handle_of(op, handle);
    check_backend(op, own, backend, fastKronBackendNotAvailable);
    if (backend == fastKronBackend_CUDA) own.stream = stream == nullptr ? nullptr : *static_cast<void* const*>(stream);
  });
}

fastKronError one_device_only(const char* op) {
  return answered([&] {
    throw Refusal(fastKronBackendNotAvailable,
                  std::string(op) + ": a product must run on one device. Received a call for several.");
  });
}

/// The call of a C function whose arrays are of this type. Functions of batches fill in what has a default.
template <class T>
struct Call {
  const char* op;
  bool left;
  fastKronHandle handle;
  fastKronBackend backend;
  std::uint32_t m, n;
  const std::uint32_t *ps, *qs;
  const T* x;
  fastKronOp op_x;
  const T* const* fs;
  fastKronOp op_fs;
  T* z;
  T alpha = 1, beta = 0;
  const T* y = nullptr;
  bool batched = false;
  std::uint32_t batch = 1;
  std::uint64_t stride_x = 0, stride_z = 0, stride_y = 0;
  const std::uint64_t* stride_fs = nullptr;

  fastKronError run() const {
    return answered([&] { product().run(); });
  }
  fastKronError run_and_keep(T* const* kept, const std::uint64_t* strides) const {
    return answered([&] {
      Product made = product();
      require(kept != nullptr || n == 1, "{}: Intermediates must be given. Received a null pointer.", op);
      made.run_and_keep(std::vector<void*>(kept, kept + (n - 1)), strides);
    });
  }

 private:
  Product product() const {
    Handle& own = handle_of(op, handle);
    Sizes sizes(op, m, n, ps, qs);
    require(fs != nullptr, "{}: Fs must be given. Received a null pointer.", op);
    require(!batched || stride_fs != nullptr, "{}: strideF must be given. Received a null pointer.", op);
    Arrays arrays{dtype_of<T>(), {x, op_x, stride_x}, {y, fastKronOp_N, stride_y}, {z, fastKronOp_N, stride_z},
                  std::vector<const void*>(fs, fs + n), op_fs, stride_fs, alpha, beta, batch};
    return {op, left, own, backend, std::move(sizes), std::move(arrays)};
  }
};

}  // namespace
}  // namespace mercer::compat::fastkron

using mercer::require;
using mercer::compat::fastkron::answered;
using mercer::compat::fastkron::Call;
using mercer::compat::fastkron::handle_of;
using mercer::compat::fastkron::Sizes;

const char* fastKronVersion(void) { return "1.1.0+x86_64+CUDA+mercer" MERCER_VERSION; }

const char* fastKronCUDAArchs(void) { return "compute capability 8.0 and newer"; }

const char* fastKronGetErrorString(fastKronError err) {
  switch (err) {
    case fastKronSuccess: return "The call succeeded.";
    case fastKronBackendNotAvailable:
      return "The backend is not available: Mercer does not have it, the handle was not made for it, there is no "
             "device for it, or the call is one for several GPUs, which are not served.";
    case fastKronInvalidMemoryAccess: return "An array does not lie in memory of the backend's device.";
    case fastKronKernelNotFound: return "There is no kernel for the problem: it could not be compiled.";
    case fastKronInvalidArgument: return "An argument is invalid; mercer_last_error() says which and why.";
    case fastKronInvalidKMMProblem: return "The number of factors is not from 1 to 64, or the sizes are too large.";
    case fastKronOtherError: return "A device failed, or memory is exhausted; mercer_last_error() says more.";
  }
  return "The number is no error of FastKron.";
}

uint32_t fastKronGetBackends(void) { return mercer::compat::fastkron::kBackends; }

fastKronError fastKronInit(fastKronHandle* handle, uint32_t backends) {
  return mercer::compat::fastkron::init("fastKronInit", handle, backends);
}

fastKronError fastKronInitAllBackends(fastKronHandle* handle) {
  return mercer::compat::fastkron::init("fastKronInitAllBackends", handle, fastKronGetBackends());
}

fastKronError fastKronSetOptions(fastKronHandle handle, uint32_t options) {
  return answered([&] {
    auto& own = handle_of("fastKronSetOptions", handle);
    constexpr std::uint32_t kKnown = fastKronOptionsNone | fastKronOptionsUseFusion | fastKronOptionsTune;
    require((options & ~kKnown) == 0, "fastKronSetOptions: options must be of fastKronOptions. Received {}.", options);
    own.options = options;
  });
}

void fastKronDestroy(fastKronHandle handle) { delete static_cast<mercer::compat::fastkron::Handle*>(handle); }

fastKronError fastKronInitCUDA(fastKronHandle handle, void* ptrToStream) {
  return mercer::compat::fastkron::set_stream("fastKronInitCUDA", handle, fastKronBackend_CUDA, ptrToStream);
}

fastKronError fastKronInitHIP(fastKronHandle handle, void* ptrToStream) {
  return mercer::compat::fastkron::set_stream("fastKronInitHIP", handle, fastKronBackend_HIP, ptrToStream);
}

fastKronError fastKronInitX86(fastKronHandle handle) {
  return mercer::compat::fastkron::set_stream("fastKronInitX86", handle, fastKronBackend_X86, nullptr);
}

fastKronError fastKronSetStream(fastKronHandle handle, fastKronBackend backend, void* ptrToStream) {
  const fastKronError given = answered([&] {
    require(ptrToStream != nullptr, "fastKronSetStream: ptrToStream must be given. Received a null pointer.");
  });
  if (given != fastKronSuccess) return given;
  return mercer::compat::fastkron::set_stream("fastKronSetStream", handle, backend, ptrToStream);
}

fastKronError gekmmSizes(fastKronHandle handle, uint32_t M, uint32_t N, uint32_t Ps[], uint32_t Qs[], size_t* yElems,
                         size_t* tmpElems) {
  return answered([&] {
    constexpr char kOp[] = "gekmmSizes";
    handle_of(kOp, handle);
    require(yElems != nullptr && tmpElems != nullptr,
            "{}: yElems and tmpElems must be given. Received a null pointer.", kOp);
    const Sizes sizes(kOp, M, N, Ps, Qs);
    std::int64_t most = sizes.m * sizes.k;
    for (std::size_t i = 0; i < sizes.count(); ++i) most = std::max(most, sizes.elements_behind(i));
    *yElems = static_cast<std::size_t>(sizes.m * sizes.l);
    *tmpElems = static_cast<std::size_t>(most);
  });
}

fastKronError gekmmSizesForward(fastKronHandle handle, uint32_t M, uint32_t N, uint32_t Ps[], uint32_t Qs[],
                                size_t* resultSize, size_t* intermediateSizes) {
  return answered([&] {
    constexpr char kOp[] = "gekmmSizesForward";
    handle_of(kOp, handle);
    const Sizes sizes(kOp, M, N, Ps, Qs);
    require(resultSize != nullptr && (intermediateSizes != nullptr || N == 1),
            "{}: resultSize and intermediateSizes must be given. Received a null pointer.", kOp);
    *resultSize = static_cast<std::size_t>(sizes.m * sizes.l);
    for (std::size_t i = 1; i < sizes.count(); ++i)
      intermediateSizes[i - 1] = static_cast<std::size_t>(sizes.elements_behind(i));
  });
}

// The eight products of a type. `prefix` is FastKron's letter for it.
#define MERCER_FASTKRON_PRODUCTS(prefix, T)                                                                           \
  fastKronError prefix##gemkm(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[],  \
                              uint32_t Qs[], const T* X, fastKronOp opX, const T* const Fs[], fastKronOp opFs, T* Z,  \
                              T alpha, T beta, const T* Y, T*, T*) {                                                  \
    return Call<T>{#prefix "gemkm", false, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z, alpha, beta, Y}.run(); \
  }                                                                                                                   \
  fastKronError prefix##gekmm(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[],              \
                              uint32_t Ps[], uint32_t M, const T* const Fs[], fastKronOp opFs, const T* X,            \
                              fastKronOp opX, T* Z, T alpha, T beta, const T* Y, T*, T*) {                            \
    return Call<T>{#prefix "gekmm", true, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z, alpha, beta, Y}.run();  \
  }                                                                                                                   \
  fastKronError prefix##gemkmStridedBatched(                                                                          \
      fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[], uint32_t Qs[],           \
      const T* X, fastKronOp opX, uint64_t strideX, const T* const Fs[], fastKronOp opFs, uint64_t strideF[], T* Z,   \
      uint64_t strideZ, T alpha, T beta, uint32_t batchCount, const T* Y, uint64_t strideY, T*, T*) {                 \
    return Call<T>{#prefix "gemkmStridedBatched", false, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z, alpha,   \
                   beta, Y, true, batchCount, strideX, strideZ, strideY, strideF}.run();                              \
  }                                                                                                                   \
  fastKronError prefix##gekmmStridedBatched(                                                                          \
      fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[], uint32_t Ps[], uint32_t M,           \
      const T* const Fs[], fastKronOp opFs, uint64_t strideF[], const T* X, fastKronOp opX, uint64_t strideX, T* Z,   \
      uint64_t strideZ, T alpha, T beta, uint32_t batchCount, const T* Y, uint64_t strideY, T*, T*) {                 \
    return Call<T>{#prefix "gekmmStridedBatched", true, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z, alpha,    \
                   beta, Y, true, batchCount, strideX, strideZ, strideY, strideF}.run();                              \
  }                                                                                                                   \
  fastKronError prefix##mkmForward(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N,            \
                                   uint32_t Ps[], uint32_t Qs[], const T* X, fastKronOp opX, const T* const Fs[],     \
                                   fastKronOp opFs, T* Z, T* Intermediates[]) {                                       \
    return Call<T>{#prefix "mkmForward", false, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z}                   \
        .run_and_keep(Intermediates, nullptr);                                                                        \
  }                                                                                                                   \
  fastKronError prefix##kmmForward(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[],         \
                                   uint32_t Ps[], uint32_t M, const T* const Fs[], fastKronOp opFs, const T* X,       \
                                   fastKronOp opX, T* Z, T* Intermediates[]) {                                        \
    return Call<T>{#prefix "kmmForward", true, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z}                    \
        .run_and_keep(Intermediates, nullptr);                                                                        \
  }                                                                                                                   \
  fastKronError prefix##mkmForwardStridedBatched(                                                                     \
      fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[], uint32_t Qs[],           \
      const T* X, fastKronOp opX, uint64_t strideX, const T* const Fs[], fastKronOp opFs, uint64_t strideF[], T* Z,   \
      uint64_t strideZ, uint32_t batchCount, T* Intermediates[], uint64_t strideIntermediates[]) {                    \
    return Call<T>{#prefix "mkmForwardStridedBatched", false, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z, 1,  \
                   0, nullptr, true, batchCount, strideX, strideZ, 0, strideF}                                        \
        .run_and_keep(Intermediates, strideIntermediates);                                                            \
  }                                                                                                                   \
  fastKronError prefix##kmmForwardStridedBatched(                                                                     \
      fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[], uint32_t Ps[], uint32_t M,           \
      const T* const Fs[], fastKronOp opFs, uint64_t strideF[], const T* X, fastKronOp opX, uint64_t strideX, T* Z,   \
      uint64_t strideZ, uint32_t batchCount, T* Intermediates[], uint64_t strideIntermediates[]) {                    \
    return Call<T>{#prefix "kmmForwardStridedBatched", true, handle, backend, M, N, Ps, Qs, X, opX, Fs, opFs, Z, 1,   \
                   0, nullptr, true, batchCount, strideX, strideZ, 0, strideF}                                        \
        .run_and_keep(Intermediates, strideIntermediates);                                                            \
  }

MERCER_FASTKRON_PRODUCTS(s, float)
MERCER_FASTKRON_PRODUCTS(d, double)

fastKronError fastKronMgInitCUDA(fastKronHandle, void*, int, int, int, int) {
  return mercer::compat::fastkron::one_device_only("fastKronMgInitCUDA");
}

fastKronError fastKronMgSGEMM(fastKronHandle, const uint32_t, void*[], void*[], void*[], uint32_t, uint32_t, uint32_t,
                              uint32_t[], uint32_t[], void*[], void*[], void*) {
  return mercer::compat::fastkron::one_device_only("fastKronMgSGEMM");
}

fastKronError fastKronMgAllocX(fastKronHandle, void*[], void*, uint32_t, uint32_t) {
  return mercer::compat::fastkron::one_device_only("fastKronMgAllocX");
}

fastKronError fastKronMgGatherY(fastKronHandle, void*[], void*, uint32_t, uint32_t, uint32_t, uint32_t[], uint32_t[]) {
  return mercer::compat::fastkron::one_device_only("fastKronMgGatherY");
}
