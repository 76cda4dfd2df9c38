#include "backend/cuda/linalg/small_eigen.h"

#include <algorithm>

#include "backend/cuda/runtime/workspace.h"
#include "core/error.h"
#include "core/integers.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kWarps = 8, kWarp = 32, kScaleThreads = 1024;
constexpr double kClose = 1e-6;  // values, for |h| = 1
constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));

/// Clusters that hold matrices of up to 32 lane_rows, on compute capabilities up to `most`: those of more than 8 blocks
/// are not on every device.
struct Cluster {
  int blocks, lane_rows, most;
  std::int64_t shared_bytes(std::int64_t m) const {
    const std::int64_t share = ceil_div(m, std::int64_t{blocks});
    return (share * m + 2 * blocks * share + m + share) * kDouble;
  }
};
constexpr Cluster kClusters[] = {{16, 15, 109}, {16, 20, 109}, {8, 15, 999}};

const Cluster* cluster_for(const CudaDevice& device, std::int64_t m) {
  constexpr int kFirstClusters = 90;
  if (device.capability() < kFirstClusters || m < 2) return nullptr;
  for (const Cluster& cluster : kClusters)
    if (device.capability() <= cluster.most && m <= kWarp * cluster.lane_rows &&
        cluster.shared_bytes(m) <= device.shared_per_block)
      return &cluster;
  return nullptr;
}

SmallPairs by_cusolver(const DeviceBlas& blas, const PairJob& place, const double* h, std::int64_t stride,
                       std::int64_t m, const Choice& choice) {
  const CudaSolver& library = blas.library();
  std::vector<double> matrix(static_cast<std::size_t>(m * m));
  std::size_t device_bytes = 0, host_bytes = 0;
  std::int64_t found = 0;
  check_solver(library.syevdx_size(blas.handles().solver(), nullptr, kCuVectors, kCuRangeAll, kCuUpper, m, kCuFloat64,
                                   nullptr, m, nullptr, nullptr, 0, 0, &found, kCuFloat64, nullptr, kCuFloat64,
                                   &device_bytes, &host_bytes),
               place.op, "cusolverDnXsyevdx_bufferSize");
  Workspace memory;
  const std::int64_t a = memory.add(m * m * kDouble), w = memory.add(m * kDouble),
                     buffer = memory.add(static_cast<std::int64_t>(device_bytes)), said = memory.add(sizeof(int));
  memory.take(place);
  for (std::int64_t j = 0; j < m; ++j)
    blas.copy(memory.at<double>(a) + j * m, h + j * stride, static_cast<std::size_t>(m) * sizeof(double));
  check_solver(library.syevdx(blas.handles().solver(), nullptr, kCuVectors, kCuRangeAll, kCuUpper, m, kCuFloat64,
                              memory.at(a), m, nullptr, nullptr, 0, 0, &found, kCuFloat64, memory.at(w), kCuFloat64,
                              memory.at(buffer), device_bytes, blas.handles().host_memory(host_bytes), host_bytes,
                              memory.at<int>(said)),
               place.op, "cusolverDnXsyevdx");
  SmallPairs pairs{std::vector<double>(static_cast<std::size_t>(m)), {}, {}};
  int info = 0;
  blas.copy(&info, memory.at(said), sizeof info);
  blas.copy(pairs.values.data(), memory.at(w), pairs.values.size() * sizeof(double));
  blas.copy(matrix.data(), memory.at(a), matrix.size() * sizeof(double));
  blas.wait();
  if (info != 0) fail(ErrorKind::numerical, "{}: the small problem must converge. Received {}.", place.op, info);
  pairs.wanted = choice(pairs.values);
  for (const std::int64_t index : pairs.wanted)
    pairs.vectors.insert(pairs.vectors.end(), matrix.begin() + index * m, matrix.begin() + (index + 1) * m);
  return pairs;
}

SmallPairs of_zero(std::int64_t m, const Choice& choice) {
  SmallPairs pairs{std::vector<double>(static_cast<std::size_t>(m), 0), {}, {}};
  pairs.wanted = choice(pairs.values);
  pairs.vectors.assign(pairs.wanted.size() * static_cast<std::size_t>(m), 0);
  for (std::size_t column = 0; column < pairs.wanted.size(); ++column)
    pairs.vectors[column * static_cast<std::size_t>(m) + static_cast<std::size_t>(pairs.wanted[column])] = 1;
  return pairs;
}

class Tridiagonal {
 public:
  Tridiagonal(const DeviceBlas& blas, const PairJob& place, const Cluster& cluster, std::int64_t m)
      : blas_(blas), place_(place), cluster_(cluster), m_(m),
        kernels_(tridiagonal_kernels(place, cluster.blocks, cluster.lane_rows)) {}

  SmallPairs run(const double* h, std::int64_t stride, const Choice& choice) {
    Workspace memory;
    const std::int64_t lines = memory.add((6 * m_ + 1) * kDouble), reflections = memory.add(m_ * m_ * kDouble);
    memory.take(place_);
    arguments_.h = h;
    arguments_.d = memory.at<double>(lines);
    arguments_.e = arguments_.d + m_;
    arguments_.tau = arguments_.e + m_;
    arguments_.w = arguments_.tau + m_;
    arguments_.scale = arguments_.w + m_;
    arguments_.columns = arguments_.scale + 1;
    arguments_.v = memory.at<double>(reflections);
    arguments_.m = m_;
    arguments_.stride = stride;
    launch_kernel("scale_symmetric", 1, kScaleThreads, 0);
    reduce();
    launch_kernel("tridiagonal_values", ceil_div(m_, kWarps), kThreads, 2 * m_ * kDouble);
    SmallPairs pairs{std::vector<double>(static_cast<std::size_t>(m_ + 1)), {}, {}};
    blas_.copy(pairs.values.data(), arguments_.w, pairs.values.size() * sizeof(double));
    blas_.wait();
    const double scale = pairs.values.back();
    pairs.values.pop_back();
    if (scale == 0) return of_zero(m_, choice);
    std::sort(pairs.values.begin(), pairs.values.end());  // equal ones may differ by their last bits
    std::vector<double> wanted;
    pairs.wanted = choice(pairs.values);
    for (const std::int64_t index : pairs.wanted) wanted.push_back(pairs.values[index]);
    for (double& value : pairs.values) value /= scale;
    find_vectors(wanted, pairs.vectors);
    return pairs;
  }

 private:
  void reduce() {
    void* args[] = {&arguments_};
    const jit::CudaFunction& function = kernels_.module->function("reduce_symmetric");
    function.launch_clusters({cluster_.blocks, 1}, {kThreads}, {cluster_.blocks, 1}, cluster_.shared_bytes(m_),
                             place_.stream(), args);
  }

  /// Vectors of T, made orthonormal where values lie close together, and turned back.
  void find_vectors(const std::vector<double>& wanted, std::vector<double>& vectors) {
    const auto count = static_cast<std::int64_t>(wanted.size());
    const CudaSolver& library = blas_.library();
    std::size_t device_bytes = 0, host_bytes = 0;
    check_solver(library.potrf_size(blas_.handles().solver(), nullptr, kCuLower, count, kCuFloat64, nullptr, count,
                                    kCuFloat64, &device_bytes, &host_bytes),
                 place_.op, "cusolverDnXpotrf_bufferSize");
    Workspace memory;
    const std::int64_t values = memory.add(count * kDouble), y = memory.add(count * m_ * kDouble),
                       rows = memory.add(4 * count * m_ * kDouble), gram = memory.add(count * count * kDouble),
                       buffer = memory.add(static_cast<std::int64_t>(device_bytes)), said = memory.add(2 * sizeof(int));
    memory.take(place_);
    blas_.upload(memory.at(values), wanted.data(), wanted.size() * sizeof(double));
    arguments_.wanted = memory.at<double>(values);
    arguments_.y = memory.at<double>(y);
    arguments_.rows = memory.at<double>(rows);
    arguments_.count = count;
    launch_kernel("tridiagonal_vectors", ceil_div(count, kWarp), kWarp, 0);
    // Vectors of values that lie together are as random as their starts: once more makes them orthonormal.
    bool together = false;
    for (std::int64_t j = 1; j < count; ++j) together = together || !(wanted[j] - wanted[j - 1] > kClose);
    const int passes = together ? 2 : 1;
    for (int pass = 0; pass < passes; ++pass)
      orthonormalise(count, memory.at<double>(gram), memory.at(buffer), device_bytes, host_bytes,
                     memory.at<int>(said) + pass);
    launch_kernel("reflect", count, kWarp, 0);
    vectors.resize(static_cast<std::size_t>(count * m_));
    int info[2] = {};
    blas_.copy(info, memory.at(said), sizeof(int) * static_cast<std::size_t>(passes));
    blas_.copy(vectors.data(), arguments_.y, vectors.size() * sizeof(double));
    blas_.wait();
    if (info[0] != 0 || info[1] != 0)
      fail(ErrorKind::numerical, "{}: vectors of the small problem must be independent. Received {} that are.",
           place_.op, std::max(info[0], info[1]) - 1);
  }

  void orthonormalise(std::int64_t count, double* gram, void* buffer, std::size_t bytes, std::size_t host_bytes,
                      int* said) const {
    const double one = 1;
    const int n = static_cast<int>(count), rows = static_cast<int>(m_);
    const CudaSolver& library = blas_.library();
    const double zero = 0;
    check_solver(library.gemm[1](blas_.handles().blas(), kCuTransposed, kCuPlain, n, n, rows, &one, arguments_.y, rows,
                                 arguments_.y, rows, &zero, gram, n),
                 place_.op, "cublasDgemm");
    check_solver(library.potrf(blas_.handles().solver(), nullptr, kCuLower, n, kCuFloat64, gram, n, kCuFloat64, buffer,
                               bytes, blas_.handles().host_memory(host_bytes), host_bytes, said),
                 place_.op, "cusolverDnXpotrf");
    check_solver(library.trsm[1](blas_.handles().blas(), kCuRight, kCuLower, kCuTransposed, kCuNonUnit, rows, n, &one,
                                 gram, n, arguments_.y, rows),
                 place_.op, "cublasDtrsm");
  }

  void launch_kernel(const char* name, std::int64_t blocks, std::int64_t threads, std::int64_t shared) {
    const Kernel kernel{kernels_.module, &kernels_.module->function(name)};
    launch(kernel, place_, {blocks, 1}, threads, shared, arguments_);
  }

  const DeviceBlas& blas_;
  const PairJob& place_;
  const Cluster& cluster_;
  const std::int64_t m_;
  Kernel kernels_;
  TridiagonalArguments arguments_{};
};

}  // namespace

SmallPairs small_eigen(const DeviceBlas& blas, const PairJob& place, const double* h, std::int64_t stride,
                       std::int64_t m, const Choice& choice) {
  const Cluster* const cluster = cluster_for(place.hardware(), m);
  if (cluster == nullptr) return by_cusolver(blas, place, h, stride, m, choice);
  return Tridiagonal(blas, place, *cluster, m).run(h, stride, choice);
}

}  // namespace mercer::cuda
