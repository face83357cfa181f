// The steps of one segment, in columns that host threads write and pack.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "policy/spec.h"
#include "wire/segments.h"

namespace rl4sys::actor {

/// What the columns of a policy's segments look like. Segments share it.
struct SegmentShape {
    explicit SegmentShape(const policy::PolicySpec& spec);

    std::size_t observation_bytes, action_bytes;  // of a row
    std::size_t options;                          // of a mask: the discrete actions; 0 without masks
    std::size_t state_bytes;                      // of the recurrent state before the first step
    std::string plain_layout, masked_layout;
};

/// The columns of one segment, with memory for a fixed number of steps.
class SegmentColumns {
public:
    SegmentColumns(std::shared_ptr<const SegmentShape> shape, std::uint32_t limit);

    /// Makes the columns empty, for another segment of at most `limit` steps.
    void reset(std::shared_ptr<const SegmentShape> shape, std::uint32_t limit);

    /// Writes a row. `mask` is null if every action was allowed; `state` is read at the first row only.
    void write(const void* observation, const void* action, float log_prob, std::uint64_t version, const std::uint8_t* mask, const float* state);
    void set_reward(std::uint32_t row, float reward) noexcept;
    /// The observation after the last step, from which the learner bootstraps.
    void set_bootstrap(const void* observation, const std::uint8_t* mask);

    bool full() const noexcept { return steps == limit; }
    float reward(std::uint32_t row) const noexcept { return rewards_[row]; }
    float log_prob(std::uint32_t row) const noexcept { return log_probs_[row]; }
    /// Copies a row as it travels.
    void copy(std::uint32_t row, std::vector<std::uint8_t>& observation, std::vector<std::uint8_t>& action, std::vector<std::uint8_t>& mask,
              std::uint64_t& version) const;
    double reward_sum() const noexcept;
    std::uint64_t oldest_version() const noexcept;
    const char* last_observation() const noexcept { return observations_.data() + (steps - 1) * shape_->observation_bytes; }
    const std::uint8_t* last_mask() const noexcept;
    std::size_t row_bytes() const noexcept { return shape_->observation_bytes; }
    /// Drops all steps but the last.
    void keep_last();
    /// The bytes of all columns as they travel.
    std::size_t bytes() const noexcept;

    /// The segment as bytes. The numbers of the head that the columns do not know are the caller's.
    wire::PackedSegment pack(wire::SegmentNumbers numbers) const;

    std::uint32_t steps = 0, limit, missing = 0;  // `missing`: steps without a reward
    std::uint64_t generation = 0;

private:
    void keep_mask(std::size_t row, const std::uint8_t* mask);

    std::shared_ptr<const SegmentShape> shape_;
    std::string observations_, actions_, state_;
    std::vector<float> rewards_, log_probs_;
    std::vector<std::uint64_t> versions_;
    std::vector<std::uint8_t> masks_;
    bool masked_ = false, bootstrap_ = false, mixed_ = false;
};

/// Columns of segments that were packed, for other segments. Any thread may use it.
class ColumnPool {
public:
    std::unique_ptr<SegmentColumns> take(const std::shared_ptr<const SegmentShape>& shape, std::uint32_t limit);
    void give_back(std::unique_ptr<SegmentColumns> columns);

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<SegmentColumns>> used_;
};

}  // namespace rl4sys::actor
