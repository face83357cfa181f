#include "hash/blake2b.h"

#include <algorithm>
#include <cstring>

#include "support/bytes.h"

namespace rl4sys::hash {
namespace {

constexpr std::uint64_t kStart[8] = {0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
                                     0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL};

constexpr unsigned char kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

std::uint64_t rotr(std::uint64_t x, int n) { return x >> n | x << (64 - n); }

// The mixing of column `n` of the words, or from 4 on of diagonal `n - 4`.
void mix(std::uint64_t* words, int n, std::uint64_t x, std::uint64_t y) {
    const int step = n / 4;
    std::uint64_t &a = words[n % 4], &b = words[4 + (n + step) % 4], &c = words[8 + (n + 2 * step) % 4], &d = words[12 + (n + 3 * step) % 4];
    a += b + x;
    d = rotr(d ^ a, 32);
    c += d;
    b = rotr(b ^ c, 24);
    a += b + y;
    d = rotr(d ^ a, 16);
    c += d;
    b = rotr(b ^ c, 63);
}

}  // namespace

Blake2b::Blake2b(std::string_view key, std::string_view person, std::size_t size) noexcept : size_(size) {
    unsigned char parameters[64] = {static_cast<unsigned char>(size), static_cast<unsigned char>(key.size()), 1, 1};
    std::memcpy(parameters + 48, person.data(), std::min<std::size_t>(person.size(), 16));
    for (int i = 0; i < 8; ++i) state_[i] = kStart[i] ^ support::load64(parameters + 8 * i);
    if (!key.empty()) {
        std::memcpy(block_.data(), key.data(), key.size());
        filled_ = block_.size();
    }
}

void Blake2b::update(std::string_view bytes) noexcept {
    while (!bytes.empty()) {
        if (filled_ == block_.size()) compress(false);  // the last block is compressed by `digest`
        const std::size_t count = std::min(bytes.size(), block_.size() - filled_);
        std::memcpy(block_.data() + filled_, bytes.data(), count);
        filled_ += count;
        bytes.remove_prefix(count);
    }
}

std::string Blake2b::digest() noexcept {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), static_cast<unsigned char>(0));
    compress(true);
    return std::string(reinterpret_cast<const char*>(state_.data()), size_);
}

void Blake2b::compress(bool last) noexcept {
    total_ += filled_;
    filled_ = 0;
    std::uint64_t v[16], m[16];
    std::memcpy(v, state_.data(), sizeof state_);
    std::memcpy(v + 8, kStart, sizeof kStart);
    v[12] ^= total_;
    if (last) v[14] = ~v[14];
    std::memcpy(m, block_.data(), sizeof m);
    for (int round = 0; round < 12; ++round) {
        const unsigned char* s = kOrder[round % 10];
#pragma GCC unroll 8
        for (int n = 0; n < 8; ++n) mix(v, n, m[s[2 * n]], m[s[2 * n + 1]]);
    }
    for (int i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

}  // namespace rl4sys::hash
