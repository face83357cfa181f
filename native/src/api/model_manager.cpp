#include "rl4sys/model_manager.h"

#include <random>

#include "actor/policy_cache.h"
#include "api/agent.h"

namespace rl4sys::cppclient {

struct ModelManager::State {
    AgentConfig config;
    std::shared_ptr<Logger> logger;
    api::Options options;
    policy::Sampler sampler;
    std::shared_ptr<const policy::Policy> policy;
    std::optional<policy::Scratch> scratch;
    std::vector<float> recurrent;
};

ModelManager::ModelManager(const AgentConfig& config, std::shared_ptr<Logger> logger)
    : state_(new State{config,
                       std::move(logger),
                       api::options_of(config),
                       policy::Sampler(api::options_of(config).settings.seed.value_or(support::system_seed(4)), 0.0),
                       {},
                       {},
                       {}}) {}

ModelManager::~ModelManager() = default;

bool ModelManager::setModel(const std::vector<uint8_t>& modelState, int32_t version, bool isDiff) {
    try {
        if (isDiff) throw std::runtime_error("a diff needs the agent, which has the version before");
        actor::CachedPolicy cached =
            actor::read_cached_policy({reinterpret_cast<const char*>(modelState.data()), modelState.size()});
        if (!(cached.spec.observations == *state_->options.observations) || !(cached.spec.actions == *state_->options.actions))
            throw std::runtime_error("its spaces are not those of the configuration");
        cached.snapshot.version = static_cast<std::uint64_t>(version);
        auto policy =
            std::make_shared<const policy::Policy>(std::make_shared<const policy::PolicySpec>(std::move(cached.spec)),
                                                   std::make_shared<const weights::Snapshot>(std::move(cached.snapshot)));
        state_->scratch.emplace(policy->spec());
        state_->recurrent.assign(policy->spec().state_size, 0.0f);
        state_->policy = std::move(policy);
        return true;
    } catch (const std::exception& error) {
        if (state_->logger) state_->logger->warning(std::string("the policy is not used: ") + error.what());
        return false;
    }
}

RL4SysAction ModelManager::generateAction(const std::vector<float>& observation, int32_t version) {
    const policy::Space &observations = *state_->options.observations, &actions = *state_->options.actions;
    if (observation.size() != (observations.discrete ? 1 : observations.size()))
        throw api::Failure(api::Code::observation, "the observation has " + std::to_string(observation.size()) + " elements");
    std::vector<uint8_t> bytes;
    if (state_->policy) {
        const std::int64_t index = observations.discrete ? static_cast<std::int64_t>(observation[0]) - observations.start : 0;
        if (observations.discrete && (index < 0 || index >= observations.n))
            throw api::Failure(api::Code::observation, "the observation is outside its space");
        const policy::Choice choice = state_->policy->act(observation.data(), index, nullptr, state_->config.explore,
                                                          state_->recurrent.data(), state_->sampler, *state_->scratch);
        bytes = actions.discrete ? utils::serializeAction(choice.index)
                                 : utils::serializeFloatVector(std::vector<float>(choice.act, choice.act + actions.size()));
    } else if (actions.discrete) {
        bytes = utils::serializeAction(actions.start +
                                       static_cast<std::int64_t>(state_->sampler.uniform() * static_cast<double>(actions.n)));
    } else {
        std::vector<float> act;
        for (std::size_t i = 0; i < actions.size(); ++i) {
            const double low = std::max(actions.low[i], -1.0), high = std::min(actions.high[i], 1.0);
            act.push_back(static_cast<float>(low + (high - low) * state_->sampler.uniform()));
        }
        bytes = utils::serializeFloatVector(act);
    }
    return RL4SysAction(utils::serializeFloatVector(observation), bytes, 0.0, false, {}, version);
}

int32_t ModelManager::getCurrentVersion() const noexcept {
    return state_->policy ? static_cast<int32_t>(state_->policy->snapshot().version) : -1;
}
bool ModelManager::hasModel() const noexcept { return state_->policy != nullptr; }
std::string ModelManager::getAlgorithmName() const { return state_->options.settings.hello.algorithm_name; }

}  // namespace rl4sys::cppclient
