// JSON text as the configuration has it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace rl4sys::config {

/// Parses JSON text. Duplicate keys and deep nesting are errors, and keys that begin with _comment are left out.
/// `source` begins the message of the ConfigurationError.
nlohmann::json parse(const std::string& text, const std::string& source);

}  // namespace rl4sys::config
