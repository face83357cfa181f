#include "actor/outbox.h"

#include <algorithm>
#include <limits>

namespace rl4sys::actor {

wire::SharedSegment Outbox::pop() {
    wire::SharedSegment out = std::move(items_.front());
    items_.pop_front();
    --counts_.items;
    counts_.bytes -= out->bytes;
    counts_.steps -= out->steps;
    return out;
}

void Outbox::put(wire::SharedSegment segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_.items;
    ++counts_.put_items;
    counts_.bytes += segment->bytes;
    counts_.steps += segment->steps;
    counts_.put_steps += segment->steps;
    items_.push_back(std::move(segment));
    while (drops_ && items_.size() > 1 && (counts_.items > max_items_ || counts_.bytes > max_bytes_)) {
        pop();
        ++counts_.dropped["overflow"];
    }
}

void Outbox::put_dropped(const std::string& reason, std::uint32_t steps) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_.put_items;
    counts_.put_steps += steps;
    ++counts_.dropped[reason];
}

wire::SharedSegment Outbox::peek() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return items_.empty() ? nullptr : items_.front();
}

wire::SharedSegment Outbox::take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (items_.empty()) return nullptr;
    ++counts_.in_hand;
    return pop();
}

void Outbox::drop(const char* reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (items_.empty()) return;
    pop();
    ++counts_.dropped[reason];
}

std::uint64_t Outbox::newest_version(std::uint64_t steps, std::uint64_t generation) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
    for (auto item = items_.rbegin(); item != items_.rend() && (*item)->generation == generation; ++item) {
        lowest = std::min(lowest, (*item)->oldest_version);
        if ((*item)->steps >= steps) return lowest;
        steps -= (*item)->steps;
    }
    return 0;
}

Outbox::Counts Outbox::settle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.in_hand = 0;
    return counts_;
}

}  // namespace rl4sys::actor
