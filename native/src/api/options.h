// What an agent needs to know of its configuration.
#pragma once

#include <optional>
#include <string>

#include "actor/settings.h"
#include "policy/spec.h"
#include "rl4sys/rl4sys_types.h"

namespace rl4sys::api {

/// A checked configuration, in the form in which the agent uses it.
struct Options {
    actor::Settings settings;
    std::optional<policy::Space> observations, actions;  // as far as the configuration has them
    bool fallback_random = false, waits = false, swap_episode = false, drops_bad_input = false, stores = true;
    enum class Stale { keep, baseline, raise } on_stale = Stale::keep;
    double request_timeout_s = 30.0;
};

/// Converts a configuration. Throws cppclient::ConfigurationError.
Options options_of(const cppclient::AgentConfig& config);

/// The level of the agent's log lines; nothing if it writes none.
std::optional<int> log_level_of(const cppclient::AgentConfig& config);

}  // namespace rl4sys::api
