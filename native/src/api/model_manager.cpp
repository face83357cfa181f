#include "rl4sys/model_manager.h"

#include "actor/policy_cache.h"
#include "api/agent.h"
#include "support/bytes.h"

namespace rl4sys::cppclient {

struct ModelManager::State {
    State(const AgentConfig& config, std::shared_ptr<Logger> log)
        : logger(std::move(log)),
          options(config::options_of(config)),
          sampler(options.settings.seed.value_or(support::system_seed(4)), 0.0) {}

    std::shared_ptr<Logger> logger;
    api::Options options;
    policy::Sampler sampler;
    std::shared_ptr<const policy::Policy> policy;
    std::optional<policy::Scratch> scratch;
    std::vector<float> recurrent;
};

ModelManager::ModelManager(const AgentConfig& config, std::shared_ptr<Logger> logger)
    : state_(std::make_unique<State>(config, std::move(logger))) {}

ModelManager::~ModelManager() = default;

bool ModelManager::setModel(const std::vector<uint8_t>& modelState, int32_t version, bool isDiff) {
    State& its = *state_;
    try {
        if (isDiff) throw std::runtime_error("a diff needs the agent, which has the version before");
        actor::CachedPolicy cached = actor::read_cached_policy(support::bytes_of(modelState.data(), modelState.size()));
        const auto differs = [](const auto& wanted, const policy::Space& has) { return wanted && !(*wanted == has); };
        if (differs(its.options.observations, cached.spec.observations) || differs(its.options.actions, cached.spec.actions))
            throw std::runtime_error("its spaces are not those of the configuration");
        cached.snapshot.version = static_cast<std::uint64_t>(version);
        its.policy = std::make_shared<policy::Policy>(std::make_shared<policy::PolicySpec>(std::move(cached.spec)),
                                                      std::make_shared<weights::Snapshot>(std::move(cached.snapshot)));
        its.scratch.emplace(its.policy->spec());
        its.recurrent.assign(its.policy->spec().state_size, 0.0f);
        return true;
    } catch (const std::exception& error) {
        if (its.logger) its.logger->warning(std::string("the policy is not used: ") + error.what());
        return false;
    }
}

RL4SysAction ModelManager::generateAction(const std::vector<float>& observation, int32_t version) {
    State& its = *state_;
    const auto [observations, actions] = api::spaces_of(its.options, its.policy.get());
    actor::Step step;
    api::read_observation(observations, observation.data(), observation.size(), step.observation);
    if (its.policy) {
        const std::int64_t index = observations.discrete ? static_cast<std::int64_t>(observation[0]) - observations.start : 0;
        const policy::Choice choice = its.policy->act(observation.data(), index, nullptr, its.options.settings.explore,
                                                      its.recurrent.data(), its.sampler, *its.scratch);
        step.index = choice.index;
        if (!actions.discrete) step.act.assign(choice.act, choice.act + actions.size());
    } else {
        api::act_randomly(step, actions, its.sampler);
    }
    const auto bytes = actions.discrete ? utils::serializeAction(step.index) : utils::serializeFloatVector(step.act);
    return RL4SysAction(step.observation, bytes, 0.0, false, {}, version);
}

int32_t ModelManager::getCurrentVersion() const noexcept {
    return state_->policy ? static_cast<int32_t>(state_->policy->snapshot().version) : -1;
}
bool ModelManager::hasModel() const noexcept { return state_->policy != nullptr; }
std::string ModelManager::getAlgorithmName() const { return state_->options.settings.hello.algorithm_name; }

}  // namespace rl4sys::cppclient
