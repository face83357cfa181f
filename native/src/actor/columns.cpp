#include "actor/columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace rl4sys::actor {
namespace {

std::string layout_of(const policy::PolicySpec& spec, bool masked) {
    const policy::Space& actions = spec.actions;
    std::string out = wire::layout_word('o', spec.observations.dtype, spec.observations.shape) + " " +
                      wire::layout_word('a', actions.discrete ? "<i8" : "<f4", actions.shape) + " r<f4 l<f4 v<u8";
    if (masked) out += " " + wire::layout_word('m', "|b1", {static_cast<std::uint64_t>(actions.n)});
    if (spec.state_size) out += " " + wire::layout_word('i', "<f4", {spec.state_size});
    return out;
}

}  // namespace

SegmentShape::SegmentShape(const policy::PolicySpec& spec)
    : row_bytes{spec.observations.discrete ? 8 : spec.observations.size() * wire::item_bytes(spec.observations.dtype),
                spec.actions.discrete ? 8 : spec.actions.size() * 4, 4, 4, 8, spec.actions.discrete ? spec.actions.size() : 0,
                spec.state_size * 4},
      plain_layout(layout_of(spec, false)),
      masked_layout(layout_of(spec, true)) {}

void SegmentColumns::reset(std::shared_ptr<const SegmentShape> shape, std::uint32_t most) {
    shape_ = std::move(shape);
    for (std::size_t n = 0; n < kColumns; ++n) data_[n].resize((n == kState ? 1 : most + std::size_t{1}) * shape_->row_bytes[n]);
    limit = most;
    steps = missing = 0;
    generation = 0;
    masked_ = bootstrap_ = mixed_ = false;
}

std::size_t SegmentColumns::rows(std::size_t column) const noexcept {
    if (column == kState) return 1;
    return steps + std::size_t{bootstrap_ && (column == kObservations || column == kMasks)};
}

void SegmentColumns::put(Column column, std::size_t row, const void* from) noexcept {
    const std::size_t bytes = shape_->row_bytes[column];
    std::memcpy(data_[column].data() + row * bytes, from, bytes);
}

void SegmentColumns::keep_mask(std::size_t row, const std::uint8_t* mask) noexcept {
    if (!masked_) std::fill(data_[kMasks].begin(), data_[kMasks].end(), '\1');
    masked_ = true;
    char* const to = data_[kMasks].data() + row * shape_->row_bytes[kMasks];
    for (std::size_t i = 0; i < shape_->row_bytes[kMasks]; ++i) to[i] = mask ? mask[i] != 0 : 1;
}

void SegmentColumns::write(const void* observation, const void* action, float log_prob, std::uint64_t version, const std::uint8_t* mask,
                           const float* state) {
    const std::size_t row = steps;
    put(kObservations, row, observation);
    put(kActions, row, action);
    if (!row && shape_->row_bytes[kState]) put(kState, 0, state);
    set(kRewards, row, std::numeric_limits<float>::quiet_NaN());
    set(kLogProbs, row, log_prob);
    set(kVersions, row, version);
    mixed_ = mixed_ || version != at<std::uint64_t>(kVersions)[0];
    if (mask || masked_) keep_mask(row, mask);
    ++missing;
    ++steps;
}

void SegmentColumns::set_reward(std::uint32_t row, float reward) noexcept {
    missing -= std::isnan(at<float>(kRewards)[row]);
    set(kRewards, row, reward);
}

void SegmentColumns::set_bootstrap(const void* observation, const std::uint8_t* mask) {
    bootstrap_ = true;
    if (!observation) {
        observation = at<char>(kObservations) + (steps - std::size_t{1}) * shape_->row_bytes[kObservations];
        mask = masked_ ? at<std::uint8_t>(kMasks) + (steps - std::size_t{1}) * shape_->row_bytes[kMasks] : nullptr;
    }
    put(kObservations, steps, observation);
    if (mask || masked_) keep_mask(steps, mask);
}

void SegmentColumns::copy(std::uint32_t row, std::vector<std::uint8_t>& observation, std::vector<std::uint8_t>& action,
                          std::vector<std::uint8_t>& mask, std::uint64_t& version) const {
    const auto cut = [&](Column column) {
        const std::size_t bytes = shape_->row_bytes[column];
        const auto* from = at<std::uint8_t>(column) + row * bytes;
        return std::vector<std::uint8_t>(from, from + bytes);
    };
    observation = cut(kObservations);
    action = cut(kActions);
    mask = masked_ ? cut(kMasks) : std::vector<std::uint8_t>();
    version = at<std::uint64_t>(kVersions)[row];
}

double SegmentColumns::reward_sum() const noexcept {
    double out = 0.0;
    for (std::uint32_t row = 0; row < steps; ++row) out += reward(row);
    return out;
}

void SegmentColumns::keep_last() noexcept {
    const std::ptrdiff_t last = steps - std::ptrdiff_t{1};
    for (std::size_t n = 0; n < kState; ++n) {
        const auto begin = data_[n].begin();
        const auto bytes = static_cast<std::ptrdiff_t>(shape_->row_bytes[n]);
        std::copy(begin + last * bytes, begin + static_cast<std::ptrdiff_t>(rows(n)) * bytes, begin);
    }
    mixed_ = false;
    steps = 1;
}

wire::PackedSegment SegmentColumns::pack(wire::SegmentNumbers numbers) const {
    std::vector<std::string_view> columns;
    for (std::size_t n = 0; n < kColumns; ++n) {
        if ((n == kMasks && !masked_) || !shape_->row_bytes[n]) continue;
        columns.emplace_back(data_[n].data(), n == kVersions && !mixed_ ? 0 : rows(n) * shape_->row_bytes[n]);
    }
    numbers.generation = generation;
    numbers.oldest_version = *std::min_element(at<std::uint64_t>(kVersions), at<std::uint64_t>(kVersions) + steps);
    numbers.steps = steps;
    if (mixed_) numbers.flags |= wire::flag::versions;
    return wire::pack_segment(numbers, masked_ ? shape_->masked_layout : shape_->plain_layout, columns);
}

}  // namespace rl4sys::actor
