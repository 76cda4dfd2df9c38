// Runs a plan: blocks of rows, in each the passes, in each pass its tiles, in each tile its steps (plan/kron/kron.h).
//
// Many blocks go to the threads, some neighbours each; the tiles of few large ones are shared out pass by pass. Blocks
// are read where they lie if their elements neighbour each other and have the computing type, else packed first;
// likewise written.
#include "backend/cpu/kron/kron.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <tuple>
#include <utility>

#include "backend/cpu/kron/kron_stage.h"
#include "backend/rehearsal.h"
#include "core/integers.h"
#include "core/system/cpu_features.h"
#include "plan/cpu/target.h"

namespace mercer::cpu {
namespace {

using plan::KronLoop;
using plan::KronPass;
using plan::KronPlan;
using plan::KronStepArgs;
using plan::KronStepSource;

/// Multiply-adds of a task: some tens of microseconds.
constexpr double kTaskFlops = 1e6;

/// A line of the cache, and the operations for each byte of out below which it goes past the caches.
constexpr std::int64_t kLine = 64;
constexpr double kStreamedFlops = 24;
/// Blocks that go to a thread together: enough turns for threads that run at different speeds to end together.
constexpr std::int64_t kTurns = 8, kMostTogether = 32;
/// Bytes between the memory of two threads. A core that reads a row by strides of kilobytes fetches as many strides
/// after it; they would come out of the tiles of the next thread (8^5: two threads 1.75 times as one, now 1.85).
constexpr std::int64_t kApart = 128 << 10;

/// The steps of one pass on tiles of one size.
struct TileKernels {
  std::int64_t left = 1, right = 1;
  std::vector<std::shared_ptr<const jit::KronKernel>> steps;
};

class KronRun {
 public:
  KronRun(const KronJob& job, const KronTools& tools);
  std::int64_t bytes() const {
    return checked_product({workers_, slot_bytes_}) + shared_bytes_ + plan::kKronRowBytes;
  }
  /// Runs in memory of so many bytes.
  void run(void* memory);

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(type_)); }
  std::int64_t bytes_of(std::int64_t elements) const { return round_up(elements * element(), plan::kKronRowBytes); }
  KronStepSource step_source(const KronPass& pass, std::size_t step, std::int64_t left, std::int64_t right) const;
  void choose_ahead();
  bool can_stream(const KronPass& pass) const;
  void resolve_kernels();
  void add_kernels(const KronPass& pass, std::int64_t left, std::int64_t right, std::vector<TileKernels>& list) const;

  void lay_out_memory();
  template <class Body>
  void share(std::int64_t tasks, const Body& body);
  char* slot(int worker) const { return memory_ + shared_bytes_ + worker * slot_bytes_; }
  void pack_factors(std::int64_t item, char* to) const;
  void run_item(std::int64_t item, char* slot) const;
  std::int64_t blocks() const {
    return job_.row_count / job_.rows.back() * ceil_div(job_.rows.back(), plan_.block_rows);
  }

  /// A block of rows on its way.
  struct Block {
    KronRows x, y, out;
    const char* factors;
    std::array<char*, 2> rows;  // arrays between passes, in turn
    const char *next_x, *next_out;  // what is fetched while this block is computed
  };
  KronRows rows_of(const KronArray& array, std::int64_t extent, std::int64_t item, std::int64_t row,
                   std::int64_t count) const;
  Block block_at(std::int64_t item, std::int64_t index, const char* factors, char* rows) const;
  /// What pass `index` reads, and the one before it writes.
  char* array_at(const Block& block, std::size_t index) const;
  void run_block(const Block& block, char* tile_memory) const;
  void share_block(const Block& block);
  void run_tiles(const Block& block, std::size_t index, std::int64_t first, std::int64_t end, char* tile_memory) const;
  /// How far neighbours along the axes of a pass lie apart in what it reads, or writes; more than there is after them
  /// in a piece of the caller's array by columns.
  std::int64_t apart(const KronPass& pass, bool of_input) const {
    const bool is_outer = of_input ? &pass == &plan_.passes.front() && reads_directly_
                                   : &pass == &plan_.passes.back() && writes_directly_;
    if (!is_outer || plan_.columns == 1) return pass.right;
    return pass.right / plan_.columns * (of_input ? job_.x.stride : job_.out.stride);
  }
  /// Where the element r of what follows lies.
  std::int64_t behind(const KronPass& pass, std::int64_t r, std::int64_t apart) const {
    if (apart == pass.right) return r;
    return r / plan_.columns * (apart / (pass.right / plan_.columns)) + r % plan_.columns;
  }
  std::int64_t lefts(const Block& block, const KronPass& pass) const {
    return plan_.columns > 1 ? pass.left : block.x.count * pass.left;
  }
  std::int64_t tiles(const Block& block, const KronPass& pass) const {
    return ceil_div(lefts(block, pass), pass.tile_left) * ceil_div(pass.right, pass.tile_right);
  }

  const KronJob& job_;
  const KronTools& tools_;
  Dtype type_;
  KronPlan plan_;
  int workers_;
  bool reads_directly_ = false, writes_directly_ = false, streams_ = false;
  bool shares_blocks_ = false, shares_items_ = false;  // among the threads, in place of blocks
  std::vector<std::vector<TileKernels>> kernels_;  // of each pass
  std::vector<std::pair<std::int64_t, std::int64_t>> ahead_;  // of each pass: vectors for a line to read, to write
  std::vector<std::int64_t> factor_offsets_;       // bytes
  std::int64_t factor_bytes_ = 0, arrays_ = 0, array_bytes_ = 0, tile_bytes_ = 0;  // of all groups; of one array
  std::int64_t shared_bytes_ = 0, slot_bytes_ = 0, runs_ = 1, runs_done_ = 0;
  char* memory_ = nullptr;
};

plan::KronProblem problem_of(const KronJob& job, const KronTools& tools) {
  plan::KronProblem problem;
  problem.type = job.type();
  const int bytes = tools.target == Target::interpreter ? 64 : plan::target_info(tools.target).vector_bytes;
  problem.lanes = bytes / static_cast<int>(size_of(problem.type));
  for (const KronFactor& factor : job.factors) problem.factors.push_back({factor.p, factor.q});
  problem.rows = job.rows.back();
  const auto magnitude = [](std::int64_t stride) { return std::abs(stride); };
  problem.by_columns = problem.rows > 1 && job.k > 1 && magnitude(job.x.row_strides.back()) < magnitude(job.x.stride);
  problem.packed = problem.rows <= kron_columns(problem, std::max(job.k, job.j)) && job.x.stride == problem.rows &&
                   job.out.stride == problem.rows;
  const CpuFeatures& cpu = cpu_features();
  if (cpu.l1d_bytes > 0) problem.l1_bytes = cpu.l1d_bytes;
  if (cpu.l2_bytes > 0) problem.l2_bytes = cpu.l2_bytes;
  return problem;
}

KronPlan plan_of(const KronJob& job, const KronTools& tools) {
  const plan::KronProblem problem = problem_of(job, tools);
  return plan_kron(problem, tools.choose(job, problem, tools));
}

KronRun::KronRun(const KronJob& job, const KronTools& tools)
    : job_(job), tools_(tools), type_(job.type()), plan_(plan_of(job, tools)), workers_(tools.pool.threads()) {
  const bool one_row = plan_.block_rows == 1;
  const auto neighbours = [&](const KronArray& array, std::int64_t extent) {
    if (job.dtype != type_) return false;
    if (plan_.columns > 1) {  // whole blocks, of whole pieces
      const bool packed = array.stride == plan_.columns;
      return array.row_strides.back() == 1 && job.rows.back() % plan_.columns == 0 &&
             (packed || (!plan_.problem.packed && array.stride > 0));
    }
    return (array.stride == 1 || extent == 1) && (one_row || array.row_strides.back() == extent);
  };
  // A single pass would write what other tiles have yet to read.
  reads_directly_ = neighbours(job.x, job.k) && !(job.in_place && plan_.passes.size() == 1);
  writes_directly_ = neighbours(job.out, job.j) && job.beta == 0;
  const double flops = plan_.flops * static_cast<double>(job.row_count);
  shares_items_ = job.items >= 2 * workers_ || flops < kTaskFlops;
  shares_blocks_ = !shares_items_ && blocks() < 2 * workers_ && workers_ > 1 && flops > 2 * kTaskFlops;
  lay_out_memory();
}

KronStepSource KronRun::step_source(const KronPass& pass, std::size_t step, std::int64_t left,
                                    std::int64_t right) const {
  const int last = pass.first + pass.count;
  std::vector<std::int64_t> extents;
  for (int i = pass.first; i < last; ++i) extents.push_back(plan_.groups[i].p);
  for (std::size_t earlier = 0; earlier < step; ++earlier)
    extents[pass.order[earlier] - pass.first] = plan_.groups[pass.order[earlier]].q;
  const int group = pass.order[step];
  std::int64_t before = left, behind = 1;
  for (int i = pass.first; i < last; ++i) (i < group ? before : behind) *= i == group ? 1 : extents[i - pass.first];
  // Neighbours along the axes of the pass lie so far apart: in an array of a block, or in a tile.
  const std::int64_t in = step == 0 ? apart(pass, true) : right;
  const std::int64_t out = step + 1 == pass.order.size() ? apart(pass, false) : right;
  KronStepSource source;
  source.type = type_;
  source.target = tools_.target;
  source.p = plan_.groups[group].p;
  source.q = plan_.groups[group].q;
  source.pitch = kron_pitch(source.q, type_);
  source.in_p = behind * in;
  source.out_q = behind * out;
  source.left = {before, source.p * behind * in, source.q * behind * out};
  const bool joined = in == right && out == right;
  source.right = joined ? behind * right : right;
  source.middle = joined ? KronLoop{} : KronLoop{behind, in, out};
  std::tie(source.ahead_in, source.ahead_out) = ahead_[static_cast<std::size_t>(&pass - plan_.passes.data())];
  source.streams = streams_ && step + 1 == pass.order.size() && &pass == &plan_.passes.back();
  return source;
}

void KronRun::add_kernels(const KronPass& pass, std::int64_t left, std::int64_t right,
                          std::vector<TileKernels>& list) const {
  if (left == 0 || right == 0) return;
  for (const TileKernels& known : list)
    if (known.left == left && known.right == right) return;
  TileKernels& made = list.emplace_back(TileKernels{left, right, {}});
  for (std::size_t step = 0; step < pass.order.size(); ++step)
    made.steps.push_back(tools_.kernels.get(step_source(pass, step, left, right)));
}

/// Where memory does not hold still in the caches, each block fetches the input of the next one while its last pass
/// runs, and its own output before. A single pass fetches both for the next block.
void KronRun::choose_ahead() {
  ahead_.assign(plan_.passes.size(), {0, 0});
  const double bytes = static_cast<double>(job_.k + job_.j) * static_cast<double>(job_.row_count * job_.items);
  const std::int64_t from = tools_.kernels.ahead_from;
  const double least = from < 0 ? 0.5 * static_cast<double>(cpu_features().l3_bytes) : static_cast<double>(from);
  if (bytes * static_cast<double>(element()) < least || plan_.columns > 1) return;
  const auto vectors_of = [&](std::size_t first, std::size_t end) {
    double elements = 0;
    for (std::size_t pass = first; pass < end; ++pass) {
      double size = static_cast<double>(plan_.passes[pass].left * plan_.passes[pass].in * plan_.passes[pass].right);
      for (const int group : plan_.passes[pass].order) {
        size = size / static_cast<double>(plan_.groups[group].p) * static_cast<double>(plan_.groups[group].q);
        elements += size;
      }
    }
    return elements;
  };
  const auto rate = [](double elements, std::int64_t row) {
    return std::max<std::int64_t>(static_cast<std::int64_t>(elements / static_cast<double>(row)), 1);
  };
  const std::size_t last = ahead_.size() - 1;
  if (reads_directly_) ahead_[last].first = rate(vectors_of(last, last + 1), job_.k);
  if (!writes_directly_) return;
  streams_ = can_stream(plan_.passes.back());
  if (streams_) return;
  for (std::size_t pass = 0; pass < std::max<std::size_t>(last, 1); ++pass)
    ahead_[pass].second = rate(vectors_of(0, std::max<std::size_t>(last, 1)), job_.j);
}

/// Past the caches, where rows of out are whole lines and so little is computed that reading them first would be felt.
bool KronRun::can_stream(const KronPass& pass) const {
  const std::int64_t line = kLine / element();
  const auto whole = [line](std::int64_t elements) { return elements % line == 0; };
  bool aligned = reinterpret_cast<std::uintptr_t>(job_.out.data) % kLine == 0 && whole(job_.j);
  for (const auto* strides : {&job_.out.outer_strides, &job_.out.row_strides})
    for (const std::int64_t stride : *strides) aligned = aligned && whole(stride);
  const std::int64_t q = plan_.groups[pass.order.back()].q;
  const bool vectors = pass.right > 1 ? whole(pass.right) && whole(pass.tile_right) : pass.steps() == 1 && whole(q);
  return tools_.target != Target::interpreter && aligned && vectors &&
         plan_.flops < kStreamedFlops * static_cast<double>(job_.j * element());
}

/// Tiles are whole, or the last ones of a block, along either axis; so are blocks.
void KronRun::resolve_kernels() {
  kernels_.resize(plan_.passes.size());
  const std::int64_t last_rows = plan_.columns > 1 ? 1 : job_.rows.back() % plan_.block_rows;
  const std::int64_t whole_rows = plan_.columns > 1 ? 1 : plan_.block_rows;
  for (std::size_t index = 0; index < plan_.passes.size(); ++index) {
    const KronPass& pass = plan_.passes[index];
    for (const std::int64_t rows : {whole_rows, last_rows}) {
      const std::int64_t left = rows * pass.left;
      for (const std::int64_t l : {left >= pass.tile_left ? pass.tile_left : 0, left % pass.tile_left})
        for (const std::int64_t r : {pass.tile_right, pass.right % pass.tile_right})
          add_kernels(pass, l, r, kernels_[index]);
    }
  }
}

void KronRun::lay_out_memory() {
  for (const plan::KronGroup& group : plan_.groups) {
    factor_offsets_.push_back(factor_bytes_);
    factor_bytes_ += bytes_of(checked_product({group.p, kron_pitch(group.q, type_)}));
  }
  for (const KronPass& pass : plan_.passes) {
    const std::int64_t tile = bytes_of(checked_product({pass.widest, pass.tile_left, pass.tile_right}));
    tile_bytes_ = std::max(tile_bytes_, tile);  // of one of two
  }
  const auto passes = static_cast<std::int64_t>(plan_.passes.size());
  arrays_ = std::min<std::int64_t>(passes + 1 - (reads_directly_ ? 1 : 0) - (writes_directly_ ? 1 : 0), 2);
  array_bytes_ = bytes_of(checked_product({plan_.block_rows, plan_.widest}));
  const std::int64_t rows = arrays_ * array_bytes_, tiles = 2 * tile_bytes_;
  shared_bytes_ = (shares_items_ ? 0 : factor_bytes_) + (shares_blocks_ ? rows : 0);
  slot_bytes_ = tiles + (shares_items_ ? factor_bytes_ : 0) + (shares_blocks_ ? 0 : rows);
  if (workers_ > 1) slot_bytes_ += kApart;
}

void KronRun::run(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  memory_ = static_cast<char*>(memory) + (round_up(address, std::uintptr_t{plan::kKronRowBytes}) - address);
  choose_ahead();
  resolve_kernels();
  runs_ = shares_items_ ? 1 : job_.items * (shares_blocks_ ? blocks() * (std::ssize(plan_.passes) + 2) : 1);
  if (shares_items_) return share(job_.items, [&](std::int64_t item, int worker) { run_item(item, slot(worker)); });
  for (std::int64_t item = 0; item < job_.items; ++item) {
    pack_factors(item, memory_);
    if (shares_blocks_) {
      for (std::int64_t b = 0; b < blocks(); ++b) share_block(block_at(item, b, memory_, memory_ + factor_bytes_));
      continue;
    }
    // Neighbours go to one thread, which fetches the next block while it computes one.
    const std::int64_t together = std::clamp<std::int64_t>(blocks() / (workers_ * kTurns), 1, kMostTogether);
    share(ceil_div(blocks(), together), [&](std::int64_t task, int worker) {
      for (std::int64_t b = task * together; b < std::min(blocks(), (task + 1) * together); ++b)
        run_block(block_at(item, b, memory_, slot(worker) + 2 * tile_bytes_), slot(worker));
    });
  }
}

/// A run over the threads, as one part of the progress of the call.
template <class Body>
void KronRun::share(std::int64_t tasks, const Body& body) {
  const Pool::Progress scaled = [&](double done, double total) {
    return (*job_.progress)(static_cast<double>(runs_done_) + done / total, static_cast<double>(runs_));
  };
  tools_.pool.run(tasks, body, job_.progress != nullptr ? &scaled : nullptr, workers_);
  ++runs_done_;
}

void KronRun::pack_factors(std::int64_t item, char* to) const {
  for (std::size_t group = 0; group < plan_.groups.size(); ++group)
    pack_group(job_, plan_.groups[group], item, group == 0 ? job_.alpha : 1, to + factor_offsets_[group]);
}

/// All of one item by one thread: its slot holds tiles, rows and factors.
void KronRun::run_item(std::int64_t item, char* slot) const {
  char* const rows = slot + 2 * tile_bytes_;
  char* const factors = rows + arrays_ * array_bytes_;
  pack_factors(item, factors);
  for (std::int64_t b = 0; b < blocks(); ++b) run_block(block_at(item, b, factors, rows), slot);
}

KronRows KronRun::rows_of(const KronArray& array, std::int64_t extent, std::int64_t item, std::int64_t row,
                          std::int64_t count) const {
  KronRows rows;
  rows.count = count;
  rows.extent = extent;
  rows.row_stride = array.row_strides.empty() ? 0 : array.row_strides.back();
  rows.stride = array.stride;
  rows.columns = plan_.columns;
  if (array.data == nullptr) return rows;
  const std::int64_t offset = job_.item_offset(array.outer_strides, item) + job_.row_offset(array, row);
  rows.data = array.data + offset * static_cast<std::int64_t>(size_of(job_.dtype));
  return rows;
}

KronRun::Block KronRun::block_at(std::int64_t item, std::int64_t index, const char* factors, char* rows) const {
  const std::int64_t extent = job_.rows.back(), each = ceil_div(extent, plan_.block_rows);
  const std::int64_t first = index % each * plan_.block_rows, row = index / each * extent + first;
  const std::int64_t count = std::min(plan_.block_rows, extent - first);
  Block block{rows_of(job_.x, job_.k, item, row, count),   rows_of(job_.y, job_.j, item, row, count),
              rows_of(job_.out, job_.j, item, row, count), factors,
              {rows, rows + (arrays_ - 1) * array_bytes_}, nullptr, nullptr};
  const std::int64_t step = static_cast<std::int64_t>(size_of(job_.dtype)) * plan_.block_rows;
  block.next_x = block.x.data + step * block.x.row_stride;
  block.next_out = block.out.data + (plan_.passes.size() == 1 ? step * block.out.row_stride : 0);
  return block;
}

char* KronRun::array_at(const Block& block, std::size_t index) const {
  if (index == 0 && reads_directly_) return block.x.data;
  if (index == plan_.passes.size() && writes_directly_) return block.out.data;
  return block.rows[index % 2];
}

void KronRun::run_block(const Block& block, char* tile_memory) const {
  if (!reads_directly_) read_rows(job_, block.x, 0, job_.k, array_at(block, 0));
  for (std::size_t pass = 0; pass < plan_.passes.size(); ++pass)
    run_tiles(block, pass, 0, tiles(block, plan_.passes[pass]), tile_memory);
  if (streams_) std::atomic_thread_fence(std::memory_order_seq_cst);  // streamed stores are ordered by a fence alone
  if (!writes_directly_) write_rows(job_, array_at(block, plan_.passes.size()), block.y, block.out, 0, job_.j);
}

/// As `run_block`, by all threads at once.
void KronRun::share_block(const Block& block) {
  const std::int64_t pieces = 4 * workers_;
  const auto in_pieces = [&](std::int64_t count, const auto& body) {
    const std::int64_t piece = ceil_div(count, pieces);
    share(ceil_div(count, piece), [&](std::int64_t task, int worker) {
      body(task * piece, std::min((task + 1) * piece, count), worker);
    });
  };
  const auto read = [&](std::int64_t first, std::int64_t end, int) {
    read_rows(job_, block.x, first, end, array_at(block, 0));
  };
  if (!reads_directly_) in_pieces(job_.k, read);
  for (std::size_t pass = 0; pass < plan_.passes.size(); ++pass)
    in_pieces(tiles(block, plan_.passes[pass]), [&](std::int64_t first, std::int64_t end, int worker) {
      run_tiles(block, pass, first, end, slot(worker));
      if (streams_) std::atomic_thread_fence(std::memory_order_seq_cst);
    });
  const auto write = [&](std::int64_t first, std::int64_t end, int) {
    write_rows(job_, array_at(block, plan_.passes.size()), block.y, block.out, first, end);
  };
  if (!writes_directly_) in_pieces(job_.j, write);
}

void KronRun::run_tiles(const Block& block, std::size_t index, std::int64_t first, std::int64_t end,
                        char* tile_memory) const {
  const KronPass& pass = plan_.passes[index];
  const char* const from = array_at(block, index);
  char* const to = array_at(block, index + 1);
  const std::int64_t pieces = ceil_div(pass.right, pass.tile_right), lefts_here = lefts(block, pass);
  const std::int64_t from_apart = apart(pass, true), to_apart = apart(pass, false);
  char* const between[] = {tile_memory, tile_memory + tile_bytes_};
  // What is fetched ahead goes on with the tiles; passes before the last one share the output.
  const auto [ahead_in, ahead_out] = ahead_[index];
  const std::int64_t parts = tiles(block, pass) * pass.steps(), row_bytes = block.x.count * element();
  const std::int64_t writers = std::max<std::int64_t>(std::ssize(plan_.passes) - 1, 1);
  const std::int64_t in_part = job_.k * row_bytes / parts, out_part = job_.j * row_bytes / (writers * parts);
  const std::int64_t out_first = static_cast<std::int64_t>(index) * (job_.j * row_bytes / writers);
  for (std::int64_t tile = first; tile < end; ++tile) {
    const std::int64_t l = tile / pieces * pass.tile_left, r = tile % pieces * pass.tile_right;
    const std::int64_t left = std::min(pass.tile_left, lefts_here - l);
    const std::int64_t right = std::min(pass.tile_right, pass.right - r);
    const auto kernels = std::find_if(kernels_[index].begin(), kernels_[index].end(),
                                      [&](const TileKernels& k) { return k.left == left && k.right == right; });
    KronStepArgs args;
    args.in = from + (l * pass.in * from_apart + behind(pass, r, from_apart)) * element();
    for (std::size_t step = 0; step < pass.order.size(); ++step) {
      const bool is_last = step + 1 == pass.order.size();
      args.factor = block.factors + factor_offsets_[pass.order[step]];
      const std::int64_t part = tile * pass.steps() + static_cast<std::int64_t>(step);
      if (ahead_in > 0) args.ahead_in = block.next_x + part * in_part;
      if (ahead_out > 0) args.ahead_out = block.next_out + out_first + part * out_part;
      args.out = is_last ? to + (l * pass.out * to_apart + behind(pass, r, to_apart)) * element()
                         : between[step % 2];
      (*kernels->steps[step])(args);
      args.in = args.out;
    }
  }
}

/// out = beta y, where there is nothing to multiply.
void write_scaled(const KronJob& job, const KronTools& tools) {
  if (job.queue->rehearsal != nullptr) {
    job.queue->rehearsal->bytes = 0;
    return;
  }
  tools.pool.run(job.items * job.row_count, [&](std::int64_t index, int) {
    const std::int64_t item = index / job.row_count, row = index % job.row_count;
    const auto rows_of = [&](const KronArray& array) {
      KronRows rows{array.data, 1, job.j, 0, array.stride};
      if (array.data == nullptr) return rows;
      rows.data += (job.item_offset(array.outer_strides, item) + job.row_offset(array, row)) *
                   static_cast<std::int64_t>(size_of(job.dtype));
      return rows;
    };
    write_rows(job, nullptr, rows_of(job.y), rows_of(job.out), 0, job.j);
  });
}

/// Columns that fill no block are a job of their own.
std::vector<KronJob> parts_of(const KronJob& job, const KronTools& tools) {
  const plan::KronProblem problem = problem_of(job, tools);
  const std::int64_t rows = job.rows.back(), block = kron_columns(problem, std::max(job.k, job.j)), rest = rows % block;
  if (!problem.by_columns || rows < block || rest == 0) return {job};
  std::vector<KronJob> parts(2, job);
  parts[0].rows.back() = rows - rest;
  parts[1].rows.back() = rest;
  for (KronJob& part : parts) part.row_count = part.row_count / rows * part.rows.back();
  for (KronArray* array : {&parts[1].x, &parts[1].y, &parts[1].out})
    if (array->data != nullptr)
      array->data += (rows - rest) * array->row_strides.back() * static_cast<std::int64_t>(size_of(job.dtype));
  return parts;
}

}  // namespace

void kron_matmul(const KronJob& job, const KronTools& tools) {
  if (job.k == 0 || job.alpha == 0) return write_scaled(job, tools);
  std::vector<KronJob> jobs = parts_of(job, tools);
  std::deque<KronRun> runs;
  std::int64_t bytes = 0;
  for (const KronJob& part : jobs) bytes = std::max(bytes, runs.emplace_back(part, tools).bytes());
  if (job.queue->rehearsal != nullptr) {
    job.queue->rehearsal->bytes = bytes;
    return;
  }
  AlignedBuffer own;
  if (!job.queue->allocate) own = tools.kernels.take(bytes);
  void* const memory = job.queue->allocate ? job.queue->allocate(bytes) : own.data();
  require(memory != nullptr, "{}: workspace memory must be there. Received none of {} bytes.", job.op, bytes);
  for (KronRun& run : runs) run.run(memory);
  if (!job.queue->allocate) tools.kernels.give_back(std::move(own));
}

}  // namespace mercer::cpu
