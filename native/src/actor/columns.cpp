#include "actor/columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace rl4sys::actor {
namespace {

constexpr std::size_t kMostUsed = 64;

std::string layout_of(const policy::PolicySpec& spec, bool masked) {
    const auto& [observations, actions] = std::pair<const policy::Space&, const policy::Space&>(spec.observations, spec.actions);
    std::string out = wire::layout_word('o', observations.dtype, observations.shape) + " " +
                      wire::layout_word('a', actions.discrete ? "<i8" : "<f4", actions.shape) + " r<f4 l<f4 v<u8";
    if (masked) out += " " + wire::layout_word('m', "|b1", {static_cast<std::uint64_t>(actions.n)});
    if (spec.state_size) out += " " + wire::layout_word('i', "<f4", {spec.state_size});
    return out;
}

}  // namespace

SegmentShape::SegmentShape(const policy::PolicySpec& spec)
    : observation_bytes(spec.observations.discrete ? 8 : spec.observations.size() * wire::item_bytes(spec.observations.dtype)),
      action_bytes(spec.actions.discrete ? 8 : spec.actions.size() * sizeof(float)),
      options(spec.actions.discrete ? spec.actions.size() : 0),
      state_bytes(spec.state_size * sizeof(float)),
      plain_layout(layout_of(spec, false)),
      masked_layout(options ? layout_of(spec, true) : std::string()) {}

SegmentColumns::SegmentColumns(std::shared_ptr<const SegmentShape> shape, std::uint32_t its_limit) : limit(0) {
    reset(std::move(shape), its_limit);
}

void SegmentColumns::reset(std::shared_ptr<const SegmentShape> shape, std::uint32_t its_limit) {
    shape_ = std::move(shape);
    limit = its_limit;
    observations_.resize((limit + std::size_t{1}) * shape_->observation_bytes);
    actions_.resize(limit * shape_->action_bytes);
    state_.resize(shape_->state_bytes);
    rewards_.resize(limit);
    log_probs_.resize(limit);
    versions_.resize(limit);
    masks_.resize((limit + std::size_t{1}) * shape_->options);
    steps = missing = 0;
    generation = 0;
    masked_ = bootstrap_ = mixed_ = false;
}

void SegmentColumns::keep_mask(std::size_t row, const std::uint8_t* mask) {
    const std::size_t options = shape_->options;
    if (!masked_) {
        std::fill(masks_.begin(), masks_.end(), std::uint8_t{1});
        masked_ = true;
    }
    for (std::size_t i = 0; i < options; ++i) masks_[row * options + i] = mask ? mask[i] != 0 : 1;
}

void SegmentColumns::write(const void* observation, const void* action, float log_prob, std::uint64_t version, const std::uint8_t* mask,
                           const float* state) {
    const std::size_t row = steps;
    std::memcpy(observations_.data() + row * shape_->observation_bytes, observation, shape_->observation_bytes);
    std::memcpy(actions_.data() + row * shape_->action_bytes, action, shape_->action_bytes);
    if (!row && !state_.empty()) std::memcpy(state_.data(), state, state_.size());
    rewards_[row] = std::numeric_limits<float>::quiet_NaN();
    log_probs_[row] = log_prob;
    versions_[row] = version;
    mixed_ = mixed_ || version != versions_[0];
    if (mask || masked_) keep_mask(row, mask);
    ++missing;
    ++steps;
}

void SegmentColumns::set_reward(std::uint32_t row, float reward) noexcept {
    missing -= std::isnan(rewards_[row]);
    rewards_[row] = reward;
}

void SegmentColumns::set_bootstrap(const void* observation, const std::uint8_t* mask) {
    bootstrap_ = true;
    std::memcpy(observations_.data() + steps * shape_->observation_bytes, observation, shape_->observation_bytes);
    if (mask || masked_) keep_mask(steps, mask);
}

void SegmentColumns::copy(std::uint32_t row, std::vector<std::uint8_t>& observation, std::vector<std::uint8_t>& action,
                          std::vector<std::uint8_t>& mask, std::uint64_t& version) const {
    const auto cut = [row](const auto& column, std::size_t bytes) {
        const auto* at = reinterpret_cast<const std::uint8_t*>(column.data()) + row * bytes;
        return std::vector<std::uint8_t>(at, at + bytes);
    };
    observation = cut(observations_, shape_->observation_bytes);
    action = cut(actions_, shape_->action_bytes);
    mask = cut(masks_, masked_ ? shape_->options : 0);
    version = versions_[row];
}

double SegmentColumns::reward_sum() const noexcept {
    double out = 0.0;
    for (std::uint32_t row = 0; row < steps; ++row) out += rewards_[row];
    return out;
}

std::uint64_t SegmentColumns::oldest_version() const noexcept { return *std::min_element(versions_.begin(), versions_.begin() + steps); }

const std::uint8_t* SegmentColumns::last_mask() const noexcept { return masked_ ? masks_.data() + (steps - 1) * shape_->options : nullptr; }

void SegmentColumns::keep_last() {
    const std::size_t last = steps - 1, rows = 1 + std::size_t{bootstrap_};
    std::memmove(observations_.data(), observations_.data() + last * shape_->observation_bytes, rows * shape_->observation_bytes);
    std::memmove(actions_.data(), actions_.data() + last * shape_->action_bytes, shape_->action_bytes);
    if (masked_) std::memmove(masks_.data(), masks_.data() + last * shape_->options, rows * shape_->options);
    rewards_[0] = rewards_[last];
    log_probs_[0] = log_probs_[last];
    versions_[0] = versions_[last];
    mixed_ = false;
    steps = 1;
}

std::size_t SegmentColumns::bytes() const noexcept {
    const std::size_t rows = steps + std::size_t{bootstrap_};
    return rows * (shape_->observation_bytes + (masked_ ? shape_->options : 0)) + steps * (shape_->action_bytes + 8 + (mixed_ ? 8 : 0)) +
           state_.size();
}

wire::PackedSegment SegmentColumns::pack(wire::SegmentNumbers numbers) const {
    const std::size_t rows = steps + std::size_t{bootstrap_};
    const auto view = [](const auto& column, std::size_t count, std::size_t row_bytes) {
        return std::string_view(reinterpret_cast<const char*>(column.data()), count * row_bytes);
    };
    std::vector<std::string_view> columns = {
        view(observations_, rows, shape_->observation_bytes), view(actions_, steps, shape_->action_bytes), view(rewards_, steps, sizeof(float)),
        view(log_probs_, steps, sizeof(float)), view(versions_, mixed_ ? steps : 0, sizeof(std::uint64_t)),
    };
    if (masked_) columns.push_back(view(masks_, rows, shape_->options));
    if (!state_.empty()) columns.emplace_back(state_);
    numbers.generation = generation;
    numbers.oldest_version = oldest_version();
    numbers.steps = steps;
    if (mixed_) numbers.flags |= wire::flag::versions;
    return wire::pack_segment(numbers, masked_ ? shape_->masked_layout : shape_->plain_layout, columns);
}

std::unique_ptr<SegmentColumns> ColumnPool::take(const std::shared_ptr<const SegmentShape>& shape, std::uint32_t limit) {
    std::unique_ptr<SegmentColumns> out;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!used_.empty()) {
            out = std::move(used_.back());
            used_.pop_back();
        }
    }
    if (!out) return std::make_unique<SegmentColumns>(shape, limit);
    out->reset(shape, limit);
    return out;
}

void ColumnPool::give_back(std::unique_ptr<SegmentColumns> columns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (used_.size() < kMostUsed) used_.push_back(std::move(columns));
}

}  // namespace rl4sys::actor
