#include "wire/segments.h"

#include <algorithm>
#include <cstring>

#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"

namespace rl4sys::wire {
namespace {

constexpr std::size_t kMaxColumns = 32, kMaxLeaves = 32, kMaxDimensions = 7, kMaxSource = 32;
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 30;
constexpr std::size_t kStepsAt = 56, kFlagsAt = 60, kLayoutAt = 61, kReservedAt = 62, kLengthAt = 40, kCheckAt = 48;

constexpr std::size_t kMinCoded = 64;  // bytes of a section that is worth a try
constexpr double kGain = 0.95;
constexpr std::uint64_t kMostExpansion = 256, kFreeBytes = 1 << 20, kMaxPlainBytes = 64 << 20;

[[noreturn]] void malformed(const std::string& detail) { throw ProtocolError(Refusal::malformed, detail); }

std::size_t padding(std::size_t size) { return (kAlign - size % kAlign) % kAlign; }

bool is_source(std::string_view text) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    };
    return !text.empty() && text.size() <= kMaxSource && std::all_of(text.begin(), text.end(), allowed);
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
    if (text.empty() || text.size() > 19 || text[0] == '0') return 0;
    std::uint64_t out = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return 0;
        out = out * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return out;
}

ColumnLayout column_of(std::string_view word) {
    const std::size_t colon = word.find(':');
    ColumnLayout out{word[0], std::string(word.substr(1, colon == std::string_view::npos ? colon : colon - 1)), {}, 0};
    const std::size_t item = item_bytes(out.dtype);
    const std::string name = std::string("column ") + out.letter;
    if (!item) throw ProtocolError(Refusal::dtype, name + " has an unsupported dtype");
    std::uint64_t bytes = item;
    if (colon != std::string_view::npos) {
        std::string_view rest = word.substr(colon + 1);
        bool over = false;
        for (;;) {
            const std::size_t end = rest.find('x');
            const std::uint64_t n = dimension(rest.substr(0, end));
            if (!n || out.row.size() == kMaxDimensions) throw ProtocolError(Refusal::shape, name + " has rows of an invalid shape");
            out.row.push_back(n);
            over |= n > kMaxRowBytes || bytes * n > kMaxRowBytes;
            if (!over) bytes *= n;
            if (end == std::string_view::npos) break;
            rest.remove_prefix(end + 1);
        }
        if (over) throw ProtocolError(Refusal::shape, name + " has rows of more than " + std::to_string(kMaxRowBytes) + " bytes");
    }
    out.row_bytes = bytes;
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
        std::string coded;
        if (bytes >= kMinCoded) {
            std::string_view source = plain;
            if (item > 1) {
                shuffled.resize(bytes);
                shuffle(plain.data(), bytes, item, shuffled.data());
                source = shuffled;
            }
            coded = zstd.compress(source);
        }
        const bool shorter = !coded.empty() && coded.size() < bytes;
        const std::string_view sent = shorter ? std::string_view(coded) : plain;
        out.append(sent);
        numbers.emplace_back(std::uint64_t{sent.size()});
        numbers.emplace_back(std::uint64_t{bytes});
        numbers.emplace_back(std::uint64_t{shorter ? item : 0});
    }
    return numbers;
}

struct Group {
    std::string_view layout;
    std::vector<const PackedSegment*> members;
};

}  // namespace

std::vector<ColumnLayout> parse_layout(std::string_view text) {
    std::string_view columns = text;
    if (const std::size_t mark = text.find(" @"); mark != std::string_view::npos) {
        if (!is_source(text.substr(mark + 2))) malformed("the source of overridden actions is invalid");
        columns = text.substr(0, mark);
    }
    std::vector<std::string_view> words;
    std::string letters;
    for (;;) {
        const std::size_t end = columns.find(' ');
        words.push_back(columns.substr(0, end));
        letters.push_back(is_word(words.back()) ? words.back()[0] : '?');
        if (end == std::string_view::npos) break;
        columns.remove_prefix(end + 1);
    }
    if (!is_order(letters)) malformed("a segment has an impossible list of columns");
    std::vector<ColumnLayout> out;
    out.reserve(words.size());
    for (const std::string_view word : words) out.push_back(column_of(word));
    return out;
}

std::string layout_word(char letter, std::string_view dtype, const std::vector<std::uint64_t>& row) {
    std::string out(1, letter);
    out.append(dtype);
    for (std::size_t n = 0; n < row.size(); ++n) out.append(n ? "x" : ":").append(std::to_string(row[n]));
    return out;
}

PackedSegment pack_segment(const SegmentNumbers& numbers, std::string layout, const std::vector<std::string_view>& columns) {
    PackedSegment out;
    out.layout = std::move(layout);
    out.steps = numbers.steps;
    out.generation = numbers.generation;
    out.oldest_version = numbers.oldest_version;
    char* const head = out.head.data();
    out.head.fill(0);
    const std::uint64_t first[] = {numbers.generation, numbers.episode_id, numbers.segment_index, numbers.oldest_version};
    std::memcpy(head, first, sizeof first);
    support::store(head + 32, numbers.episode_return);
    support::store(head + kLengthAt, numbers.episode_length);
    support::store(head + kStepsAt, numbers.steps);
    support::store(head + kFlagsAt, numbers.flags);
    hash::Xxh3 check;
    check.update(head, kHeadBytes);
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
    support::store(head + kCheckAt, check.digest());
    return out;
}

Outgoing join_submit(std::uint64_t first_seq, std::uint64_t want_steps, const std::vector<SharedSegment>& segments, support::Zstd* zstd) {
    std::vector<Group> groups;
    std::string heads;
    heads.reserve(kHeadBytes * segments.size());
    for (const SharedSegment& segment : segments) {
        auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.layout == segment->layout; });
        if (group == groups.end()) group = groups.insert(groups.end(), Group{segment->layout, {}});
        group->members.push_back(segment.get());
        heads.append(segment->head.data(), kHeadBytes);
        heads[heads.size() - kHeadBytes + kLayoutAt] = static_cast<char>(group - groups.begin());
    }
    if (groups.size() > kMaxLayouts) throw ProtocolError(Refusal::range, std::to_string(groups.size()) + " layouts in one message");
    std::string together;
    std::vector<std::vector<Section>> sections(1);
    List layouts;
    for (const Group& group : groups) {
        layouts.emplace_back(std::string(group.layout));
        const std::vector<ColumnLayout> columns = parse_layout(group.layout);
        for (std::size_t c = 0; c < columns.size(); ++c) {
            const std::size_t before = together.size();
            for (const PackedSegment* member : group.members) together.append(member->small[c]);
            together.append(padding(together.size() - before), '\0');
            sections[0].push_back({together.size() - before, columns[c].item()});
        }
    }
    Outgoing out;
    out.kind = Kind::submit;
    out.body.push_back(std::make_shared<const std::string>(std::move(together)));
    std::vector<std::uint64_t> hashes{0};
    for (const SharedSegment& segment : segments) {
        if (segment->large.empty()) continue;
        const std::vector<ColumnLayout> columns = parse_layout(segment->layout);
        std::size_t next = 0;
        for (std::size_t c = 0; c < columns.size() && next < segment->large.size(); ++c) {
            // The column `v` is empty, and not large, if all steps have one version.
            const bool none = columns[c].letter == 'v' && !(segment->head[kFlagsAt] & flag::versions);
            if (!segment->small[c].empty() || none) continue;
            const std::string& frame = segment->large[next];
            sections.push_back({{frame.size(), columns[c].item()}});
            out.body.emplace_back(segment, &frame);
            hashes.push_back(segment->hashes[next++]);
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
    using support::load;
    const auto flags = load<std::uint8_t>(head + kFlagsAt);
    const bool ended = flags & (flag::terminated | flag::truncated);
    const int ends = flags & 7;
    if (flags >= 64 || (ends != 0 && ends != 1 && ends != 2 && ends != 4)) return true;
    if ((flags & flag::has_return && !ended) || (flags & flag::evaluation && !(flags & flag::has_return))) return true;
    const std::uint64_t steps = load<std::uint32_t>(head + kStepsAt), length = load<std::uint64_t>(head + kLengthAt);
    return load<std::uint16_t>(head + kReservedAt) || (ended ? length < steps : length != 0) || steps < 1 || steps > max_steps;
}

std::vector<LayoutPlaces> find_columns(const Received& submit) {
    const std::string& heads = submit.bytes("heads");
    if (heads.size() != kHeadBytes * std::uint64_t{submit.count} || !submit.count)
        malformed(std::to_string(submit.count) + " segments with " + std::to_string(heads.size()) + " bytes of heads");
    if (submit.body.empty()) throw ProtocolError(Refusal::frames, "segments without a body");
    const List& texts = submit.list("layouts");
    if (texts.empty() || texts.size() > std::min<std::size_t>(submit.count, kMaxLayouts)) malformed("a message has another number of layouts");
    for (const Value& text : texts)
        if (!text.get<std::string>()) malformed("a layout is not a text");
    std::vector<std::vector<ColumnLayout>> layouts;
    for (const Value& text : texts) layouts.push_back(parse_layout(*text.get<std::string>()));
    std::uint64_t limit = 0;
    for (const std::string_view frame : submit.body) limit += frame.size();

    std::vector<LayoutPlaces> out(layouts.size());
    for (std::uint32_t n = 0; n < submit.count; ++n) {
        const auto layout = support::load<std::uint8_t>(heads.data() + n * kHeadBytes + kLayoutAt);
        if (layout >= layouts.size()) malformed("a segment has a layout that the message lacks");
        out[layout].members.push_back(n);
    }
    const auto rows_of = [&](char letter, std::uint32_t member) -> std::uint64_t {
        const char* head = heads.data() + member * kHeadBytes;
        const std::uint64_t steps = support::load<std::uint32_t>(head + kStepsAt);
        const auto flags = support::load<std::uint8_t>(head + kFlagsAt);
        switch (letter) {
            case 'o':
            case 'm': return flags & flag::terminated ? steps : steps + 1;
            case 'v': return flags & flag::versions ? steps : 0;
            case 'i': return 1;
            default: return steps;
        }
    };
    // Large columns: their frames are in the order of segments, and within a segment of columns.
    struct Large {
        std::uint32_t member;
        std::size_t layout, column;
    };
    std::vector<Large> large;
    for (std::size_t g = 0; g < layouts.size(); ++g) {
        out[g].columns.resize(layouts[g].size());
        for (std::size_t c = 0; c < layouts[g].size(); ++c) {
            const ColumnLayout& column = layouts[g][c];
            ColumnPlace& place = out[g].columns[c];
            place = {c, 0, 0, 0, {}};
            for (const std::uint32_t member : out[g].members) {
                const std::uint64_t rows = rows_of(column.letter, member), bytes = rows * column.row_bytes;
                if (bytes > limit)
                    throw ProtocolError(Refusal::shape, std::string("column ") + column.letter + " needs more bytes than the body has");
                if (bytes >= kLargeBytes)
                    large.push_back({member, g, c});
                else
                    place.rows += rows;
            }
        }
    }
    std::sort(large.begin(), large.end(), [](const Large& a, const Large& b) {
        return a.member != b.member ? a.member < b.member : a.column < b.column;
    });
    for (std::size_t n = 0; n < large.size(); ++n)
        out[large[n].layout].columns[large[n].column].large.emplace_back(large[n].member, static_cast<std::uint32_t>(n + 1));
    std::size_t at = 0;
    for (std::size_t g = 0; g < layouts.size(); ++g) {
        for (ColumnPlace& place : out[g].columns) {
            const ColumnLayout& column = layouts[g][place.column];
            for (const auto& [member, frame] : place.large)
                if (frame >= submit.body.size() || submit.body[frame].size() != rows_of(column.letter, member) * column.row_bytes)
                    throw ProtocolError(Refusal::shape, std::string("column ") + column.letter + " does not fit its frame");
            const std::uint64_t size = place.rows * column.row_bytes;
            if (size > submit.body[0].size() || at > submit.body[0].size() - size)
                throw ProtocolError(Refusal::shape, std::string("column ") + column.letter + " ends beyond its frame");
            place.offset = at;
            place.bytes = size;
            at += size + padding(size);
        }
    }
    if (at != submit.body[0].size() || large.size() != submit.body.size() - 1)
        throw ProtocolError(Refusal::shape, "the body has bytes that belong to no segment");
    return out;
}

}  // namespace rl4sys::wire
