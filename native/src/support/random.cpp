#include "support/random.h"

#include <algorithm>
#include <functional>

namespace rl4sys::support {

namespace {

// The state of the generator for a key, as init_by_array of the authors' mt19937ar.c makes it, which CPython calls.
struct Key {
    using result_type = std::uint32_t;
    const std::vector<std::uint32_t>& words;

    template <class Iterator>
    void generate(Iterator state, Iterator end) const {
        const std::size_t size = static_cast<std::size_t>(end - state);
        const auto mixed = [&](std::size_t i, std::uint32_t factor) { return (state[i - 1] ^ state[i - 1] >> 30) * factor; };
        state[0] = 19650218U;
        for (std::size_t i = 1; i < size; ++i) state[i] = mixed(i, 1812433253U) + static_cast<std::uint32_t>(i);
        std::size_t i = 1, j = 0;
        const auto advance = [&] {
            if (++i < size) return;
            state[0] = state[size - 1];
            i = 1;
        };
        for (std::size_t k = std::max(size, words.size()); k; --k, j = (j + 1) % words.size(), advance())
            state[i] = (state[i] ^ mixed(i, 1664525U)) + words[j] + static_cast<std::uint32_t>(j);
        for (std::size_t k = size - 1; k; --k, advance())
            state[i] = (state[i] ^ mixed(i, 1566083941U)) - static_cast<std::uint32_t>(i);
        state[0] = 0x80000000U;
    }
};

}  // namespace

Random::Random(std::vector<std::uint32_t> seed) noexcept {
    while (seed.size() > 1 && !seed.back()) seed.pop_back();
    if (seed.empty()) seed.push_back(0);
    Key key{seed};
    engine_.seed(key);
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
    std::generate(out.begin(), out.end(), std::ref(device));
    return out;
}

}  // namespace rl4sys::support
