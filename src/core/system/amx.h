// Tiles of AMX: a process must ask the system for them before its first instruction on one.
#pragma once

namespace mercer {

/// Whether this process may use tiles of int8: the processor has them, the system grants them and MERCER_AMX does not
/// switch them off. The system is asked once, for all threads.
bool has_amx();

}  // namespace mercer
