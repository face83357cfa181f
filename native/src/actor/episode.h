// One episode of a host: its steps, cut into segments, and the segments that wait for late rewards.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "actor/columns.h"
#include "actor/host_link.h"
#include "actor/outbox.h"

namespace rl4sys::actor {

class Episode;

/// A segment of an episode. The thread of the episode writes it while it is open; then `Episode::mutex_` guards it.
struct Part {
    std::unique_ptr<SegmentColumns> columns;
    std::uint64_t index = 0;
    std::uint8_t flags = 0;
    std::uint64_t episode_length = 0;
    double deadline = 0.0;  // monotonic: until which rewards may come; 0 if it was closed with all of them
    bool closed = false;
    bool left = false;  // it has gone to the outbox, or was dropped: its rewards can no longer be set
};

/// What a policy saw at one step.
struct Seen {
    std::vector<std::uint8_t> observation;  // in the dtype of its space
    std::vector<std::uint8_t> mask;         // empty: every action was allowed

    const std::uint8_t* allowed() const noexcept { return mask.empty() ? nullptr : mask.data(); }
};

/// One requested action: what is recorded if the host adds it. Its buffers are reused.
struct Step : Seen {
    std::int64_t index = 0;                 // of a Discrete action
    std::vector<float> raw;                 // of a Box: to train on
    std::vector<float> act;                 // of a Box: for the environment
    std::vector<std::uint8_t> bytes;        // the action as bytes: an int64, or the floats of `act`
    std::vector<float> state, after;        // the recurrent state before and after the step
    double log_prob = 0.0;
    std::uint64_t generation = 0, version = 0;
    bool recorded = true;  // false: no policy chose it
    bool added = false;
    bool done = false;  // set by the host: the episode ended with it
    std::optional<double> reward;
    std::shared_ptr<Episode> episode;  // null: no agent made it
    std::shared_ptr<Part> part;        // that has the step; null before it is added
    std::uint32_t row = 0;
    std::uint64_t number = 0;  // of the request in its episode
    std::map<std::string, std::vector<std::uint8_t>> extra;

    const void* action() const noexcept { return raw.empty() ? static_cast<const void*>(&index) : raw.data(); }
};

/// What the episodes of an agent share.
struct EpisodeRules {
    Outbox& outbox;
    ColumnPool& pool;
    std::function<void()> wake;
    std::function<void(std::shared_ptr<Episode>)> late;  // of an episode that waits for rewards
    std::function<bool()> forgives_reward;               // called for an invalid reward; true: it is counted and ignored
    bool evaluates = false;                              // explore: false
    bool stores = true;                                  // false: an evaluation without a report
    double reward_timeout_s = 60.0;
    std::uint32_t max_steps = 0;  // of a trajectory; 0: no limit
};

/// Counts of all episodes of an agent. Host threads add to them.
struct EpisodeCounts {
    std::atomic<std::uint64_t> episodes{0}, skipped{0}, unrecorded{0}, late_dropped{0}, without_rewards{0}, cleared{0};
    std::atomic<std::int64_t> waiting{0};  // segments that wait for rewards

    void add_return(double value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        returns_.push_back(value);
        if (returns_.size() > 100) returns_.pop_front();
    }
    /// The mean of the last 100 returns; nothing before the first.
    std::optional<double> mean_return() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (returns_.empty()) return std::nullopt;
        return std::accumulate(returns_.begin(), returns_.end(), 0.0) / static_cast<double>(returns_.size());
    }

private:
    mutable std::mutex mutex_;
    std::deque<double> returns_;
};

class Episode : public std::enable_shared_from_this<Episode> {
public:
    Episode(const EpisodeRules& rules, EpisodeCounts& counts, std::uint64_t id)
        : rules_(rules), counts_(counts), id_(id), cap_(rules.max_steps ? rules.max_steps : UINT32_MAX), cap_left_(cap_) {}

    bool completed() const noexcept { return completed_; }
    std::uint64_t id() const noexcept { return id_; }
    std::uint32_t steps() const noexcept { return steps_before_ + (open_ ? open_->columns->steps : 0); }
    const EpisodeRules& rules() const noexcept { return rules_; }
    /// True if the host has said that the last added step ends the episode.
    bool done() const noexcept { return done_; }
    void set_done(const Step& step) noexcept { done_ = step.done && step.number + 1 == expected_; }
    /// True if a step has no reward.
    bool lacks_rewards() const;
    /// The open segment, for copies of its steps; null if it has none.
    const std::shared_ptr<Part>& open() const noexcept { return open_; }

    /// Prepares the episode for a request: cuts the open segment if it is full or of another generation.
    /// True if a new segment would begin with the next step.
    bool prepare(std::uint64_t generation, const void* observation, const std::uint8_t* mask);
    /// Notes a requested step. Steps must be added in the order of their requests.
    void note(Step& step);

    enum class Added { stored, already_stored, out_of_order, ended };
    /// Stores a step as the next row. `shape` and `segment_steps` describe a new segment.
    Added add(Step& step, const std::shared_ptr<const SegmentShape>& shape, std::uint32_t segment_steps);
    /// Sets the reward of a stored or waiting step. False if its segment has gone.
    bool set_reward(Step& step, double given);
    /// Discards the steps of the open segment.
    void discard();
    /// Ends the episode. `final_observation` is what came after the last step of a truncated one; null for none.
    void end(bool truncated, const void* final_observation, const std::uint8_t* final_mask);
    /// The time at which `expire` is due; infinity if no segment waits.
    double deadline() const;
    /// Drops the segments whose rewards did not come in time.
    void expire(double now);

private:
    // True if a step of this generation must begin a segment, although one is open.
    bool must_cut(std::uint64_t generation) const noexcept {
        return open_ && (open_->columns->full() || open_->columns->generation != generation);
    }
    void cut(const void* observation, const std::uint8_t* mask, bool follows);
    void lose_step(const Seen& next);
    void close(std::shared_ptr<Part> part);
    void release();

    const EpisodeRules& rules_;
    EpisodeCounts& counts_;
    const std::uint64_t id_;
    const std::uint32_t cap_;
    std::uint32_t cap_left_, steps_before_ = 0;
    std::shared_ptr<Part> open_;  // it has at least one step
    bool follows_ = false;  // the next segment follows the last one
    std::uint64_t segment_index_ = 0, next_number_ = 0, expected_ = 0;
    bool completed_ = false, done_ = false;
    Seen skipped_;  // the first step that was requested and not added: the learner bootstraps there
    std::atomic<bool> lost_{false};

    mutable std::mutex mutex_;
    std::deque<std::shared_ptr<Part>> waiting_;  // closed segments, oldest first
    double reward_sum_ = 0.0;                    // of the segments that went to the outbox
};

}  // namespace rl4sys::actor
