// The engine's messages on their way to Python's logging. They are said on any thread and under locks, where Python's
// must not be taken: a message goes onto a stack without locks, and the interpreter is asked to fetch it when it can.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>

#include "calls.h"
#include "core/system/log_sink.h"
#include "mercer/error.h"
#include "symbols.h"
#include "texts.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

constexpr int kMostKept = 10000;  // then stderr has them

struct Message {
  LogLevel level;
  std::string text;
  double seconds;  // since the epoch
  unsigned long thread;
  Message* before;
};

std::atomic<Message*> newest{nullptr};
std::atomic<int> kept{0};
std::atomic<bool> is_python_listening{false}, is_asked_for{false};

int fetch(void*) {
  try {
    deliver_messages();
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return -1;
  }
  return 0;
}

Message* made(LogLevel level, std::string_view text) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return new Message{level, std::string(text), now.count(), static_cast<unsigned long>(pthread_self()), newest.load()};
}

bool keep(LogLevel level, std::string_view text) noexcept {
  if (!is_python_listening.load(std::memory_order_acquire) || kept.load() >= kMostKept) return false;
  Message* message = nullptr;
  try {
    message = made(level, text);
  } catch (const std::bad_alloc&) {
    return false;
  }
  while (!newest.compare_exchange_weak(message->before, message)) {
  }
  ++kept;
  // Where the interpreter has too much to do already, a later message asks, or the next call of the engine.
  if (!is_asked_for.exchange(true) && Py_AddPendingCall(fetch, nullptr) != 0) is_asked_for = false;
  return true;
}

/// All that were kept, the oldest first.
Message* taken() {
  Message* ordered = nullptr;
  for (Message* next = newest.exchange(nullptr); next != nullptr;) {
    Message* const before = next->before;
    next->before = ordered;
    ordered = next;
    next = before;
    --kept;
  }
  return ordered;
}

struct Forget {
  void operator()(Message* message) const {
    while (message != nullptr) delete std::exchange(message, message->before);
  }
};
/// A list of messages, freed as a whole.
using Messages = std::unique_ptr<Message, Forget>;

LogLevel level_of(const std::string& name) {
  constexpr std::array kLevels = {LogLevel::off, LogLevel::error, LogLevel::warning, LogLevel::info, LogLevel::debug};
  for (const LogLevel level : kLevels)
    if (name_of(level) == name) return level;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("log: the level must be off, error, warning, info or debug. Received \"{}\".", name));
}

}  // namespace

void deliver_messages() {
  is_asked_for = false;
  if (newest.load(std::memory_order_acquire) == nullptr) return;
  Messages oldest_first(taken());
  nb::list messages;
  for (const Message* message = oldest_first.get(); message != nullptr; message = message->before)
    messages.append(nb::make_tuple(std::string(name_of(message->level)), to_text(message->text), message->seconds,
                                   message->thread));
  oldest_first.reset();
  nb::module_::import_("mercer._messages").attr("emit")(messages);
}

void bind_messages(nb::module_& module) {
  module.def(
      "log_to_python",
      [](bool listens) {
        is_python_listening = listens;
        set_log_sink(keep);
        if (!listens) deliver_messages();
      },
      "listens"_a, "Whether messages go to mercer._messages.emit; those that are kept go there now, if not.");
  module.def(
      "forget_messages", [] { Messages(taken()).reset(); }, "For a child that was forked: they are the parent's.");
  module.def(
      "say", [](const std::string& level, const std::string& text) { log(level_of(level), "{}", text); }, "level"_a,
      "text"_a, "Says something as the engine does.");
  module.def(
      "log_level", [] { return std::string(name_of(log_level())); },
      "The least severe level that the engine says: \"off\", \"error\", \"warning\", \"info\" or \"debug\".");
  module.def(
      "set_log_level", [](const std::string& name) { set_log_level(level_of(name)); }, "name"_a,
      "Sets that level; ValueError for another name.");
  module.def(
      "show_bars", [](bool wanted) { return std::exchange(Watch::wants_bars, wanted); }, "wanted"_a,
      "Whether every call of this thread shows how long it has taken, once that is two seconds; returns what held.");
}

}  // namespace mercer::python
