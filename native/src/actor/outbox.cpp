#include "actor/outbox.h"

#include <algorithm>
#include <utility>

namespace rl4sys::actor {
namespace {

constexpr std::size_t kMostUsed = 64;  // columns that are kept for other segments

}  // namespace

FinishedSegment Outbox::pop() {
    FinishedSegment out = std::move(items_.front());
    items_.pop_front();
    --counts_.items;
    counts_.bytes -= out.columns->bytes();
    counts_.steps -= out.columns->steps;
    return out;
}

void Outbox::put(FinishedSegment segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_.items;
    ++counts_.put_items;
    counts_.bytes += segment.columns->bytes();
    counts_.steps += segment.columns->steps;
    counts_.put_steps += segment.columns->steps;
    items_.push_back(std::move(segment));
    while (drops_ && items_.size() > 1 && (counts_.items > max_items_ || counts_.bytes > max_bytes_)) {
        FinishedSegment oldest = pop();
        ++counts_.dropped["overflow"];
        if (used_.size() < kMostUsed) used_.push_back(std::move(oldest.columns));
    }
}

std::optional<Outbox::Head> Outbox::peek() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (items_.empty()) return std::nullopt;
    const SegmentColumns& columns = *items_.front().columns;
    return Head{columns.generation, columns.oldest_version(), columns.steps, columns.bytes()};
}

std::optional<FinishedSegment> Outbox::take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (items_.empty()) return std::nullopt;
    return pop();
}

void Outbox::drop(const char* reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (items_.empty()) return;
    FinishedSegment oldest = pop();
    ++counts_.dropped[reason];
    if (used_.size() < kMostUsed) used_.push_back(std::move(oldest.columns));
}

std::uint64_t Outbox::newest_version(std::uint64_t steps, std::uint64_t generation) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::optional<std::uint64_t> lowest;
    for (auto item = items_.rbegin(); item != items_.rend() && item->columns->generation == generation; ++item) {
        const std::uint64_t oldest = item->columns->oldest_version();
        lowest = lowest ? std::min(*lowest, oldest) : oldest;
        if (item->columns->steps >= steps) return *lowest;
        steps -= item->columns->steps;
    }
    return 0;
}

std::unique_ptr<SegmentColumns> Outbox::columns(const std::shared_ptr<const SegmentShape>& shape, std::uint32_t limit) {
    std::unique_ptr<SegmentColumns> out;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!used_.empty()) {
            out = std::move(used_.back());
            used_.pop_back();
        }
    }
    if (!out) return std::make_unique<SegmentColumns>(shape, limit);
    out->reset(shape, limit);
    return out;
}

void Outbox::give_back(std::unique_ptr<SegmentColumns> columns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (used_.size() < kMostUsed) used_.push_back(std::move(columns));
}

Outbox::Counts Outbox::counts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
}

}  // namespace rl4sys::actor
