// The generator of Python's standard library, so that equal seeds give equal numbers in both forms of an actor.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace rl4sys::support {

/// Mersenne Twister with 19937 bits (Matsumoto and Nishimura 1998), seeded as `random.Random(seed)` is.
class Random {
public:
    /// `seed` has the words of a non-negative integer, lowest first.
    explicit Random(std::vector<std::uint32_t> seed) noexcept;
    explicit Random(std::uint64_t seed) noexcept : Random({static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}) {}

    /// 32 random bits.
    std::uint32_t next() noexcept { return engine_(); }
    /// The next number in [0, 1), with 53 bits: `random.random`.
    double uniform() noexcept;
    /// The lowest `count` bits, 1 to 64: `random.getrandbits`.
    std::uint64_t bits(int count) noexcept;

private:
    // std::mt19937, in words of 32 bits.
    std::mersenne_twister_engine<std::uint32_t, 32, 624, 397, 31, 0x9908B0DFU, 11, 0xFFFFFFFFU, 7, 0x9D2C5680U, 15, 0xEFC60000U, 18,
                                 1812433253U> engine_;
};

/// A seed from the operating system.
std::vector<std::uint32_t> system_seed(std::size_t words);

}  // namespace rl4sys::support
