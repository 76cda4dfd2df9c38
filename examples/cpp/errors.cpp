// Errors: every one is a mercer::Error, whose kind a program can act on and whose text states the rule and what was
// received. All is checked before anything is written, so a call that failed has left its output as it was. What this
// program does about each is its result: it is checked like the values of the other examples.
#include <string>

#include "check.h"
#include "mercer/mercer.h"

namespace {

int failures = 0;

/// Runs a call that must fail with this kind.
template <class Call>
void expect(mercer::ErrorKind kind, const Call& call) {
  try {
    call();
    std::puts("NOT REFUSED");
    ++failures;
  } catch (const mercer::Error& error) {
    std::printf("%s\n\n", error.what());
    failures += error.kind() != kind;
  }
}

}  // namespace

int main() {
  using mercer::ErrorKind, mercer::view;
  const std::vector<float> x = normal_values(10 * 4, 1), z = normal_values(8 * 3, 2);
  std::vector<float> out(10 * 8, -1);
  const mercer::Tensor rows = view(x.data(), {10, 4}), columns = view(z.data(), {8, 3});

  // A slip in a formula: a caret shows the place, and near names are suggested.
  expect(ErrorKind::invalid_argument, [] { mercer::parse("exp(-sum(abss(x-z)))"); });

  // Shapes that do not fit, and a parameter that is missing.
  const auto distances = [&] { mercer::pairwise("sum(abs(x-z))", rows, &columns, view(out.data(), {10, 8})); };
  expect(ErrorKind::invalid_argument, distances);
  expect(ErrorKind::invalid_argument,
         [&] { mercer::pairwise("exp(-sum(abs(x-z))/h)", rows, nullptr, view(out.data(), {10, 8})); });
  failures += std::any_of(out.begin(), out.end(), [](float value) { return value != -1; });

  // A matrix without an answer: not positive definite. With a jitter that is enough the same call succeeds.
  const std::vector<double> singular = {1, 1, 1, 1}, b = {1, 2};
  std::vector<double> solution(2);
  mercer::linalg::Options options;
  const auto solve = [&] {
    mercer::linalg::solve_cholesky(view(singular.data(), {2, 2}), view(b.data(), {2}), view(solution.data(), {2}),
                                   options);
  };
  expect(ErrorKind::numerical, solve);
  options.jitter = {1e-3};
  solve();
  Worst worst;
  for (int i = 0; i < 2; ++i) worst.compare(solution[0] + solution[1] + 1e-3 * solution[i], b[i]);

  // A call that the user stops: no error, but a class of its own.
  const std::vector<float> many = normal_values(20000 * 32, 3);
  std::vector<float> sums(20000);
  mercer::Arguments arguments;
  arguments.progress = [](double, double) { return false; };  // asked now and then, while a long call runs
  try {
    mercer::kernel_reduce("sum(abs(x-z)^1.7)", view(many.data(), {20000, 32}), nullptr, mercer::ReduceKind::sum,
                          view(sums.data(), {20000}), arguments);
    ++failures;
  } catch (const mercer::Cancelled& cancelled) {
    std::puts(cancelled.what());
  }
  worst.compare(failures, 0);
  return worst.report("errors", 1e-9);
}
