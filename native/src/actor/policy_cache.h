// The policy cache: a file with the newest policy, so that an actor can act without a learner. The file is the same as the
// Python actor's (rl4sys_zmq/actor/io/policy_cache.py).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "delivery/session.h"
#include "policy/spec.h"
#include "weights/update.h"
#include "wire/value.h"

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

/// A file with one policy. Several processes can use it: a reader always gets one whole version.
class PolicyCacheFile {
public:
    PolicyCacheFile(std::string path, delivery::Counters& counters) : path_(std::move(path)), counters_(counters) {}

    /// The saved policy; nothing if there is none. An invalid file is renamed; `problem` says why.
    std::optional<CachedPolicy> load(std::string& problem);
    /// Replaces the contents. `problem` says why it failed; the last file is then still there.
    bool save(const wire::Map& document, const weights::Snapshot& snapshot, const wire::Map& extras, std::string& problem);

private:
    std::string path_;
    delivery::Counters& counters_;
};

}  // namespace rl4sys::actor
