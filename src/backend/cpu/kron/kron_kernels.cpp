#include "backend/cpu/kron/kron_kernels.h"

#include <algorithm>

namespace mercer::cpu {

std::shared_ptr<const jit::KronKernel> KronKernels::get(const plan::KronStepSource& source) {
  const std::string key = source.key();
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
  }
  std::shared_ptr<const jit::KronKernel> made = jit::compile(source);
  const std::lock_guard lock(mutex_);
  if (kernels_.size() >= kMost) kernels_.clear();
  return kernels_.emplace(key, std::move(made)).first->second;
}

std::size_t KronKernels::size() const {
  const std::lock_guard lock(mutex_);
  return kernels_.size();
}

void KronKernels::clear() {
  const std::lock_guard lock(mutex_);
  kernels_.clear();
  idle_.clear();
}

AlignedBuffer KronKernels::take(std::int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(idle_.begin(), idle_.end(), [&](const AlignedBuffer& buffer) { return buffer.size() >= bytes; });
    if (found != idle_.end()) {
      AlignedBuffer buffer = std::move(*found);
      idle_.erase(found);
      buffer.reserve(bytes);
      return buffer;
    }
  }
  return AlignedBuffer(bytes);
}

void KronKernels::give_back(AlignedBuffer buffer) {
  constexpr std::size_t kMostIdle = 4;
  if (buffer.size() > kMostBytes) return;
  const std::lock_guard lock(mutex_);
  if (idle_.size() >= kMostIdle) idle_.erase(idle_.begin());
  idle_.push_back(std::move(buffer));
}

}  // namespace mercer::cpu
