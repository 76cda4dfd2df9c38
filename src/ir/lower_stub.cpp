#include "ir/lower_math.h"
#include "core/error.h"
namespace mercer::ir {
Value lower_sin(Value x) { fail(ErrorKind::unsupported, "lower: not yet {}", x.id); }
Value lower_cos(Value x) { fail(ErrorKind::unsupported, "lower: not yet {}", x.id); }
Value lower_asin(Value x) { fail(ErrorKind::unsupported, "lower: not yet {}", x.id); }
Value lower_acos(Value x) { fail(ErrorKind::unsupported, "lower: not yet {}", x.id); }
Value lower_atan2(Value x, Value) { fail(ErrorKind::unsupported, "lower: not yet {}", x.id); }
Value lower_erf(Value x) { fail(ErrorKind::unsupported, "lower: not yet {}", x.id); }
}  // namespace mercer::ir
