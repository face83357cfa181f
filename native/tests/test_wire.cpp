// Messages and segments: bytes and refusals equal to those of the Python form.
#include "check.h"
#include "hash/xxh3.h"
#include "libraries/linked.h"
#include "support/errors.h"
#include "vectors.h"
#include "wire/segments.h"

using namespace rl4sys;
using tests::Case;

// The refusal code of `f`; "" if it refuses nothing.
template <class F>
static std::string refusal(F f) {
    try {
        f();
    } catch (const ProtocolError& error) {
        return name_of(error.code);
    }
    return {};
}

static std::vector<std::uint64_t> hashes_of(const wire::Frames& frames) {
    std::vector<std::uint64_t> out;
    for (std::size_t n = 1; n < frames.size(); ++n) out.push_back(hash::xxh3_64(frames[n]));
    return out;
}

static wire::SharedSegment segment_of(const Case& one) {
    wire::SegmentNumbers numbers;
    numbers.generation = one.integer("generation");
    numbers.episode_id = one.integer("episode");
    numbers.segment_index = one.integer("index");
    numbers.oldest_version = one.integer("oldest");
    numbers.episode_return = one.number("total");
    numbers.episode_length = one.integer("length");
    numbers.steps = static_cast<std::uint32_t>(one.integer("steps"));
    numbers.flags = static_cast<std::uint8_t>(one.integer("flags"));
    return std::make_shared<const wire::PackedSegment>(wire::pack_segment(numbers, one.text("layout"), tests::frames_of(one.list("columns"))));
}

TEST(messages_decode_and_encode) {
    std::size_t good = 0;
    for (const Case& one : tests::read_vectors("messages")) {
        const wire::Frames frames = tests::frames_of(one.list("frames"));
        wire::Received message;
        tests::context = one.text("code");
        if (!CHECK_EQ(refusal([&] { message = wire::decode(frames, one.integer("most")); }), one.text("code"))) continue;
        if (!one.text("code").empty()) continue;
        ++good;
        if (message.kind == wire::Kind::submit && message.list("codings").empty())
            CHECK_EQ(refusal([&] { wire::find_columns(message); }), one.text("structure"));
    }
    CHECK(good >= 16);
}

TEST(golden_messages_encode_to_the_same_bytes) {
    for (const Case& one : tests::read_vectors("messages")) {
        if (one.integer("most") != std::uint64_t{1} << 32) continue;
        const wire::Frames frames = tests::frames_of(one.list("frames"));
        const wire::Received message = wire::decode(frames);
        const wire::Frames body(frames.begin() + 1, frames.end());
        CHECK(wire::encode(message.kind, message.header, body, hashes_of(frames), message.first_seq, message.count) == frames[0]);
    }
}

TEST(segments_join_to_the_same_bytes) {
    support::Zstd zstd(libraries::linked_zstd());
    for (const Case& one : tests::read_vectors("submits")) {
        std::vector<wire::SharedSegment> segments;
        for (const Case& segment : tests::cases_of(one.list("segments"))) segments.push_back(segment_of(segment));
        const wire::Frames frames = tests::frames_of(one.list("frames"));
        const wire::Outgoing message = wire::join_submit(one.integer("first"), one.integer("want"), segments);
        CHECK(message.first == frames[0]);
        if (!CHECK_EQ(message.body.size(), frames.size() - 1)) continue;
        for (std::size_t n = 0; n < message.body.size(); ++n) CHECK(*message.body[n] == frames[n + 1]);

        const wire::Received received = wire::decode(frames);
        CHECK_EQ(received.count, segments.size());
        std::size_t bytes = 0, expected = 0;
        for (const wire::LayoutPlaces& layout : wire::find_columns(received))
            for (const wire::ColumnPlace& place : layout.columns) bytes += place.bytes;
        for (const wire::SharedSegment& segment : segments)
            for (const std::string& column : segment->small) expected += column.size();
        CHECK_EQ(bytes, expected);
        for (std::uint32_t n = 0; n < received.count; ++n) {
            CHECK(!wire::is_bad_head(received.bytes("heads").data() + n * wire::kHeadBytes, 40));
            CHECK(wire::is_bad_head(received.bytes("heads").data() + n * wire::kHeadBytes, segments[n]->steps - 1));
        }

        // Compressed bytes differ between versions of libzstd; the header must fit the body, which a receiver checks.
        const wire::Outgoing coded = wire::join_submit(1, 0, segments, &zstd);
        wire::Frames all{coded.first};
        for (const auto& frame : coded.body) all.emplace_back(*frame);
        CHECK_EQ(refusal([&] { wire::decode(all); }), std::string());
    }
}

TEST(values_pack_and_unpack) {
    for (const Case& one : tests::read_vectors("policies")) {
        std::string packed;
        wire::pack(packed, wire::Value(one.map("spec")));
        std::string again;
        wire::pack(again, wire::unpack(packed));
        CHECK(packed == again);
        CHECK_EQ(refusal([&] { wire::unpack(packed, {packed.size() - 1, 65'536}); }), std::string("too_large"));
        CHECK_EQ(refusal([&] { wire::unpack(std::string_view(packed).substr(0, packed.size() - 1)); }), std::string("malformed"));
        CHECK_EQ(refusal([&] { wire::unpack(packed + "x"); }), std::string("malformed"));
    }
}
