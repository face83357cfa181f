#include "hash/xxh3.h"

#include <algorithm>
#include <cstring>

#include "support/bytes.h"
#include "support/cpu.h"

#if RL4SYS_X86
#include <immintrin.h>
#endif

namespace rl4sys::hash {
namespace {

constexpr std::uint64_t kPrime32_1 = 0x9E3779B1U, kPrime32_2 = 0x85EBCA77U, kPrime32_3 = 0xC2B2AE3DU;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87ULL, kPrime64_2 = 0xC2B2AE3D27D4EB4FULL, kPrime64_3 = 0x165667B19E3779F9ULL;
constexpr std::uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63ULL, kPrime64_5 = 0x27D4EB2F165667C5ULL;
constexpr std::uint64_t kMix1 = 0x165667919E3779F9ULL, kMix2 = 0x9FB21C651E98DF25ULL;

// The default secret of the specification, in words.
alignas(64) constexpr std::uint64_t kSecret[] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};
constexpr std::size_t kStripe = 64, kSecretStep = 8, kStripesInBlock = (sizeof kSecret - kStripe) / kSecretStep;
constexpr std::size_t kMiddle = 240;  // the most bytes that are hashed without stripes

using Lanes = std::array<std::uint64_t, 8>;
using support::load32;
using support::load64;

const unsigned char* secret(std::size_t at) { return reinterpret_cast<const unsigned char*>(kSecret) + at; }
std::uint64_t key(std::size_t at) { return load64(secret(at)); }
std::uint64_t rotl(std::uint64_t x, int n) { return x << n | x >> (64 - n); }

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    __extension__ const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t avalanche(std::uint64_t x) {
    x = (x ^ x >> 37) * kMix1;
    return x ^ x >> 32;
}

std::uint64_t avalanche64(std::uint64_t x) {
    x = (x ^ x >> 33) * kPrime64_2;
    x = (x ^ x >> 29) * kPrime64_3;
    return x ^ x >> 32;
}

std::uint64_t mix16(const unsigned char* at, std::size_t in_secret) {
    return fold(load64(at) ^ key(in_secret), load64(at + 8) ^ key(in_secret + 8));
}

// ---- long inputs: eight lanes of 64 bits

// Half a stripe. GNU vectors let the compiler choose the widest instructions of each target.
typedef std::uint64_t Vector __attribute__((vector_size(32)));
typedef Vector Halves __attribute__((aligned(1), may_alias));  // in memory; `auto` would lose the alignment

// One vector at a time, so that none goes through memory. PRODUCT multiplies the lower halves of the lanes with the upper ones.
#define RL4SYS_STRIPES(NAME, TARGET, PRODUCT)                                                                             \
    TARGET void NAME(Lanes& lanes, const unsigned char* at, std::size_t count, const unsigned char* secret_at) {          \
        Halves* const sums = reinterpret_cast<Halves*>(lanes.data());                                                     \
        Vector low = sums[0], high = sums[1];                                                                             \
        for (std::size_t n = 0; n < count; ++n, at += kStripe, secret_at += kSecretStep) {                                \
            const Halves *data = reinterpret_cast<const Halves*>(at), *keys = reinterpret_cast<const Halves*>(secret_at); \
            const Vector data0 = data[0], data1 = data[1], key0 = data0 ^ keys[0], key1 = data1 ^ keys[1];                \
            low += __builtin_shufflevector(data0, data0, 1, 0, 3, 2) + PRODUCT(key0);                                     \
            high += __builtin_shufflevector(data1, data1, 1, 0, 3, 2) + PRODUCT(key1);                                    \
        }                                                                                                                 \
        sums[0] = low;                                                                                                    \
        sums[1] = high;                                                                                                   \
    }

#define RL4SYS_PRODUCT(key) (((key) & 0xFFFFFFFFULL) * ((key) >> 32))
RL4SYS_STRIPES(stripes_portable, , RL4SYS_PRODUCT)
#if RL4SYS_X86
// One instruction, which the compiler does not find for the product above.
#define RL4SYS_PRODUCT_V3(key) ((Vector)_mm256_mul_epu32((__m256i)(key), _mm256_srli_epi64((__m256i)(key), 32)))
RL4SYS_STRIPES(stripes_v3, __attribute__((target("avx2"))), RL4SYS_PRODUCT_V3)
const auto kStripes = support::cpu_level() >= support::CpuLevel::v3 ? stripes_v3 : stripes_portable;
#else
const auto kStripes = stripes_portable;
#endif

// Takes whole stripes from the start of a block on, with a scramble after each block.
void consume(Lanes& lanes, const unsigned char* at, std::size_t stripes) {
    for (; stripes >= kStripesInBlock; stripes -= kStripesInBlock, at += kStripesInBlock * kStripe) {
        kStripes(lanes, at, kStripesInBlock, secret(0));
        for (std::size_t i = 0; i < lanes.size(); ++i)
            lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ key(sizeof kSecret - kStripe + 8 * i)) * kPrime32_1;
    }
    kStripes(lanes, at, stripes, secret(0));
}

// The hash of `total` bytes, of which `size` follow on blocks that were consumed. The bytes of the last stripe are before their end.
__attribute__((noinline)) std::uint64_t finish(Lanes lanes, const unsigned char* at, std::size_t size, std::uint64_t total) {
    // The last stripe, which may overlap the one before, is never part of a block that is scrambled.
    consume(lanes, at, (size - 1) / kStripe);
    kStripes(lanes, at + size - kStripe, 1, secret(sizeof kSecret - kStripe - 7));
    std::uint64_t out = total * kPrime64_1;
    for (std::size_t i = 0; i < lanes.size(); i += 2) out += fold(lanes[i] ^ key(11 + 8 * i), lanes[i + 1] ^ key(19 + 8 * i));
    return avalanche(out);
}

constexpr Lanes kFirstLanes = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};

std::uint64_t hash_short(const unsigned char* at, std::size_t size) {
    if (size > 8) {
        const std::uint64_t low = load64(at) ^ key(24) ^ key(32), high = load64(at + size - 8) ^ key(40) ^ key(48);
        return avalanche(size + __builtin_bswap64(low) + high + fold(low, high));
    }
    if (size >= 4) {
        std::uint64_t x = (load32(at + size - 4) + (std::uint64_t{load32(at)} << 32)) ^ key(8) ^ key(16);
        x = (x ^ rotl(x, 49) ^ rotl(x, 24)) * kMix2;
        x = (x ^ ((x >> 35) + size)) * kMix2;
        return x ^ x >> 28;
    }
    if (!size) return avalanche64(key(56) ^ key(64));
    const std::uint32_t first = at[0], middle = at[size >> 1], last = at[size - 1];
    const std::uint32_t combined = first << 16 | middle << 24 | last | static_cast<std::uint32_t>(size) << 8;
    return avalanche64(combined ^ std::uint64_t{load32(secret(0)) ^ load32(secret(4))});
}

std::uint64_t hash_middle(const unsigned char* at, std::size_t size) {
    std::uint64_t sum = size * kPrime64_1;
    if (size <= 128) {
        for (std::size_t i = (size - 1) / 32 + 1; i-- > 0;)
            sum += mix16(at + 16 * i, 32 * i) + mix16(at + size - 16 * (i + 1), 32 * i + 16);
        return avalanche(sum);
    }
    for (std::size_t i = 0; i < 8; ++i) sum += mix16(at + 16 * i, 16 * i);
    sum = avalanche(sum);
    for (std::size_t i = 8; i < size / 16; ++i) sum += mix16(at + 16 * i, 16 * (i - 8) + 3);
    return avalanche(sum + mix16(at + size - 16, 136 - 17));
}

}  // namespace

std::uint64_t xxh3_64(const void* data, std::size_t size) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    if (size <= 16) return hash_short(at, size);
    return size <= kMiddle ? hash_middle(at, size) : finish(kFirstLanes, at, size, size);
}

Xxh3::Xxh3() noexcept : lanes_(kFirstLanes) {}

void Xxh3::update(const void* data, std::size_t size) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    unsigned char* const begin = buffer_.data() + kStripe;
    total_ += size;
    while (size) {
        // A full block is consumed when more bytes follow, so that the last stripe is always in the buffer.
        if (buffered_ == kBlock) {
            consume(lanes_, begin, kStripesInBlock);
            std::memcpy(buffer_.data(), begin + kBlock - kStripe, kStripe);
            buffered_ = 0;
        }
        if (!buffered_ && size > kBlock) {
            const std::size_t blocks = (size - 1) / kBlock;
            consume(lanes_, at, blocks * kStripesInBlock);
            at += blocks * kBlock;
            size -= blocks * kBlock;
            std::memcpy(buffer_.data(), at - kStripe, kStripe);
        }
        const std::size_t count = std::min(size, kBlock - buffered_);
        std::memcpy(begin + buffered_, at, count);
        buffered_ += count;
        at += count;
        size -= count;
    }
}

std::uint64_t Xxh3::digest() const noexcept {
    const unsigned char* const begin = buffer_.data() + kStripe;
    return total_ <= kMiddle ? xxh3_64(begin, buffered_) : finish(lanes_, begin, buffered_, total_);
}

}  // namespace rl4sys::hash
