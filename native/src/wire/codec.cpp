#include "wire/codec.h"

#include <cmath>
#include <iterator>

#include "support/errors.h"

namespace rl4sys::wire {
namespace {

enum class Type { integer, hash, lag, number, boolean, text, id, block, list, map };

struct Field {
    const char* name;
    Type type;
    bool required = true;
};

struct Message {
    Kind kind;
    const char* name;
    const Field* fields;
    std::size_t count;
    bool body;
};

constexpr bool kOptional = false;

constexpr Field kHello[] = {
    {"client_id", Type::text}, {"actor_id", Type::text}, {"incarnation", Type::integer}, {"first_seq", Type::integer},
    {"held_generation", Type::integer}, {"held_version", Type::integer}, {"algorithm_name", Type::text, kOptional},
    {"algorithm_parameters", Type::map, kOptional}, {"algorithm_type", Type::text, kOptional},
    {"observation_space", Type::map, kOptional}, {"action_space", Type::map, kOptional}, {"submits", Type::boolean, kOptional},
    {"library", Type::text, kOptional}, {"origin", Type::integer, kOptional}, {"journal_id", Type::integer, kOptional},
    {"spooled", Type::boolean, kOptional}, {"weights", Type::map, kOptional}, {"previously_welcomed", Type::boolean, kOptional},
    {"relay", Type::text, kOptional},
};
constexpr Field kSubmit[] = {
    {"want_steps", Type::integer}, {"layouts", Type::list}, {"heads", Type::block}, {"codings", Type::list, kOptional},
};
constexpr Field kHeartbeat[] = {{"want_steps", Type::integer}};
constexpr Field kFetchWeights[] = {
    {"held_generation", Type::integer}, {"held_version", Type::integer}, {"client_id", Type::text, kOptional},
};
constexpr Field kOperatorCommand[] = {
    {"command", Type::text}, {"client_id", Type::text}, {"actor_id", Type::text, kOptional}, {"values", Type::map, kOptional},
};
constexpr Field kFollowWeights[] = {
    {"client_id", Type::text}, {"relay", Type::text, kOptional}, {"children", Type::integer, kOptional},
    {"generation", Type::integer, kOptional},
};
constexpr Field kWelcome[] = {
    {"policy_id", Type::id}, {"topic", Type::id}, {"journal_id", Type::integer}, {"gap", Type::integer},
    {"generation", Type::integer}, {"version", Type::integer}, {"digest", Type::hash}, {"spec", Type::map}, {"pub", Type::text},
    {"received", Type::integer}, {"durable", Type::integer}, {"accepted_steps", Type::integer}, {"algorithm_name", Type::text},
    {"algorithm_type", Type::text}, {"rollout_length", Type::integer}, {"max_policy_lag", Type::lag}, {"on_lag", Type::text},
    {"max_message_bytes", Type::integer}, {"max_segment_steps", Type::integer}, {"heartbeat_s", Type::number},
    {"weights", Type::map, kOptional}, {"inference", Type::text, kOptional}, {"relays", Type::list, kOptional},
    {"tag_key", Type::block, kOptional}, {"no_masks", Type::text, kOptional},
};
constexpr Field kAck[] = {
    {"generation", Type::integer}, {"received", Type::integer}, {"durable", Type::integer}, {"trained", Type::integer},
    {"checkpointed", Type::integer}, {"accepted_steps", Type::integer}, {"credit_steps", Type::integer},
    {"credit_items", Type::integer}, {"credit_bytes", Type::integer}, {"min_version", Type::integer}, {"verdicts", Type::map},
};
constexpr Field kRefused[] = {
    {"code", Type::text}, {"field", Type::text}, {"reason", Type::text}, {"expected_seq", Type::integer, kOptional},
    {"incarnation", Type::integer, kOptional},
};
constexpr Field kWeightsReply[] = {{"tags", Type::list, kOptional}};
constexpr Field kStatusReply[] = {{"report", Type::map}};
constexpr Field kBeacon[] = {
    {"generation", Type::integer}, {"version", Type::integer}, {"digest", Type::hash}, {"alarms", Type::map, kOptional},
    {"tag", Type::block, kOptional},
};
constexpr Field kOperatorCommandDone[] = {{"text", Type::text}, {"figures", Type::map}};
constexpr Field kWeightsSource[] = {
    {"client_id", Type::text}, {"policy_id", Type::id}, {"topic", Type::id}, {"generation", Type::integer},
    {"version", Type::integer}, {"digest", Type::hash}, {"tensors", Type::list}, {"pub", Type::text},
};

template <std::size_t N>
constexpr Message message(Kind kind, const char* name, const Field (&fields)[N], bool body = false) {
    return {kind, name, fields, N, body};
}

constexpr Message kMessages[] = {
    message(Kind::hello, "Hello", kHello),
    message(Kind::submit, "Submit", kSubmit, true),
    message(Kind::heartbeat, "Heartbeat", kHeartbeat),
    message(Kind::fetch_weights, "FetchWeights", kFetchWeights),
    {Kind::status_request, "StatusRequest", nullptr, 0, false},
    {Kind::bye, "Bye", nullptr, 0, false},
    message(Kind::operator_command, "OperatorCommand", kOperatorCommand),
    message(Kind::follow_weights, "FollowWeights", kFollowWeights),
    message(Kind::welcome, "Welcome", kWelcome, true),
    message(Kind::ack, "Ack", kAck),
    message(Kind::refused, "Refused", kRefused),
    message(Kind::weights_reply, "WeightsReply", kWeightsReply, true),
    message(Kind::status_reply, "StatusReply", kStatusReply),
    message(Kind::beacon, "Beacon", kBeacon),
    message(Kind::operator_command_done, "OperatorCommandDone", kOperatorCommandDone),
    message(Kind::weights_source, "WeightsSource", kWeightsSource),
};

const Message& message_of(std::uint8_t kind) {
    for (const Message& one : kMessages)
        if (static_cast<std::uint8_t>(one.kind) == kind) return one;
    throw ProtocolError(Refusal::kind, "message kind " + std::to_string(kind) + " is unknown");
}

bool fits(Type type, const Value& value) {
    const auto* n = value.get<std::int64_t>();
    switch (type) {
        case Type::integer:
        case Type::hash: return (n && *n >= 0) || value.get<std::uint64_t>();
        case Type::lag: return (n && *n >= -1) || value.get<std::uint64_t>();
        case Type::number: return value.is_integer() || (value.get<double>() && std::isfinite(*value.get<double>()));
        case Type::boolean: return value.get<bool>();
        case Type::text: return value.get<std::string>();
        case Type::id: return value.get<Bytes>() && value.get<Bytes>()->data.size() == 8;
        case Type::block: return value.get<Bytes>();
        case Type::list: return value.get<List>();
        case Type::map: return value.get<Map>();
    }
    return false;
}

void check_header(const Message& message, const Map& header, std::uint8_t minor) {
    const std::string name = message.name;
    std::size_t known = 0;
    for (std::size_t f = 0; f < message.count; ++f) {
        const Field& field = message.fields[f];
        const Value* value = header.find(field.name);
        if (!value) {
            if (field.required) throw ProtocolError(Refusal::malformed, name + " lacks '" + field.name + "'");
            continue;
        }
        ++known;
        if (!fits(field.type, *value)) throw ProtocolError(Refusal::malformed, name + "." + field.name + " has another type or range");
        if (field.type != Type::hash && value->get<std::uint64_t>())
            throw ProtocolError(Refusal::range, name + "." + field.name + " is beyond " + std::to_string(kMaxCount));
    }
    if (known != header.items.size() && minor <= kMinor) throw ProtocolError(Refusal::malformed, name + " has an unknown key");
}

}  // namespace

Received decode(const Frames& frames, std::uint64_t max_bytes, bool verify) {
    if (frames.empty()) throw ProtocolError(Refusal::frames, "the message has no frames");
    std::uint64_t total = 0;
    for (const std::string_view frame : frames) total += frame.size();
    if (total > max_bytes)
        throw ProtocolError(Refusal::too_large, "the message has " + std::to_string(total) + " bytes; the limit is " + std::to_string(max_bytes));
    const Prefix prefix = read_prefix(frames, verify);
    const Message& message = message_of(prefix.kind);
    if (!message.body && frames.size() > 1)
        throw ProtocolError(Refusal::frames, std::string(message.name) + " has no body, but body frames were received");
    Value header = unpack(frames[0].substr(kPrefixBytes));
    const auto* map = header.get<Map>();
    if (!map) throw ProtocolError(Refusal::malformed, std::string("the header of ") + message.name + " is not a map");
    check_header(message, *map, prefix.minor);
    Received out;
    out.kind = message.kind;
    if (message.kind == Kind::submit) {
        if (prefix.seq > kMaxCount)
            throw ProtocolError(Refusal::range, "sequence number " + std::to_string(prefix.seq) + "; the limit is " + std::to_string(kMaxCount));
        out.first_seq = prefix.seq;
        out.count = prefix.count;
    }
    out.header = std::move(std::get<Map>(header.data));
    out.body.assign(std::next(frames.begin()), frames.end());
    return out;
}

std::string encode(Kind kind, const Map& header, const Frames& body, const std::vector<std::uint64_t>& hashes, std::uint64_t first_seq,
                   std::uint32_t count) {
    std::string packed;
    pack_map_size(packed, header.items.size());
    for (const auto& [key, value] : header.items) {
        pack_text(packed, key);
        pack(packed, value);
    }
    if (packed.size() > HeaderLimits{}.bytes)
        throw ProtocolError(Refusal::too_large, "the header has " + std::to_string(packed.size()) + " bytes");
    return seal({kMinor, static_cast<std::uint8_t>(kind), first_seq, count}, packed, body, hashes);
}

namespace {

template <class T>
const T& field_or_empty(const Map& header, std::string_view field) noexcept {
    static const T empty{};
    const Value* value = header.find(field);
    const T* typed = value ? value->get<T>() : nullptr;
    return typed ? *typed : empty;
}

}  // namespace

std::uint64_t Received::integer(std::string_view field) const noexcept {
    const Value* value = header.find(field);
    if (!value) return 0;
    if (const auto* large = value->get<std::uint64_t>()) return *large;
    return static_cast<std::uint64_t>(field_or_empty<std::int64_t>(header, field));
}

std::int64_t Received::lag(std::string_view field) const noexcept { return field_or_empty<std::int64_t>(header, field); }

double Received::number(std::string_view field) const noexcept {
    const Value* value = header.find(field);
    if (value && value->is_integer()) return static_cast<double>(lag(field));
    return field_or_empty<double>(header, field);
}

const std::string& Received::text(std::string_view field) const noexcept { return field_or_empty<std::string>(header, field); }
const std::string& Received::bytes(std::string_view field) const noexcept { return field_or_empty<Bytes>(header, field).data; }
const List& Received::list(std::string_view field) const noexcept { return field_or_empty<List>(header, field); }
const Map& Received::map(std::string_view field) const noexcept { return field_or_empty<Map>(header, field); }

}  // namespace rl4sys::wire
