// The values of the C++ client: actions, trajectories and the configuration of an agent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#define RL4SYS_API __attribute__((visibility("default")))  // what the library exports

namespace rl4sys::actor {
struct Step;
}
namespace rl4sys::api {
class Agent;
}

namespace rl4sys::cppclient {

/// One action for the host, and its step in the episode. Copies of a requested action are the same step: a reward that is set
/// through one of them is the reward of all.
class RL4SYS_API RL4SysAction {
public:
    RL4SysAction() = default;
    RL4SysAction(const std::vector<uint8_t>& observation, const std::vector<uint8_t>& action, double reward = 0.0,
                 bool done = false, const std::vector<uint8_t>& mask = {}, int32_t version = 0);

    /// The number of a discrete action.
    int64_t act() const noexcept;
    /// The elements of a continuous action.
    const std::vector<float>& actFloats() const noexcept;
    /// The log-probability of the action under the policy that chose it.
    double getLogProb() const noexcept;
    /// False if no policy chose the action, so that it is not recorded.
    bool isRecorded() const noexcept;

    /// The bytes of the observation, in the dtype of its space.
    const std::vector<uint8_t>& getObservation() const noexcept;
    /// The bytes of the action: an int64 for a discrete one, float32 for a continuous one.
    const std::vector<uint8_t>& getAction() const noexcept;
    /// The reward; 0 before it is set.
    double getReward() const noexcept;
    bool isDone() const noexcept;
    /// A byte for each discrete action, 1 where it was allowed; empty if all were.
    const std::vector<uint8_t>& getMask() const noexcept;
    int32_t getVersion() const noexcept;
    /// What `addExtraData` added. The learner does not get it.
    const std::map<std::string, std::vector<uint8_t>>& getExtraData() const noexcept;

    void setObservation(const std::vector<uint8_t>& bytes);
    /// Replaces the bytes of the action. No policy chose the new one, so the step is not recorded.
    void setAction(const std::vector<uint8_t>& bytes);
    /// Sets the reward, before or after the action is added to a trajectory.
    void setReward(double reward);
    /// True: the episode reached a terminal state with this action. The next request then ends the trajectory.
    void setDone(bool done);
    void setMask(const std::vector<uint8_t>& bytes);
    void setVersion(int32_t version);
    void addExtraData(const std::string& key, const std::vector<uint8_t>& data);
    void clear();

private:
    friend class rl4sys::api::Agent;
    friend class RL4SysTrajectory;
    actor::Step& own();
    const actor::Step& its() const noexcept;

    std::shared_ptr<actor::Step> step_;
};

/// One episode. `RL4SysAgent::requestForAction` starts it, and its steps are sent in segments while it runs. One thread at a
/// time uses it.
class RL4SYS_API RL4SysTrajectory {
public:
    RL4SysTrajectory() : RL4SysTrajectory(0) {}
    explicit RL4SysTrajectory(int32_t version);
    RL4SysTrajectory(const RL4SysTrajectory&) = delete;
    RL4SysTrajectory& operator=(const RL4SysTrajectory&) = delete;
    ~RL4SysTrajectory();

    /// Adds an action, as `RL4SysAgent::addToTrajectory` does.
    void addAction(const RL4SysAction& action);
    /// Ends the episode in a terminal state.
    void markCompleted();
    bool isCompleted() const noexcept;
    /// True if it has at least one action.
    bool isValid() const noexcept { return size() > 0; }
    bool isEmpty() const noexcept { return !size(); }
    /// The number of actions that were added, also of those that were sent.
    size_t size() const noexcept;
    /// Discards the newest steps, those of the unfinished segment. The episode goes on.
    void clear();
    /// The actions of the unfinished segment. A later call of this object replaces the list.
    const std::vector<RL4SysAction>& getActions() const;
    std::vector<RL4SysAction>& getActions();
    int32_t getVersion() const noexcept;
    void setVersion(int32_t version) noexcept;

private:
    friend class rl4sys::api::Agent;
    struct State;

    std::unique_ptr<State> state_;
};

/// The configuration of an agent: the keys of a JSON file. The reference of the actor's options describes each.
struct AgentConfig {
    std::string client_id = "default_client";
    std::string algorithm_name = "PPO";
    std::string algorithm_type;  // JSON: type. onpolicy, offpolicy, or empty for no expectation
    std::string train_server_address = "localhost:50051";

    std::map<std::string, std::variant<int32_t, double, std::string, bool>> algorithm_parameters;
    std::map<std::string, std::string> other_parameters;  // those that are lists, maps or null, as JSON text

    double act_limit = 0.0;  // 0: none
    int32_t max_traj_length = 10'000;
    int32_t send_frequency = 1;

    double connection_timeout_seconds = 10.0;  // JSON also: connect_timeout_s
    double request_timeout_seconds = 30.0;     // longest wait of flushTrajectories
    bool enable_compression = false;

    bool debug = false;
    std::string log_level;  // empty: the library writes nothing. A level: it writes to stderr

    std::string actor_id;  // empty: a random one
    std::string fallback = "raise";
    int32_t linger_ms = 200;
    int32_t rollout_length = 0;  // 0: the learner's
    std::string overflow = "drop_oldest";
    double wait_timeout_s = 60.0;
    int64_t queue_items = 1024, queue_bytes = int64_t{256} << 20;
    std::string swap = "step";
    std::optional<int64_t> seed;
    bool explore = true, report_returns = true;
    std::string on_bad_input = "raise";
    double reward_timeout_s = 60.0;
    std::string keys, policy_cache;  // paths
    std::optional<double> policy_max_age_s;
    std::string on_stale = "keep";
    std::string observation_space, action_space;  // JSON text; empty: from input_size and act_dim
    std::string weights;                          // JSON text of the options for the encoding of weights
};

/// Numbers as bytes, little-endian.
namespace utils {
RL4SYS_API std::vector<uint8_t> serializeFloat(float value);
RL4SYS_API std::vector<uint8_t> serializeFloatVector(const std::vector<float>& values);
RL4SYS_API float deserializeFloat(const std::vector<uint8_t>& data);
RL4SYS_API std::vector<float> deserializeFloatVector(const std::vector<uint8_t>& data);
RL4SYS_API std::vector<uint8_t> serializeAction(int64_t action);
RL4SYS_API int64_t deserializeAction(const std::vector<uint8_t>& data);
}  // namespace utils

}  // namespace rl4sys::cppclient
