#include <cstdio>
#include <ctime>

#include "api/agent.h"
#include "rl4sys/config_loader.h"
#include "rl4sys/rl4sys_agent.h"

namespace rl4sys::cppclient {
namespace {

using api::Code;
using api::Failure;
using api::guarded;

AgentConfig load(const std::string& path, bool debug) {
    AgentConfig config = ConfigLoader::loadFromFile(path);
    config.debug = config.debug || debug;
    return config;
}

api::Fallback fallback_of(Baseline baseline) {
    if (!baseline) return {};
    return [own = std::move(baseline)](const auto& observation, const auto& mask, std::size_t) { return own(observation, mask); };
}

RL4SysTrajectory& need(const std::shared_ptr<RL4SysTrajectory>& trajectory) {
    if (!trajectory) throw Failure(Code::action, "trajectory is null; expected one from requestForAction");
    return *trajectory;
}

}  // namespace

Logger::Logger(const std::string& name, LogLevel level, LogSink sink) : name_(name), level_(level), sink_(std::move(sink)) {}

void Logger::emit(LogLevel level, const std::string& line) const {
    if (sink_) return sink_(level, name_, line);
    constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};
    char at[32] = "";
    std::tm parts{};
    const std::time_t now = std::time(nullptr);
    if (localtime_r(&now, &parts)) std::strftime(at, sizeof at, "%Y-%m-%d %H:%M:%S", &parts);
    std::fprintf(stderr, "%s %s %s: %s\n", at, kNames[static_cast<int>(level)], name_.c_str(), line.c_str());
}

RL4SysAgent::RL4SysAgent(const std::string& configFilePath, bool debug) : RL4SysAgent(load(configFilePath, debug)) {}

RL4SysAgent::RL4SysAgent(const AgentConfig& config, Baseline baseline, LogSink log)
    : agent_(std::make_unique<api::Agent>(config, fallback_of(std::move(baseline)), std::move(log))) {}

RL4SysAgent::~RL4SysAgent() = default;

std::optional<std::pair<std::shared_ptr<RL4SysTrajectory>, RL4SysAction>> RL4SysAgent::requestForAction(
    std::shared_ptr<RL4SysTrajectory> trajectory, const std::vector<float>& observation, const std::vector<float>& mask) {
    std::pair out(std::move(trajectory), RL4SysAction());
    const auto request = [&] {
        requestForAction(out.first, out.second, observation.data(), observation.size(), mask.data(), mask.size());
    };
    return guarded(request) ? std::nullopt : std::optional(std::move(out));
}

void RL4SysAgent::requestForAction(std::shared_ptr<RL4SysTrajectory>& trajectory, RL4SysAction& action, const float* observation,
                                   size_t observationSize, const float* mask, size_t maskSize) {
    agent_->request(trajectory, observation, observationSize, mask, maskSize, action);
}

void RL4SysAgent::addToTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, const RL4SysAction& action) {
    agent_->add(need(trajectory), action);
}

void RL4SysAgent::updateActionReward(RL4SysAction& action, double reward) { action.setReward(reward); }

bool RL4SysAgent::markEndOfTrajectory(std::shared_ptr<RL4SysTrajectory> trajectory, RL4SysAction& lastAction, bool truncated,
                                      const std::vector<float>& finalObs, const std::vector<float>& finalMask) {
    return !guarded([&] {
        agent_->end(need(trajectory), &lastAction, truncated, finalObs.data(), finalObs.size(), finalMask.data(),
                    finalMask.size());
    });
}

bool RL4SysAgent::flushTrajectories() { return flushTrajectories(agent_->config.request_timeout_seconds); }
bool RL4SysAgent::flushTrajectories(double timeoutSeconds) {
    return !guarded([&] { agent_->flush(timeoutSeconds); });
}
void RL4SysAgent::close(double timeoutSeconds) { agent_->close(timeoutSeconds); }
int32_t RL4SysAgent::getCurrentModelVersion() const { return static_cast<int32_t>(agent_->version()); }
uint64_t RL4SysAgent::getCurrentModelDigest() const {
    const actor::ActingPolicy acting = agent_->current();
    return acting.policy ? acting.policy->snapshot().digest : 0;
}
bool RL4SysAgent::waitVersion(int32_t version, double timeoutSeconds) {
    return !guarded([&] { agent_->wait_version(version, timeoutSeconds); });
}
bool RL4SysAgent::rollback() { return agent_->roll_back(); }
const AgentConfig& RL4SysAgent::getConfig() const noexcept { return agent_->config; }
std::string RL4SysAgent::stats() const { return agent_->stats(); }
std::string RL4SysAgent::getLastError() const { return api::last_error(); }

}  // namespace rl4sys::cppclient
