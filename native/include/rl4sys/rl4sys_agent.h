// The C++ client: an actor, which acts with the learner's newest policy and sends the steps to the learner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "logger.h"
#include "rl4sys_types.h"

namespace rl4sys::cppclient {

/// The host's fallback function: from an observation and a mask (empty: all actions are allowed) to an action, whose elements
/// are floats; one for a discrete action. If it throws, the idle action is taken and the exception is counted.
using Baseline = std::function<std::vector<float>(const std::vector<float>& observation, const std::vector<float>& mask)>;

/// An actor. Several threads can use one, each with its own trajectories and actions.
class RL4SYS_API RL4SysAgent {
public:
    /// Reads a JSON file, connects to the learner, and waits for a policy, for at most `connection_timeout_seconds`.
    /// Throws std::runtime_error: ConfigurationError, or if no learner answers and the agent cannot act without a policy.
    explicit RL4SysAgent(const std::string& configFilePath, bool debug = false);
    explicit RL4SysAgent(const AgentConfig& config, Baseline baseline = {}, LogSink log = {});
    /// Closes the agent.
    ~RL4SysAgent();
    RL4SysAgent(const RL4SysAgent&) = delete;
    RL4SysAgent& operator=(const RL4SysAgent&) = delete;
    RL4SysAgent(RL4SysAgent&&) = delete;
    RL4SysAgent& operator=(RL4SysAgent&&) = delete;

    /// Chooses an action. A null or completed trajectory starts a new one. `mask` has an element for each discrete action, 1
    /// where it is allowed, else 0. Returns nothing after a failure, which `getLastError` describes.
    std::optional<std::pair<std::shared_ptr<RL4SysTrajectory>, RL4SysAction>> requestForAction(
        std::shared_ptr<RL4SysTrajectory> trajectory, const std::vector<float>& observation, const std::vector<float>& mask = {});
    /// As above, into objects that the program uses again: then no step allocates memory. `mask` can be null. Throws
    /// std::runtime_error.
    void requestForAction(std::shared_ptr<RL4SysTrajectory>& trajectory, RL4SysAction& action, const float* observation,
                          size_t observationSize, const float* mask = nullptr, size_t maskSize = 0);

    /// Stores an action as the next step. Actions are added in the order of their requests. Throws std::runtime_error.
    void addToTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, const RL4SysAction& action);
    /// Sets the reward, before or after the action is added. A later call replaces it. Throws std::runtime_error.
    void updateActionReward(RL4SysAction& action, double reward);
    /// Ends an episode. Its last action is added if it was not. `truncated`: a time limit or the host ended it, and `finalObs` is
    /// the observation after it; else in a terminal state. Returns false after a failure, which `getLastError` describes.
    bool markEndOfTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, RL4SysAction& lastAction, bool truncated = false,
                             const std::vector<float>& finalObs = {}, const std::vector<float>& finalMask = {});

    /// Waits until the learner has stored all finished segments, for at most `request_timeout_seconds`. False if it has not.
    bool flushTrajectories();
    bool flushTrajectories(double timeoutSeconds);
    /// Sends the finished segments, ends the session and stops the thread, in at most half a second more than that.
    void close(double timeoutSeconds = 2.0);

    /// The version of the current policy; -1 before the first.
    int32_t getCurrentModelVersion() const;
    /// The xxh3-64 of the current policy's weights, by which learner and actor compare them.
    uint64_t getCurrentModelDigest() const;
    /// Waits until the current policy has this version or a later one. False if it does not come in time.
    bool waitVersion(int32_t version, double timeoutSeconds);
    /// Goes back to the version before the current one. False if there is none in memory.
    bool rollback();
    const AgentConfig& getConfig() const noexcept;
    /// The counters and the state, as JSON text with the keys of the Python actor's `stats()`.
    std::string stats() const;
    /// What went wrong in the last call of this thread that failed.
    std::string getLastError() const;

private:
    std::unique_ptr<api::Agent> agent_;
};

}  // namespace rl4sys::cppclient
