#include "core/system/mutex.h"
#include "ops/costs/choice_store.h"

#include <algorithm>
#include <memory>

namespace mercer::ops {

ChoiceStore& ChoiceStore::shared() {
  static constinit Lazy<ChoiceStore> store;
  return store.get([] { return ChoiceStore(FileCache::from_environment()); });
}

std::optional<std::string> ChoiceStore::find(const std::string& key) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
  }
  return *read_.get(key, [&] {
    const std::optional<std::string> text = cache_.read(key);
    const std::size_t title = text ? text->find('\n') : std::string::npos;
    return std::make_shared<const std::optional<std::string>>(
        title == std::string::npos ? std::nullopt : std::optional(text->substr(title + 1)));
  });
}

void ChoiceStore::keep(const std::string& key, const std::string& record, const std::string& title) {
  std::string line = title;
  std::replace(line.begin(), line.end(), '\n', ' ');
  cache_.write(key, line + "\n" + record);
  const std::lock_guard lock(mutex_);
  kept_.insert_or_assign(key, record);
}

}  // namespace mercer::ops
