#include "rl4sys/rl4sys_types.h"

#include <cstring>

#include "api/trajectory.h"

namespace rl4sys::cppclient {
namespace {

const std::vector<std::uint8_t>& no_bytes() noexcept {
    static const std::vector<std::uint8_t> empty;
    return empty;
}

template <class T>
std::vector<std::uint8_t> bytes_of(const T* values, std::size_t count) {
    std::vector<std::uint8_t> out(count * sizeof(T));
    if (count) std::memcpy(out.data(), values, out.size());
    return out;
}

}  // namespace

RL4SysAction::RL4SysAction() = default;
RL4SysAction::RL4SysAction(const RL4SysAction&) = default;
RL4SysAction::RL4SysAction(RL4SysAction&&) noexcept = default;
RL4SysAction& RL4SysAction::operator=(const RL4SysAction&) = default;
RL4SysAction& RL4SysAction::operator=(RL4SysAction&&) noexcept = default;
RL4SysAction::~RL4SysAction() = default;

RL4SysAction::RL4SysAction(const std::vector<uint8_t>& observation, const std::vector<uint8_t>& action, double reward, bool done,
                           const std::vector<uint8_t>& mask, int32_t version) {
    actor::Step& step = own();
    step.observation = observation;
    step.bytes = action;
    step.reward = reward;
    step.done = done;
    step.mask = mask;
    step.version = static_cast<std::uint64_t>(version);
    if (action.size() == sizeof step.index) step.index = utils::deserializeAction(action);
}

actor::Step& RL4SysAction::own() {
    if (!step_) step_ = std::make_shared<actor::Step>();
    return *step_;
}

int64_t RL4SysAction::act() const noexcept { return step_ ? step_->index : 0; }

const std::vector<float>& RL4SysAction::actFloats() const noexcept {
    static const std::vector<float> empty;
    return step_ ? step_->act : empty;
}

double RL4SysAction::getLogProb() const noexcept { return step_ ? step_->log_prob : 0.0; }
bool RL4SysAction::isRecorded() const noexcept { return step_ && step_->recorded; }
const std::vector<uint8_t>& RL4SysAction::getObservation() const noexcept { return step_ ? step_->observation : no_bytes(); }
const std::vector<uint8_t>& RL4SysAction::getAction() const noexcept { return step_ ? step_->bytes : no_bytes(); }
double RL4SysAction::getReward() const noexcept { return step_ ? step_->reward.value_or(0.0) : 0.0; }
bool RL4SysAction::isDone() const noexcept { return step_ && step_->done; }
const std::vector<uint8_t>& RL4SysAction::getMask() const noexcept { return step_ ? step_->mask : no_bytes(); }
int32_t RL4SysAction::getVersion() const noexcept { return step_ ? static_cast<int32_t>(step_->version) : 0; }

const std::map<std::string, std::vector<uint8_t>>& RL4SysAction::getExtraData() const noexcept {
    static const std::map<std::string, std::vector<uint8_t>> empty;
    return step_ ? step_->extra : empty;
}

// The step of a request keeps what its policy saw.
void RL4SysAction::setObservation(const std::vector<uint8_t>& bytes) {
    if (own().episode)
        throw api::Failure(api::Code::action, "the observation of a requested action cannot be replaced; request another");
    own().observation = bytes;
}

void RL4SysAction::setAction(const std::vector<uint8_t>& bytes) {
    actor::Step& step = own();
    if (step.added && step.episode)
        throw api::Failure(api::Code::action, "this action is stored already; set it before addToTrajectory");
    if (step.episode && bytes == step.bytes) return;
    step.bytes = bytes;
    step.recorded = !step.episode;
    if (bytes.size() == sizeof step.index) step.index = utils::deserializeAction(bytes);
}

void RL4SysAction::setReward(double reward) { api::Agent::set_reward(own(), reward); }

void RL4SysAction::setDone(bool done) {
    own().done = done;
    if (step_->episode && step_->added) step_->episode->set_done(*step_);
}

void RL4SysAction::setMask(const std::vector<uint8_t>& bytes) {
    if (own().episode)
        throw api::Failure(api::Code::action, "the mask of a requested action cannot be replaced; give it to requestForAction");
    own().mask = bytes;
}

void RL4SysAction::setVersion(int32_t version) {
    if (!own().episode) own().version = static_cast<std::uint64_t>(version);
}

void RL4SysAction::addExtraData(const std::string& key, const std::vector<uint8_t>& data) { own().extra[key] = data; }
void RL4SysAction::clear() { step_.reset(); }

RL4SysTrajectory::RL4SysTrajectory() : state_(std::make_unique<State>()) {}
RL4SysTrajectory::RL4SysTrajectory(int32_t version) : RL4SysTrajectory() { state_->version = version; }
RL4SysTrajectory::~RL4SysTrajectory() = default;

void RL4SysTrajectory::addAction(const RL4SysAction& action) {
    if (!state_->run.parts) {
        state_->actions.push_back(action);
        return;
    }
    std::shared_ptr<actor::Step>& step = api::Agent::step_of(action);
    if (!step) throw api::Failure(api::Code::action, "no request has given this action; add one from requestForAction");
    api::Agent::add_to(state_->run, *step);
    state_->version = static_cast<std::int32_t>(step->version);
}

void RL4SysTrajectory::addAction(RL4SysAction&& action) { addAction(static_cast<const RL4SysAction&>(action)); }

void RL4SysTrajectory::markCompleted() {
    if (state_->completed) return;
    if (state_->run.parts) api::Agent::end_run(state_->run, false, nullptr, nullptr);
    state_->completed = true;
}

bool RL4SysTrajectory::isCompleted() const noexcept { return state_->completed; }
bool RL4SysTrajectory::isValid() const noexcept { return !isEmpty(); }
bool RL4SysTrajectory::isEmpty() const noexcept { return !size(); }
size_t RL4SysTrajectory::size() const noexcept {
    return state_->run.episode ? state_->run.episode->steps() : state_->actions.size();
}

void RL4SysTrajectory::clear() {
    if (state_->run.episode) state_->run.episode->discard();
    state_->actions.clear();
}

std::vector<RL4SysAction>& RL4SysTrajectory::getActions() {
    if (!state_->run.episode) return state_->actions;
    state_->actions.clear();
    if (const std::shared_ptr<actor::Part>& part = state_->run.episode->open()) {
        for (std::uint32_t row = 0; row < part->columns->steps; ++row) {
            auto step = std::make_shared<actor::Step>();
            part->columns->copy(row, step->observation, step->bytes, step->mask, step->version);
            step->log_prob = part->columns->log_prob(row);
            if (step->bytes.size() == sizeof step->index) step->index = utils::deserializeAction(step->bytes);
            const float reward = part->columns->reward(row);
            if (reward == reward) step->reward = static_cast<double>(reward);
            step->episode = state_->run.episode;
            step->part = part;
            step->row = row;
            step->added = true;
            state_->actions.emplace_back().step_ = std::move(step);
        }
    }
    return state_->actions;
}

const std::vector<RL4SysAction>& RL4SysTrajectory::getActions() const {
    return const_cast<RL4SysTrajectory*>(this)->getActions();
}
int32_t RL4SysTrajectory::getVersion() const noexcept { return state_->version; }
void RL4SysTrajectory::setVersion(int32_t version) noexcept { state_->version = version; }

namespace utils {

std::vector<uint8_t> serializeFloat(float value) { return bytes_of(&value, 1); }
std::vector<uint8_t> serializeFloatVector(const std::vector<float>& values) { return bytes_of(values.data(), values.size()); }
std::vector<uint8_t> serializeAction(int64_t action) { return bytes_of(&action, 1); }

float deserializeFloat(const std::vector<uint8_t>& data) {
    const std::vector<float> values = deserializeFloatVector(data);
    if (values.empty()) throw std::invalid_argument("a float has 4 bytes, not " + std::to_string(data.size()));
    return values[0];
}

std::vector<float> deserializeFloatVector(const std::vector<uint8_t>& data) {
    std::vector<float> out(data.size() / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), data.data(), out.size() * sizeof(float));
    return out;
}

int64_t deserializeAction(const std::vector<uint8_t>& data) {
    int64_t out = 0;
    if (data.size() != sizeof out)
        throw std::invalid_argument("a discrete action has 8 bytes, not " + std::to_string(data.size()));
    std::memcpy(&out, data.data(), sizeof out);
    return out;
}

}  // namespace utils
}  // namespace rl4sys::cppclient
