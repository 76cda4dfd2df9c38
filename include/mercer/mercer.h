// Everything of Mercer in one include.
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
