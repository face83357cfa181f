// The configuration files of agents.
#pragma once

#include <stdexcept>
#include <string>

#include "rl4sys_types.h"

namespace rl4sys::cppclient {

/// A configuration that cannot be used. The text names the key and the remedy.
class RL4SYS_API ConfigurationError : public std::runtime_error {
public:
    explicit ConfigurationError(const std::string& message);
};

/// Reads and writes the JSON files of agents, the same as the Python actors'. All functions throw ConfigurationError.
class RL4SYS_API ConfigLoader {
public:
    static AgentConfig loadFromFile(const std::string& filePath);
    static AgentConfig loadFromString(const std::string& jsonContent);
    /// Checks values that a program has set.
    static void validateConfig(const AgentConfig& config);
    static void saveToFile(const AgentConfig& config, const std::string& filePath);
    static std::string configToJsonString(const AgentConfig& config);
};

}  // namespace rl4sys::cppclient
