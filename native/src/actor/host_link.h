// The state that an I/O thread and host threads share. Host threads that act read atomics only.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actor/columns.h"
#include "policy/policy.h"
#include "support/errors.h"
#include "wire/codec.h"

namespace rl4sys::actor {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Seconds of the monotonic clock.
inline double monotonic() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The parameters of a session, from the learner's Welcome or from the policy cache.
struct SessionParameters {
    std::uint64_t generation = 0;
    std::string algorithm_name, algorithm_type;
    std::uint64_t rollout_length = 0;
    std::int64_t max_policy_lag = -1;
    std::string on_lag;
    std::uint64_t max_message_bytes = 0, max_segment_steps = 1;
    std::string inference, no_masks;
};

/// The parameters in a Welcome, or in a map with its fields.
inline SessionParameters read_parameters(const wire::Received& said) {
    return {said.integer("generation"), said.text("algorithm_name"), said.text("algorithm_type"), said.integer("rollout_length"),
            said.lag("max_policy_lag"), said.text("on_lag"), said.integer("max_message_bytes"),
            std::max<std::uint64_t>(1, said.integer("max_segment_steps")), said.text("inference"), said.text("no_masks")};
}

/// Why the session ended for good, for the exceptions of the API.
struct SessionError {
    enum class Kind { refused, client_failed, config, unsupported } kind;
    Refusal code;
    std::string text, field;
};

/// A policy and the shape of its segments.
struct ActingPolicy {
    std::shared_ptr<const policy::Policy> policy;
    std::shared_ptr<const SegmentShape> shape;
};

/// The conditions under which a host thread may start a segment with overflow: wait.
struct CreditGate {
    std::int64_t limit_steps = 0;
    std::uint64_t generation = 0, min_version = 0;

    bool operator==(const CreditGate& other) const noexcept {
        return limit_steps == other.limit_steps && generation == other.generation && min_version == other.min_version;
    }
};

class HostLink {
public:
    /// The current policy for the comparison on each step. Its owner is `acting`.
    std::atomic<const policy::Policy*> current{nullptr};
    /// Monotonic time of the learner's last message, in seconds.
    std::atomic<double> current_at{-kNever};
    std::atomic<double> starting_at{-kNever};
    std::atomic<std::uint64_t> want_steps{0};
    std::atomic<int> waiting{0}, flushing{0};
    std::atomic<bool> leaving{false};  // the agent closes: segments without credit in steps are sent too
    std::atomic<bool> resting{false};  // the I/O thread sleeps to send several segments at once

    /// Wakes the waiting host threads. The caller holds `mutex`.
    void notify() noexcept {
        ++changes;
        changed.notify_all();
    }
    bool urgent() const noexcept { return waiting.load() > 0 || flushing.load() > 0; }

    // Under `mutex`; `changed` is notified after each change.
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t changes = 0;  // how often `changed` was notified
    ActingPolicy acting;
    std::shared_ptr<const wire::Map> document;  // the spec of the policy as the last Welcome had it
    std::uint64_t documents = 0;            // how often it was set
    std::map<std::string, std::uint64_t> alarms;  // that the learner's last beacon reports
    std::optional<SessionParameters> parameters;
    std::optional<SessionError> error;
    CreditGate gate;
    std::string stage = "the learner to answer";
    bool joined = false;
    std::uint64_t settled = 0;  // all of the first so many segments of the outbox are stored by the learner, or dropped
};

}  // namespace rl4sys::actor
