#include "policy/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rl4sys::policy {
namespace {

constexpr float kObservationClip = 10.0f;  // OBS_CLIP in layers/normalise.py
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = 3.141592653589793, kLog2 = 0.6931471805599453, kHalfLog2Pi = 0.9189385332046727;

bool looks_up(const PolicySpec& spec) { return spec.observations.discrete && spec.layers[0].kind == LayerKind::dense; }

float limited(float x) {
    constexpr float kMost = std::numeric_limits<float>::max();
    return std::isnan(x) ? -kMost : std::min(std::max(x, -kMost), kMost);
}

}  // namespace

// Box and Muller (1958), from as many pairs of uniform numbers as are needed.
const float* Sampler::normals(std::size_t count) {
    if (used_ + count > pool_.size()) {
        pool_.resize(std::max<std::size_t>(1024, count));
        const std::size_t pairs = (pool_.size() + 1) / 2;
        chances_.resize(2 * pairs);
        for (double& chance : chances_) chance = static_cast<double>(random_.bits(64) >> 11) * 0x1p-53;
        for (std::size_t i = 0; i < pool_.size(); ++i) {
            const std::size_t pair = i % pairs;
            const double radius = std::sqrt(-2.0 * std::log1p(-chances_[pair])), turn = 2.0 * kPi * chances_[pairs + pair];
            pool_[i] = static_cast<float>(radius * (i < pairs ? std::cos(turn) : std::sin(turn)));
        }
        used_ = 0;
    }
    used_ += count;
    return pool_.data() + used_ - count;
}

Scratch::Scratch(const PolicySpec& spec)
    : raw_(spec.actions.discrete ? 0 : spec.actions.size()),
      act_(raw_.size()),
      allowed_(spec.actions.discrete ? spec.actions.size() : 0),
      cumulative_(allowed_.size()) {
    // A dense first layer looks the row of a Discrete observation up, and needs no features.
    values_.emplace_back(looks_up(spec) ? 1 : spec.features);
    for (const Layer& layer : spec.layers) {
        values_.emplace_back(layer.outputs);
        if (layer.kind == LayerKind::gru) {
            gates_ = Floats(4 * padded(layer.outputs));
            joined_ = Floats(layer.inputs + layer.outputs);
        }
    }
}

Policy::Policy(std::shared_ptr<const PolicySpec> spec, std::shared_ptr<const weights::Snapshot> snapshot)
    : spec_(std::move(spec)), snapshot_(std::move(snapshot)) {
    const float* flat = snapshot_->flat.data();
    for (const Layer& layer : spec_->layers) {
        Weights own;
        const float* at = flat + layer.tensor;
        const std::size_t inputs = layer.inputs, units = layer.outputs, wide = padded(units);
        // Writes a matrix [units, columns] to rows of outputs, one for each column, as the kernels want it. By tiles, so that
        // both sides stay in the cache.
        const auto transpose = [&](const float* from, std::size_t columns, float scale, std::size_t stride, float* to) {
            constexpr std::size_t kTile = 16;
            for (std::size_t top = 0; top < units; top += kTile)
                for (std::size_t left = 0; left < columns; left += kTile)
                    for (std::size_t i = left; i < std::min(left + kTile, columns); ++i)
                        for (std::size_t u = top; u < std::min(top + kTile, units); ++u)
                            to[i * stride + u] = scale * from[u * columns + i];
        };
        if (layer.kind == LayerKind::dense) {
            own.rows = Floats(inputs * wide);
            own.bias = Floats(units);
            transpose(at, inputs, 1.0f, wide, own.rows.data());
            std::copy_n(at + units * inputs, units, own.bias.data());
        } else if (layer.kind == LayerKind::normalise) {
            own.rows = Floats(inputs);
            own.bias = Floats(inputs);
            std::copy_n(at, inputs, own.rows.data());
            std::copy_n(at + inputs, inputs, own.bias.data());
        } else if (layer.kind == LayerKind::gru) {
            // Four groups of outputs: r, z, and the terms of n from the input and from the state. Halves, because
            // sigmoid(a) = (1 + tanh(a / 2)) / 2 (layers/gru.py).
            own.rows = Floats((inputs + units) * 4 * wide);
            own.bias = Floats(4 * wide);
            float* const state_rows = own.rows.data() + inputs * 4 * wide;
            const float* from_input = at;
            const float* from_state = from_input + 3 * units * inputs;
            const float* input_bias = from_state + 3 * units * units;
            const float* state_bias = input_bias + 3 * units;
            for (std::size_t gate = 0; gate < 3; ++gate) {
                const float scale = gate < 2 ? 0.5f : 1.0f;
                const std::size_t state_column = gate < 2 ? gate * wide : 3 * wide;
                transpose(from_input + gate * units * inputs, inputs, scale, 4 * wide, own.rows.data() + gate * wide);
                transpose(from_state + gate * units * units, units, 0.5f, 4 * wide, state_rows + state_column);
                for (std::size_t u = 0; u < units; ++u) {
                    own.bias.data()[gate * wide + u] += scale * input_bias[gate * units + u];
                    own.bias.data()[state_column + u] += 0.5f * state_bias[gate * units + u];
                }
            }
        }
        weights_.push_back(std::move(own));
    }
    const Head& head = spec_->head;
    const Space& actions = spec_->actions;
    const std::size_t size = actions.size();
    if (head.kind == HeadKind::gaussian) {
        const double least = std::log(static_cast<double>(std::numeric_limits<float>::min()));
        const double most = std::log(static_cast<double>(std::numeric_limits<float>::max()));
        double sum = 0.0;
        for (std::size_t i = 0; i < size; ++i) {
            const double log_std = flat[head.tensor + i], exponent = std::min(std::max(log_std, least), most);
            sum += log_std;
            std_.push_back(static_cast<float>(std::exp(exponent)));
            inverse_std_.push_back(static_cast<float>(std::exp(-exponent)));
        }
        constant_ = -sum - 0.5 * static_cast<double>(size) * std::log(2.0 * kPi);
    } else if (head.kind == HeadKind::q_values) {
        epsilon_ = std::min(std::max(static_cast<double>(flat[head.tensor]), 0.0), 1.0);
    }
    narrow_ = actions.dtype == "<f4";
    for (std::size_t i = 0; !actions.discrete && i < size; ++i) {
        // A Box of float32 is mapped in float32 (policies/action_bounds.py).
        const auto in_dtype = [this](double x) { return narrow_ ? static_cast<double>(static_cast<float>(x)) : x; };
        const double low = in_dtype(actions.low[i]), high = in_dtype(actions.high[i]);
        low_.push_back(low);
        high_.push_back(high);
        half_.push_back(in_dtype(high / 2 - low / 2));
        centre_.push_back(in_dtype(high / 2 + low / 2));
        if (head.kind == HeadKind::squashed_gaussian)
            log_volume_ += std::log(std::max(half_[i], static_cast<double>(std::numeric_limits<float>::min())));
    }
}

const float* Policy::forward(const float* features, std::int64_t index, float* state, Scratch& scratch) const noexcept {
    const Kernels& kernel = kernels();
    std::size_t first = 0;
    float* values = scratch.values_[0].data();
    if (!spec_->observations.discrete) {
        std::copy_n(features, spec_->features, values);
    } else if (!looks_up(*spec_)) {
        std::fill_n(values, spec_->features, 0.0f);
        values[index] = 1.0f;
    } else {
        // One feature is 1: the outputs of the first layer are a row of its matrix and the bias.
        const std::size_t wide = padded(spec_->layers[0].outputs);
        const float* row = weights_[0].rows.data() + static_cast<std::size_t>(index) * wide;
        float* out = scratch.values_[1].data();
        for (std::size_t i = 0; i < wide; ++i) out[i] = row[i] + weights_[0].bias.data()[i];
        values = out;
        first = 1;
    }
    for (std::size_t n = first; n < spec_->layers.size(); ++n) {
        const Layer& layer = spec_->layers[n];
        const Weights& own = weights_[n];
        switch (layer.kind) {
            case LayerKind::activation: kernel.apply(layer.function, values, layer.outputs); break;
            case LayerKind::normalise:
                kernel.normalise(own.rows.data(), own.bias.data(), kObservationClip, values, layer.outputs);
                break;
            case LayerKind::dense: {
                float* out = scratch.values_[n + 1].data();
                kernel.dense(own.rows.data(), own.bias.data(), values, layer.inputs, layer.outputs, out);
                values = out;
                break;
            }
            case LayerKind::gru: {
                float* out = scratch.values_[n + 1].data();
                float* joined = scratch.joined_.data();
                std::copy_n(values, layer.inputs, joined);
                std::copy_n(state, layer.outputs, joined + layer.inputs);
                std::copy_n(state, layer.outputs, out);
                kernel.dense(own.rows.data(), own.bias.data(), joined, layer.inputs + layer.outputs, 4 * padded(layer.outputs),
                             scratch.gates_.data());
                kernel.gru(scratch.gates_.data(), out, layer.outputs, out);
                std::copy_n(out, layer.outputs, state);
                values = out;
                break;
            }
        }
    }
    return values;
}

Choice Policy::act(const float* features, std::int64_t index, const std::uint8_t* mask, bool explore, float* state, Sampler& sampler,
                   Scratch& scratch) const noexcept {
    const float* outputs = forward(features, index, state, scratch);
    if (!spec_->actions.discrete) {
        const float* noise = explore ? sampler.normals(spec_->actions.size()) : nullptr;
        return spec_->head.kind == HeadKind::gaussian ? gaussian(outputs, noise, scratch) : squashed(outputs, noise, scratch);
    }
    std::size_t count = 0;
    for (std::size_t i = 0; i < spec_->outputs; ++i)
        if (!mask || mask[i]) scratch.allowed_[count++] = static_cast<std::int32_t>(i);
    return spec_->head.kind == HeadKind::categorical ? categorical(outputs, count, explore, sampler, scratch)
                                                     : greedy(outputs, count, explore, sampler, scratch);
}

Choice Policy::categorical(const float* outputs, std::size_t count, bool explore, Sampler& sampler,
                           Scratch& scratch) const noexcept {
    const std::int32_t* allowed = scratch.allowed_.data();
    // As Python's max(): a first NaN stays the largest.
    double top = outputs[allowed[0]];
    for (std::size_t i = 1; i < count; ++i)
        if (outputs[allowed[i]] > top) top = outputs[allowed[i]];
    const double chance = explore ? sampler.uniform() : 0.0;
    const auto sum = [&](auto logit) {
        double total = 0.0;
        for (std::size_t i = 0; i < count; ++i) scratch.cumulative_[i] = total += std::exp(logit(allowed[i]) - top);
        return total;
    };
    double total = sum([&](std::int32_t i) { return static_cast<double>(outputs[i]); });
    const bool usable = !std::isnan(total);
    if (!usable) {
        // The weights overflowed the network. The index is possible, so that nothing fails in the host's loop.
        top = limited(outputs[allowed[0]]);
        for (std::size_t i = 1; i < count; ++i) top = std::max<double>(top, limited(outputs[allowed[i]]));
        total = sum([&](std::int32_t i) { return static_cast<double>(limited(outputs[i])); });
    }
    std::size_t chosen = 0;
    if (explore) {
        const double cut = chance * total;
        while (chosen + 1 < count && scratch.cumulative_[chosen] <= cut) ++chosen;
    } else {
        while (chosen + 1 < count && (usable ? outputs[allowed[chosen]] : limited(outputs[allowed[chosen]])) != top) ++chosen;
    }
    const double log_prob = usable ? outputs[allowed[chosen]] - top - std::log(total) : kNan;
    return {spec_->actions.start + allowed[chosen], nullptr, nullptr, log_prob};
}

Choice Policy::greedy(const float* outputs, std::size_t count, bool explore, Sampler& sampler, Scratch& scratch) const noexcept {
    // As numpy's argmax: the first largest value, and NaN is the largest.
    std::size_t best = 0;
    for (std::size_t i = 1; i < count; ++i) {
        const float value = outputs[scratch.allowed_[i]], top = outputs[scratch.allowed_[best]];
        if (!std::isnan(top) && (std::isnan(value) || value > top)) best = i;
    }
    const double ladder = spec_->head.epsilon_ladder;
    const double epsilon = ladder != 0.0 ? std::pow(epsilon_, 1.0 + ladder * sampler.place) : epsilon_;
    std::size_t chosen = best;
    if (explore && sampler.uniform() < epsilon) chosen = static_cast<std::size_t>(sampler.uniform() * static_cast<double>(count));
    const double probability = epsilon / static_cast<double>(count) + (chosen == best ? 1.0 - epsilon : 0.0);
    const double log_prob = std::isfinite(outputs[scratch.allowed_[best]]) ? std::log(probability) : kNan;
    return {spec_->actions.start + scratch.allowed_[chosen], nullptr, nullptr, log_prob};
}

Choice Policy::gaussian(const float* outputs, const float* noise, Scratch& scratch) const noexcept {
    float squares = 0.0f;
    for (std::size_t i = 0; i < spec_->outputs; ++i) {
        scratch.raw_[i] = noise ? std_[i] * noise[i] + outputs[i] : outputs[i];
        // From the rounded sample, so that the learner gets the same number from the stored action. NaN if a mean is not finite.
        const float z = (scratch.raw_[i] - outputs[i]) * inverse_std_[i];
        squares += z * z;
    }
    return bounded(scratch, spec_->head.squash, constant_ - 0.5 * static_cast<double>(squares));
}

Choice Policy::squashed(const float* outputs, const float* noise, Scratch& scratch) const noexcept {
    const std::size_t size = spec_->actions.size();
    const Head& head = spec_->head;
    double density = -static_cast<double>(size) * (kHalfLog2Pi + 2.0 * kLog2);
    for (std::size_t i = 0; i < size; ++i) {
        const double log_std = std::min(std::max(static_cast<double>(outputs[size + i]), head.log_std_min), head.log_std_max);
        const double drawn = noise ? static_cast<double>(noise[i]) : 0.0;
        const double sample = outputs[i] + std::exp(log_std) * drawn, far = std::fabs(sample);
        // log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|)))
        density += 2.0 * (far + std::log1p(std::exp(-2.0 * far))) - log_std - 0.5 * drawn * drawn;
        scratch.raw_[i] = static_cast<float>(centre_[i] + half_[i] * std::tanh(sample));
    }
    return bounded(scratch, false, density - log_volume_);
}

// Maps the raw actions to the environment's, in the precision of the space's dtype.
Choice Policy::bounded(Scratch& scratch, bool squash, double log_prob) const noexcept {
    for (std::size_t i = 0; i < scratch.raw_.size(); ++i) {
        double act = scratch.raw_[i];
        if (squash && narrow_)
            act = static_cast<float>(static_cast<float>(std::tanh(act)) * static_cast<float>(half_[i])) +
                  static_cast<float>(centre_[i]);
        else if (squash)
            act = std::tanh(act) * half_[i] + centre_[i];
        if (act < low_[i]) act = low_[i];
        if (act > high_[i]) act = high_[i];
        scratch.act_[i] = act;
    }
    return {0, scratch.raw_.data(), scratch.act_.data(), log_prob};
}

}  // namespace rl4sys::policy
