/// \file
/// Everything of Mercer in one include. mercer/pairwise.h has the operations on pairs, mercer/linalg.h and
/// mercer/kron.h linear algebra, mercer/formula.h and mercer/zoo.h what is computed, mercer/tensor.h arrays,
/// mercer/device.h and mercer/error.h the rest of a call; mercer/compile.h, mercer/explain.h and mercer/tune.h prepare
/// and explain calls.
#pragma once

#include "mercer/compile.h"
#include "mercer/device.h"
#include "mercer/error.h"
#include "mercer/explain.h"
#include "mercer/formula.h"
#include "mercer/kron.h"
#include "mercer/linalg.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"
#include "mercer/tune.h"
#include "mercer/zoo.h"
