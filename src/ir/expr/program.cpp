#include "ir/expr/program.h"

#include <iterator>

#include "core/error.h"
#include "ir/expr/prim_semantics.h"

namespace mercer::ir {
namespace {

struct PrimRow {
  const char* name;
  int operands;
};

// Rows in the order of the enumeration.
constexpr PrimRow kPrims[] = {
    {"input", 0},      {"constant", 0},   {"add", 2},         {"sub", 2},      {"mul", 2},       {"div", 2},
    {"fma", 3},        {"fnma", 3},       {"min", 2},         {"max", 2},      {"abs_max", 2},   {"sqrt", 1},
    {"max_nan", 2},    {"min_nan", 2},    {"exp2_unit", 1},   {"log2_unit", 1}, {"sqrt_unit", 1},
    {"floor", 1},      {"ceil", 1},       {"round", 1},       {"large_sine", 2},
    {"bit_and", 2},    {"bit_or", 2},     {"bit_xor", 2},
    {"bit_andnot", 2}, {"shift_left", 1}, {"shift_right", 1}, {"int_add", 2},  {"int_sub", 2},   {"int_max", 2},
    {"int_to_float", 1}, {"table16", 1},  {"power_poly", 1}, {"power_scale", 1}, {"ptx", 8},
    {"less", 2},       {"less_equal", 2},  {"equal", 2},    {"not_equal", 2}, {"unordered", 2},
    {"mask_and", 2},   {"mask_or", 2},    {"mask_xor", 2},    {"mask_not", 1}, {"select", 3},
};
static_assert(std::size(kPrims) == static_cast<std::size_t>(Prim::select) + 1);

constexpr const char* kSites[] = {"x",   "z",          "w",       "row",     "col",      "param",
                                  "acc", "pair_value", "index_i", "index_j", "features", "incoming"};
static_assert(std::size(kSites) == static_cast<std::size_t>(Site::incoming) + 1);

std::string constant_text(std::uint64_t bits, Dtype type) {
  if (type == Dtype::float64) return fmt::format("0x{:016x} ({:.17g})", bits, std::bit_cast<double>(bits));
  return fmt::format("0x{:08x} ({:.9g})", bits, std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
}

std::string instr_text(const Program& program, const Instr& instr) {
  std::string text = name_of(instr.op);
  for (int operand = 0; operand < operand_count(instr); ++operand)
    text += fmt::format(" v{}", operand_of(instr, operand));
  switch (instr.op) {
    case Prim::input: return text + " " + name_of(program.inputs[static_cast<std::size_t>(instr.index)]);
    case Prim::constant: return text + " " + constant_text(instr.bits, program.type);
    case Prim::table16: return text + fmt::format(" table {}", instr.index);
    case Prim::ptx:
      return text + fmt::format(" \"{}\" output {}", program.ptx[static_cast<std::size_t>(instr.index)], instr.bits);
    case Prim::shift_left:
    case Prim::shift_right: return text + fmt::format(" by {}", instr.bits);
    case Prim::int_max: return text + (instr.bits ? " unsigned" : "");
    case Prim::large_sine: return text + (instr.bits ? " cosine" : " sine");
    default: return text;
  }
}

template <class... Args>
void check(bool ok, std::size_t at, fmt::format_string<Args...> format, Args&&... args) {
  if (ok) return;
  fail(ErrorKind::compile, "program: {} at v{}.", fmt::format(format, std::forward<Args>(args)...), at);
}

bool wants_mask(Prim op, int operand) {
  return (op >= Prim::mask_and && op <= Prim::mask_not) || (op == Prim::select && operand == 0);
}

void verify_instr(const Program& program, std::size_t at) {
  const Instr& instr = program.code[at];
  const std::uint64_t width = program.type == Dtype::float64 ? 64 : 32;
  for (int operand = 0; operand < operand_count(instr); ++operand) {
    const std::int32_t from = operand_of(instr, operand);
    check(from >= 0 && static_cast<std::size_t>(from) < at, at, "operands must come earlier. Received v{}", from);
    const bool mask = makes_mask(program.code[static_cast<std::size_t>(from)].op);
    check(mask == wants_mask(instr.op, operand), at, "{} takes {} as operand {}", name_of(instr.op),
          mask ? "no mask" : "a mask", operand);
  }
  const auto in_range = [&](std::size_t size) {
    return instr.index >= 0 && static_cast<std::size_t>(instr.index) < size;
  };
  if (instr.op == Prim::input) check(in_range(program.inputs.size()), at, "no input {}", instr.index);
  if (instr.op == Prim::power_poly || instr.op == Prim::power_scale)
    check(in_range(program.powers.size()), at, "no power {}", instr.index);
  if (instr.op == Prim::table16) check(in_range(program.tables.size()), at, "no table {}", instr.index);
  if (instr.op == Prim::ptx) check(width == 32 && in_range(program.ptx.size()), at, "no PTX {}", instr.index);
  if (instr.op == Prim::int_max || instr.op == Prim::int_to_float)
    check(width == 32, at, "{} is for float32 programs", name_of(instr.op));
  if (instr.op == Prim::constant) check(width == 64 || instr.bits >> 32 == 0, at, "constant wider than the type");
  if (instr.op == Prim::shift_left || instr.op == Prim::shift_right)
    check(instr.bits < width, at, "shifts are less than the width. Received {}", instr.bits);
}

template <class T>
Pattern<T> table_entry(const Program& program, const Instr& instr, Pattern<T> a) {
  return pattern_of(static_cast<T>(program.tables[static_cast<std::size_t>(instr.index)][a & 15]));
}

template <class T>
Pattern<T> power_of(const Program& program, const Instr& instr, Pattern<T> a) {
  const Power& exponent = program.powers[static_cast<std::size_t>(instr.index)];
  if (exponent.param >= 0) fail(ErrorKind::unsupported, "run: tables of a parameter's powers are made on GPUs alone.");
  return pattern_of(static_cast<T>(std::pow(std::fabs(std::bit_cast<T>(a)), exponent.number)));
}

}  // namespace

int operand_count(Prim p) { return kPrims[static_cast<int>(p)].operands; }
int operand_count(const Instr& instr) {
  if (instr.op != Prim::ptx) return operand_count(instr.op);
  int count = 0;
  while (count < operand_count(instr.op) && operand_of(instr, count) >= 0) ++count;
  return count;
}
std::vector<std::int32_t> parts_of_ptx(const Instr& instr) {
  std::vector<std::int32_t> parts{instr.index};
  for (int i = 0; i < operand_count(instr); ++i) parts.push_back(operand_of(instr, i));
  return parts;
}
const char* name_of(Prim p) { return kPrims[static_cast<int>(p)].name; }

std::string name_of(const Input& input) {
  return fmt::format("{}{}", kSites[static_cast<int>(input.site)], input.slot);
}

std::string Program::to_text() const {
  std::string text = fmt::format("{} program\n", mercer::name_of(type));
  for (std::size_t at = 0; at < code.size(); ++at) text += fmt::format("  v{} = {}\n", at, instr_text(*this, code[at]));
  text += "  return";
  for (std::int32_t output : outputs) text += fmt::format(" v{}", output);
  return text + "\n";
}

void verify(const Program& program) {
  if (program.type != Dtype::float32 && program.type != Dtype::float64)
    fail(ErrorKind::compile, "program: the type must be float32 or float64. Received {}.", name_of(program.type));
  for (std::size_t at = 0; at < program.code.size(); ++at) verify_instr(program, at);
  for (std::int32_t output : program.outputs) {
    check(output >= 0 && static_cast<std::size_t>(output) < program.code.size(), program.code.size(), "no output v{}",
          output);
    check(!makes_mask(program.code[static_cast<std::size_t>(output)].op), program.code.size(), "output v{} is a mask",
          output);
  }
}

template <class T>
std::vector<T> run(const Program& program, const std::vector<T>& inputs) {
  if (program.type != dtype_of<T>() || inputs.size() != program.inputs.size())
    fail(ErrorKind::invalid_argument, "run: a {} program of {} inputs. Received {} of {}.", name_of(program.type),
         program.inputs.size(), name_of(dtype_of<T>()), inputs.size());
  std::vector<Pattern<T>> values;
  values.reserve(program.code.size());
  const auto value = [&](std::int32_t at) { return at < 0 ? Pattern<T>(0) : values[static_cast<std::size_t>(at)]; };
  for (const Instr& instr : program.code) {
    switch (instr.op) {
      case Prim::input: values.push_back(pattern_of(inputs[static_cast<std::size_t>(instr.index)])); break;
      case Prim::constant: values.push_back(static_cast<Pattern<T>>(instr.bits)); break;
      case Prim::power_poly: values.push_back(pattern_of(T(1))); break;
      case Prim::power_scale:
        values.push_back(power_of<T>(program, instr, value(instr.a)));
        break;
      case Prim::ptx: fail(ErrorKind::unsupported, "run: a user's PTX runs on GPUs alone.");
      case Prim::table16: values.push_back(table_entry<T>(program, instr, value(instr.a))); break;
      default: values.push_back(apply_prim<T>(instr.op, value(instr.a), value(instr.b), value(instr.c), instr.bits));
    }
  }
  std::vector<T> results;
  for (std::int32_t output : program.outputs) results.push_back(std::bit_cast<T>(value(output)));
  return results;
}

template std::vector<float> run(const Program&, const std::vector<float>&);
template std::vector<double> run(const Program&, const std::vector<double>&);

}  // namespace mercer::ir
