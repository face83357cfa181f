// What an agent needs to know of its configuration.
#pragma once

#include <optional>

#include "actor/settings.h"
#include "policy/policy.h"
#include "rl4sys/logger.h"
#include "rl4sys/rl4sys_types.h"

namespace rl4sys::api {

struct Spaces {
    const policy::Space &observations, &actions;
};

/// A checked configuration, in the form in which the agent uses it.
struct Options {
    actor::Settings settings;
    std::optional<policy::Space> observations, actions;  // as far as the configuration has them
    bool fallback_random = false, waits = false, swap_episode = false, drops_bad_input = false, stores = true;
    enum class Stale { keep, baseline, raise } on_stale = Stale::keep;
    std::optional<cppclient::LogLevel> log_level;  // nothing: the agent writes no lines

    /// The spaces of a policy, or without one those of the configuration. Throws Failure if there are none.
    Spaces spaces_of(const policy::Policy* policy) const;
};

/// Converts a configuration, and reads its key file. Throws cppclient::ConfigurationError.
Options options_of(const cppclient::AgentConfig& config);

}  // namespace rl4sys::api
