// The queue of finished segments: its limits, its order and its counts, also with several threads.
#include "actor/outbox.h"

#include <atomic>
#include <thread>

#include "check.h"

using namespace rl4sys;
using actor::Outbox;

static wire::SharedSegment segment(std::uint64_t version, std::uint32_t steps = 10, std::uint64_t generation = 1, std::size_t bytes = 100) {
    wire::PackedSegment out;
    out.steps = steps;
    out.generation = generation;
    out.oldest_version = version;
    out.bytes = bytes;
    return std::make_shared<const wire::PackedSegment>(std::move(out));
}

TEST(segments_leave_in_order) {
    Outbox outbox(4, 1 << 20, true);
    for (std::uint64_t version = 1; version <= 3; ++version) outbox.put(segment(version));
    CHECK_EQ(outbox.counts().steps, 30u);
    for (std::uint64_t version = 1; version <= 3; ++version) {
        CHECK_EQ(outbox.peek()->oldest_version, version);
        CHECK_EQ(outbox.take()->oldest_version, version);
    }
    CHECK(!outbox.take());
    CHECK(!outbox.peek());
    CHECK_EQ(outbox.counts().items, 0u);
    CHECK_EQ(outbox.counts().bytes, 0u);
    CHECK_EQ(outbox.counts().put_steps, 30u);
}

TEST(a_full_queue_drops_the_oldest) {
    Outbox by_number(4, 1 << 20, true), by_size(100, 350, true);
    for (std::uint64_t version = 1; version <= 10; ++version) {
        by_number.put(segment(version));
        by_size.put(segment(version));
    }
    CHECK_EQ(by_number.counts().dropped["overflow"], 6u);
    CHECK_EQ(by_number.peek()->oldest_version, 7u);
    CHECK_EQ(by_size.counts().items, 3u);
    CHECK_EQ(by_size.counts().bytes, 300u);
    by_size.put(segment(11, 10, 1, 5000));  // larger than the limit: it stays, alone
    CHECK_EQ(by_size.counts().items, 1u);
}

TEST(a_queue_that_waits_drops_nothing) {
    Outbox outbox(2, 100, false);
    for (std::uint64_t version = 1; version <= 10; ++version) outbox.put(segment(version));
    CHECK_EQ(outbox.counts().items, 10u);
    CHECK(outbox.counts().dropped.empty());
    outbox.drop("stale");
    outbox.put_dropped("reward_timeout");
    CHECK_EQ(outbox.counts().dropped["stale"], 1u);
    CHECK_EQ(outbox.counts().dropped["reward_timeout"], 1u);
    CHECK_EQ(outbox.counts().put_items, 11u);
}

TEST(newest_version_is_of_the_newest_steps) {
    Outbox outbox(100, 1 << 20, true);
    outbox.put(segment(9, 10, 1));
    for (const std::uint64_t version : {4, 6, 5}) outbox.put(segment(version, 10, 2));
    CHECK_EQ(outbox.newest_version(10, 2), 5u);
    CHECK_EQ(outbox.newest_version(11, 2), 5u);
    CHECK_EQ(outbox.newest_version(30, 2), 4u);
    CHECK_EQ(outbox.newest_version(31, 2), 0u);
    CHECK_EQ(outbox.newest_version(1, 1), 0u);
}

TEST(no_segment_is_lost_between_threads) {
    constexpr std::uint64_t kEach = 2000;
    Outbox outbox(64, 1 << 20, true);
    std::atomic<int> hosts{3};
    std::vector<std::thread> threads;
    for (std::uint64_t host = 0; host < 3; ++host)
        threads.emplace_back([&, host] {
            for (std::uint64_t n = 0; n < kEach; ++n) outbox.put(segment(host * kEach + n));
            --hosts;
        });
    std::vector<std::uint64_t> next(3);
    std::uint64_t taken = 0;
    while (hosts > 0 || outbox.peek()) {
        const wire::SharedSegment got = outbox.take();
        if (!got) {
            std::this_thread::yield();
            continue;
        }
        ++taken;
        CHECK(got->oldest_version % kEach >= next[got->oldest_version / kEach]);
        next[got->oldest_version / kEach] = got->oldest_version % kEach + 1;
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(taken + outbox.counts().dropped["overflow"], 3 * kEach);
}
