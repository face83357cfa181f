#include "delivery/resend_timer.h"

#include <algorithm>
#include <cmath>

namespace rl4sys::delivery {
namespace {

// The weights of a new measurement (RFC 6298, section 2).
constexpr double kMeanGain = 1.0 / 8, kDeviationGain = 1.0 / 4, kDeviations = 4.0;

}  // namespace

double backoff(double first, double most, int attempts) noexcept { return std::min(std::ldexp(first, std::min(attempts, 64)), most); }

void ResendTimer::stop() noexcept {
    at = 0.0;
    measured_.reset();
}

void ResendTimer::reset() noexcept {
    stop();
    resends_ = 0;
    refused_ = false;
}

void ResendTimer::sent(double now, std::uint64_t seq) noexcept {
    if (!measured_) measured_ = {seq, now};
    if (at == 0.0) start(now);
}

void ResendTimer::resent(double now) noexcept {
    measured_.reset();
    resends_ += expired(now);
    start(now);
}

void ResendTimer::acknowledged(double now, std::uint64_t received, bool waiting) noexcept {
    if (measured_ && measured_->first < received) {
        estimate(now - measured_->second);
        measured_.reset();
        resends_ = 0;
    }
    if (refused_) {
        resends_ = 0;
        refused_ = false;
    }
    if (waiting)
        start(now);
    else
        stop();
}

void ResendTimer::estimate(double took) noexcept {
    if (mean_ == 0.0) {
        mean_ = took;
        deviation_ = took / 2;
    } else {
        deviation_ += kDeviationGain * (std::fabs(mean_ - took) - deviation_);
        mean_ += kMeanGain * (took - mean_);
    }
    pause_ = std::max(kResendFirst, mean_ + kDeviations * deviation_);
}

void ResendTimer::start(double now) noexcept { at = now + jittered(backoff(pause_, kResendMost, resends_), random_); }

}  // namespace rl4sys::delivery
