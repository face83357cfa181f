#include "actor/episode.h"

#include <algorithm>

namespace rl4sys::actor {

bool Episode::lacks_rewards() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return (open_ && open_->columns->missing) ||
           std::any_of(waiting_.begin(), waiting_.end(), [](const auto& part) { return part->columns->missing > 0; });
}

bool Episode::prepare(std::uint64_t generation, const void* observation, const std::uint8_t* mask) {
    // The learner bootstraps from the first step that was not added.
    const bool skipped = !skipped_.observation.empty();
    if (must_cut(generation)) cut(skipped ? skipped_.observation.data() : observation, skipped ? skipped_.allowed() : mask, true);
    return !open_;
}

void Episode::note(Step& step) {
    step.number = next_number_++;
    if (step.number != expected_ || !open_) return;
    skipped_.observation.assign(step.observation.begin(), step.observation.end());
    skipped_.mask.assign(step.mask.begin(), step.mask.end());
}

// Closes the open segment. Without `follows`, steps are missing between it and the next one.
void Episode::cut(const void* observation, const std::uint8_t* mask, bool follows) {
    std::shared_ptr<Part> part = std::move(open_);
    part->columns->set_bootstrap(observation, mask);
    cap_left_ -= part->columns->steps;
    if (!cap_left_) {
        part->flags |= wire::flag::capped;
        cap_left_ = cap_;
    }
    steps_before_ += part->columns->steps;
    segment_index_ = part->index + (follows ? 1 : 2);
    follows_ = follows;
    close(std::move(part));
}

// Notes that a step is missing. The open segment ends before it, at `next`; else an index is skipped, once.
void Episode::lose_step(const Seen& next) {
    lost_ = true;
    if (open_ && !next.observation.empty()) return cut(next.observation.data(), next.allowed(), false);
    segment_index_ += follows_;
    follows_ = false;
}

Episode::Added Episode::add(Step& step, const std::shared_ptr<const SegmentShape>& shape, std::uint32_t segment_steps) {
    if (step.added) return Added::already_stored;
    if (completed_) return Added::ended;
    if (step.number < expected_) return Added::out_of_order;
    if (step.number > expected_) {  // steps were requested and not added
        counts_.skipped += step.number - expected_;
        lose_step(skipped_);
    }
    expected_ = step.number + 1;
    step.added = true;
    done_ = step.done;
    skipped_.observation.clear();
    if (!rules_.stores) return Added::stored;
    if (!step.recorded) {
        ++counts_.unrecorded;
        lose_step(step);
        return Added::stored;
    }
    if (must_cut(step.generation)) cut(step.observation.data(), step.allowed(), true);
    if (!open_) {
        auto part = std::make_shared<Part>();
        part->index = segment_index_;
        part->columns = rules_.pool.take();
        part->columns->reset(shape, std::min(segment_steps, cap_left_));
        part->columns->generation = step.generation;
        open_ = std::move(part);
        follows_ = false;
    }
    SegmentColumns& columns = *open_->columns;
    columns.write(step.observation.data(), step.action(), static_cast<float>(step.log_prob), step.version, step.allowed(),
                  step.state.data());
    step.part = open_;
    step.row = columns.steps - 1;
    if (step.reward) columns.set_reward(step.row, static_cast<float>(*step.reward));
    return Added::stored;
}

bool Episode::set_reward(Step& step, double given) {
    const std::shared_ptr<Part>& part = step.part;
    if (part && !part->closed) {
        part->columns->set_reward(step.row, static_cast<float>(given));
    } else if (part) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (part->left) return false;
        part->columns->set_reward(step.row, static_cast<float>(given));
        if (!part->columns->missing) release();
    }
    step.reward = given;
    return true;
}

void Episode::discard() {
    if (completed_ || !open_) return;
    const std::shared_ptr<Part> part = std::move(open_);
    counts_.cleared += part->columns->steps;
    segment_index_ = part->index ? part->index + 1 : 0;  // a gap, unless the episode begins here
    if (part->index) lost_ = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    part->closed = part->left = true;
    rules_.pool.give_back(std::move(part->columns));
}

void Episode::end(bool truncated, const void* final_observation, const std::uint8_t* final_mask) {
    if (completed_) return;
    completed_ = true;
    // Without an open segment, the last one was cut after the last step. With a step that was not added, the last steps are not
    // recorded. In both cases no terminal state is known.
    const bool skipped = !skipped_.observation.empty();
    if (skipped || !open_) lost_ = true;
    if (!open_) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return release();
    }
    std::shared_ptr<Part> part = std::move(open_);
    SegmentColumns& columns = *part->columns;
    if (columns.missing) ++counts_.without_rewards;
    part->flags |= truncated || skipped ? wire::flag::truncated : wire::flag::terminated;
    if (skipped)
        columns.set_bootstrap(skipped_.observation.data(), skipped_.allowed());
    else if (truncated)
        columns.set_bootstrap(final_observation, final_mask);
    steps_before_ += columns.steps;
    part->episode_length = steps_before_;
    close(std::move(part));
}

void Episode::close(std::shared_ptr<Part> part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    part->closed = true;
    const bool waits = part->columns->missing > 0;
    if (waits) {
        part->deadline = monotonic() + rules_.reward_timeout_s;
        ++counts_.waiting;
    }
    waiting_.push_back(std::move(part));
    release();
    if (waits) rules_.late(shared_from_this());
}

double Episode::deadline() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    double out = kNever;
    for (const auto& part : waiting_)
        if (part->columns->missing) out = std::min(out, part->deadline);
    return out;
}

void Episode::expire(double now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto expired = [&](const std::shared_ptr<Part>& part) {
        if (!part->columns->missing || part->deadline > now) return false;
        part->left = lost_ = true;
        --counts_.waiting;
        rules_.pool.give_back(std::move(part->columns));
        rules_.outbox.put_dropped("reward_timeout");
        return true;
    };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), expired), waiting_.end());
    release();
}

// Passes closed segments to the outbox, in order, up to the first one with a missing reward. `mutex_` is held.
void Episode::release() {
    while (!waiting_.empty() && !waiting_.front()->columns->missing) {
        const std::shared_ptr<Part> part = std::move(waiting_.front());
        waiting_.pop_front();
        part->left = true;
        if (part->deadline != 0.0) --counts_.waiting;
        const bool ends = part->flags & (wire::flag::terminated | wire::flag::truncated);
        reward_sum_ += part->columns->reward_sum();
        std::unique_ptr<SegmentColumns> columns = std::move(part->columns);
        wire::SegmentNumbers numbers;
        numbers.episode_id = id_;
        numbers.segment_index = part->index;
        numbers.flags = part->flags;
        numbers.episode_length = part->episode_length;
        counts_.episodes += ends;
        const bool has_return = ends && !lost_;
        if (has_return) {
            numbers.flags |= wire::flag::has_return;
            numbers.episode_return = reward_sum_;
            counts_.add_return(reward_sum_);
        }
        // An evaluation is the last step of an episode; nothing else is sent.
        if (rules_.evaluates) {
            columns->keep_last();
            numbers.flags |= wire::flag::evaluation;
        }
        if (has_return || !rules_.evaluates) {
            rules_.outbox.put(std::make_shared<const wire::PackedSegment>(columns->pack(numbers)));
            rules_.wake();
        }
        rules_.pool.give_back(std::move(columns));
    }
}

}  // namespace rl4sys::actor
