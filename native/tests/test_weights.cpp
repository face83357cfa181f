// Weight updates of every form: decoded weights, and reasons of refusals, equal to those of the Python form.
#include "check.h"
#include "libraries/linked.h"
#include "policy/spec.h"
#include "support/errors.h"
#include "vectors.h"
#include "weights/update.h"

using namespace rl4sys;
using tests::Case;

static std::unique_ptr<weights::Snapshot> snapshot_of(const Case& one) {
    if (one.header.items.empty()) return nullptr;
    auto out = std::make_unique<weights::Snapshot>();
    out->generation = one.integer("generation");
    out->version = one.integer("version");
    out->digest = one.integer("digest");
    out->flat = tests::numbers_of<float>(one.bytes("flat"));
    out->others = one.bytes("others");
    return out;
}

TEST(updates_lead_to_the_same_weights) {
    support::Zstd zstd(libraries::linked_zstd());
    std::vector<int> encodings(7);
    for (const Case& one : tests::read_vectors("updates")) {
        const auto held = snapshot_of(tests::case_of(one.map("held"))), before = snapshot_of(tests::case_of(one.map("before"))),
                   after = snapshot_of(tests::case_of(one.map("after")));
        const weights::TensorSizes tensors(policy::read_tensors(one.list("tensors")));
        const weights::Header header = weights::read_header(one.bytes("header"));
        ++encodings[static_cast<std::size_t>(header.encoding)];
        tests::context = "encoding " + std::to_string(static_cast<int>(header.encoding)) + ", dtype " + std::to_string(static_cast<int>(header.dtype));
        try {
            const weights::Snapshot got = weights::apply_update(header, one.bytes("payload"), held.get(), tensors, before.get(), zstd);
            if (!CHECK_EQ(std::string(), one.text("reason"))) continue;
            CHECK_EQ(got.generation, after->generation);
            CHECK_EQ(got.version, after->version);
            CHECK_EQ(got.digest, after->digest);
            CHECK(got.flat.size() == after->flat.size() && !std::memcmp(got.flat.data(), after->flat.data(), 4 * got.flat.size()));
            CHECK(got.others == after->others);
        } catch (const WeightsError& error) {
            CHECK_EQ(error.reason, one.text("reason"));
        }
    }
    for (std::size_t code = 0; code < encodings.size(); ++code)
        if (weights::is_encoding(static_cast<std::uint8_t>(code))) CHECK(encodings[code] > 0 || code == 6);
}

TEST(every_damaged_bit_is_found) {
    support::Zstd zstd(libraries::linked_zstd());
    int tried = 0;
    for (const Case& one : tests::read_vectors("updates")) {
        if (!one.text("reason").empty() || one.bytes("payload").size() > 400 || ++tried > 20) continue;
        const auto held = snapshot_of(tests::case_of(one.map("held"))), before = snapshot_of(tests::case_of(one.map("before")));
        const weights::TensorSizes tensors(policy::read_tensors(one.list("tensors")));
        const weights::Header header = weights::read_header(one.bytes("header"));
        for (std::size_t bit = 0; bit < 8 * one.bytes("payload").size(); ++bit) {
            std::string payload = one.bytes("payload");
            payload[bit / 8] = static_cast<char>(payload[bit / 8] ^ 1 << bit % 8);
            bool refused = false;
            try {
                weights::apply_update(header, payload, held.get(), tensors, before.get(), zstd);
            } catch (const WeightsError& error) {
                refused = error.reason == "payload";
            }
            CHECK(refused);
        }
    }
}
