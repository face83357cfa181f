// The policy cache: a file with the newest policy, so that an actor can act without a learner. The file is the same as the
// Python actor's (rl4sys_zmq/actor/io/policy_cache.py).
#pragma once

#include <string_view>

#include "actor/host_link.h"
#include "actor/settings.h"
#include "actor/weight_subscriber.h"

namespace rl4sys::actor {

/// The contents of a policy cache.
struct CachedPolicy {
    wire::Map document;  // of the spec, as a Welcome has it
    policy::PolicySpec spec;
    weights::Snapshot snapshot;
    wire::Map extras;
    double saved_unix_s = 0.0;
};

/// Reads the bytes of a policy cache. Throws std::runtime_error with the reason.
CachedPolicy read_cached_policy(std::string_view bytes);

/// The policy cache of one actor, if its settings name a file. Several processes can use the file: a reader always gets one
/// whole version.
class PolicyCache {
public:
    PolicyCache(const Settings& settings, HostLink& host, WeightSubscriber& subscriber, delivery::Counters& counters)
        : settings_(settings), host_(host), subscriber_(subscriber), counters_(counters) {}

    /// Starts with the policy and the session parameters of an earlier start. The I/O thread does not run yet. An invalid file is
    /// renamed.
    void take_up();
    /// Saves the current policy and the session parameters. `force` skips the limit on how often the file is written.
    void save(bool force);

private:
    void use(CachedPolicy cached);

    const Settings& settings_;
    HostLink& host_;
    WeightSubscriber& subscriber_;
    delivery::Counters& counters_;
    delivery::PolicyVersion saved_{0, 0};
    double next_ = 0.0;  // save, at the earliest
    bool warned_ = false;
};

}  // namespace rl4sys::actor
