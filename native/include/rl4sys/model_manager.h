// A policy without a learner.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "logger.h"
#include "rl4sys_types.h"

namespace rl4sys::cppclient {

/// Acts by the policy of a policy cache, without a session. Agents do not need it. One thread at a time uses it.
class RL4SYS_API ModelManager {
public:
    ModelManager(const AgentConfig& config, std::shared_ptr<Logger> logger);
    ModelManager(const ModelManager&) = delete;
    ModelManager& operator=(const ModelManager&) = delete;
    ~ModelManager();

    /// Takes the bytes of a policy cache (the file of the option `policy_cache`). False if they cannot be used, or for a diff.
    bool setModel(const std::vector<uint8_t>& modelState, int32_t version, bool isDiff);
    /// Returns the policy's action; without a policy, a random one.
    RL4SysAction generateAction(const std::vector<float>& observation, int32_t version);
    /// The version of the policy; -1 without one.
    int32_t getCurrentVersion() const noexcept;
    bool hasModel() const noexcept;
    std::string getAlgorithmName() const;

private:
    struct State;

    std::unique_ptr<State> state_;
};

}  // namespace rl4sys::cppclient
