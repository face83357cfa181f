// One episode of a host: its steps, cut into segments, and the segments that wait for late rewards.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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
    double deadline = 0.0;  // monotonic: until which rewards may come
    bool closed = false;
    bool left = false;      // it has gone to the outbox, or was dropped: its rewards can no longer be set
};

/// One requested action: what is recorded if the host adds it. Its buffers are reused.
struct Step {
    std::vector<char> observation;
    std::vector<std::uint8_t> mask;    // empty: every action was allowed
    std::int64_t index = 0;            // of a Discrete action
    std::vector<float> raw;            // of a Box: to train on
    std::vector<char> act;             // of a Box: for the environment, in the space's dtype
    std::vector<float> state;          // the recurrent state before the step
    float log_prob = 0.0f;
    std::uint64_t generation = 0, version = 0;
    bool recorded = true;              // false: no policy chose it
    bool done = false;                 // set by the host: the episode ended with it
    std::optional<float> reward;
    std::shared_ptr<Episode> episode;
    std::shared_ptr<Part> part;        // that has the step; null before it is added
    std::uint32_t row = 0;
    std::uint64_t number = 0;          // of the request in its episode

    const void* action() const noexcept { return raw.empty() ? static_cast<const void*>(&index) : raw.data(); }
    const std::uint8_t* allowed() const noexcept { return mask.empty() ? nullptr : mask.data(); }
};

/// What the episodes of an agent share.
struct EpisodeRules {
    Outbox& outbox;
    ColumnPool& pool;
    std::function<void()> wake;
    bool evaluates = false;          // explore: false
    double reward_timeout_s = 60.0;
    std::uint32_t max_steps = 0;     // of a trajectory; 0: no limit
};

/// Counts of all episodes of an agent. Host threads add to them.
struct EpisodeCounts {
    std::atomic<std::uint64_t> episodes{0}, skipped{0}, unrecorded{0}, late_dropped{0}, reward_timeouts{0}, without_rewards{0};
};

class Episode : public std::enable_shared_from_this<Episode> {
public:
    Episode(const EpisodeRules& rules, EpisodeCounts& counts, std::uint64_t id);

    bool completed() const noexcept { return completed_; }
    std::uint64_t id() const noexcept { return id_; }
    std::uint32_t steps() const noexcept { return steps_before_ + (open_ ? open_->columns->steps : 0); }
    bool lost() const;

    /// Prepares the episode for a request: cuts the open segment if it is full or of another generation.
    /// True if a new segment would begin with the next step.
    bool prepare(std::uint64_t generation, const void* observation, const std::uint8_t* mask);
    /// Notes a requested step. Steps must be added in the order of their requests.
    void note(Step& step);

    enum class Added { stored, already_stored, out_of_order, ended };
    /// Stores a step as the next row. `shape` and `segment_steps` describe a new segment.
    Added add(Step& step, const std::shared_ptr<const SegmentShape>& shape, std::uint32_t segment_steps);
    /// Sets the reward of a stored or waiting step. False if its segment has gone.
    bool set_reward(Step& step, float reward);
    /// Ends the episode. `final_observation` is what came after the last step of a truncated one; null for none.
    void end(bool truncated, const void* final_observation, const std::uint8_t* final_mask);
    /// Drops the segments whose rewards did not come in time.
    void expire(double now);

private:
    void cut(const void* observation, const std::uint8_t* mask, bool follows);
    void skip_index() noexcept;
    void close(std::shared_ptr<Part> part);
    void release();

    const EpisodeRules& rules_;
    EpisodeCounts& counts_;
    const std::uint64_t id_;
    std::shared_ptr<Part> open_;
    bool follows_ = false;  // the next segment follows the last one
    std::uint64_t segment_index_ = 0, next_number_ = 0, expected_ = 0;
    std::uint32_t steps_before_ = 0, cap_left_;
    bool completed_ = false;
    // The first step that was requested and not added: the learner bootstraps there.
    std::vector<char> skipped_observation_;
    std::vector<std::uint8_t> skipped_mask_;

    mutable std::mutex mutex_;
    std::deque<std::shared_ptr<Part>> waiting_;  // closed segments, oldest first
    double reward_sum_ = 0.0;                    // of the segments that went to the outbox
    bool lost_ = false;
};

}  // namespace rl4sys::actor
