// Segments as bytes: packing, joining into a Submit, and the check of a received body. docs/explanation/wire.md, "Segments".
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/zstd.h"
#include "wire/codec.h"

namespace rl4sys::wire {

constexpr std::size_t kLargeBytes = 1 << 16, kAlign = 16, kHeadBytes = 64, kMaxLayouts = 255;

/// The bits of the field `flags` in a head. At most one of the first three is set.
namespace flag {
constexpr std::uint8_t terminated = 1, truncated = 2, capped = 4, has_return = 8, versions = 16, evaluation = 32;
}

/// One column of a layout: its letter, and the bytes of an element and of a row.
struct ColumnLayout {
    char letter;
    std::size_t item;
    std::uint64_t row_bytes;

    std::string_view name() const noexcept { return {&letter, 1}; }
};

/// Returns the columns that a layout from an untrusted peer describes. Throws ProtocolError.
std::vector<ColumnLayout> parse_layout(std::string_view text);

/// The word of a layout for one column, such as "o<f4:8".
std::string layout_word(char letter, std::string_view dtype, const std::vector<std::uint64_t>& row);

/// The head of one segment.
struct SegmentNumbers {
    std::uint64_t generation = 0, episode_id = 0, segment_index = 0, oldest_version = 0;
    double episode_return = 0.0;
    std::uint64_t episode_length = 0;
    std::uint64_t check = 0;  // the xxh3-64 of the segment; 0 until it is packed
    std::uint32_t steps = 0;
    std::uint8_t flags = 0;
    std::uint8_t layout = 0;  // in its message
    std::uint16_t reserved = 0;
};
static_assert(sizeof(SegmentNumbers) == kHeadBytes);

/// A segment as bytes, ready to be sent. It never changes.
struct PackedSegment {
    std::string layout;
    std::array<char, kHeadBytes> head;           // with layout 0
    std::vector<std::string> small;              // the bytes of each column; empty for a large one
    std::vector<std::string> large;              // the columns of at least kLargeBytes
    std::vector<std::uint64_t> hashes;           // the xxh3-64 of each entry of `large`
    std::uint32_t steps = 0;
    std::uint64_t generation = 0, oldest_version = 0;
    std::size_t bytes = 0;                       // of all columns
};

using SharedSegment = std::shared_ptr<const PackedSegment>;

/// Returns a segment as bytes. `columns` has the bytes of each column of `layout`, in its order.
PackedSegment pack_segment(SegmentNumbers numbers, std::string layout, const std::vector<std::string_view>& columns);

/// A message whose body can refer to the bytes of segments.
struct Outgoing {
    Kind kind{};
    std::string first;                                      // prefix and header
    std::vector<std::shared_ptr<const std::string>> body;
};

/// Returns one message with packed segments of consecutive numbers. With `zstd`, the body is compressed if that makes it shorter.
Outgoing join_submit(std::uint64_t first_seq, std::uint64_t want_steps, const std::vector<SharedSegment>& segments,
                     support::Zstd* zstd = nullptr);

/// Where the rows of one column lie in the first frame of a received Submit, without the ones in frames of their own.
struct ColumnPlace {
    std::size_t offset, bytes;
};

struct LayoutPlaces {
    std::vector<ColumnPlace> columns;
};

/// Checks the structure of a received Submit without codings, and finds its columns. Throws ProtocolError.
std::vector<LayoutPlaces> find_columns(const Received& submit);

/// True if the numbers of a head contradict each other, so that the segment is refused.
bool is_bad_head(const char* head, std::uint64_t max_steps) noexcept;

}  // namespace rl4sys::wire
