#include "wire/segments.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"

namespace rl4sys::wire {
namespace {

constexpr std::size_t kMaxColumns = 32, kMaxLeaves = 32, kMaxDimensions = 7, kMaxSource = 32;
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 30;

constexpr std::size_t kMinCoded = 64;  // bytes of a section that is worth a try
constexpr double kGain = 0.95;
constexpr std::uint64_t kMostExpansion = 256, kFreeBytes = 1 << 20, kMaxPlainBytes = 64 << 20;

std::size_t padding(std::size_t size) { return (kAlign - size % kAlign) % kAlign; }

bool is_source(std::string_view text) {
    constexpr auto kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return !text.empty() && text.size() <= kMaxSource && text.find_first_not_of(kAllowed) == std::string_view::npos;
}

// The letters must match o+a+rlvm?x*i*, with at most 32 columns o, 32 columns a, and 32 extra columns.
bool is_order(std::string_view letters) {
    std::size_t at = 0;
    const auto run = [&](char letter) {
        const std::size_t first = at;
        while (at < letters.size() && letters[at] == letter) ++at;
        return at - first;
    };
    const std::size_t leaves = run('o'), actions = run('a');
    if (!leaves || !actions || leaves > kMaxLeaves || actions > kMaxLeaves || letters.substr(at, 3) != "rlv") return false;
    at += 3;
    if (run('m') > 1) return false;
    const std::size_t extras = run('x') + run('i');
    return extras <= kMaxColumns && at == letters.size();
}

// A positive decimal number of at most 19 digits without a leading zero; 0 for anything else.
std::uint64_t dimension(std::string_view text) {
    std::uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return text.size() <= 19 && text.substr(0, 1) != "0" && error == std::errc{} && end == text.data() + text.size() ? out : 0;
}

ColumnLayout column_of(std::string_view word) {
    const std::size_t colon = std::min(word.find(':'), word.size());
    ColumnLayout out{word[0], item_bytes(word.substr(1, colon - 1)), 0};
    if (!out.item) reject(Refusal::dtype, "column ", out.name(), " has an unsupported dtype");
    out.row_bytes = out.item;
    if (colon == word.size()) return out;
    bool over = false;
    std::size_t dimensions = 0;
    support::split(word.substr(colon + 1), 'x', [&](std::string_view text) {
        const std::uint64_t n = dimension(text);
        if (!n || ++dimensions > kMaxDimensions) reject(Refusal::shape, "column ", out.name(), " has rows of an invalid shape");
        over |= n > kMaxRowBytes || out.row_bytes * n > kMaxRowBytes;
        if (!over) out.row_bytes *= n;
    });
    if (over) reject(Refusal::shape, "column ", out.name(), " has rows of more than ", kMaxRowBytes, " bytes");
    return out;
}

// A word of a layout: a lower-case letter, a dtype without a colon, and perhaps a colon and dimensions.
bool is_word(std::string_view word) {
    return word.size() >= 2 && word[0] >= 'a' && word[0] <= 'z' && word[1] != ':' && std::count(word.begin(), word.end(), ':') <= 1 &&
           word.find_first_of("\t\n\v\f\r") == std::string_view::npos;
}

struct Section {
    std::size_t bytes, item;
};

void shuffle(const char* plain, std::size_t size, std::size_t item, char* out) {
    const std::size_t count = size / item;
    for (std::size_t n = 0; n < count; ++n)
        for (std::size_t byte = 0; byte < item; ++byte) out[byte * count + n] = plain[n * item + byte];
    std::memcpy(out + count * item, plain + count * item, size - count * item);
}

List code_frame(std::string_view frame, const std::vector<Section>& sections, support::Zstd& zstd, std::string& out) {
    List numbers;
    std::string shuffled;
    for (const auto& [bytes, item] : sections) {
        const std::string_view plain = frame.substr(0, bytes);
        frame.remove_prefix(bytes);
        const std::size_t before = out.size();
        std::size_t size = bytes;
        if (bytes >= kMinCoded) {
            shuffled.resize(bytes);
            if (item > 1) shuffle(plain.data(), bytes, item, shuffled.data());
            out.resize(before + zstd.bound(bytes));
            size = zstd.compress(item > 1 ? shuffled : plain, &out[before]);
        }
        const bool shorter = size < bytes;
        out.resize(before + (shorter ? size : 0));
        if (!shorter) out.append(plain);
        for (const std::size_t number : {out.size() - before, bytes, shorter ? item : 0}) numbers.emplace_back(std::uint64_t{number});
    }
    return numbers;
}

// The segments of a message with one layout.
struct Group {
    std::string_view layout;
    std::vector<ColumnLayout> columns;
    std::vector<const PackedSegment*> members;
};

// The rows that a column of a segment has.
std::uint64_t rows_of(char letter, const SegmentNumbers& head) {
    switch (letter) {
        case 'o':
        case 'm': return head.flags & flag::terminated ? head.steps : head.steps + std::uint64_t{1};
        case 'v': return head.flags & flag::versions ? head.steps : 0;
        case 'i': return 1;
        default: return head.steps;
    }
}

}  // namespace

std::vector<ColumnLayout> parse_layout(std::string_view text) {
    std::string_view columns = text;
    if (const std::size_t mark = text.find(" @"); mark != std::string_view::npos) {
        if (!is_source(text.substr(mark + 2))) reject(Refusal::malformed, "the source of overridden actions is invalid");
        columns = text.substr(0, mark);
    }
    std::string letters;
    support::split(columns, ' ', [&](std::string_view word) { letters.push_back(is_word(word) ? word[0] : '?'); });
    if (!is_order(letters)) reject(Refusal::malformed, "a segment has an impossible list of columns");
    std::vector<ColumnLayout> out;
    out.reserve(letters.size());
    support::split(columns, ' ', [&](std::string_view word) { out.push_back(column_of(word)); });
    return out;
}

std::string layout_word(char letter, std::string_view dtype, const std::vector<std::uint64_t>& row) {
    std::string out(1, letter);
    out.append(dtype);
    for (std::size_t n = 0; n < row.size(); ++n) out.append(n ? "x" : ":").append(std::to_string(row[n]));
    return out;
}

PackedSegment pack_segment(SegmentNumbers numbers, std::string layout, const std::vector<std::string_view>& columns) {
    PackedSegment out;
    out.layout = std::move(layout);
    out.steps = numbers.steps;
    out.generation = numbers.generation;
    out.oldest_version = numbers.oldest_version;
    hash::Xxh3 check;
    check.update(&numbers, sizeof numbers);
    check.update(out.layout);
    out.small.reserve(columns.size());
    for (const std::string_view column : columns) {
        out.bytes += column.size();
        if (column.size() >= kLargeBytes) {
            out.small.emplace_back();
            out.large.emplace_back(column);
            out.hashes.push_back(hash::xxh3_64(column));
        } else {
            out.small.emplace_back(column);
            check.update(column);
        }
    }
    check.update(out.hashes.data(), out.hashes.size() * sizeof(std::uint64_t));
    numbers.check = check.digest();
    support::store(out.head.data(), numbers);
    return out;
}

Outgoing join_submit(std::uint64_t first_seq, std::uint64_t want_steps, const std::vector<SharedSegment>& segments, support::Zstd* zstd) {
    std::vector<Group> groups;
    std::string heads;
    heads.reserve(kHeadBytes * segments.size());
    for (const SharedSegment& segment : segments) {
        auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.layout == segment->layout; });
        if (group == groups.end()) group = groups.insert(groups.end(), Group{segment->layout, parse_layout(segment->layout), {}});
        group->members.push_back(segment.get());
        auto head = support::load<SegmentNumbers>(segment->head.data());
        head.layout = static_cast<std::uint8_t>(group - groups.begin());
        support::append(heads, head);
    }
    if (groups.size() > kMaxLayouts) reject(Refusal::range, groups.size(), " layouts in one message");
    std::string together;
    std::vector<std::vector<Section>> sections(1);
    List layouts;
    for (const Group& group : groups) {
        layouts.emplace_back(std::string(group.layout));
        for (std::size_t c = 0; c < group.columns.size(); ++c) {
            const std::size_t before = together.size();
            for (const PackedSegment* member : group.members) together.append(member->small[c]);
            together.append(padding(together.size() - before), '\0');
            sections[0].push_back({together.size() - before, group.columns[c].item});
        }
    }
    Outgoing out;
    out.kind = Kind::submit;
    out.body.push_back(std::make_shared<const std::string>(std::move(together)));
    std::vector<std::uint64_t> hashes{0};
    for (std::size_t n = 0; n < segments.size(); ++n) {
        const PackedSegment& segment = *segments[n];
        const auto head = support::load<SegmentNumbers>(heads.data() + n * kHeadBytes);
        const std::vector<ColumnLayout>& columns = groups[head.layout].columns;
        std::size_t next = 0;
        for (std::size_t c = 0; c < columns.size() && next < segment.large.size(); ++c) {
            if (!segment.small[c].empty() || !rows_of(columns[c].letter, head)) continue;
            const std::string& frame = segment.large[next];
            sections.push_back({{frame.size(), columns[c].item}});
            out.body.emplace_back(segments[n], &frame);
            hashes.push_back(segment.hashes[next++]);
        }
    }
    List codings;
    if (zstd) {
        std::vector<std::shared_ptr<const std::string>> coded;
        std::uint64_t before = 0, after = 0;
        for (std::size_t n = 0; n < out.body.size(); ++n) {
            std::string frame;
            codings.emplace_back(code_frame(*out.body[n], sections[n], *zstd, frame));
            before += out.body[n]->size();
            after += frame.size();
            frame.shrink_to_fit();  // ZeroMQ can hold it for long
            coded.push_back(std::make_shared<const std::string>(std::move(frame)));
        }
        if (static_cast<double>(after) <= kGain * static_cast<double>(before) && before <= kMostExpansion * after + kFreeBytes &&
            before <= kMaxPlainBytes) {
            out.body = std::move(coded);
            for (std::size_t n = 1; n < hashes.size(); ++n) hashes[n] = hash::xxh3_64(*out.body[n]);
        } else {
            codings.clear();
        }
    }
    hashes[0] = hash::xxh3_64(*out.body[0]);
    Map header;
    header.set("want_steps", want_steps);
    header.set("layouts", std::move(layouts));
    header.set("heads", Bytes{std::move(heads)});
    header.set("codings", std::move(codings));
    Frames frames;
    for (const auto& frame : out.body) frames.emplace_back(*frame);
    out.first = encode(Kind::submit, header, frames, hashes, first_seq, static_cast<std::uint32_t>(segments.size()));
    return out;
}

bool is_bad_head(const char* head, std::uint64_t max_steps) noexcept {
    const auto its = support::load<SegmentNumbers>(head);
    const bool ended = its.flags & (flag::terminated | flag::truncated);
    const int ends = its.flags & 7;
    if (its.flags >= 64 || (ends & (ends - 1)) != 0) return true;
    if ((its.flags & flag::has_return && !ended) || (its.flags & flag::evaluation && !(its.flags & flag::has_return))) return true;
    return its.reserved || (ended ? its.episode_length < its.steps : its.episode_length != 0) || its.steps < 1 || its.steps > max_steps;
}

std::vector<LayoutPlaces> find_columns(const Received& submit) {
    const std::string& heads = submit.bytes("heads");
    if (heads.size() != kHeadBytes * std::uint64_t{submit.count} || !submit.count)
        reject(Refusal::malformed, submit.count, " segments with ", heads.size(), " bytes of heads");
    if (submit.body.empty()) reject(Refusal::frames, "segments without a body");
    const List& texts = submit.list("layouts");
    if (texts.empty() || texts.size() > std::min<std::size_t>(submit.count, kMaxLayouts))
        reject(Refusal::malformed, "a message has another number of layouts");
    for (const Value& text : texts)
        if (!text.get<std::string>()) reject(Refusal::malformed, "a layout is not a text");
    std::vector<std::vector<ColumnLayout>> layouts;
    std::vector<LayoutPlaces> out;
    for (const Value& text : texts) {
        layouts.push_back(parse_layout(*text.get<std::string>()));
        out.push_back({std::vector<ColumnPlace>(layouts.back().size())});
    }
    const auto head = [&](std::size_t n) { return support::load<SegmentNumbers>(heads.data() + n * kHeadBytes); };
    for (std::size_t n = 0; n < submit.count; ++n)
        if (head(n).layout >= layouts.size()) reject(Refusal::malformed, "a segment has a layout that the message lacks");
    std::uint64_t limit = 0;
    for (const std::string_view frame : submit.body) limit += frame.size();
    // The frames of large columns are in the order of segments, and within a segment of columns.
    std::size_t frame = 0, at = 0;
    for (std::size_t n = 0; n < submit.count; ++n) {
        const SegmentNumbers its = head(n);
        for (std::size_t c = 0; c < layouts[its.layout].size(); ++c) {
            const ColumnLayout& column = layouts[its.layout][c];
            const std::uint64_t bytes = rows_of(column.letter, its) * column.row_bytes;
            if (bytes > limit) reject(Refusal::shape, "column ", column.name(), " needs more bytes than the body has");
            if (bytes < kLargeBytes)
                out[its.layout].columns[c].bytes += bytes;
            else if (++frame >= submit.body.size() || submit.body[frame].size() != bytes)
                reject(Refusal::shape, "column ", column.name(), " does not fit its frame");
        }
    }
    for (std::size_t g = 0; g < layouts.size(); ++g) {
        for (std::size_t c = 0; c < layouts[g].size(); ++c) {
            ColumnPlace& place = out[g].columns[c];
            if (place.bytes > submit.body[0].size() || at > submit.body[0].size() - place.bytes)
                reject(Refusal::shape, "column ", layouts[g][c].name(), " ends beyond its frame");
            place.offset = at;
            at += place.bytes + padding(place.bytes);
        }
    }
    if (at != submit.body[0].size() || frame != submit.body.size() - 1)
        reject(Refusal::shape, "the body has bytes that belong to no segment");
    return out;
}

}  // namespace rl4sys::wire
