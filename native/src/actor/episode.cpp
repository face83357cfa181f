#include "actor/episode.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "actor/io_thread.h"

namespace rl4sys::actor {
namespace {

constexpr std::size_t kRecentEpisodes = 100;

std::uint32_t cap_of(const EpisodeRules& rules) noexcept {
    return rules.max_steps ? rules.max_steps : std::numeric_limits<std::uint32_t>::max();
}

}  // namespace

Episode::Episode(const EpisodeRules& rules, EpisodeCounts& counts, std::uint64_t id)
    : rules_(rules), counts_(counts), id_(id), cap_left_(cap_of(rules)) {}

void EpisodeCounts::add_return(double value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    returns_.push_back(value);
    if (returns_.size() > kRecentEpisodes) returns_.pop_front();
}

std::optional<double> EpisodeCounts::mean_return() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (returns_.empty()) return std::nullopt;
    return std::accumulate(returns_.begin(), returns_.end(), 0.0) / static_cast<double>(returns_.size());
}

void Episode::set_done(const Step& step) noexcept { done_ = step.done && step.number + 1 == expected_; }

bool Episode::lacks_rewards() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return (open_ && open_->columns->missing) ||
           std::any_of(waiting_.begin(), waiting_.end(), [](const auto& part) { return part->columns->missing > 0; });
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
    if (step.added) return Added::already_stored;
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
    step.added = true;
    done_ = step.done;
    skipped_observation_.clear();
    if (!rules_.stores) return Added::stored;
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
    columns.write(step.observation.data(), step.action(), static_cast<float>(step.log_prob), step.version, step.allowed(),
                  step.state.data());
    step.part = open_;
    step.row = columns.steps - 1;
    if (step.reward) columns.set_reward(step.row, static_cast<float>(*step.reward));
    return Added::stored;
}

bool Episode::set_reward(Step& step, double given) {
    const auto reward = static_cast<float>(given);
    const std::shared_ptr<Part>& part = step.part;
    if (part && !part->closed) {
        part->columns->set_reward(step.row, reward);
    } else if (part) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (part->left) return false;
        part->columns->set_reward(step.row, reward);
        if (!part->columns->missing) release();
    }
    step.reward = given;
    return true;
}

void Episode::discard() {
    if (completed_ || !open_ || !open_->columns->steps) return;
    const std::shared_ptr<Part> part = std::move(open_);
    counts_.cleared.fetch_add(part->columns->steps);
    segment_index_ = part->index ? part->index + 1 : 0;  // a gap, unless the episode begins here
    const std::lock_guard<std::mutex> lock(mutex_);
    part->closed = part->left = true;
    lost_ = lost_ || part->index;
    rules_.pool.give_back(std::move(part->columns));
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
            columns.set_bootstrap(std::string(columns.last_observation(), columns.row_bytes()).data(), columns.last_mask());
    }
    steps_before_ += columns.steps;
    close(std::move(part));
}

void Episode::close(std::shared_ptr<Part> part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    part->closed = true;
    const bool waits = part->columns->missing > 0;
    if (waits) {
        part->deadline = monotonic() + rules_.reward_timeout_s;
        part->waits = true;
        counts_.waiting.fetch_add(1);
    }
    waiting_.push_back(std::move(part));
    release();
    if (waits) rules_.late(shared_from_this());
}

double Episode::deadline() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    double out = std::numeric_limits<double>::infinity();
    for (const auto& part : waiting_)
        if (part->columns->missing) out = std::min(out, part->deadline);
    return out;
}

void Episode::expire(double now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        Part& part = **it;
        if (part.columns->missing && part.deadline <= now) {
            part.left = lost_ = true;
            counts_.waiting.fetch_sub(1);
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
        if (part->waits) counts_.waiting.fetch_sub(1);
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
            counts_.add_return(reward_sum_);
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
