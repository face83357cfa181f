// The finished segments between host threads and the I/O thread.
#pragma once

#include <cstdint>
#include <deque>
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
    Outbox(std::size_t max_items, std::size_t max_bytes, bool drops) : max_items_(max_items), max_bytes_(max_bytes), drops_(drops) {}

    void put(wire::SharedSegment segment);
    /// Counts a segment that the host finished and that is not sent, because of `reason`.
    void put_dropped(const std::string& reason, std::uint32_t steps = 0);

    /// The oldest segment; null if there is none.
    wire::SharedSegment peek() const;
    wire::SharedSegment take();
    void drop(const char* reason);
    /// The least version among the newest segments of a generation that have `steps` steps together; 0 if there are too few.
    std::uint64_t newest_version(std::uint64_t steps, std::uint64_t generation) const;

    struct Counts {
        std::size_t items = 0, bytes = 0, in_hand = 0;
        std::uint64_t steps = 0, put_items = 0, put_steps = 0;
        std::map<std::string, std::uint64_t> dropped;  // segments by reason
    };
    Counts counts() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return counts_;
    }
    /// The segments that were taken count as in hand until this call: the session's published numbers have them from then on.
    Counts settle();
    /// Locks the queue while the process forks.
    void hold() { mutex_.lock(); }
    void let_go() { mutex_.unlock(); }

private:
    wire::SharedSegment pop();

    const std::size_t max_items_, max_bytes_;
    const bool drops_;
    mutable std::mutex mutex_;
    std::deque<wire::SharedSegment> items_;
    Counts counts_;
};

}  // namespace rl4sys::actor
