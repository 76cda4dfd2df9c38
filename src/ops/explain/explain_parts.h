// What the explanations for CPUs and GPUs share.
#pragma once

#include <string>
#include <string_view>

#include "mercer/explain.h"
#include "plan/gpu/request.h"

namespace mercer::ops {

std::string section(std::string_view title, std::string_view text);
/// The formula as a call would run it: exponents that have a default are numbers.
Expr explained(const Formula& f);
/// The section "formula".
std::string formula_section(const Formula& f);
/// explain for "sm_90" or "cuda:0".
std::string explain_gpu(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, GpuCall call);
/// What each way says of a request on a GPU, a line each; device and precision are filled in.
std::string ways_on_gpu(const Formula& f, plan::Request request, const std::string& target);
/// Whose costs the ways of a GPU are chosen by, a line.
std::string costs_on_gpu(const std::string& target);
/// Whether a name means a GPU.
bool is_gpu_target(const std::string& target);

}  // namespace mercer::ops
