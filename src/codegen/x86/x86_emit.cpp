#include "codegen/x86/x86_emit.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>

#include "codegen/skeleton.h"
#include "codegen/x86/program_emitter.h"
#include "core/error.h"
#include "plan/cpu/registers.h"
#include "plan/cpu/rotation.h"

namespace mercer::codegen {
namespace {

using ir::Input;
using ir::Site;
using plan::EpilogueArgs;
using plan::FieldArgs;
using plan::UpdateArgs;

std::vector<int> register_range(int first, int end) {
  std::vector<int> list(std::max(0, end - first));
  std::iota(list.rbegin(), list.rend(), first);
  return list;
}

#define MERCER_LOAD(field_, type_, reg_) a.mov(a.reg_, a.ptr[a.args + static_cast<int>(offsetof(type_, field_))])

/// Loop over k around `rows` instances of the program; in a fused kernel the epilogue follows, and a loop over tiles
/// stands around both.
class UpdateEmitter {
 public:
  explicit UpdateEmitter(const UpdateSource& source)
      : s_(source), info_(plan::target_info(source.target)), a(info_, source.program.type), element_(a.element_bytes()),
        states_(static_cast<int>(source.program.outputs.size())),
        unrolled_(plan::unrolled_features(source.program, info_)),
        reads_weights_(std::any_of(source.program.inputs.begin(), source.program.inputs.end(),
                                   [](const Input& input) { return input.site == Site::w; })) {}

  std::vector<std::uint8_t> emit() {
    const int accumulators = states_ * s_.tile.rows * s_.tile.vectors;
    const int first_free = accumulators + z_registers() * s_.tile.vectors;
    if (first_free >= info_.registers) fail(ErrorKind::compile, "codegen: the register tile does not fit the target.");
    const std::vector<int> free = register_range(first_free, info_.registers);
    if (s_.tile.rows == 1)
      rotation_ = plan::rotate(s_.program, s_.tile.vectors, static_cast<int>(free.size()), info_);
    ProgramEmitter emitter = rotation_ ? ProgramEmitter(a, *rotation_, s_.tile.vectors, free)
                                       : ProgramEmitter(a, s_.program, s_.tile.vectors, free);
    ProgramEmitter start(a, s_.start, s_.tile.vectors, register_range(first_free, info_.registers));
    ProgramEmitter promote(a, s_.promote, s_.tile.vectors, register_range(accumulators, info_.registers));
    a.enter(kFrameBytes);
    load_pointers();
    Xbyak::Label next_tile;
    if (s_.fused) {
      a.L(next_tile);
      begin_tile();
    }
    accumulate(emitter, start, promote);
    if (s_.fused) {
      add_earlier_chunks();
      guard();
      run_epilogue();
      a.dec(a.qword[a.rsp + kTilesSlot]);
      a.jg(next_tile);
    } else {
      store_sums(false);
      guard();
      for (int state = 0; state < states_; ++state)
        if (!s_.promoted[state])
          each_accumulator(state, [&](const Xbyak::Xmm& reg, int offset) { a.store(a.ptr[a.acc + offset], reg); });
    }
    a.leave();
    return a.finish();
  }

 private:
  int accumulator(int state, int row, int v) const { return (state * s_.tile.rows + row) * s_.tile.vectors + v; }
  int z_register(int stream) const { return states_ * s_.tile.rows * s_.tile.vectors + stream * s_.tile.vectors; }
  /// A vector of z that one row reads stays in memory.
  int z_registers() const { return s_.tile.rows > 1 ? s_.z_streams : 0; }
  int acc_offset(int state, int row, int v) const { return accumulator(state, row, v) * a.vector_bytes(); }

  void load_pointers() {
    MERCER_LOAD(x, UpdateArgs, x);
    MERCER_LOAD(params, UpdateArgs, params);
    MERCER_LOAD(row, UpdateArgs, row);
    MERCER_LOAD(col, UpdateArgs, col);
    MERCER_LOAD(acc, UpdateArgs, acc);
    if (s_.guarded) {
      MERCER_LOAD(doubtful, UpdateArgs, scratch);
      a.mov(a.qword[a.rsp + kDoubtfulSlot], a.scratch);
    }
    if (!s_.fused) return load_tile();
    MERCER_LOAD(tiles, UpdateArgs, scratch);
    a.mov(a.qword[a.rsp + kTilesSlot], a.scratch);
    MERCER_LOAD(out, UpdateArgs, scratch);
    a.mov(a.qword[a.rsp + kOutSlot], a.scratch);
  }

  /// What every tile starts with; x and row have moved on to its panels by themselves.
  void load_tile() {
    MERCER_LOAD(z, UpdateArgs, z);
    MERCER_LOAD(w, UpdateArgs, w);
    MERCER_LOAD(k, UpdateArgs, loop);
    MERCER_LOAD(chunk, UpdateArgs, pair);
  }

  /// The tile's lines of the output are fetched for writing while its features are accumulated.
  void begin_tile() {
    load_tile();
    a.mov(a.scratch, a.qword[a.rsp + kOutSlot]);
    MERCER_LOAD(out_stride, UpdateArgs, count);
    for (int row = 0; row < s_.tile.rows; ++row) {
      for (int v = 0; v * 64 < s_.tile.cols() * element_; ++v) a.prefetchw(a.ptr[a.scratch + v * 64]);
      if (row + 1 < s_.tile.rows) a.add(a.scratch, a.count);
    }
  }

  /// The loop over chunks around the loop over features.
  void accumulate(ProgramEmitter& emitter, ProgramEmitter& head, ProgramEmitter& promote) {
    start();
    if (!has_heads()) pin(emitter);
    a.mov(first_chunk(), s_.continues ? 0 : 1);
    Xbyak::Label next_chunk, last_chunk, done, end;
    a.L(next_chunk);
    a.mov(a.count, chunk());
    a.cmp(a.count, remaining());
    a.jle(last_chunk);
    a.mov(a.count, remaining());
    a.L(last_chunk);
    a.sub(remaining(), a.count);
    // The registers of the update's constants are free where chunks begin and end.
    if (has_heads()) {
      body(head, s_.start, 0);
      advance(1);
      pin(emitter);
    }
    a.test(a.count, a.count);
    a.jz(done);
    loop_over_features(emitter);
    a.L(done);
    if (!s_.promote.outputs.empty())
      for (int row = 0; row < s_.tile.rows; ++row) instance(promote, s_.promote, row, 0);
    a.test(remaining(), remaining());
    a.jz(end);
    store_sums(true);
    a.jmp(next_chunk);
    a.L(end);
  }

  /// a.count features, at least one: `unrolled_` at a time, then the rest.
  void loop_over_features(ProgramEmitter& emitter) {
    if (rotation_) return rotated_loop(emitter);
    Xbyak::Label several, single, done;
    if (unrolled_ > 1) {
      a.cmp(a.count, unrolled_);
      a.jl(single);
      a.align(32);
      a.L(several);
      for (int k = 0; k < unrolled_; ++k) body(emitter, s_.program, k);
      advance(unrolled_);
      a.sub(a.count, unrolled_);
      a.cmp(a.count, unrolled_);
      a.jge(several);
      a.test(a.count, a.count);
      a.jz(done);
    }
    a.align(32);
    a.L(single);
    body(emitter, s_.program, 0);
    advance(1);
    a.dec(a.count);
    a.jnz(single);
    a.L(done);
  }

  /// The head of the first feature, turns that end one feature and begin the next, the tail of the last one.
  void rotated_loop(ProgramEmitter& emitter) {
    const auto part = [&](ProgramEmitter::Part which) {
      emitter.emit(which, inputs_of(rotation_->program, 0, 0), inputs_of(rotation_->program, 0, -1), states_of(0));
    };
    Xbyak::Label turn, drain;
    part(ProgramEmitter::Part::head);
    advance(1);
    a.dec(a.count);
    a.jz(drain, Xbyak::CodeGenerator::T_NEAR);
    a.align(32);
    a.L(turn);
    part(ProgramEmitter::Part::turn);
    advance(1);
    a.dec(a.count);
    a.jnz(turn);
    a.L(drain);
    part(ProgramEmitter::Part::tail);
  }

  template <class Body>
  void each_accumulator(int state, Body&& body) {
    for (int row = 0; row < s_.tile.rows; ++row)
      for (int v = 0; v < s_.tile.vectors; ++v) body(a.reg(accumulator(state, row, v)), acc_offset(state, row, v));
  }

  const Xbyak::Reg64& remaining() const { return a.loop; }
  const Xbyak::Reg64& chunk() const { return a.pair; }
  const Xbyak::Reg64& first_chunk() const { return a.out; }

  bool has_heads() const { return !s_.start.outputs.empty(); }

  void pin(ProgramEmitter& emitter) {
    emitter.pin_constants(inputs_of(rotation_ ? rotation_->program : s_.program, 0, 0));
  }

  void start() {
    if (has_heads()) return;
    a.mov(a.scratch, a.ptr[a.args + static_cast<int>(offsetof(UpdateArgs, identity))]);
    for (int state = 0; state < states_; ++state)
      each_accumulator(state, [&](const Xbyak::Xmm& reg, int offset) {
        if (s_.promoted[state]) a.zero(reg);
        else if (s_.continues) a.move(reg, a.ptr[a.acc + offset]);
        else a.broadcast(reg, a.scratch + state * element_);
      });
  }

  int x_step() const { return s_.x_streams * s_.tile.rows * element_; }
  int z_step() const { return s_.z_streams * s_.tile.cols() * element_; }

  /// `ahead`: features beyond the pointers.
  Binding bind(const Input& input, int row, int ahead = 0) const {
    const int rows = s_.tile.rows, cols = s_.tile.cols();
    switch (input.site) {
      case Site::x: return Binding::broadcast(a.x, ahead * x_step() + (input.slot * rows + row) * element_);
      case Site::z:
        if (s_.tile.rows == 1) return Binding::memory(a.z, ahead * z_step() + input.slot * cols * element_);
        return Binding::registers(z_register(input.slot));
      case Site::w: return Binding::broadcast(a.w, ahead * element_);
      case Site::param: return Binding::broadcast(a.params, input.slot * element_);
      case Site::row:
      case Site::index_i: return Binding::broadcast(a.row, (point_slot(input) * rows + row) * element_);
      case Site::col:
      case Site::index_j: return Binding::memory(a.col, point_slot(input) * cols * element_);
      case Site::accumulator: return Binding::registers(accumulator(input.slot, row, 0));
      default: refuse_input("update", input.site);
    }
  }

  void body(ProgramEmitter& emitter, const ir::Program& program, int ahead) {
    for (int stream = 0; stream < z_registers(); ++stream)
      for (int v = 0; v < s_.tile.vectors; ++v)
        a.move(a.reg(z_register(stream) + v),
               a.ptr[a.z + ahead * z_step() + (stream * s_.tile.cols() + v * s_.tile.lanes) * element_]);
    for (int row = 0; row < s_.tile.rows; ++row) instance(emitter, program, row, ahead);
  }

  /// The program for one row, its outputs the new states.
  void instance(ProgramEmitter& emitter, const ir::Program& program, int row, int ahead) {
    emitter.emit(inputs_of(program, row, ahead), states_of(row));
  }

  std::vector<Binding> inputs_of(const ir::Program& program, int row, int ahead) const {
    std::vector<Binding> inputs;
    for (const Input& input : program.inputs) inputs.push_back(bind(input, row, ahead));
    return inputs;
  }

  std::vector<Binding> states_of(int row) const {
    std::vector<Binding> outputs;
    for (int state = 0; state < states_; ++state) outputs.push_back(Binding::registers(accumulator(state, row, 0)));
    return outputs;
  }

  void advance(int features) {
    if (x_step() > 0) a.add(a.x, features * x_step());
    if (z_step() > 0) a.add(a.z, features * z_step());
    if (reads_weights_) a.add(a.w, features * element_);
  }

  template <class Body>
  void each_sum(Body&& body) {
    for (int state = 0; state < states_; ++state)
      if (s_.promoted[state]) each_accumulator(state, body);
  }

  /// Sums go to memory after a chunk: stored after the first, added after the others. With `again` they start at zero.
  void store_sums(bool again) {
    if (std::find(s_.promoted.begin(), s_.promoted.end(), true) == s_.promoted.end()) return;
    Xbyak::Label store;
    a.test(first_chunk(), first_chunk());
    a.jnz(store);
    each_sum([&](const Xbyak::Xmm& reg, int offset) { a.binary(ir::Prim::add, reg, reg, a.ptr[a.acc + offset]); });
    a.L(store);
    each_sum([&](const Xbyak::Xmm& reg, int offset) {
      a.store(a.ptr[a.acc + offset], reg);
      if (again) a.zero(reg);
    });
    a.xor_(first_chunk(), first_chunk());
  }

  /// The last chunk's sums stay in registers for the epilogue; those before it are in memory.
  void add_earlier_chunks() {
    Xbyak::Label only;
    a.test(first_chunk(), first_chunk());
    a.jnz(only);
    each_sum([&](const Xbyak::Xmm& reg, int offset) { a.binary(ir::Prim::add, reg, reg, a.ptr[a.acc + offset]); });
    a.L(only);
  }

  /// The smallest sum of each column against the bounds after the panels. x moves on to the next panel.
  void guard() {
    if (!s_.guarded) return;
    const int first = states_ * s_.tile.rows * s_.tile.vectors;
    auto least = [&](int v) { return a.reg(first + v); };
    for (int v = 0; v < s_.tile.vectors; ++v) {
      a.move(least(v), a.reg(accumulator(0, 0, v)));
      for (int row = 1; row < s_.tile.rows; ++row)
        a.binary(ir::Prim::min, least(v), least(v), a.reg(accumulator(0, row, v)));
      a.binary(ir::Prim::sub, least(v), least(v), a.ptr[a.z + v * a.vector_bytes()]);
      if (v > 0) a.binary(ir::Prim::min, least(0), least(0), least(v));
    }
    const Xbyak::Xmm bound = a.reg(first + s_.tile.vectors);
    a.broadcast(bound, a.x);
    a.mask_not_at_least(a.count, least(0), bound);
    a.mov(a.scratch, a.qword[a.rsp + kDoubtfulSlot]);
    a.mov(a.dword[a.scratch], a.count.cvt32());
    a.add(a.qword[a.rsp + kDoubtfulSlot], 4);
    a.add(a.x, x_step());
  }

  /// The epilogue of every row on the accumulators; the registers of z and of the update's constants are free now.
  void run_epilogue() {
    const int accumulators = states_ * s_.tile.rows * s_.tile.vectors;
    const int group = plan::fused_group(s_.epilogue, s_.tile, states_, info_);
    if (group == 0) fail(ErrorKind::compile, "codegen: the epilogue does not fit next to the accumulators.");
    ProgramEmitter emitter(a, s_.epilogue, s_.tile.vectors, register_range(accumulators, info_.registers), group);
    a.mov(a.out, a.qword[a.rsp + kOutSlot]);
    MERCER_LOAD(out_stride, UpdateArgs, pair);
    emitter.pin_constants();
    for (int row = 0; row < s_.tile.rows; ++row) {
      std::vector<Binding> inputs, outputs;
      for (const Input& input : s_.epilogue.inputs) inputs.push_back(bind(input, row));
      for (std::size_t p = 0; p < s_.epilogue.outputs.size(); ++p)
        outputs.push_back(Binding::memory(a.out, static_cast<int>(p * s_.plane) * element_));
      emitter.emit(inputs, outputs);
      a.add(a.out, a.pair);
    }
    a.mov(a.qword[a.rsp + kOutSlot], a.out);
    if (s_.row_slots > 0) a.add(a.row, s_.row_slots * s_.tile.rows * element_);
  }

  // Slots after the spilled values: the tiles to go, where the next one writes, and where it says that it is doubtful.
  static constexpr int kTilesSlot = ProgramEmitter::kStackBytes, kOutSlot = kTilesSlot + 8;
  static constexpr int kDoubtfulSlot = kOutSlot + 8, kFrameBytes = kTilesSlot + 64;

  const UpdateSource& s_;
  const plan::TargetInfo& info_;
  VectorAssembler a;
  int element_, states_;
  int unrolled_;  // features of one turn of the loop
  std::optional<plan::Rotation> rotation_;
  bool reads_weights_;
};

/// Loop over rows; a row's vectors in groups that fit the registers.
class EpilogueEmitter {
 public:
  explicit EpilogueEmitter(const EpilogueSource& source)
      : s_(source), info_(plan::target_info(source.target)), a(info_, source.program.type),
        element_(a.element_bytes()) {}

  std::vector<std::uint8_t> emit() {
    int group = s_.tile.vectors;
    while (group > 1 && (s_.tile.vectors % group != 0 ||
                         plan::temporaries(s_.program, group, info_.embedded_broadcast) + 2 > info_.registers ||
                         !plan::masks_fit(s_.program, group, info_)))
      --group;
    ProgramEmitter emitter(a, s_.program, group, register_range(0, info_.registers));
    a.enter(ProgramEmitter::kStackBytes);
    MERCER_LOAD(acc, EpilogueArgs, acc);
    MERCER_LOAD(row, EpilogueArgs, row);
    MERCER_LOAD(col, EpilogueArgs, col);
    MERCER_LOAD(params, EpilogueArgs, params);
    MERCER_LOAD(out, EpilogueArgs, out);
    MERCER_LOAD(out_stride, EpilogueArgs, pair);
    MERCER_LOAD(rows, EpilogueArgs, count);
    emitter.pin_constants();
    Xbyak::Label again, done;
    a.test(a.count, a.count);
    a.jz(done);
    a.align(32);
    a.L(again);
    for (int first = 0; first < s_.tile.vectors; first += group) instance(emitter, first);
    a.add(a.acc, s_.tile.cols() * element_);
    a.add(a.row, element_);
    a.add(a.out, a.pair);
    a.dec(a.count);
    a.jnz(again);
    a.L(done);
    a.leave();
    return a.finish();
  }

 private:
  void instance(ProgramEmitter& emitter, int first_vector) {
    const int shift = first_vector * a.vector_bytes();
    std::vector<Binding> inputs, outputs;
    for (const Input& input : s_.program.inputs) inputs.push_back(bind(input, shift));
    for (std::size_t p = 0; p < s_.program.outputs.size(); ++p)
      outputs.push_back(Binding::memory(a.out, static_cast<int>(p * s_.plane) * element_ + shift));
    emitter.emit(inputs, outputs);
  }

  Binding bind(const Input& input, int shift) const {
    const int rows = s_.tile.rows, cols = s_.tile.cols();
    switch (input.site) {
      case Site::accumulator: return Binding::memory(a.acc, input.slot * rows * cols * element_ + shift);
      case Site::row:
      case Site::index_i: return Binding::broadcast(a.row, point_slot(input) * rows * element_);
      case Site::col:
      case Site::index_j: return Binding::memory(a.col, point_slot(input) * cols * element_ + shift);
      case Site::param: return Binding::broadcast(a.params, input.slot * element_);
      default: refuse_input("epilogue", input.site);
    }
  }

  const EpilogueSource& s_;
  const plan::TargetInfo& info_;
  VectorAssembler a;
  int element_;
};

/// Loop over n; features along the vectors, the accumulators of all outputs in registers.
class FieldEmitter {
 public:
  explicit FieldEmitter(const FieldSource& source)
      : s_(source), info_(plan::target_info(source.target)), a(info_, source.program.type), element_(a.element_bytes()),
        program_(with_contraction(source)) {}

  std::vector<std::uint8_t> emit() {
    const int sums = s_.rows * s_.results() * s_.vectors;
    x_ = sums;
    z_ = x_ + (s_.holds ? s_.rows * s_.vectors : 0);
    coef_ = z_ + (s_.rows > 1 ? s_.vectors : 0);
    const int first_free = coef_ + (s_.holds ? s_.outputs : 0);
    if (first_free >= info_.registers) fail(ErrorKind::compile, "codegen: the register tile does not fit the target.");
    if (s_.rows > 1 && !s_.holds) fail(ErrorKind::compile, "codegen: rows of a field must be held in registers.");
    ProgramEmitter emitter(a, program_, s_.vectors, register_range(first_free, info_.registers));
    a.enter(ProgramEmitter::kStackBytes);
    MERCER_LOAD(x, FieldArgs, x);
    MERCER_LOAD(z, FieldArgs, z);
    MERCER_LOAD(w, FieldArgs, w);
    MERCER_LOAD(params, FieldArgs, params);
    MERCER_LOAD(row, FieldArgs, row);
    MERCER_LOAD(col, FieldArgs, col);
    MERCER_LOAD(pair, FieldArgs, pair);
    MERCER_LOAD(coef, FieldArgs, out);
    MERCER_LOAD(acc, FieldArgs, acc);
    MERCER_LOAD(z_stride, FieldArgs, loop);
    MERCER_LOAD(n, FieldArgs, count);
    emitter.pin_constants();
    for (int r = 0; r < sums; ++r) {
      if (s_.states > 0) a.move(a.reg(r), a.ptr[a.acc + r * a.vector_bytes()]);
      else a.zero(a.reg(r));
    }
    for (int r = x_; r < z_; ++r) a.move(a.reg(r), a.ptr[a.x + (r - x_) * a.vector_bytes()]);
    Xbyak::Label again, done;
    a.test(a.count, a.count);
    a.jz(done);
    a.align(32);
    a.L(again);
    for (int v = 0; s_.rows > 1 && v < s_.vectors; ++v)
      a.move(a.reg(z_ + v), a.ptr[a.z + v * a.vector_bytes()]);
    for (int r = 0; r < s_.rows; ++r) body(emitter, r);
    a.add(a.z, a.loop);
    a.add(a.col, element_);
    a.add(a.pair, element_);
    a.add(a.out, s_.outputs * element_);
    a.dec(a.count);
    a.jnz(again);
    a.L(done);
    for (int r = 0; r < sums; ++r) a.store(a.ptr[a.acc + r * a.vector_bytes()], a.reg(r));
    a.leave();
    return a.finish();
  }

 private:
  void body(ProgramEmitter& emitter, int row) {
    std::vector<Binding> inputs, outputs;
    for (int o = 0; s_.holds && o < s_.outputs; ++o)
      a.broadcast(a.reg(coef_ + o), a.out + (row * s_.coef_row + o) * element_);
    for (const Input& input : program_.inputs) inputs.push_back(bind(input, row));
    for (int o = 0; o < s_.results(); ++o) outputs.push_back(Binding::registers((row * s_.results() + o) * s_.vectors));
    emitter.emit(inputs, outputs);
  }

  Binding bind(const Input& input, int row) const {
    switch (input.site) {
      case Site::x: return s_.holds ? Binding::registers(x_ + row * s_.vectors) : Binding::memory(a.x, 0);
      case Site::z: return s_.rows > 1 ? Binding::registers(z_) : Binding::memory(a.z, 0);
      case Site::w: return Binding::memory(a.w, 0);
      case Site::param: return Binding::broadcast(a.params, input.slot * element_);
      case Site::row:
      case Site::index_i: return Binding::broadcast(a.row, (row * s_.row_stride + point_slot(input)) * element_);
      case Site::col:
      case Site::index_j: return Binding::broadcast(a.col, point_slot(input) * s_.n_capacity * element_);
      case Site::pair_value:
        return Binding::broadcast(a.pair, (input.slot * s_.pair_stride + row * s_.pair_row) * element_);
      case Site::incoming:
        return s_.holds ? Binding::shared_register(coef_ + input.slot)
                        : Binding::broadcast(a.out, input.slot * element_);
      case Site::accumulator: return Binding::registers((row * s_.results() + input.slot) * s_.vectors);
      default: refuse_input("field", input.site);
    }
  }

  const FieldSource& s_;
  const plan::TargetInfo& info_;
  VectorAssembler a;
  int element_;
  ir::Program program_;
  int x_ = 0, z_ = 0, coef_ = 0;  // the first registers of what is held
};

#undef MERCER_LOAD

}  // namespace

std::vector<std::uint8_t> emit_update(const UpdateSource& source) { return UpdateEmitter(source).emit(); }
std::vector<std::uint8_t> emit_epilogue(const EpilogueSource& source) { return EpilogueEmitter(source).emit(); }
std::vector<std::uint8_t> emit_field(const FieldSource& source) { return FieldEmitter(source).emit(); }

}  // namespace mercer::codegen
