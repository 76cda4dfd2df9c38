// Values that are kept by a key, the recent ones.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/system/mutex.h"

namespace mercer {

/// A bounded map from keys to shared values; the least recently used entry goes first. Thread-safe. Values are built
/// outside the lock, so two threads may build the same one; the first stored wins.
template <class Value>
class RecentCache {
 public:
  explicit RecentCache(std::size_t capacity) : capacity_(capacity) {}

  template <class Make>
  std::shared_ptr<const Value> get(const std::string& key, Make&& make) {
    {
      std::lock_guard lock(mutex_);
      if (auto found = index_.find(key); found != index_.end()) {
        order_.splice(order_.begin(), order_, found->second);
        return found->second->second;
      }
    }
    std::shared_ptr<const Value> value = make();
    std::lock_guard lock(mutex_);
    if (auto found = index_.find(key); found != index_.end()) return found->second->second;
    order_.emplace_front(key, value);
    index_.emplace(key, order_.begin());
    if (order_.size() > capacity_) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return value;
  }

  /// Takes the place of what is there; nothing where that has gone.
  void replace(const std::string& key, std::shared_ptr<const Value> value) {
    std::lock_guard lock(mutex_);
    if (auto found = index_.find(key); found != index_.end()) found->second->second = std::move(value);
  }

  /// What is there, or null.
  std::shared_ptr<const Value> find(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : found->second->second;
  }

  /// Forgets the values of which `wanted` says so; it must not use this cache.
  template <class Wanted>
  void erase_if(const Wanted& wanted) {
    std::lock_guard lock(mutex_);
    std::erase_if(index_, [&](const auto& entry) { return wanted(*entry.second->second); });
    std::erase_if(order_, [&](const Entry& entry) { return !index_.contains(entry.first); });
  }

  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return order_.size();
  }
  void clear() {
    std::lock_guard lock(mutex_);
    index_.clear();
    order_.clear();
  }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const Value>>;
  std::size_t capacity_;
  mutable Mutex mutex_;
  std::list<Entry> order_;
  std::unordered_map<std::string, typename std::list<Entry>::iterator> index_;
};

}  // namespace mercer
