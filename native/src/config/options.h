// What the table of keys and the conversion of a configuration share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "api/options.h"

namespace rl4sys::config {

using nlohmann::json;

/// Parses JSON text. Duplicate keys and deep nesting are errors, and keys that begin with _comment are left out.
/// `source` begins the message of the ConfigurationError.
json parse(const std::string& text, const std::string& source);

/// The parameters of the algorithm, with those that describe the spaces.
json parameters_of(const cppclient::AgentConfig& config);

/// Reads a space, and changes its form to that which Python sends. Throws std::runtime_error.
policy::Space space_of(json& form);

/// An address as a ZeroMQ URI; empty if it is not one.
std::string uri_of(const std::string& address);

/// The form in which names of algorithms are compared: PPO, sb3:TRPO.
std::string algorithm_key(std::string name);

/// Reads what `checked` accepts. The key file is not read.
api::Options convert(const cppclient::AgentConfig& config);

/// Checks each value as if it stood in a file.
cppclient::AgentConfig checked(const cppclient::AgentConfig& config);

}  // namespace rl4sys::config
