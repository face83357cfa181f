#include "hash/xxh3.h"

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

constexpr std::size_t kSecretBytes = 192, kStripe = 64, kSecretStep = 8;
constexpr std::size_t kStripesInBlock = (kSecretBytes - kStripe) / kSecretStep;  // 16
constexpr std::size_t kBlock = kStripe * kStripesInBlock;

// The default secret of the specification.
alignas(64) constexpr unsigned char kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71,
    0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3,
    0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8,
    0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa,
    0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b,
    0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95,
    0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

using Lanes = std::uint64_t[8];
constexpr std::array<std::uint64_t, 8> kFirstLanes = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                                      kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};

using support::load32;
using support::load64;

std::uint64_t swap64(std::uint64_t x) { return __builtin_bswap64(x); }
std::uint32_t swap32(std::uint32_t x) { return __builtin_bswap32(x); }
std::uint64_t rotl(std::uint64_t x, int n) { return x << n | x >> (64 - n); }

__extension__ typedef unsigned __int128 U128;

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    const U128 product = static_cast<U128>(a) * b;
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

std::uint64_t mix16(const unsigned char* at, std::size_t secret) {
    return fold(load64(at) ^ load64(kSecret + secret), load64(at + 8) ^ load64(kSecret + secret + 8));
}

// ---- long inputs: eight lanes of 64 bits

// Half a stripe. GNU vectors let the compiler choose the widest instructions of each target.
typedef std::uint64_t Vector __attribute__((vector_size(32)));

// One vector at a time, so that none goes through memory. PRODUCT multiplies the lower halves of the lanes with the upper ones.
#define RL4SYS_STRIPES(NAME, TARGET, PRODUCT)                                                                            \
    TARGET void NAME(std::uint64_t* lanes, const unsigned char* at, std::size_t count, std::size_t first) {              \
        Vector low, high;                                                                                                \
        std::memcpy(&low, lanes, 32);                                                                                    \
        std::memcpy(&high, lanes + 4, 32);                                                                               \
        const unsigned char* secret = kSecret + first * kSecretStep;                                                     \
        for (std::size_t n = 0; n < count; ++n, at += kStripe, secret += kSecretStep) {                                  \
            Vector data0, data1, key0, key1;                                                                             \
            std::memcpy(&data0, at, 32);                                                                                 \
            std::memcpy(&data1, at + 32, 32);                                                                            \
            std::memcpy(&key0, secret, 32);                                                                              \
            std::memcpy(&key1, secret + 32, 32);                                                                         \
            key0 ^= data0;                                                                                               \
            key1 ^= data1;                                                                                               \
            low += __builtin_shufflevector(data0, data0, 1, 0, 3, 2) + PRODUCT(key0);                                    \
            high += __builtin_shufflevector(data1, data1, 1, 0, 3, 2) + PRODUCT(key1);                                   \
        }                                                                                                                \
        std::memcpy(lanes, &low, 32);                                                                                    \
        std::memcpy(lanes + 4, &high, 32);                                                                               \
    }

#define RL4SYS_PRODUCT(key) (((key) & 0xFFFFFFFFULL) * ((key) >> 32))
RL4SYS_STRIPES(stripes_portable, , RL4SYS_PRODUCT)
#if RL4SYS_X86
// One instruction, which the compiler does not find for the product above.
#define RL4SYS_PRODUCT_V3(key) ((Vector)_mm256_mul_epu32((__m256i)(key), _mm256_srli_epi64((__m256i)(key), 32)))
RL4SYS_STRIPES(stripes_v3, __attribute__((target("avx2"))), RL4SYS_PRODUCT_V3)
#endif

using Stripes = void (*)(std::uint64_t*, const unsigned char*, std::size_t, std::size_t);

Stripes choose_stripes() {
#if RL4SYS_X86
    if (support::cpu_level() >= support::CpuLevel::v3) return stripes_v3;
#endif
    return stripes_portable;
}

const Stripes kStripes = choose_stripes();

void last_stripe(std::uint64_t* lanes, const unsigned char* at) {
    const unsigned char* secret = kSecret + kSecretBytes - kStripe - 7;
    for (int i = 0; i < 8; ++i) {
        const std::uint64_t data = load64(at + 8 * i), key = data ^ load64(secret + 8 * i);
        lanes[i ^ 1] += data;
        lanes[i] += (key & 0xFFFFFFFFULL) * (key >> 32);
    }
}

void scramble(std::uint64_t* lanes) {
    for (int i = 0; i < 8; ++i) {
        const std::uint64_t lane = lanes[i];
        lanes[i] = (lane ^ lane >> 47 ^ load64(kSecret + kSecretBytes - kStripe + 8 * i)) * kPrime32_1;
    }
}

// Takes whole stripes, with a scramble after each block. Returns the number of stripes in the block that is not full.
std::size_t consume(std::uint64_t* lanes, const unsigned char* at, std::size_t stripes, std::size_t in_block) {
    while (stripes) {
        const std::size_t count = stripes < kStripesInBlock - in_block ? stripes : kStripesInBlock - in_block;
        kStripes(lanes, at, count, in_block);
        at += count * kStripe;
        stripes -= count;
        in_block += count;
        if (in_block == kStripesInBlock) {
            scramble(lanes);
            in_block = 0;
        }
    }
    return in_block;
}

std::uint64_t merge(const std::uint64_t* lanes, std::size_t secret, std::uint64_t start) {
    std::uint64_t out = start;
    for (int i = 0; i < 4; ++i)
        out += fold(lanes[2 * i] ^ load64(kSecret + secret + 16 * i), lanes[2 * i + 1] ^ load64(kSecret + secret + 16 * i + 8));
    return avalanche(out);
}

void hash_long(std::uint64_t* lanes, const unsigned char* at, std::size_t size) {
    std::memcpy(lanes, kFirstLanes.data(), sizeof(Lanes));
    // The last stripe, which may overlap the one before, is never part of a block that is scrambled.
    consume(lanes, at, (size - 1) / kStripe, 0);
    last_stripe(lanes, at + size - kStripe);
}

std::uint64_t short_64(const unsigned char* at, std::size_t size) {
    if (size > 8) {
        const std::uint64_t low = load64(at) ^ (load64(kSecret + 24) ^ load64(kSecret + 32));
        const std::uint64_t high = load64(at + size - 8) ^ (load64(kSecret + 40) ^ load64(kSecret + 48));
        return avalanche(size + swap64(low) + high + fold(low, high));
    }
    if (size >= 4) {
        const std::uint64_t both = load32(at + size - 4) + (static_cast<std::uint64_t>(load32(at)) << 32);
        std::uint64_t x = both ^ (load64(kSecret + 8) ^ load64(kSecret + 16));
        x = (x ^ rotl(x, 49) ^ rotl(x, 24)) * kMix2;
        x = (x ^ ((x >> 35) + size)) * kMix2;
        return x ^ x >> 28;
    }
    if (size) {
        const std::uint32_t combined = static_cast<std::uint32_t>(at[0]) << 16 | static_cast<std::uint32_t>(at[size >> 1]) << 24 |
                                       at[size - 1] | static_cast<std::uint32_t>(size) << 8;
        return avalanche64(combined ^ static_cast<std::uint64_t>(load32(kSecret) ^ load32(kSecret + 4)));
    }
    return avalanche64(load64(kSecret + 56) ^ load64(kSecret + 64));
}

std::uint64_t middle_64(const unsigned char* at, std::size_t size) {
    std::uint64_t sum = size * kPrime64_1;
    if (size <= 128) {
        for (std::size_t i = (size - 1) / 32 + 1; i-- > 0;)
            sum += mix16(at + 16 * i, 32 * i) + mix16(at + size - 16 * (i + 1), 32 * i + 16);
        return avalanche(sum);
    }
    const std::size_t rounds = size / 16;
    for (std::size_t i = 0; i < 8; ++i) sum += mix16(at + 16 * i, 16 * i);
    sum = avalanche(sum);
    for (std::size_t i = 8; i < rounds; ++i) sum += mix16(at + 16 * i, 16 * (i - 8) + 3);
    return avalanche(sum + mix16(at + size - 16, 136 - 17));
}

using Pair = std::pair<std::uint64_t, std::uint64_t>;

Pair short_128(const unsigned char* at, std::size_t size) {
    if (size > 8) {
        const std::uint64_t flip_low = load64(kSecret + 32) ^ load64(kSecret + 40), flip_high = load64(kSecret + 48) ^ load64(kSecret + 56);
        std::uint64_t low = load64(at), high = load64(at + size - 8);
        const U128 product = static_cast<U128>(low ^ high ^ flip_low) * kPrime64_1;
        std::uint64_t mixed_low = static_cast<std::uint64_t>(product), mixed_high = static_cast<std::uint64_t>(product >> 64);
        mixed_low += static_cast<std::uint64_t>(size - 1) << 54;
        high ^= flip_high;
        mixed_high += high + (high & 0xFFFFFFFFULL) * (kPrime32_2 - 1);
        mixed_low ^= swap64(mixed_high);
        const U128 last = static_cast<U128>(mixed_low) * kPrime64_2;
        return {avalanche(static_cast<std::uint64_t>(last)),
                avalanche(static_cast<std::uint64_t>(last >> 64) + mixed_high * kPrime64_2)};
    }
    if (size >= 4) {
        const std::uint64_t both = load32(at) + (static_cast<std::uint64_t>(load32(at + size - 4)) << 32);
        const std::uint64_t keyed = both ^ (load64(kSecret + 16) ^ load64(kSecret + 24));
        const U128 product = static_cast<U128>(keyed) * (kPrime64_1 + (size << 2));
        std::uint64_t low = static_cast<std::uint64_t>(product), high = static_cast<std::uint64_t>(product >> 64);
        high += low << 1;
        low ^= high >> 3;
        low = (low ^ low >> 35) * kMix2;
        low ^= low >> 28;
        return {low, avalanche(high)};
    }
    if (size) {
        const std::uint32_t combined = static_cast<std::uint32_t>(at[0]) << 16 | static_cast<std::uint32_t>(at[size >> 1]) << 24 |
                                       at[size - 1] | static_cast<std::uint32_t>(size) << 8;
        const std::uint32_t turned = swap32(combined) << 13 | swap32(combined) >> 19;
        return {avalanche64(combined ^ static_cast<std::uint64_t>(load32(kSecret) ^ load32(kSecret + 4))),
                avalanche64(turned ^ static_cast<std::uint64_t>(load32(kSecret + 8) ^ load32(kSecret + 12)))};
    }
    return {avalanche64(load64(kSecret + 64) ^ load64(kSecret + 72)), avalanche64(load64(kSecret + 80) ^ load64(kSecret + 88))};
}

void mix32(Pair& sums, const unsigned char* first, const unsigned char* second, std::size_t secret) {
    sums.first = (sums.first + mix16(first, secret)) ^ (load64(second) + load64(second + 8));
    sums.second = (sums.second + mix16(second, secret + 16)) ^ (load64(first) + load64(first + 8));
}

Pair middle_128(const unsigned char* at, std::size_t size) {
    Pair sums{size * kPrime64_1, 0};
    if (size <= 128) {
        for (std::size_t i = (size - 1) / 32 + 1; i-- > 0;) mix32(sums, at + 16 * i, at + size - 16 * (i + 1), 32 * i);
    } else {
        for (std::size_t i = 0; i < 4; ++i) mix32(sums, at + 32 * i, at + 32 * i + 16, 32 * i);
        sums = {avalanche(sums.first), avalanche(sums.second)};
        for (std::size_t i = 4; i < size / 32; ++i) mix32(sums, at + 32 * i, at + 32 * i + 16, 32 * (i - 4) + 3);
        mix32(sums, at + size - 16, at + size - 32, 136 - 17 - 16);
    }
    const std::uint64_t low = sums.first + sums.second;
    const std::uint64_t high = sums.first * kPrime64_1 + sums.second * kPrime64_4 + size * kPrime64_2;
    return {avalanche(low), 0 - avalanche(high)};
}

}  // namespace

std::uint64_t xxh3_64(const void* data, std::size_t size) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    if (size <= 16) return short_64(at, size);
    if (size <= 240) return middle_64(at, size);
    alignas(32) Lanes lanes;
    hash_long(lanes, at, size);
    return merge(lanes, 11, size * kPrime64_1);
}

Pair xxh3_128(const void* data, std::size_t size) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    if (size <= 16) return short_128(at, size);
    if (size <= 240) return middle_128(at, size);
    alignas(32) Lanes lanes;
    hash_long(lanes, at, size);
    return {merge(lanes, 11, size * kPrime64_1), merge(lanes, kSecretBytes - kStripe - 11, ~(size * kPrime64_2))};
}

Xxh3::Xxh3() noexcept : lanes_(kFirstLanes) {}

void Xxh3::update(const void* data, std::size_t size) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    total_ += size;
    unsigned char* const begin = buffer_.data() + kStripe;
    if (size <= kBuffer - buffered_) {
        if (size) std::memcpy(begin + buffered_, at, size);
        buffered_ += size;
        return;
    }
    // At least one byte stays buffered, so that the last stripe is always known.
    if (buffered_) {
        const std::size_t rest = kBuffer - buffered_;
        std::memcpy(begin + buffered_, at, rest);
        at += rest;
        size -= rest;
        stripes_ = consume(lanes_.data(), begin, kBuffer / kStripe, stripes_);
        std::memcpy(buffer_.data(), begin + kBuffer - kStripe, kStripe);
        buffered_ = 0;
    }
    if (size > kBuffer) {
        const std::size_t stripes = (size - 1) / kStripe;
        stripes_ = consume(lanes_.data(), at, stripes, stripes_);
        at += stripes * kStripe;
        size -= stripes * kStripe;
        std::memcpy(buffer_.data(), at - kStripe, kStripe);
    }
    std::memcpy(begin, at, size);
    buffered_ = size;
}

std::uint64_t Xxh3::digest() const noexcept {
    const unsigned char* const begin = buffer_.data() + kStripe;
    if (total_ <= 240) return xxh3_64(begin, buffered_);
    alignas(32) Lanes lanes;
    std::memcpy(lanes, lanes_.data(), sizeof lanes);
    consume(lanes, begin, (buffered_ - 1) / kStripe, stripes_);
    last_stripe(lanes, begin + buffered_ - kStripe);
    return merge(lanes, 11, total_ * kPrime64_1);
}

}  // namespace rl4sys::hash
