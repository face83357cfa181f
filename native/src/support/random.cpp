#include "support/random.h"

#include <random>

namespace rl4sys::support {
namespace {

std::vector<std::uint32_t> words_of(std::uint64_t seed) {
    std::vector<std::uint32_t> out{static_cast<std::uint32_t>(seed)};
    if (seed >> 32) out.push_back(static_cast<std::uint32_t>(seed >> 32));
    return out;
}

}  // namespace

Random::Random(std::uint64_t seed) noexcept : Random(words_of(seed)) {}

Random::Random(const std::vector<std::uint32_t>& seed) noexcept {
    constexpr std::size_t n = 624;
    std::size_t used = seed.size();
    while (used > 1 && !seed[used - 1]) --used;
    const std::vector<std::uint32_t> zero{0};
    const std::vector<std::uint32_t>& key = seed.empty() ? zero : seed;
    if (seed.empty()) used = 1;
    // init_by_array of the authors' mt19937ar.c, as CPython calls it.
    state_[0] = 19650218U;
    for (std::size_t i = 1; i < n; ++i)
        state_[i] = 1812433253U * (state_[i - 1] ^ state_[i - 1] >> 30) + static_cast<std::uint32_t>(i);
    std::size_t i = 1, j = 0;
    for (std::size_t k = n > used ? n : used; k; --k) {
        state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1664525U) + key[j] + static_cast<std::uint32_t>(j);
        if (++i == n) {
            state_[0] = state_[n - 1];
            i = 1;
        }
        if (++j == used) j = 0;
    }
    for (std::size_t k = n - 1; k; --k) {
        state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1566083941U) - static_cast<std::uint32_t>(i);
        if (++i == n) {
            state_[0] = state_[n - 1];
            i = 1;
        }
    }
    state_[0] = 0x80000000U;
}

std::uint32_t Random::next() noexcept {
    constexpr std::size_t n = 624, m = 397;
    if (at_ == n) {
        for (std::size_t k = 0; k < n; ++k) {
            const std::uint32_t y = (state_[k] & 0x80000000U) | (state_[(k + 1) % n] & 0x7FFFFFFFU);
            state_[k] = state_[(k + m) % n] ^ y >> 1 ^ (y & 1 ? 0x9908B0DFU : 0U);
        }
        at_ = 0;
    }
    std::uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680U;
    y ^= y << 15 & 0xEFC60000U;
    return y ^ y >> 18;
}

double Random::uniform() noexcept {
    const std::uint32_t a = next() >> 5, b = next() >> 6;
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

std::uint64_t Random::bits(int count) noexcept {
    if (count <= 32) return next() >> (32 - count);
    const std::uint64_t low = next();
    return low | static_cast<std::uint64_t>(next() >> (64 - count)) << 32;
}

std::vector<std::uint32_t> system_seed(std::size_t words) {
    std::random_device device;
    std::vector<std::uint32_t> out(words);
    for (std::uint32_t& word : out) word = device();
    return out;
}

}  // namespace rl4sys::support
