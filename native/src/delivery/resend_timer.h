// The timers of a session: rl4sys_zmq/liveness.py and delivery/resend_timer.py. All times are in seconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "support/random.h"

namespace rl4sys::delivery {

constexpr double kHeartbeat = 1.0, kMissedMessages = 3.0, kSilence = kMissedMessages * kHeartbeat;
constexpr double kShortestHeartbeat = 0.05, kLongestHeartbeat = 60.0;
constexpr double kHelloRetry = 0.5, kRefusedRetry = 2.0;
constexpr double kResendFirst = 0.5, kResendMost = 10.0;

/// A random pause within 20 % of `pause`, so that many peers do not retry at the same moments.
inline double jittered(double pause, support::Random& random) noexcept { return pause * (0.8 + (1.2 - 0.8) * random.uniform()); }

/// The pause after `attempts` retries: doubled each time, up to `most`.
inline double backoff(double first, double most, int attempts) noexcept {
    return std::min(std::ldexp(first, std::min(attempts, 64)), most);
}

/// A timer that expires unless it is restarted in time.
struct SilenceTimer {
    double after, started = 0.0;

    void restart(double now) noexcept { started = now; }
    double deadline() const noexcept { return started + after; }
    bool expired(double now) const noexcept { return now >= deadline(); }
};

/// A retransmission timer with the estimate of RFC 6298 and Karn's algorithm.
class ResendTimer {
public:
    explicit ResendTimer(support::Random& random) : random_(random) {}

    double at = 0.0;  // of the next resend; 0 if the timer is stopped

    bool expired(double now) const noexcept { return at != 0.0 && now >= at; }
    void stop() noexcept {
        at = 0.0;
        measured_.first = kNone;
    }
    /// Stops the timer, and does not double the next pause: the session starts again.
    void reset() noexcept {
        stop();
        resends_ = 0;
        refused_ = false;
    }
    void sent(double now, std::uint64_t seq) noexcept {
        if (measured_.first == kNone) measured_ = {seq, now};
        if (at == 0.0) start(now);
    }
    void resent(double now) noexcept {
        measured_.first = kNone;
        resends_ += expired(now);
        start(now);
    }
    void refused() noexcept { refused_ = true; }
    void acknowledged(double now, std::uint64_t received, bool waiting) noexcept {
        if (measured_.first < received) {
            estimate(now - measured_.second);
            measured_.first = kNone;
            resends_ = 0;
        }
        if (refused_) resends_ = 0;
        refused_ = false;
        if (waiting)
            start(now);
        else
            stop();
    }

private:
    static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

    // The weights of a new measurement: RFC 6298, section 2.
    void estimate(double took) noexcept {
        const bool first = mean_ == 0.0;
        deviation_ = first ? took / 2 : deviation_ + (std::fabs(mean_ - took) - deviation_) / 4;
        mean_ = first ? took : mean_ + (took - mean_) / 8;
        pause_ = std::max(kResendFirst, mean_ + 4 * deviation_);
    }
    void start(double now) noexcept { at = now + jittered(backoff(pause_, kResendMost, resends_), random_); }

    support::Random& random_;
    double mean_ = 0.0, deviation_ = 0.0, pause_ = kResendFirst;
    int resends_ = 0;
    bool refused_ = false;
    std::pair<std::uint64_t, double> measured_{kNone, 0.0};  // a segment that was sent once, and when
};

}  // namespace rl4sys::delivery
