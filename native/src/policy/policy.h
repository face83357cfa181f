// A policy version that chooses actions, and the buffers and random numbers of one thread that uses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/spec.h"
#include "support/random.h"

namespace rl4sys::policy {

/// An array of floats, aligned for the kernels, that starts as zeros.
class Floats {
public:
    explicit Floats(std::size_t count = 0) : groups_(padded(std::max<std::size_t>(1, count)) / kLanes) {}

    float* data() noexcept { return reinterpret_cast<float*>(groups_.data()); }
    const float* data() const noexcept { return reinterpret_cast<const float*>(groups_.data()); }
    std::size_t size() const noexcept { return groups_.size() * kLanes; }

private:
    struct alignas(64) Group {
        float values[kLanes];
    };
    std::vector<Group> groups_;
};

/// The random numbers of one thread, with the interface and the sequence of rl4sys_zmq/policies/sampler.py.
class Sampler {
public:
    Sampler(const std::vector<std::uint32_t>& seed, double own_place) : place(own_place), random_(seed) {}

    double uniform() noexcept { return random_.uniform(); }
    std::uint64_t bits64() noexcept { return random_.bits(64); }
    /// The next `count` standard normal numbers. They are valid until the next call.
    const float* normals(std::size_t count);

    const double place;  // of this actor among all, in [0, 1)

private:
    support::Random random_;
    std::vector<float> pool_;
    std::vector<double> chances_;
    std::size_t used_ = 0;
};

/// What a policy chose for one observation.
struct Choice {
    std::int64_t index = 0;        // of a Discrete action, with the space's start
    const float* raw = nullptr;    // of a Box: the action to train on
    const double* act = nullptr;   // of a Box: the action for the environment, before the cast to the space's dtype
    double log_prob = 0.0;         // not finite if an output of the network is not
};

/// The buffers that one thread needs to use a policy. They fit all versions with the same spec.
class Scratch {
public:
    explicit Scratch(const PolicySpec& spec);

private:
    friend class Policy;
    std::vector<Floats> values_;  // the inputs of each layer, and the outputs
    Floats gates_, joined_;
    std::vector<float> raw_;
    std::vector<double> act_;
    std::vector<std::int32_t> allowed_;
    std::vector<double> cumulative_;
};

/// One version of a policy. It never changes, so threads can share it.
class Policy {
public:
    Policy(std::shared_ptr<const PolicySpec> spec, std::shared_ptr<const weights::Snapshot> snapshot);

    const PolicySpec& spec() const noexcept { return *spec_; }
    const weights::Snapshot& snapshot() const noexcept { return *snapshot_; }
    const std::shared_ptr<const PolicySpec>& shared_spec() const noexcept { return spec_; }

    /// Chooses an action for an observation: its features, or for a Discrete space the index from 0.
    /// `state` has the recurrent state before the step, and gets the state after it; null for none.
    /// `mask` has a byte for each discrete action, nonzero where it is allowed; null allows all. At least one is allowed.
    Choice act(const float* features, std::int64_t index, const std::uint8_t* mask, bool explore, float* state, Sampler& sampler,
               Scratch& scratch) const noexcept;

    /// The outputs of the network, in a buffer of `scratch`.
    const float* forward(const float* features, std::int64_t index, float* state, Scratch& scratch) const noexcept;

private:
    struct Weights {
        Floats rows, bias;  // of a dense layer or a gru: rows of outputs, one for each input
    };

    Choice categorical(const float* outputs, std::size_t count, bool explore, Sampler& sampler, Scratch& scratch) const noexcept;
    Choice greedy(const float* outputs, std::size_t count, bool explore, Sampler& sampler, Scratch& scratch) const noexcept;
    Choice gaussian(const float* outputs, const float* noise, Scratch& scratch) const noexcept;
    Choice squashed(const float* outputs, const float* noise, Scratch& scratch) const noexcept;
    Choice bounded(Scratch& scratch, bool squash, double log_prob) const noexcept;

    std::shared_ptr<const PolicySpec> spec_;
    std::shared_ptr<const weights::Snapshot> snapshot_;
    std::vector<Weights> weights_;
    std::vector<float> std_, inverse_std_;  // of a Gaussian head
    std::vector<double> low_, high_, centre_, half_;  // of the actions of a Box, in the precision of its dtype
    bool narrow_ = false;                   // the dtype is float32
    double constant_ = 0.0, epsilon_ = 0.0, log_volume_ = 0.0;
};

}  // namespace rl4sys::policy
