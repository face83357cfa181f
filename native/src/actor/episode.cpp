#include "actor/episode.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "actor/io_thread.h"

namespace rl4sys::actor {
namespace {

std::uint32_t cap_of(const EpisodeRules& rules) noexcept { return rules.max_steps ? rules.max_steps : std::numeric_limits<std::uint32_t>::max(); }

}  // namespace

Episode::Episode(const EpisodeRules& rules, EpisodeCounts& counts, std::uint64_t id)
    : rules_(rules), counts_(counts), id_(id), cap_left_(cap_of(rules)) {}

bool Episode::lost() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lost_;
}

bool Episode::prepare(std::uint64_t generation, const void* observation, const std::uint8_t* mask) {
    if (!open_) return true;
    const SegmentColumns& columns = *open_->columns;
    if (!columns.steps || (!columns.full() && columns.generation == generation)) return !columns.steps;
    // The learner bootstraps from the first step that was not added.
    if (!skipped_observation_.empty())
        cut(skipped_observation_.data(), skipped_mask_.empty() ? nullptr : skipped_mask_.data(), true);
    else
        cut(observation, mask, true);
    return true;
}

void Episode::note(Step& step) {
    step.number = next_number_++;
    if (step.number != expected_ || !open_) return;
    skipped_observation_.assign(step.observation.begin(), step.observation.end());
    skipped_mask_.assign(step.mask.begin(), step.mask.end());
}

// Closes the open segment. Without `follows`, steps are missing between it and the next one.
void Episode::cut(const void* observation, const std::uint8_t* mask, bool follows) {
    std::shared_ptr<Part> part = std::move(open_);
    part->columns->set_bootstrap(observation, mask);
    cap_left_ -= part->columns->steps;
    if (!cap_left_) {
        part->flags |= wire::flag::capped;
        cap_left_ = cap_of(rules_);
    }
    steps_before_ += part->columns->steps;
    segment_index_ = part->index + 1;
    follows_ = true;
    if (!follows) skip_index();
    close(std::move(part));
}

// Skips an index, once, because steps are missing after the segment that was cut last.
void Episode::skip_index() noexcept {
    segment_index_ += follows_;
    follows_ = false;
}

Episode::Added Episode::add(Step& step, const std::shared_ptr<const SegmentShape>& shape, std::uint32_t segment_steps) {
    if (step.part) return Added::already_stored;
    if (completed_) return Added::ended;
    if (step.number < expected_) return Added::out_of_order;
    if (step.number > expected_) {
        // Steps were requested and not added: the next one does not follow the last one.
        counts_.skipped.fetch_add(step.number - expected_);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            lost_ = true;
        }
        if (open_ && open_->columns->steps && !skipped_observation_.empty())
            cut(skipped_observation_.data(), skipped_mask_.empty() ? nullptr : skipped_mask_.data(), false);
        else
            skip_index();
    }
    expected_ = step.number + 1;
    skipped_observation_.clear();
    if (!step.recorded) {
        counts_.unrecorded.fetch_add(1);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            lost_ = true;
        }
        if (open_ && open_->columns->steps)
            cut(step.observation.data(), step.allowed(), false);
        else
            skip_index();
        return Added::stored;
    }
    if (open_ && open_->columns->steps && (open_->columns->full() || open_->columns->generation != step.generation))
        cut(step.observation.data(), step.allowed(), true);
    if (!open_) {
        open_ = std::make_shared<Part>();
        open_->index = segment_index_;
        follows_ = false;
        open_->columns = rules_.pool.take(shape, std::min(segment_steps, cap_left_));
    }
    SegmentColumns& columns = *open_->columns;
    if (!columns.steps) columns.generation = step.generation;
    columns.write(step.observation.data(), step.action(), step.log_prob, step.version, step.allowed(), step.state.data());
    step.part = open_;
    step.row = columns.steps - 1;
    if (step.reward) columns.set_reward(step.row, *step.reward);
    return Added::stored;
}

bool Episode::set_reward(Step& step, float reward) {
    step.reward = reward;
    const std::shared_ptr<Part>& part = step.part;
    if (!part) return true;
    if (!part->closed) {
        part->columns->set_reward(step.row, reward);
        return true;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (part->left) return false;
    part->columns->set_reward(step.row, reward);
    if (!part->columns->missing) release();
    return true;
}

void Episode::end(bool truncated, const void* final_observation, const std::uint8_t* final_mask) {
    if (completed_) return;
    completed_ = true;
    if (!open_ || !open_->columns->steps) {
        // The last segment was cut after the last step: it ends the episode without a terminal state.
        const std::lock_guard<std::mutex> lock(mutex_);
        lost_ = true;
        release();
        return;
    }
    std::shared_ptr<Part> part = std::move(open_);
    SegmentColumns& columns = *part->columns;
    if (!skipped_observation_.empty()) {
        // The last steps are not recorded: no terminal state is known.
        truncated = true;
        final_observation = skipped_observation_.data();
        final_mask = skipped_mask_.empty() ? nullptr : skipped_mask_.data();
        const std::lock_guard<std::mutex> lock(mutex_);
        lost_ = true;
    }
    part->flags |= truncated ? wire::flag::truncated : wire::flag::terminated;
    part->episode_length = steps_before_ + columns.steps;
    if (columns.missing) counts_.without_rewards.fetch_add(1);
    if (truncated) {
        if (final_observation)
            columns.set_bootstrap(final_observation, final_mask);
        else
            columns.set_bootstrap(std::vector<char>(columns.last_observation(), columns.last_observation() + columns.row_bytes()).data(),
                                  columns.last_mask());
    }
    steps_before_ += columns.steps;
    close(std::move(part));
}

void Episode::close(std::shared_ptr<Part> part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    part->closed = true;
    if (part->columns->missing) part->deadline = monotonic() + rules_.reward_timeout_s;
    waiting_.push_back(std::move(part));
    release();
}

void Episode::expire(double now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        Part& part = **it;
        if (part.columns->missing && part.deadline <= now) {
            part.left = lost_ = true;
            counts_.reward_timeouts.fetch_add(1);
            rules_.pool.give_back(std::move(part.columns));
            rules_.outbox.put_dropped("reward_timeout");
            it = waiting_.erase(it);
        } else {
            ++it;
        }
    }
    release();
}

// Passes closed segments to the outbox, in order, up to the first one with a missing reward. `mutex_` is held.
void Episode::release() {
    while (!waiting_.empty() && !waiting_.front()->columns->missing) {
        const std::shared_ptr<Part> part = std::move(waiting_.front());
        waiting_.pop_front();
        part->left = true;
        const bool ends = part->flags & (wire::flag::terminated | wire::flag::truncated);
        reward_sum_ += part->columns->reward_sum();
        std::unique_ptr<SegmentColumns> columns = std::move(part->columns);
        wire::SegmentNumbers numbers;
        numbers.episode_id = id_;
        numbers.segment_index = part->index;
        numbers.flags = part->flags;
        numbers.episode_length = part->episode_length;
        counts_.episodes.fetch_add(ends);
        if (ends && !lost_) {
            numbers.flags |= wire::flag::has_return;
            numbers.episode_return = reward_sum_;
        }
        if (rules_.evaluates) {
            // An evaluation is the last step of an episode; nothing else is sent.
            if (!(numbers.flags & wire::flag::has_return)) {
                rules_.pool.give_back(std::move(columns));
                continue;
            }
            columns->keep_last();
            numbers.flags |= wire::flag::evaluation;
        }
        rules_.outbox.put(std::make_shared<const wire::PackedSegment>(columns->pack(numbers)));
        rules_.pool.give_back(std::move(columns));
        rules_.wake();
    }
}

}  // namespace rl4sys::actor
