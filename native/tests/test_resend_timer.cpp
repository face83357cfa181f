// The resend timer against the Python form, with the same calls and random numbers.
#include "delivery/resend_timer.h"

#include "check.h"
#include "vectors.h"

using namespace rl4sys;

TEST(timer_follows_python) {
    for (const tests::Case& one : tests::read_vectors("timers")) {
        support::Random random(one.integer("seed"));
        delivery::ResendTimer timer(random);
        const auto times = tests::numbers_of<double>(one.bytes("times"));
        std::size_t at = 0;
        for (const wire::Value& item : one.list("calls")) {
            const wire::List& call = *item.get<wire::List>();
            const std::string& name = *call[0].get<std::string>();
            const double now = *call[1].get<double>();
            const auto number = static_cast<std::uint64_t>(*call[2].get<std::int64_t>());
            if (name == "sent") timer.sent(now, number);
            if (name == "resent") timer.resent(now);
            if (name == "refused") timer.refused();
            if (name == "acknowledged") timer.acknowledged(now, number, *call[3].get<bool>());
            if (name == "stop") timer.stop();
            if (name == "reset") timer.reset();
            CHECK(std::abs(timer.at - times[at]) <= 1e-9);
            CHECK_EQ(timer.expired(times[at]), times[at] != 0.0);
            ++at;
        }
        CHECK_EQ(at, times.size());
    }
}

TEST(backoff_doubles_up_to_its_limit) {
    CHECK_EQ(delivery::backoff(0.5, 10.0, 0), 0.5);
    CHECK_EQ(delivery::backoff(0.5, 10.0, 3), 4.0);
    CHECK_EQ(delivery::backoff(0.5, 10.0, 5), 10.0);
    CHECK_EQ(delivery::backoff(0.5, 10.0, 100'000), 10.0);
}
