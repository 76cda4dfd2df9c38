#include "codegen/cuda/cuda_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "core/dtypes.h"
#include "core/error.h"
#include "ir/expr/ptx.h"

namespace mercer::codegen {
namespace {

using ir::Prim;

class Statements {
 public:
  Statements(const ir::Program& program, const InputName& input)
      : program_(program), input_(input), wide_(program.type == Dtype::float64) {}

  std::string text(const OutputName& output) {
    for (std::size_t t = 0; t < program_.tables.size(); ++t) {
      text_ += fmt::format("  static const {} table{}[16] = {{", type(), t);
      for (double entry : program_.tables[t]) text_ += cuda_number(entry, program_.type) + ", ";
      text_ += "};\n";
    }
    for (std::size_t at = 0; at < program_.code.size(); ++at) add(at);
    for (std::size_t o = 0; o < program_.outputs.size(); ++o)
      text_ += fmt::format("  const {} result{} = {};\n", type(), o, name(program_.outputs[o]));
    for (std::size_t o = 0; o < program_.outputs.size(); ++o) text_ += fmt::format("  {} = result{};\n", output(o), o);
    return text_;
  }

 private:
  const char* type() const { return cuda_type(program_.type); }
  const ir::Instr& at(std::int32_t id) const { return program_.code[static_cast<std::size_t>(id)]; }
  std::string name(std::int32_t id) const { return names_[static_cast<std::size_t>(id)]; }
  std::string call(const char* stem, const std::string& arguments) const {
    return fmt::format("{}{}({})", stem, wide_ ? "" : "f", arguments);
  }

  void add(std::size_t index);
  std::string expression(const ir::Instr& instr) const;
  std::string bits(const char* format, const ir::Instr& instr) const;
  std::string sign_operation(const ir::Instr& instr) const;
  std::string ptx_output(std::size_t index);
  std::string asm_text(const std::string& ptx, const ir::PtxTypes& types) const;

  const ir::Program& program_;
  const InputName& input_;
  bool wide_;
  std::vector<std::string> names_;
  std::map<std::vector<std::int32_t>, std::size_t> ptx_;  // text and operands, and where they were computed first
  std::string text_;
};

void Statements::add(std::size_t index) {
  const ir::Instr& instr = program_.code[index];
  if (instr.op == Prim::input) {
    names_.push_back(input_(program_.inputs[static_cast<std::size_t>(instr.index)]));
    return;
  }
  if (instr.op == Prim::constant) {
    const double value = wide_ ? std::bit_cast<double>(instr.bits)
                               : std::bit_cast<float>(static_cast<std::uint32_t>(instr.bits));
    const bool plain = std::isfinite(value) && (value == 0 || std::isnormal(wide_ ? value : static_cast<float>(value)));
    names_.push_back(plain ? cuda_number(value, program_.type)
                           : fmt::format("float_of({:#x}{})", instr.bits, wide_ ? "ull" : "u"));
    return;
  }
  if (instr.op == Prim::ptx) {
    names_.push_back(ptx_output(index));
    return;
  }
  names_.push_back(fmt::format("v{}", index));
  const char* kind = ir::makes_mask(instr.op) ? "bool" : type();
  text_ += fmt::format("  const {} v{} = {};\n", kind, index, expression(instr));
}

/// The name of one output of a user's PTX; the first of them computes all, as v7_0, v7_1, ....
std::string Statements::ptx_output(std::size_t index) {
  const ir::Instr& instr = program_.code[index];
  const auto [place, fresh] = ptx_.try_emplace(ir::parts_of_ptx(instr), index);
  const auto output = [&](std::uint64_t o) { return fmt::format("v{}_{}", place->second, o); };
  if (!fresh) return output(instr.bits);
  const std::string& ptx = program_.ptx[static_cast<std::size_t>(instr.index)];
  const ir::PtxTypes types = ir::ptx_types(ptx, static_cast<std::size_t>(ir::operand_count(instr)));
  std::string declared, writes, reads;
  for (int o = 0; o < ir::ptx_output_count(ptx); ++o) {
    declared += (o > 0 ? ", " : "") + output(static_cast<std::uint64_t>(o));
    writes += fmt::format("{}\"=f\"({})", o > 0 ? ", " : "", output(static_cast<std::uint64_t>(o)));
  }
  for (int i = 0; i < ir::operand_count(instr); ++i) {
    const bool as_bits = types.inputs[static_cast<std::size_t>(i)] == ir::PtxType::u32;
    const std::string value = name(ir::operand_of(instr, i));
    reads += fmt::format(fmt::runtime(as_bits ? "{}\"r\"(bits_of({}))" : "{}\"f\"({})"), i > 0 ? ", " : "", value);
  }
  text_ += fmt::format("{}{}\n  float {};\n", kPtxComment, ptx, declared);
  text_ += fmt::format("  asm(\"{}\" : {} : {});\n", asm_text(ptx, types), writes, reads);
  return output(instr.bits);
}

/// The text in braces, so that its registers and labels are its own. A text of several instructions writes its outputs
/// before it has read all inputs, which may share their registers: it writes others, moved at the end, and so does one
/// whose outputs have other types than floats. Predicates are made of their inputs ahead of the text.
std::string Statements::asm_text(const std::string& ptx, const ir::PtxTypes& types) const {
  using ir::PtxType;
  const std::size_t outputs = types.outputs.size();
  const auto is_float = [](PtxType type) { return type == PtxType::f32; };
  const bool direct = ir::ptx_instructions(ptx).size() == 1 &&
                      std::all_of(types.outputs.begin(), types.outputs.end(), is_float);
  std::string before, body, after;
  for (std::size_t i = 0; i < types.inputs.size(); ++i)
    if (types.inputs[i] == PtxType::pred)
      before += fmt::format(".reg .pred mercer_in{0}; setp.neu.f32 mercer_in{0}, %{1}, 0f00000000; ", i, outputs + i);
  for (const ir::PtxPart& part : ir::ptx_parts(ptx)) {
    const auto index = static_cast<std::size_t>(part.index);
    if (part.kind == ir::PtxPart::input && types.inputs[index] == PtxType::pred)
      body += fmt::format("mercer_in{}", index);
    else if (part.kind == ir::PtxPart::input) body += fmt::format("%{}", outputs + index);
    else if (part.kind == ir::PtxPart::output) body += fmt::format("{}{}", direct ? "%" : "mercer_out", index);
    else for (char c : part.text) body += c == '%' ? "%%" : std::string(1, c);
  }
  for (std::size_t o = 0; o < outputs && !direct; ++o) {
    const PtxType type = types.outputs[o];
    const char* name = is_float(type) ? "f32" : type == PtxType::u32 ? "u32" : "pred";
    before += fmt::format(".reg .{} mercer_out{}; ", name, o);
    after += type == PtxType::pred ? fmt::format(" selp.f32 %{0}, 0f3F800000, 0f00000000, mercer_out{0};", o)
                                   : fmt::format(" mov.b32 %{0}, mercer_out{0};", o);
  }
  return fmt::format("{{ {}{}{} }}", before, body, after);
}

/// An operation on patterns: {0}, {1} stand for the operands' bits, {2} for the shift.
std::string Statements::bits(const char* format, const ir::Instr& instr) const {
  const auto pattern = [&](std::int32_t id) {
    if (id < 0) return std::string();
    if (at(id).op == Prim::constant) return fmt::format("{:#x}{}", at(id).bits, wide_ ? "ull" : "u");
    return fmt::format("bits_of({})", name(id));
  };
  return fmt::format("float_of({})", fmt::format(fmt::runtime(format), pattern(instr.a), pattern(instr.b), instr.bits));
}

/// |a| and -a cost nothing as modifiers of the instruction that reads them, so they are named for the compiler.
std::string Statements::sign_operation(const ir::Instr& instr) const {
  const std::uint64_t sign = std::uint64_t(1) << (wide_ ? 63 : 31), rest = sign - 1;
  for (const auto& [value, mask] : {std::pair(instr.a, instr.b), std::pair(instr.b, instr.a)}) {
    if (at(mask).op != Prim::constant) continue;
    if (instr.op == Prim::bit_and && at(mask).bits == rest) return call("fabs", name(value));
    if (instr.op == Prim::bit_xor && at(mask).bits == sign) return fmt::format("-{}", name(value));
  }
  return bits(instr.op == Prim::bit_and ? "{0} & {1}" : "{0} ^ {1}", instr);
}

std::string Statements::expression(const ir::Instr& instr) const {
  const std::string a = instr.a < 0 ? "" : name(instr.a), b = instr.b < 0 ? "" : name(instr.b),
                    c = instr.c < 0 ? "" : name(instr.c);
  switch (instr.op) {
    case Prim::add: return fmt::format("{} + {}", a, b);
    case Prim::sub: return fmt::format("{} - {}", a, b);
    case Prim::mul: return fmt::format("{} * {}", a, b);
    case Prim::div: return fmt::format("quotient({}, {})", a, b);
    case Prim::fma: return fmt::format("mul_add({}, {}, {})", a, b, c);
    case Prim::fnma: return fmt::format("mul_add(-{}, {}, {})", a, b, c);
    case Prim::min: return fmt::format("{0} < {1} ? {0} : {1}", a, b);
    case Prim::max: return fmt::format("{0} > {1} ? {0} : {1}", a, b);
    case Prim::abs_max: return fmt::format("max_nan({}, {})", call("fabs", a), call("fabs", b));
    case Prim::sqrt: return fmt::format("square_root({})", a);
    case Prim::max_nan:
    case Prim::min_nan: return fmt::format("{}({}, {})", ir::name_of(instr.op), a, b);
    case Prim::exp2_unit:
    case Prim::log2_unit:
    case Prim::sqrt_unit: return fmt::format("{}({})", ir::name_of(instr.op), a);
    case Prim::floor: return call("floor", a);
    case Prim::ceil: return call("ceil", a);
    case Prim::round: return call("rint", a);
    case Prim::large_sine: return fmt::format("large_{}({}, {})", instr.bits ? "cosine" : "sine", a, b);
    case Prim::bit_and:
    case Prim::bit_xor: return sign_operation(instr);
    case Prim::bit_or: return bits("{0} | {1}", instr);
    case Prim::bit_andnot: return bits("~{0} & {1}", instr);
    case Prim::shift_left: return bits("{0} << {2}", instr);
    case Prim::shift_right: return bits("{0} >> {2}", instr);
    case Prim::int_add: return bits("{0} + {1}", instr);
    case Prim::int_sub: return bits("{0} - {1}", instr);
    case Prim::int_max:
      return bits(instr.bits ? "{0} > {1} ? {0} : {1}" : "(int){0} > (int){1} ? {0} : {1}", instr);
    case Prim::int_to_float: return fmt::format("(float)(int)bits_of({})", a);
    case Prim::less: return fmt::format("{} < {}", a, b);
    case Prim::less_equal: return fmt::format("{} <= {}", a, b);
    case Prim::equal: return fmt::format("{} == {}", a, b);
    case Prim::not_equal: return fmt::format("!({} == {})", a, b);
    case Prim::unordered: return fmt::format("{0} != {0} || {1} != {1}", a, b);
    case Prim::mask_and: return fmt::format("{} && {}", a, b);
    case Prim::mask_or: return fmt::format("{} || {}", a, b);
    case Prim::mask_xor: return fmt::format("{} != {}", a, b);
    case Prim::mask_not: return fmt::format("!{}", a);
    case Prim::select: return fmt::format("{} ? {} : {}", a, b, c);
    case Prim::table16: return fmt::format("table{}[bits_of({}) & 15]", instr.index, a);
    case Prim::power_poly:
    case Prim::power_scale: return fmt::format("{}({})", ir::name_of(instr.op), a);
    case Prim::ptx:
    case Prim::input:
    case Prim::constant: break;
  }
  fail(ErrorKind::compile, "cuda_statements: '{}' has no CUDA form.", ir::name_of(instr.op));
}

}  // namespace

const char* cuda_type(Dtype type) { return type == Dtype::float64 ? "double" : "float"; }

const char* element_type(Dtype dtype) {
  if (const char* text = row_of(dtype).device_text) return text;
  fail(ErrorKind::compile, "cuda: no elements of {}.", name_of(dtype));
}

std::string cuda_number(double value, Dtype type) {
  const bool wide = type == Dtype::float64;
  if (std::isnan(value)) return wide ? "float_of(0x7ff8000000000000ull)" : "float_of(0x7fc00000u)";
  if (std::isinf(value)) return fmt::format("{}({})INFINITY", value < 0 ? "-" : "", cuda_type(type));
  std::string text = wide ? fmt::format("{:.17g}", value) : fmt::format("{:.9g}", static_cast<float>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  if (!wide) text += "f";
  return std::signbit(value) ? "(" + text + ")" : text;
}

std::vector<std::string> ptx_of(std::string_view source) {
  std::vector<std::string> found;
  for (auto at = source.find(kPtxComment); at != std::string_view::npos; at = source.find(kPtxComment, at)) {
    at += kPtxComment.size();
    const std::string text(source.substr(at, source.find('\n', at) - at));
    if (std::find(found.begin(), found.end(), text) == found.end()) found.push_back(text);
  }
  return found;
}

std::string cuda_statements(const ir::Program& program, const InputName& input, const OutputName& output) {
  return Statements(program, input).text(output);
}

}  // namespace mercer::codegen
