#include <cstring>
#include <limits>

#include "api/agent.h"
#include "rl4sys/rl4sys_types.h"

namespace rl4sys::cppclient {
namespace {

using api::Code;
using api::Failure;

template <class T>
std::vector<std::uint8_t> bytes_of(const T* values, std::size_t count) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(values);
    return {bytes, bytes + count * sizeof(T)};
}

template <class T>
T value_of(const std::vector<std::uint8_t>& data, const char* what) {
    T out;
    if (data.size() != sizeof out)
        throw std::invalid_argument(config::text("data: ", what, " has ", sizeof out, " bytes, not ", data.size()));
    std::memcpy(&out, data.data(), sizeof out);
    return out;
}

}  // namespace

RL4SysAction::RL4SysAction(const std::vector<uint8_t>& observation, const std::vector<uint8_t>& action, double reward, bool done,
                           const std::vector<uint8_t>& mask, int32_t version) {
    setObservation(observation);
    setAction(action);
    own().reward = reward;
    setDone(done);
    setMask(mask);
    setVersion(version);
}

actor::Step& RL4SysAction::own() {
    if (!step_) step_ = std::make_shared<actor::Step>();
    return *step_;
}

const actor::Step& RL4SysAction::its() const noexcept {
    if (step_) return *step_;
    static const actor::Step none = [] {
        actor::Step step;
        step.recorded = false;
        return step;
    }();
    return none;
}

const std::vector<uint8_t>& RL4SysAction::getAction() const noexcept {
    if (step_ && step_->episode && step_->bytes.empty())  // a request leaves the bytes until they are read
        step_->bytes = step_->act.empty() ? bytes_of(&step_->index, 1) : bytes_of(step_->act.data(), step_->act.size());
    return its().bytes;
}

int64_t RL4SysAction::act() const noexcept { return its().index; }
const std::vector<float>& RL4SysAction::actFloats() const noexcept { return its().act; }
double RL4SysAction::getLogProb() const noexcept { return its().log_prob; }
bool RL4SysAction::isRecorded() const noexcept { return its().recorded; }
const std::vector<uint8_t>& RL4SysAction::getObservation() const noexcept { return its().observation; }
double RL4SysAction::getReward() const noexcept { return its().reward.value_or(0.0); }
bool RL4SysAction::isDone() const noexcept { return its().done; }
const std::vector<uint8_t>& RL4SysAction::getMask() const noexcept { return its().mask; }
int32_t RL4SysAction::getVersion() const noexcept { return static_cast<int32_t>(its().version); }
const std::map<std::string, std::vector<uint8_t>>& RL4SysAction::getExtraData() const noexcept { return its().extra; }

// The step of a request keeps what its policy saw.
void RL4SysAction::setObservation(const std::vector<uint8_t>& bytes) {
    if (own().episode) throw Failure(Code::action, "the observation of a requested action cannot be replaced; request another");
    own().observation = bytes;
}

void RL4SysAction::setAction(const std::vector<uint8_t>& bytes) {
    actor::Step& step = own();
    if (step.added && step.episode) throw Failure(Code::action, "this action is stored already; set it before addToTrajectory");
    if (step.episode && bytes == getAction()) return;
    step.bytes = bytes;
    step.recorded = !step.episode;
    if (bytes.size() == sizeof step.index) step.index = utils::deserializeAction(bytes);
}

void RL4SysAction::setReward(double reward) {
    constexpr double kLargest = std::numeric_limits<float>::max();
    const std::shared_ptr<actor::Episode>& episode = own().episode;
    const char* problem = nullptr;
    if (!(reward >= -kLargest && reward <= kLargest))
        problem = "a reward must be finite in float32";
    else if (!episode)
        step_->reward = reward;
    else if (!episode->set_reward(*step_, reward))
        problem = "the step's segment was queued for sending or dropped already";
    if (problem && !(episode && episode->rules().forgives_reward())) throw Failure(Code::reward, problem);
}

void RL4SysAction::setDone(bool done) {
    own().done = done;
    if (step_->episode && step_->added) step_->episode->set_done(*step_);
}

void RL4SysAction::setMask(const std::vector<uint8_t>& bytes) {
    if (own().episode)
        throw Failure(Code::action, "the mask of a requested action cannot be replaced; give it to requestForAction");
    own().mask = bytes;
}

void RL4SysAction::setVersion(int32_t version) {
    if (!own().episode) own().version = static_cast<std::uint64_t>(version);
}

void RL4SysAction::addExtraData(const std::string& key, const std::vector<uint8_t>& data) { own().extra[key] = data; }
void RL4SysAction::clear() { step_.reset(); }

RL4SysTrajectory::RL4SysTrajectory(int32_t version) : state_(std::make_unique<State>()) { state_->version = version; }
RL4SysTrajectory::~RL4SysTrajectory() = default;

void RL4SysTrajectory::addAction(const RL4SysAction& action) {
    if (!state_->parts) return state_->actions.push_back(action);
    if (!action.step_) throw Failure(Code::action, "no request has given this action; add one from requestForAction");
    api::Agent::add_to(*state_, *action.step_);
    state_->version = static_cast<std::int32_t>(action.step_->version);
}

void RL4SysTrajectory::markCompleted() {
    if (!state_->completed && state_->parts) api::Agent::end_run(*state_, false, nullptr, nullptr);
    state_->completed = true;
}

bool RL4SysTrajectory::isCompleted() const noexcept { return state_->completed; }
size_t RL4SysTrajectory::size() const noexcept { return state_->episode ? state_->episode->steps() : state_->actions.size(); }

void RL4SysTrajectory::clear() {
    if (state_->episode) state_->episode->discard();
    state_->actions.clear();
}

std::vector<RL4SysAction>& RL4SysTrajectory::getActions() {
    if (!state_->episode) return state_->actions;
    state_->actions.clear();
    const std::shared_ptr<actor::Part>& part = state_->episode->open();
    for (std::uint32_t row = 0; part && row < part->columns->steps; ++row) {
        actor::Step& step = state_->actions.emplace_back().own();
        part->columns->copy(row, step.observation, step.bytes, step.mask, step.version);
        step.log_prob = part->columns->log_prob(row);
        if (step.bytes.size() == sizeof step.index) step.index = utils::deserializeAction(step.bytes);
        const float reward = part->columns->reward(row);
        if (reward == reward) step.reward = static_cast<double>(reward);
        step.episode = state_->episode;
        step.part = part;
        step.row = row;
        step.added = true;
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
float deserializeFloat(const std::vector<uint8_t>& data) { return value_of<float>(data, "a float"); }
int64_t deserializeAction(const std::vector<uint8_t>& data) { return value_of<int64_t>(data, "a discrete action"); }

std::vector<float> deserializeFloatVector(const std::vector<uint8_t>& data) {
    std::vector<float> out(data.size() / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), data.data(), out.size() * sizeof(float));
    return out;
}

}  // namespace utils
}  // namespace rl4sys::cppclient
