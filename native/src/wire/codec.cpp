#include "wire/codec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"

namespace rl4sys::wire {
namespace {

constexpr std::uint8_t kMajor = 1, kMinor = 0;
constexpr std::size_t kMaxBodyFrames = 255;
constexpr std::uint32_t kMustUnderstand = 0xFFFF;  // no such flag is defined

// The first bytes of every message.
struct Prefix {
    char magic[4] = {'R', '4', 'S', 'Z'};
    std::uint8_t major = kMajor, minor = kMinor, kind = 0, frames = 0;  // the frames of the body
    std::uint32_t flags = 0, header_bytes = 0;
    std::uint64_t body_bytes = 0, seq = 0;
    std::uint32_t count = 0, reserved = 0;
    std::uint64_t checksum = 0;
};
static_assert(sizeof(Prefix) == kPrefixBytes);

struct Message {
    Kind kind;
    const char* name;
    bool body;
    std::string_view fields;  // in their order: the name, the type if it is no integer, and "?" if the field can be left out
};

constexpr Message kMessages[] = {
    {Kind::hello, "Hello", false,
     "client_id:text actor_id:text incarnation first_seq held_generation held_version algorithm_name:text? "
     "algorithm_parameters:map? algorithm_type:text? observation_space:map? action_space:map? submits:flag? library:text? "
     "origin? journal_id? spooled:flag? weights:map? previously_welcomed:flag? relay:text?"},
    {Kind::submit, "Submit", true, "want_steps layouts:list heads:bytes codings:list?"},
    {Kind::heartbeat, "Heartbeat", false, "want_steps"},
    {Kind::fetch_weights, "FetchWeights", false, "held_generation held_version client_id:text?"},
    {Kind::status_request, "StatusRequest", false, "since:lag?"},
    {Kind::bye, "Bye", false, ""},
    {Kind::operator_command, "OperatorCommand", false, "command:text client_id:text actor_id:text? values:map?"},
    {Kind::follow_weights, "FollowWeights", false, "client_id:text relay:text? children? generation?"},
    {Kind::actor_report, "ActorReport", false,
     "host:text pid cpu:number rss_bytes threads host_cpu:number host_memory_bytes host_memory_free_bytes disk_free_bytes "
     "net_sent_bytes_s:number net_received_bytes_s:number"},
    {Kind::welcome, "Welcome", true,
     "policy_id:id topic:id journal_id gap generation version digest:hash spec:map pub:text received durable "
     "accepted_steps algorithm_name:text algorithm_type:text rollout_length max_policy_lag:lag on_lag:text "
     "max_message_bytes max_segment_steps heartbeat_s:number weights:map? inference:text? relays:list? tag_key:bytes? "
     "no_masks:text?"},
    {Kind::ack, "Ack", false,
     "generation received durable trained checkpointed accepted_steps credit_steps credit_items credit_bytes min_version "
     "verdicts:map"},
    {Kind::refused, "Refused", false, "code:text field:text reason:text expected_seq? incarnation?"},
    {Kind::weights_reply, "WeightsReply", true, "tags:list?"},
    {Kind::status_reply, "StatusReply", true, "report:map"},
    {Kind::beacon, "Beacon", false, "generation version digest:hash alarms:map? tag:bytes?"},
    {Kind::operator_command_done, "OperatorCommandDone", false, "text:text figures:map"},
    {Kind::weights_source, "WeightsSource", false,
     "client_id:text policy_id:id topic:id generation version digest:hash tensors:list pub:text"},
};

const Message& message_of(std::uint8_t kind) {
    for (const Message& one : kMessages)
        if (static_cast<std::uint8_t>(one.kind) == kind) return one;
    reject(Refusal::kind, "message kind ", kind, " is unknown");
}

bool fits(std::string_view type, const Value& value) {
    if (type.empty() || type == "hash") return value.whole().has_value();
    if (type == "text") return value.get<std::string>();
    if (type == "list") return value.get<List>();
    if (type == "map") return value.get<Map>();
    if (type == "bytes") return value.get<Bytes>();
    if (type == "flag") return value.get<bool>();
    if (type == "id") return value.get<Bytes>() && value.get<Bytes>()->data.size() == 8;
    if (type == "number") return value.is_integer() || (value.get<double>() && std::isfinite(*value.get<double>()));
    return value.whole() || (value.get<std::int64_t>() && *value.get<std::int64_t>() == -1);  // lag
}

void check_header(const Message& message, const Map& header, std::uint8_t minor) {
    std::size_t known = 0;
    support::split(message.fields, ' ', [&](std::string_view type) {
        if (type.empty()) return;  // a message without fields
        const bool required = type.back() != '?';
        if (!required) type.remove_suffix(1);
        const std::string_view name = type.substr(0, type.find(':'));
        type.remove_prefix(std::min(type.size(), name.size() + 1));
        const Value* value = header.find(name);
        if (!value && required) reject(Refusal::malformed, message.name, " lacks '", name, "'");
        if (!value) return;
        ++known;
        const auto field = [&] { return std::string(message.name) + "." + std::string(name); };
        if (!fits(type, *value)) reject(Refusal::malformed, field(), " has another type or range");
        if (type != "hash" && value->get<std::uint64_t>()) reject(Refusal::range, field(), " is beyond ", kMaxCount);
    });
    if (known != header.items.size() && minor <= kMinor) reject(Refusal::malformed, message.name, " has an unknown key");
}

std::uint64_t bytes_in(const Frames& frames) {
    return std::accumulate(frames.begin(), frames.end(), std::uint64_t{0}, [](auto sum, auto frame) { return sum + frame.size(); });
}

std::uint64_t checksum(const Prefix& prefix, std::string_view header, const std::vector<std::uint64_t>& hashes) {
    hash::Xxh3 sum;
    sum.update(&prefix, offsetof(Prefix, checksum));
    sum.update(header);
    sum.update(hashes.data(), hashes.size() * sizeof hashes[0]);
    return sum.digest();
}

// The prefix of a message, after a check against its frames, which have `total` bytes.
Prefix read_prefix(const Frames& frames, std::uint64_t total, bool verify) {
    const std::string_view head = frames[0];
    if (head.size() < kPrefixBytes) reject(Refusal::magic, "a first frame of ", head.size(), " bytes is shorter than the prefix");
    const auto out = support::load<Prefix>(head.data());
    if (head.substr(0, sizeof out.magic) != "R4SZ") reject(Refusal::magic, "the first bytes are not R4SZ");
    if (out.major != kMajor)
        reject(Refusal::version, "protocol ", out.major, ".", out.minor, "; this side speaks ", kMajor, ".", kMinor);
    if (out.flags & kMustUnderstand) reject(Refusal::feature, "the flags name a feature that this side does not support");
    const std::size_t body = frames.size() - 1;
    if (out.frames != body) reject(Refusal::frames, body, " body frames; the prefix says ", out.frames);
    if (kPrefixBytes + std::uint64_t{out.header_bytes} != head.size() || out.body_bytes != total - head.size())
        reject(Refusal::malformed, "the lengths in the prefix differ from the lengths of the frames");
    if (verify) {
        // The bodies of messages between a gateway and its workers have checksums of their own.
        const bool wrapper = out.kind == 33 || out.kind == 49 || out.kind == 55;
        std::vector<std::uint64_t> hashes;
        for (std::size_t n = 1; n < frames.size() && !wrapper; ++n) hashes.push_back(hash::xxh3_64(frames[n]));
        if (checksum(out, head.substr(kPrefixBytes), hashes) != out.checksum)
            reject(Refusal::checksum, "the checksum does not match the received bytes");
    }
    if (out.reserved) reject(Refusal::malformed, "the reserved field of the prefix is not 0");
    return out;
}

}  // namespace

Received decode(const Frames& frames, std::uint64_t max_bytes, bool verify) {
    if (frames.empty()) reject(Refusal::frames, "the message has no frames");
    const std::uint64_t total = bytes_in(frames);
    if (total > max_bytes) reject(Refusal::too_large, "the message has ", total, " bytes; the limit is ", max_bytes);
    const Prefix prefix = read_prefix(frames, total, verify);
    const Message& message = message_of(prefix.kind);
    if (!message.body && frames.size() > 1) reject(Refusal::frames, message.name, " has no body, but body frames were received");
    Value header = unpack(frames[0].substr(kPrefixBytes));
    auto* map = std::get_if<Map>(&header.data);
    if (!map) reject(Refusal::malformed, "the header of ", message.name, " is not a map");
    check_header(message, *map, prefix.minor);
    Received out;
    out.kind = message.kind;
    if (message.kind == Kind::submit) {
        if (prefix.seq > kMaxCount) reject(Refusal::range, "sequence number ", prefix.seq, "; the limit is ", kMaxCount);
        out.first_seq = prefix.seq;
        out.count = prefix.count;
    }
    out.header = std::move(*map);
    out.body.assign(std::next(frames.begin()), frames.end());
    return out;
}

std::string encode(Kind kind, const Map& header, const Frames& body, const std::vector<std::uint64_t>& hashes, std::uint64_t first_seq,
                   std::uint32_t count) {
    std::string out(kPrefixBytes, '\0');
    pack(out, header);
    const std::string_view packed = std::string_view(out).substr(kPrefixBytes);
    if (packed.size() > HeaderLimits{}.bytes) reject(Refusal::too_large, "the header has ", packed.size(), " bytes");
    if (body.size() > kMaxBodyFrames) reject(Refusal::frames, body.size(), " body frames; the limit is ", kMaxBodyFrames);
    Prefix prefix;
    prefix.kind = static_cast<std::uint8_t>(kind);
    prefix.frames = static_cast<std::uint8_t>(body.size());
    prefix.header_bytes = static_cast<std::uint32_t>(packed.size());
    prefix.body_bytes = bytes_in(body);
    prefix.seq = first_seq;
    prefix.count = count;
    prefix.checksum = checksum(prefix, packed, hashes);
    support::store(out.data(), prefix);
    return out;
}

}  // namespace rl4sys::wire
