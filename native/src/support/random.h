// The generator of Python's standard library, so that equal seeds give equal numbers in both forms of an actor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace rl4sys::support {

/// Mersenne Twister with 19937 bits (Matsumoto and Nishimura 1998), seeded as `random.Random(seed)` is.
class Random {
public:
    /// `seed` has the words of a non-negative integer, lowest first.
    explicit Random(const std::vector<std::uint32_t>& seed) noexcept;
    explicit Random(std::uint64_t seed) noexcept;

    /// 32 random bits.
    std::uint32_t next() noexcept;
    /// The next number in [0, 1), with 53 bits: `random.random`.
    double uniform() noexcept;
    /// The lowest `count` bits, 1 to 64: `random.getrandbits`.
    std::uint64_t bits(int count) noexcept;

private:
    std::array<std::uint32_t, 624> state_;
    std::size_t at_ = 624;
};

/// A seed from the operating system.
std::vector<std::uint32_t> system_seed(std::size_t words);

}  // namespace rl4sys::support
