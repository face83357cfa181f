// The configuration of an agent: its conversion, and what the table of keys needs of it.
#pragma once

#include <locale>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "actor/settings.h"
#include "policy/spec.h"
#include "rl4sys/logger.h"
#include "rl4sys/rl4sys_types.h"

namespace rl4sys::config {

using nlohmann::json;

/// The values one after the other, whatever the locale.
template <class... Values>
std::string text(const Values&... values) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    (out << ... << values);
    return out.str();
}

/// A checked configuration, in the form in which the agent uses it.
struct Options {
    actor::Settings settings;
    std::optional<policy::Space> observations, actions;  // as far as the configuration has them
    bool waits = false, swap_episode = false, drops_bad_input = false, stores = true;
    enum class Stale { keep, baseline, raise } on_stale = Stale::keep;
    std::optional<cppclient::LogLevel> log_level;  // nothing: the agent writes no lines
};

/// Checks and converts a configuration, and reads its key file. This and what follows throws cppclient::ConfigurationError.
Options options_of(const cppclient::AgentConfig& config);

/// Converts what is valid in each key. The key file is not read.
Options convert(const cppclient::AgentConfig& config);

/// Checks each value as if it stood in a file.
cppclient::AgentConfig checked(const cppclient::AgentConfig& config);

/// Parses JSON text. Duplicate keys and deep nesting are errors, and keys that begin with _comment are left out.
/// `source` begins the error.
json parse(const std::string& text, const std::string& source);

/// The parameters of the algorithm, with those that describe the spaces.
json parameters_of(const cppclient::AgentConfig& config);

/// Reads a space, and changes its form to that which Python sends. Throws std::runtime_error.
policy::Space space_of(json& form);

/// An address as a ZeroMQ URI; empty if it is not one.
std::string uri_of(const std::string& address);

/// The form in which names of algorithms are compared: PPO, sb3:TRPO.
std::string algorithm_key(std::string name);

}  // namespace rl4sys::config
