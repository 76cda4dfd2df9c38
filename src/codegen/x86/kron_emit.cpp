// A step is one matrix product C = A B in one of two forms:
//
//   right > 1     for each l, s:  C[q, r] = sum_p factor[p, q] in[p, r]      rows are q, vectors lie along r
//   right = 1     for each s:     C[l, q] = sum_p in[l, p] factor[p, q]      rows are l, vectors lie along q
//
// Elements of A are broadcast, rows of B and C are vectors. A block of rows times vectors stays in registers over all
// p. Its size is the cheapest by counting, for each p, the multiply-adds against the loads: a broadcast takes half a
// cycle of the load ports, a 512-bit vector a whole one; narrower vectors are half a multiply-add.
#include "codegen/x86/kron_emit.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>

#include "codegen/x86/x86_assembler.h"
#include "core/error.h"
#include "core/integers.h"

namespace mercer::codegen {
namespace {

using plan::KronStepArgs;
using plan::KronStepSource;

/// Multiply-adds that are written out between two jumps.
constexpr std::int64_t kMostUnrolled = 512;
/// Cycles of a block in addition to its sums: pointers, counters, the first loads.
constexpr double kBlockCost = 8;
/// Cycles from a multiply-add to the next one on the same sum.
constexpr double kLatency = 4;
constexpr std::int64_t kMostDisplacement = std::numeric_limits<std::int32_t>::max() / 2;

/// A loop around the matrix product: how far it moves each pointer, in bytes.
struct Outer {
  std::int64_t count = 1, a = 0, b = 0, c = 0;
};

/// All strides in bytes.
struct Product {
  std::int64_t rows = 1, columns = 1, depth = 1;
  std::int64_t a_row = 0, a_depth = 0, b_depth = 0, c_row = 0;
  bool b_is_padded = false;  // whole vectors of b may be read
  Outer outer[2];
};

Product product_of(const KronStepSource& s) {
  const auto bytes = [size = static_cast<std::int64_t>(size_of(s.type))](std::int64_t n) { return n * size; };
  Product m;
  m.depth = s.p;
  if (s.right == 1 && s.out_q == 1) {
    m.rows = s.left.count;
    m.columns = s.q;
    m.a_row = bytes(s.left.in);
    m.a_depth = bytes(s.in_p);
    m.b_depth = bytes(s.pitch);
    m.c_row = bytes(s.left.out);
    m.b_is_padded = true;
    m.outer[0] = {s.middle.count, bytes(s.middle.in), 0, bytes(s.middle.out)};
    return m;
  }
  m.rows = s.q;
  m.columns = s.right;
  m.a_row = bytes(1);
  m.a_depth = bytes(s.pitch);
  m.b_depth = bytes(s.in_p);
  m.c_row = bytes(s.out_q);
  m.outer[0] = {s.left.count, 0, bytes(s.left.in), bytes(s.left.out)};
  m.outer[1] = {s.middle.count, 0, bytes(s.middle.in), bytes(s.middle.out)};
  return m;
}

/// The vectors of a block, from the left: whole ones, and perhaps one in part.
struct Columns {
  int whole = 0, tail = 0;  // tail: elements after the whole vectors
  int vectors() const { return whole + (tail > 0 ? 1 : 0); }
};

class KronEmitter {
 public:
  explicit KronEmitter(const KronStepSource& source)
      : m_(product_of(source)), info_(plan::target_info(source.target)),
        a(info_, size_of(source.type) == 8 ? Dtype::float64 : Dtype::float32),
        ahead_in_(source.ahead_in), ahead_out_(source.ahead_out), streams_(source.streams),
        is_double_(size_of(source.type) == 8), is_whole_(is_whole(source.type)), lanes_(info_.lanes(source.type)) {}

  std::vector<std::uint8_t> emit() {
    a.enter(0);
    const bool by_factor = !m_.b_is_padded;
    const auto argument = [&](std::size_t offset) { return a.ptr[a.args + static_cast<int>(offset)]; };
    a.mov(by_factor ? a_ : b_, argument(offsetof(KronStepArgs, factor)));
    a.mov(by_factor ? b_ : a_, argument(offsetof(KronStepArgs, in)));
    a.mov(c_, argument(offsetof(KronStepArgs, out)));
    if (ahead_in_ > 0) a.mov(read_ahead_, argument(offsetof(KronStepArgs, ahead_in)));
    if (ahead_out_ > 0) a.mov(write_ahead_, argument(offsetof(KronStepArgs, ahead_out)));
    loop(m_.outer[0].count, count_[0], {{a_, m_.outer[0].a}, {b_, m_.outer[0].b}, {c_, m_.outer[0].c}}, [&] {
      loop(m_.outer[1].count, count_[1], {{a_, m_.outer[1].a}, {b_, m_.outer[1].b}, {c_, m_.outer[1].c}},
           [&] { all_columns(); });
    });
    a.leave();
    return a.finish();
  }

 private:
  struct Step {
    Xbyak::Reg64 pointer;
    std::int64_t bytes;
  };

  /// Runs body `count` times, moving the pointers after each time, and back at the end.
  template <class Body>
  void loop(std::int64_t count, const Xbyak::Reg64& counter, const std::vector<Step>& steps, const Body& body) {
    if (count <= 0) return;
    if (count == 1) return body();
    Xbyak::Label again;
    a.mov(counter, count);
    a.L(again);
    body();
    for (const Step& step : steps) move(step.pointer, step.bytes);
    a.dec(counter);
    a.jnz(again);
    for (const Step& step : steps) move(step.pointer, -count * step.bytes);
  }

  void move(const Xbyak::Reg64& pointer, std::int64_t bytes) {
    if (bytes == 0) return;
    if (std::abs(bytes) <= kMostDisplacement) {
      a.add(pointer, static_cast<std::uint32_t>(static_cast<std::int32_t>(bytes)));
      return;
    }
    a.mov(a.params, static_cast<std::size_t>(bytes));
    a.add(pointer, a.params);
  }

  // ---- the sizes of blocks ------------------------------------------------------------------------------------------

  double width(int tail) const { return lanes_ == 16 || lanes_ == 8 ? (wide() && tail > lanes_ / 2 ? 1 : 0.5) : 1; }
  bool wide() const { return a.wide(); }
  double full() const { return wide() ? 1 : 0.5; }

  int most_rows(const Columns& columns) const {
    const int vectors = columns.vectors();
    const int masks = !wide() && columns.tail > 0 ? 1 : 0;
    const int broadcasts = embeds(columns) ? 0 : 1;
    const int products = is_whole_ ? 1 : 0;
    return (info_.registers - vectors - masks - broadcasts - products) / vectors;
  }
  /// One vector: the multiply-add broadcasts by itself.
  bool embeds(const Columns& columns) const { return wide() && columns.vectors() == 1; }

  /// Cycles of a block.
  double block_cost(const Columns& columns, std::int64_t rows) const {
    const double vectors = columns.whole * full() + (columns.tail > 0 ? width(columns.tail) : 0);
    const double sums = static_cast<double>(rows) * vectors;
    const double loads = vectors + 0.5 * static_cast<double>(rows);
    return static_cast<double>(m_.depth) * std::max({sums, loads, kLatency}) + sums * 1.5 + kBlockCost;
  }

  /// Rows of a block, all but the last alike, and what all of them cost.
  std::pair<std::int64_t, double> choose_rows(const Columns& columns) const {
    std::int64_t most = most_rows(columns);
    const std::int64_t stride = std::max(std::abs(m_.a_row), std::abs(m_.c_row));
    if (stride > 0) most = std::max<std::int64_t>(std::min(most, kMostDisplacement / stride), 1);
    std::pair<std::int64_t, double> best{1, std::numeric_limits<double>::infinity()};
    for (std::int64_t rows = 1; rows <= std::min(most, m_.rows); ++rows) {
      const std::int64_t rest = m_.rows % rows;
      const double cost = static_cast<double>(m_.rows / rows) * block_cost(columns, rows) +
                          (rest > 0 ? block_cost(columns, rest) : 0);
      if (cost < best.second) best = {rows, cost};
    }
    return best;
  }

  /// The tail goes with the last whole vectors, or stands alone.
  void all_columns() {
    const std::int64_t whole = m_.columns / lanes_;
    const int tail = static_cast<int>(m_.columns % lanes_);
    struct Choice {
      double cost = std::numeric_limits<double>::infinity();
      int each = 1, last = 0;  // vectors of a block; whole ones next to the tail
    } best;
    const int most = wide() ? 4 : 3;
    for (int each = 1; each <= most; ++each)
      for (int last = 0; last <= std::min<std::int64_t>(whole, tail > 0 ? most - 1 : 0); ++last) {
        const std::int64_t blocks = (whole - last) / each, rest = (whole - last) % each;
        double cost = static_cast<double>(blocks) * choose_rows({each, 0}).second;
        if (rest > 0) cost += choose_rows({static_cast<int>(rest), 0}).second;
        if (tail > 0) cost += choose_rows({last, tail}).second;
        if (cost < best.cost) best = {cost, each, last};
      }
    const std::int64_t blocks = (whole - best.last) / best.each;
    const int rest = static_cast<int>((whole - best.last) % best.each);
    const std::int64_t bytes = best.each * info_.vector_bytes;
    loop(blocks, count_[2], {{b_, bytes}, {c_, bytes}}, [&] { all_rows({best.each, 0}); });
    const std::int64_t done = blocks * bytes;
    move(b_, done);
    move(c_, done);
    const std::int64_t rest_bytes = rest * static_cast<std::int64_t>(info_.vector_bytes);
    if (rest > 0) all_rows({rest, 0});
    move(b_, rest_bytes);
    move(c_, rest_bytes);
    if (tail > 0) all_rows({best.last, tail});
    move(b_, -done - rest_bytes);
    move(c_, -done - rest_bytes);
  }

  void all_rows(const Columns& columns) {
    const std::int64_t rows = choose_rows(columns).first, blocks = m_.rows / rows, rest = m_.rows % rows;
    load_mask(columns);
    loop(blocks, count_[3], {{a_, rows * m_.a_row}, {c_, rows * m_.c_row}},
         [&] { block(columns, static_cast<int>(rows)); });
    if (rest == 0) return;
    move(a_, blocks * rows * m_.a_row);
    move(c_, blocks * rows * m_.c_row);
    block(columns, static_cast<int>(rest));
    move(a_, -blocks * rows * m_.a_row);
    move(c_, -blocks * rows * m_.c_row);
  }

  // ---- one block ----------------------------------------------------------------------------------------------------

  /// Lines for later, between the loads of this block.
  void fetch_ahead(std::int64_t vectors) {
    constexpr int kLine = 64;
    const int reads = ahead_in_ > 0 ? static_cast<int>(ceil_div(vectors, ahead_in_)) : 0;
    const int writes = ahead_out_ > 0 ? static_cast<int>(ceil_div(vectors, ahead_out_)) : 0;
    for (int line = 0; line < reads; ++line) a.prefetcht1(a.ptr[read_ahead_ + line * kLine]);
    for (int line = 0; line < writes; ++line) a.prefetchw(a.ptr[write_ahead_ + line * kLine]);
    move(read_ahead_, reads * kLine);
    move(write_ahead_, writes * kLine);
  }

  void block(const Columns& columns, int rows) {
    const std::int64_t sums = static_cast<std::int64_t>(rows) * columns.vectors();
    fetch_ahead(sums);
    std::int64_t unrolled = std::max<std::int64_t>(kMostUnrolled / sums, 1);
    const std::int64_t stride = std::max(std::abs(m_.a_depth), std::abs(m_.b_depth));
    if (stride > 0) unrolled = std::max<std::int64_t>(std::min(unrolled, kMostDisplacement / stride), 1);
    if (unrolled >= m_.depth) {
      for (std::int64_t k = 0; k < m_.depth; ++k) rank_one(columns, rows, k, k == 0);
      return store(columns, rows);
    }
    unrolled = std::min<std::int64_t>(unrolled, 8);
    for (int sum = 0; sum < sums; ++sum) a.zero(a.reg(sum));
    const std::int64_t times = m_.depth / unrolled, rest = m_.depth % unrolled;
    const std::int64_t a_step = unrolled * m_.a_depth, b_step = unrolled * m_.b_depth;
    Xbyak::Label again;
    a.mov(count_[4], times);
    a.L(again);
    for (std::int64_t k = 0; k < unrolled; ++k) rank_one(columns, rows, k, false);
    move(a_, a_step);
    move(b_, b_step);
    a.dec(count_[4]);
    a.jnz(again);
    for (std::int64_t k = 0; k < rest; ++k) rank_one(columns, rows, k, false);
    move(a_, -times * a_step);
    move(b_, -times * b_step);
    store(columns, rows);
  }

  /// sums += a column of A times a row of B.
  void rank_one(const Columns& columns, int rows, std::int64_t k, bool is_first) {
    const int vectors = columns.vectors(), first = rows * vectors;
    const bool has_mask = !wide() && columns.tail > 0;
    product_ = info_.registers - 1 - (has_mask ? 1 : 0);
    for (int v = 0; v < vectors; ++v) load_b(columns, v, first + v, static_cast<int>(k * m_.b_depth));
    for (int i = 0; i < rows; ++i) {
      const int at = static_cast<int>(i * m_.a_row + k * m_.a_depth);
      if (embeds(columns)) {
        multiply(view(columns, 0, i), view(columns, 0, first), a.ptr_b[a_ + at], is_first);
        continue;
      }
      const int factor = first + vectors;
      broadcast(columns, factor, at);
      for (int v = 0; v < vectors; ++v)
        multiply(view(columns, v, i * vectors + v), view(columns, v, first + v), view(columns, v, factor), is_first);
    }
  }

  /// A register in the width of the vector v of a block.
  Xbyak::Xmm view(const Columns& columns, int v, int index) const {
    const int used = v < columns.whole ? lanes_ : columns.tail;
    const int bytes = used * a.element_bytes();
    if (bytes > 32) return Xbyak::Zmm(index);
    if (bytes > 16) return Xbyak::Ymm(index);
    return Xbyak::Xmm(index);
  }
  bool is_partial(const Columns& columns, int v) const {
    if (v < columns.whole) return false;
    const int bytes = columns.tail * a.element_bytes();
    return bytes != 16 && bytes != 32;
  }

  void multiply(const Xbyak::Xmm& sum, const Xbyak::Xmm& b, const Xbyak::Operand& x, bool is_first) {
    if (is_whole_) return multiply_whole(sum, b, x, is_first);
    if (!is_first) a.multiply_into(false, sum, b, x);
    else a.binary(ir::Prim::mul, sum, b, x);
  }

  /// There is no multiply-add of whole numbers that keeps the low half.
  void multiply_whole(const Xbyak::Xmm& sum, const Xbyak::Xmm& b, const Xbyak::Operand& x, bool is_first) {
    const Xbyak::Xmm product = is_first ? sum : sum.copyAndSetIdx(product_);
    if (is_double_) a.vpmullq(product, b, x);
    else a.vpmulld(product, b, x);
    if (is_first) return;
    if (is_double_) a.vpaddq(sum, sum, product);
    else a.vpaddd(sum, sum, product);
  }

  void broadcast(const Columns& columns, int index, int at) {
    const Xbyak::Xmm to = columns.whole > 0 ? view(columns, 0, index) : view(columns, columns.whole, index);
    const Xbyak::Address from = a.ptr[a_ + at];
    if (!is_double_) return a.vbroadcastss(to, from);
    if (to.isZMM()) return a.vbroadcastsd(Xbyak::Zmm(index), from);
    a.vbroadcastsd(Xbyak::Ymm(index), from);  // there is none of 128 bits
  }

  void load_b(const Columns& columns, int v, int index, int at) {
    const Xbyak::Address from = a.ptr[b_ + at + v * info_.vector_bytes];
    const Xbyak::Xmm to = view(columns, v, index);
    if (!is_partial(columns, v) || m_.b_is_padded) return a.move(to, from);
    if (wide()) return is_double_ ? a.vmovupd(to | a.k1 | a.T_z, from) : a.vmovups(to | a.k1 | a.T_z, from);
    const Xbyak::Xmm mask = to.isYMM() ? Xbyak::Xmm(Xbyak::Ymm(mask_)) : Xbyak::Xmm(mask_);
    if (to.isYMM()) return is_double_ ? a.vmaskmovpd(Xbyak::Ymm(index), Xbyak::Ymm(mask_), from)
                                      : a.vmaskmovps(Xbyak::Ymm(index), Xbyak::Ymm(mask_), from);
    is_double_ ? a.vmaskmovpd(to, mask, from) : a.vmaskmovps(to, mask, from);
  }

  void store(const Columns& columns, int rows) {
    const int vectors = columns.vectors();
    for (int i = 0; i < rows; ++i)
      for (int v = 0; v < vectors; ++v) {
        const int index = i * vectors + v;
        const Xbyak::Xmm from = view(columns, v, index);
        const Xbyak::Address to = a.ptr[c_ + static_cast<int>(i * m_.c_row + v * info_.vector_bytes)];
        if (streams_) is_double_ ? a.vmovntpd(to, from) : a.vmovntps(to, from);
        else if (!is_partial(columns, v)) a.store(to, from);
        else if (wide()) is_double_ ? a.vmovupd(to | a.k1, from) : a.vmovups(to | a.k1, from);
        else if (from.isYMM())
          is_double_ ? a.vmaskmovpd(to, Xbyak::Ymm(mask_), Xbyak::Ymm(index))
                     : a.vmaskmovps(to, Xbyak::Ymm(mask_), Xbyak::Ymm(index));
        else is_double_ ? a.vmaskmovpd(to, Xbyak::Xmm(mask_), from) : a.vmaskmovps(to, Xbyak::Xmm(mask_), from);
      }
  }

  /// The lanes of the tail, where it is no whole register.
  void load_mask(const Columns& columns) {
    if (columns.tail == 0 || !is_partial(columns, columns.whole)) return;
    if (wide()) {
      a.mov(a.params.cvt32(), (1u << columns.tail) - 1);
      a.kmovw(a.k1, a.params.cvt32());
      return;
    }
    Xbyak::Label mask, behind;
    a.jmp(behind);
    a.align(32);
    a.L(mask);
    for (int lane = 0; lane < lanes_; ++lane) {
      const bool is_used = lane < columns.tail;
      if (is_double_) a.dq(is_used ? ~std::uint64_t{0} : 0);
      else a.dd(is_used ? ~std::uint32_t{0} : 0);
    }
    a.L(behind);
    a.vmovups(Xbyak::Ymm(mask_), a.ptr[a.rip + mask]);
  }

  const Product m_;
  const plan::TargetInfo& info_;
  VectorAssembler a;
  std::int64_t ahead_in_, ahead_out_;
  bool streams_, is_double_, is_whole_;  // is_double_: elements of 64 bits
  int lanes_;
  static constexpr int mask_ = 15;  // of AVX2
  int product_ = 0;                 // of whole numbers, before it is added
  const Xbyak::Reg64 a_ = Xbyak::util::rsi, b_ = Xbyak::util::rdx, c_ = Xbyak::util::r8;
  const Xbyak::Reg64 read_ahead_ = Xbyak::util::r9, write_ahead_ = Xbyak::util::r10;
  const Xbyak::Reg64 count_[5] = {Xbyak::util::rbx, Xbyak::util::r12, Xbyak::util::r13, Xbyak::util::r14,
                                  Xbyak::util::rax};
};

}  // namespace

bool can_emit(const KronStepSource& source) {
  if (source.target == Target::interpreter) return false;
  // AVX-512 alone gives the low half of 64-bit products.
  return source.type == Dtype::float32 || source.type == Dtype::float64 || source.type == Dtype::int32 ||
         (source.type == Dtype::int64 && source.target == Target::x86_avx512);
}

std::vector<std::uint8_t> emit_kron_step(const KronStepSource& source) {
  if (!can_emit(source))
    fail(ErrorKind::compile, "codegen: no steps of {}.", name_of(source.type));
  return KronEmitter(source).emit();
}

}  // namespace mercer::codegen
