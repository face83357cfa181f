// Hashes and random numbers against those of Python.
#include "check.h"
#include "hash/xxh3.h"
#include "policy/policy.h"
#include "support/random.h"
#include "vectors.h"

using namespace rl4sys;
using tests::Case;

static std::vector<std::uint32_t> words_of(const Case& one) {
    std::vector<std::uint32_t> out;
    for (const wire::Value& word : one.list("words")) out.push_back(static_cast<std::uint32_t>(*word.get<std::int64_t>()));
    return out;
}

TEST(xxh3_of_whole_buffers) {
    for (const Case& one : tests::read_vectors("hashes")) {
        const std::string& data = one.bytes("data");
        CHECK_EQ(hash::xxh3_64(data), one.integer("xxh3"));
    }
}

TEST(xxh3_of_parts) {
    support::Random random(std::uint64_t{7});
    for (const Case& one : tests::read_vectors("hashes")) {
        std::string_view rest = one.bytes("data");
        hash::Xxh3 hasher;
        while (!rest.empty()) {
            const std::size_t size = std::min<std::size_t>(rest.size(), random.bits(1 + static_cast<int>(random.bits(4) % 12)));
            hasher.update(rest.substr(0, size));
            rest.remove_prefix(size);
        }
        CHECK_EQ(hasher.digest(), one.integer("xxh3"));
    }
}

TEST(random_numbers_of_a_seed) {
    for (const Case& one : tests::read_vectors("randoms")) {
        support::Random random(words_of(one));
        for (const double expected : tests::numbers_of<double>(one.bytes("uniform"))) CHECK_EQ(random.uniform(), expected);
        for (const wire::Value& pair : one.list("bits")) {
            const wire::List& both = *pair.get<wire::List>();
            const wire::Value& drawn = both[1];
            const auto* large = drawn.get<std::uint64_t>();
            CHECK_EQ(random.bits(static_cast<int>(*both[0].get<std::int64_t>())),
                     large ? *large : static_cast<std::uint64_t>(*drawn.get<std::int64_t>()));
        }
    }
}

TEST(normal_numbers_of_a_seed) {
    for (const Case& one : tests::read_vectors("randoms")) {
        policy::Sampler sampler(words_of(one), 0.0);
        const auto expected = tests::numbers_of<float>(one.bytes("normals"));
        std::size_t at = 0;
        for (const wire::Value& count : one.list("counts")) {
            const auto n = static_cast<std::size_t>(*count.get<std::int64_t>());
            const float* drawn = sampler.normals(n);
            // The logarithm and the cosine of the two libraries can differ in the last bit.
            for (std::size_t i = 0; i < n; ++i) CHECK(std::abs(drawn[i] - expected[at + i]) <= 1e-6f * (1 + std::abs(expected[at + i])));
            at += n;
        }
    }
}
