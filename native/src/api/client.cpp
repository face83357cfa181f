#include "rl4sys/rl4sys_agent.h"

#include "api/agent.h"
#include "rl4sys/config_loader.h"

namespace rl4sys::cppclient {
namespace {

AgentConfig load(const std::string& path, bool debug) {
    AgentConfig config = ConfigLoader::loadFromFile(path);
    config.debug = config.debug || debug;
    return config;
}

api::Fallback fallback_of(Baseline baseline) {
    if (!baseline) return {};
    return [own = std::move(baseline)](const float* observation, std::size_t observation_size, const float* mask,
                                       std::size_t mask_size, float* action, std::size_t size) {
        const std::vector<float> chosen = own({observation, observation + observation_size},
                                              mask ? std::vector<float>(mask, mask + mask_size) : std::vector<float>());
        if (chosen.size() != size) return false;
        std::copy(chosen.begin(), chosen.end(), action);
        return true;
    };
}

// Runs a call, and keeps the text of its exception. False if it failed.
template <class Call>
bool succeeds(const Call& call) noexcept {
    try {
        call();
        return true;
    } catch (const std::exception& error) {
        try {
            api::last_error() = error.what();
        } catch (...) {
        }
    } catch (...) {
    }
    return false;
}

}  // namespace

RL4SysAgent::RL4SysAgent(const std::string& configFilePath, bool debug) : RL4SysAgent(load(configFilePath, debug)) {}

RL4SysAgent::RL4SysAgent(const AgentConfig& config, Baseline baseline, LogSink log)
    : agent_(std::make_unique<api::Agent>(config, fallback_of(std::move(baseline)), std::move(log))) {}

RL4SysAgent::~RL4SysAgent() = default;

std::optional<std::pair<std::shared_ptr<RL4SysTrajectory>, RL4SysAction>> RL4SysAgent::requestForAction(
    std::shared_ptr<RL4SysTrajectory> trajectory, const std::vector<float>& observation, const std::vector<float>& mask) {
    std::pair<std::shared_ptr<RL4SysTrajectory>, RL4SysAction> out;
    out.first = std::move(trajectory);
    if (!succeeds(
            [&] { requestForAction(out.first, out.second, observation.data(), observation.size(), mask.data(), mask.size()); }))
        return std::nullopt;
    return out;
}

void RL4SysAgent::requestForAction(std::shared_ptr<RL4SysTrajectory>& trajectory, RL4SysAction& action, const float* observation,
                                   size_t observationSize, const float* mask, size_t maskSize) {
    agent_->request(trajectory, observation, observationSize, mask, maskSize, action);
}

void RL4SysAgent::addToTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, const RL4SysAction& action) {
    if (!trajectory)
        throw api::Failure(api::Code::action, "there is no trajectory to add to: expected one from requestForAction");
    agent_->add(*trajectory, action);
}

void RL4SysAgent::updateActionReward(RL4SysAction& action, double reward) { action.setReward(reward); }

bool RL4SysAgent::markEndOfTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, RL4SysAction& lastAction) {
    return markEndOfTrajectory(std::move(trajectory), lastAction, false);
}

bool RL4SysAgent::markEndOfTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, RL4SysAction& lastAction, bool truncated,
                                      const std::vector<float>& finalObs, const std::vector<float>& finalMask) {
    return succeeds([&] {
        if (!trajectory)
            throw api::Failure(api::Code::action, "there is no trajectory to end: expected one from requestForAction");
        agent_->end(*trajectory, &lastAction, truncated, finalObs.data(), finalObs.size(), finalMask.data(), finalMask.size());
    });
}

bool RL4SysAgent::flushTrajectories() { return flushTrajectories(agent_->config.request_timeout_seconds); }
bool RL4SysAgent::flushTrajectories(double timeoutSeconds) {
    return succeeds([&] { agent_->flush(timeoutSeconds); });
}
void RL4SysAgent::close() { close(2.0); }
void RL4SysAgent::close(double timeoutSeconds) { agent_->close(timeoutSeconds); }
int32_t RL4SysAgent::getCurrentModelVersion() const { return static_cast<int32_t>(agent_->version()); }
uint64_t RL4SysAgent::getCurrentModelDigest() const { return agent_->digest(); }
bool RL4SysAgent::waitVersion(int32_t version, double timeoutSeconds) {
    return succeeds([&] { agent_->wait_version(version, timeoutSeconds); });
}
bool RL4SysAgent::rollback() { return agent_->roll_back(); }
const AgentConfig& RL4SysAgent::getConfig() const noexcept { return agent_->config; }
std::string RL4SysAgent::stats() const { return agent_->stats(); }
std::string RL4SysAgent::getLastError() const { return api::last_error(); }

}  // namespace rl4sys::cppclient
