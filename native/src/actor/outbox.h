// The finished segments between host threads and the I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "wire/segments.h"

namespace rl4sys::actor {

/// A bounded FIFO. Host threads put, the I/O thread takes. If it is full, the oldest segment is dropped and counted, unless
/// `drops` is false: then the learner's credit limits its length.
class Outbox {
public:
    struct Counts {
        std::size_t items = 0, bytes = 0, in_hand = 0;
        std::uint64_t steps = 0, put_items = 0, put_steps = 0;
        std::map<std::string, std::uint64_t> dropped;  // segments by reason
    };

    Outbox(std::size_t max_items, std::size_t max_bytes, bool drops) : max_items_(max_items), max_bytes_(max_bytes), drops_(drops) {}

    void put(wire::SharedSegment segment) {
        const Lock lock(mutex_);
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
    /// Counts a segment that the host finished and that is not sent, because of `reason`.
    void put_dropped(const std::string& reason, std::uint32_t steps = 0) {
        const Lock lock(mutex_);
        ++counts_.put_items;
        counts_.put_steps += steps;
        ++counts_.dropped[reason];
    }

    /// The oldest segment; null if there is none.
    wire::SharedSegment peek() const {
        const Lock lock(mutex_);
        return items_.empty() ? nullptr : items_.front();
    }
    wire::SharedSegment take() {
        const Lock lock(mutex_);
        if (items_.empty()) return nullptr;
        ++counts_.in_hand;
        return pop();
    }
    void drop(const char* reason) {
        const Lock lock(mutex_);
        if (items_.empty()) return;
        pop();
        ++counts_.dropped[reason];
    }
    /// The least version among the newest segments of a generation that have `steps` steps together; 0 if there are too few.
    std::uint64_t newest_version(std::uint64_t steps, std::uint64_t generation) const {
        const Lock lock(mutex_);
        std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
        for (auto item = items_.rbegin(); item != items_.rend() && (*item)->generation == generation; ++item) {
            lowest = std::min(lowest, (*item)->oldest_version);
            if ((*item)->steps >= steps) return lowest;
            steps -= (*item)->steps;
        }
        return 0;
    }

    Counts counts() const {
        const Lock lock(mutex_);
        return counts_;
    }
    /// The segments that were taken count as in hand until this call: the session's published numbers have them from then on.
    Counts settle() {
        const Lock lock(mutex_);
        counts_.in_hand = 0;
        return counts_;
    }
    /// Locks the queue while the process forks.
    void hold() { mutex_.lock(); }
    void let_go() { mutex_.unlock(); }

private:
    using Lock = std::lock_guard<std::mutex>;

    wire::SharedSegment pop() {
        wire::SharedSegment out = std::move(items_.front());
        items_.pop_front();
        --counts_.items;
        counts_.bytes -= out->bytes;
        counts_.steps -= out->steps;
        return out;
    }

    const std::size_t max_items_, max_bytes_;
    const bool drops_;
    mutable std::mutex mutex_;
    std::deque<wire::SharedSegment> items_;
    Counts counts_;
};

}  // namespace rl4sys::actor
