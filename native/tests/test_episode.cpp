// Episodes with random histories. What leaves them obeys the laws that the Python form obeys, whatever the host does.
#include "actor/episode.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "check.h"
#include "support/bytes.h"
#include "support/random.h"

using namespace rl4sys;
using actor::Episode;
using actor::Step;

namespace {

// A host's view of one step, to compare with what was sent.
struct Known {
    float observation = 0, reward = std::numeric_limits<float>::quiet_NaN();
    std::uint64_t generation = 0, version = 0;
    bool added = false, recorded = true;
};

struct Received {
    std::uint64_t episode, index, generation, oldest, length;
    double total;
    std::uint32_t steps;
    std::uint8_t flags;
    std::vector<float> observations, rewards;
};

Received read(const wire::PackedSegment& segment) {
    const char* head = segment.head.data();
    using support::load;
    Received out{};
    out.generation = load<std::uint64_t>(head);
    out.episode = load<std::uint64_t>(head + 8);
    out.index = load<std::uint64_t>(head + 16);
    out.oldest = load<std::uint64_t>(head + 24);
    out.total = load<double>(head + 32);
    out.length = load<std::uint64_t>(head + 40);
    out.steps = load<std::uint32_t>(head + 56);
    out.flags = load<std::uint8_t>(head + 60);
    const auto floats = [](const std::string& bytes) {
        std::vector<float> numbers(bytes.size() / sizeof(float));
        std::memcpy(numbers.data(), bytes.data(), bytes.size());
        return numbers;
    };
    out.observations = floats(segment.small.at(0));
    out.rewards = floats(segment.small.at(2));
    return out;
}

policy::PolicySpec spec() {
    policy::PolicySpec out;
    out.observations.shape = {1};
    out.observations.dtype = "<f4";
    out.observations.low = {-1e9};
    out.observations.high = {1e9};
    out.actions.discrete = true;
    out.actions.n = 2;
    out.features = 1;
    out.outputs = 2;
    return out;
}

std::unique_ptr<Step> request(Episode& episode, Known& known, float observation, std::uint64_t generation, std::uint64_t version) {
    auto step = std::make_unique<Step>();
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&observation);
    step->observation.assign(bytes, bytes + sizeof observation);
    step->generation = generation;
    step->version = version;
    known.observation = observation;
    known.generation = generation;
    known.version = version;
    episode.prepare(generation, &observation, nullptr);
    episode.note(*step);
    return step;
}

// `late` is called with an episode that waits for rewards; not every form of the rules has it.
template <class Rules>
auto ignore_late(Rules& rules, int) -> decltype(static_cast<void>(rules.late)) {
    rules.late = [](const std::shared_ptr<Episode>&) {};
}
template <class Rules>
void ignore_late(Rules&, long) {}

struct Agent {
    explicit Agent(std::uint32_t max_steps = 0, bool evaluates = false) : rules{outbox, pool, [] {}} {
        ignore_late(rules, 0);
        rules.max_steps = max_steps;
        rules.evaluates = evaluates;
    }

    std::vector<Received> sent() {
        std::vector<Received> out;
        while (const wire::SharedSegment segment = outbox.take()) out.push_back(read(*segment));
        return out;
    }

    actor::Outbox outbox{100'000, std::size_t{1} << 40, true};
    actor::ColumnPool pool;
    actor::EpisodeCounts counts;
    actor::EpisodeRules rules;
    std::shared_ptr<const actor::SegmentShape> shape = std::make_shared<const actor::SegmentShape>(spec());
};

constexpr std::uint8_t kEnds = wire::flag::terminated | wire::flag::truncated;

}  // namespace

TEST(random_histories_keep_the_laws) {
    support::Random random(std::uint64_t{3});
    const auto below = [&](std::uint64_t n) { return random.bits(32) % n; };
    std::uint64_t ended = 0, with_return = 0;
    for (std::uint64_t id = 1; id <= 3000; ++id) {
        tests::context = "history " + std::to_string(id);
        const std::uint32_t limit = static_cast<std::uint32_t>(1 + below(8)), cap = below(3) ? 0 : static_cast<std::uint32_t>(1 + below(12));
        const bool tidy = below(2);  // a host that adds every step
        Agent agent(cap);
        auto episode = std::make_shared<Episode>(agent.rules, agent.counts, id);
        const std::size_t length = 1 + below(40);
        std::vector<Known> known(length);
        std::vector<std::unique_ptr<Step>> steps(length);
        std::uint64_t generation = 5, version = 10;
        bool lost = false;
        for (std::size_t n = 0; n < length; ++n) {
            if (!tidy && !below(15)) ++generation;
            version += below(4) == 0;
            steps[n] = request(*episode, known[n], static_cast<float>(n + 1), generation, version);
            if (!tidy && !below(10)) {
                steps[n]->recorded = known[n].recorded = false;
            }
            if (!tidy && !below(8)) continue;  // requested, and never added
            known[n].added = true;
            if (below(3)) {
                known[n].reward = static_cast<float>(n) / 4;
                CHECK(episode->set_reward(*steps[n], known[n].reward));
            }
            CHECK(episode->add(*steps[n], agent.shape, limit) == Episode::Added::stored);
            if (!below(6)) CHECK(episode->add(*steps[n], agent.shape, limit) == Episode::Added::already_stored || !known[n].recorded);
        }
        for (const Known& step : known) lost |= !step.added || !step.recorded;
        const bool truncated = below(2);
        const float last = 1000;
        episode->end(truncated, below(2) ? &last : nullptr, nullptr);
        CHECK(episode->completed());
        // Late rewards, from the last to the first.
        for (std::size_t n = length; n-- > 0;) {
            if (!known[n].added || !known[n].recorded || !std::isnan(known[n].reward)) continue;
            known[n].reward = static_cast<float>(n) / 2;
            CHECK(episode->set_reward(*steps[n], known[n].reward));
        }
        std::size_t recorded = 0;
        double total = 0;
        for (const Known& step : known)
            if (step.added && step.recorded) {
                ++recorded;
                total += step.reward;
            }

        // Every recorded step is in exactly one segment, in order, with its own observation and reward.
        std::vector<const Known*> expected;
        for (const Known& step : known)
            if (step.added && step.recorded) expected.push_back(&step);
        std::size_t at = 0;
        std::uint64_t index = 0;
        std::uint32_t since_cap = 0;
        const std::vector<Received> sent = agent.sent();
        for (std::size_t s = 0; s < sent.size(); ++s) {
            const Received& one = sent[s];
            CHECK_EQ(one.episode, id);
            CHECK(one.steps >= 1 && one.steps <= limit);
            // An index is skipped where steps are missing.
            if (s) CHECK_EQ(one.index, index + (expected[at]->observation == expected[at - 1]->observation + 1 ? 1 : 2));
            index = one.index;
            CHECK_EQ(one.rewards.size(), one.steps);
            CHECK_EQ(one.observations.size(), one.steps + (one.flags & wire::flag::terminated ? 0u : 1u));
            if (!CHECK(at + one.steps <= expected.size())) break;
            std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
            for (std::uint32_t row = 0; row < one.steps; ++row) {
                const Known& step = *expected[at + row];
                CHECK_EQ(one.observations[row], step.observation);
                CHECK_EQ(one.rewards[row], step.reward);
                CHECK_EQ(one.generation, step.generation);
                oldest = std::min(oldest, step.version);
                // Rows follow each other, without a gap.
                if (row) CHECK_EQ(one.observations[row], one.observations[row - 1] + 1);
            }
            CHECK_EQ(one.oldest, oldest);
            at += one.steps;
            since_cap += one.steps;
            if (cap) CHECK(since_cap <= cap);
            CHECK_EQ((one.flags & wire::flag::capped) != 0, since_cap == cap && !(one.flags & kEnds));
            if (since_cap == cap) since_cap = 0;
            CHECK(!(one.flags & kEnds) || s + 1 == sent.size());
            if (one.flags & kEnds) {
                ++ended;
                CHECK_EQ(one.length, recorded);
                const bool has_return = one.flags & wire::flag::has_return;
                with_return += has_return;
                CHECK_EQ(has_return, !lost);
                if (has_return) CHECK(std::fabs(one.total - total) < 1e-6);
                CHECK_EQ((one.flags & wire::flag::truncated) != 0, truncated || !known.back().added);
            } else if (one.observations.back() != last) {
                // The learner bootstraps from the step after the last one.
                CHECK_EQ(one.observations.back(), one.observations[one.steps - 1] + 1);
            }
        }
        CHECK_EQ(at, expected.size());
        CHECK(!tidy || (!sent.empty() && sent.back().flags & kEnds));
    }
    CHECK(ended > 1000);
    CHECK(with_return > 1000);
}

TEST(a_segment_without_rewards_is_dropped_in_time) {
    Agent agent;
    agent.rules.reward_timeout_s = 0.0;
    auto episode = std::make_shared<Episode>(agent.rules, agent.counts, 1);
    std::vector<Known> known(4);
    std::vector<std::unique_ptr<Step>> steps;
    for (std::size_t n = 0; n < 4; ++n) {
        steps.push_back(request(*episode, known[n], static_cast<float>(n), 1, 1));
        if (n != 1) episode->set_reward(*steps[n], 1.0f);
        episode->add(*steps[n], agent.shape, 2);
    }
    episode->end(false, nullptr, nullptr);
    CHECK(agent.sent().empty());
    episode->expire(std::numeric_limits<double>::infinity());
    const std::vector<Received> sent = agent.sent();
    CHECK_EQ(agent.outbox.counts().dropped["reward_timeout"], 1u);
    if (!CHECK_EQ(sent.size(), 1u)) return;
    CHECK_EQ(sent[0].index, 1u);
    CHECK(!(sent[0].flags & wire::flag::has_return));
    CHECK(!episode->set_reward(*steps[1], 1.0f));
}

TEST(an_evaluation_sends_its_last_step) {
    Agent agent(0, true);
    auto episode = std::make_shared<Episode>(agent.rules, agent.counts, 1);
    std::vector<Known> known(5);
    for (std::size_t n = 0; n < 5; ++n) {
        const auto step = request(*episode, known[n], static_cast<float>(n), 1, 1);
        episode->set_reward(*step, 2.0f);
        episode->add(*step, agent.shape, 2);
    }
    episode->end(false, nullptr, nullptr);
    const std::vector<Received> sent = agent.sent();
    if (!CHECK_EQ(sent.size(), 1u)) return;
    CHECK_EQ(sent[0].steps, 1u);
    CHECK(sent[0].flags & wire::flag::evaluation);
    CHECK_EQ(sent[0].total, 10.0);
    CHECK_EQ(sent[0].length, 5u);
}

TEST(steps_out_of_order_are_refused) {
    Agent agent;
    auto episode = std::make_shared<Episode>(agent.rules, agent.counts, 1);
    Known known;
    const auto first = request(*episode, known, 1, 1, 1), second = request(*episode, known, 2, 1, 1), third = request(*episode, known, 3, 1, 1);
    CHECK(episode->add(*second, agent.shape, 10) == Episode::Added::stored);
    CHECK(episode->add(*first, agent.shape, 10) == Episode::Added::out_of_order);
    CHECK_EQ(agent.counts.skipped.load(), 1u);
    episode->end(false, nullptr, nullptr);
    CHECK(episode->add(*third, agent.shape, 10) == Episode::Added::ended);
}

TEST(threads_with_late_rewards) {
    Agent agent;
    std::vector<std::thread> hosts;
    std::atomic<int> running{3};
    for (std::uint64_t host = 0; host < 3; ++host)
        hosts.emplace_back([&, host] {
            for (std::uint64_t n = 0; n < 50; ++n) {
                auto episode = std::make_shared<Episode>(agent.rules, agent.counts, 1000 * host + n);
                std::vector<Known> known(20);
                std::vector<std::unique_ptr<Step>> steps;
                for (std::size_t t = 0; t < 20; ++t) {
                    steps.push_back(request(*episode, known[t], static_cast<float>(t), 1, 1));
                    episode->add(*steps[t], agent.shape, 4);
                }
                episode->end(false, nullptr, nullptr);
                std::thread late([&] {
                    for (std::size_t t = 0; t < 20; t += 2) episode->set_reward(*steps[t], 1.0f);
                });
                for (std::size_t t = 1; t < 20; t += 2) episode->set_reward(*steps[t], 1.0f);
                late.join();
            }
            --running;
        });
    std::uint64_t segments = 0;
    const auto take = [&] {
        const wire::SharedSegment got = agent.outbox.take();
        segments += got != nullptr;
        return got != nullptr;
    };
    while (running > 0)
        if (!take()) std::this_thread::yield();
    while (take()) {}
    for (std::thread& thread : hosts) thread.join();
    CHECK_EQ(segments, 3u * 50 * 5);
    CHECK_EQ(agent.counts.episodes.load(), 150u);
}
