// The steps of one segment, in columns that host threads write and pack.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "policy/spec.h"
#include "wire/segments.h"

namespace rl4sys::actor {

/// The columns of a segment, in the order of its layout.
enum Column : std::size_t { kObservations, kActions, kRewards, kLogProbs, kVersions, kMasks, kState, kColumns };

/// What the columns of a policy's segments look like. Segments share it.
struct SegmentShape {
    explicit SegmentShape(const policy::PolicySpec& spec);

    std::array<std::size_t, kColumns> row_bytes;  // 0: the policy has no such column
    std::string plain_layout, masked_layout;
};

/// The columns of one segment, with memory for a fixed number of steps.
class SegmentColumns {
public:
    /// Makes the columns empty, for a segment of at most `most` steps.
    void reset(std::shared_ptr<const SegmentShape> shape, std::uint32_t most);

    /// Writes a row. `mask` is null if every action was allowed; `state` is read at the first row only.
    void write(const void* observation, const void* action, float log_prob, std::uint64_t version, const std::uint8_t* mask, const float* state);
    void set_reward(std::uint32_t row, float reward) noexcept;
    /// The observation after the last step, from which the learner bootstraps. Null: the last step's.
    void set_bootstrap(const void* observation, const std::uint8_t* mask);

    bool full() const noexcept { return steps == limit; }
    float reward(std::uint32_t row) const noexcept { return at<float>(kRewards)[row]; }
    float log_prob(std::uint32_t row) const noexcept { return at<float>(kLogProbs)[row]; }
    /// Copies a row as it travels.
    void copy(std::uint32_t row, std::vector<std::uint8_t>& observation, std::vector<std::uint8_t>& action, std::vector<std::uint8_t>& mask,
              std::uint64_t& version) const;
    double reward_sum() const noexcept;
    /// Drops all steps but the last.
    void keep_last() noexcept;
    /// The segment as bytes. The numbers of the head that the columns do not know are the caller's.
    wire::PackedSegment pack(wire::SegmentNumbers numbers) const;

    std::uint32_t steps = 0, limit = 0, missing = 0;  // `missing`: steps without a reward
    std::uint64_t generation = 0;

private:
    template <class T>
    const T* at(Column column) const noexcept {
        return reinterpret_cast<const T*>(data_[column].data());
    }
    std::size_t rows(std::size_t column) const noexcept;
    void put(Column column, std::size_t row, const void* from) noexcept;
    template <class T>
    void set(Column column, std::size_t row, T value) noexcept {
        reinterpret_cast<T*>(data_[column].data())[row] = value;
    }
    void keep_mask(std::size_t row, const std::uint8_t* mask) noexcept;

    std::shared_ptr<const SegmentShape> shape_;
    std::array<std::vector<char>, kColumns> data_;
    bool masked_ = false, bootstrap_ = false, mixed_ = false;
};

/// Columns of segments that were packed, for other segments. Any thread may use it.
class ColumnPool {
public:
    std::unique_ptr<SegmentColumns> take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (used_.empty()) return std::make_unique<SegmentColumns>();
        auto out = std::move(used_.back());
        used_.pop_back();
        return out;
    }
    void give_back(std::unique_ptr<SegmentColumns> columns) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (used_.size() < 64) used_.push_back(std::move(columns));
    }

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<SegmentColumns>> used_;
};

}  // namespace rl4sys::actor
