#include "wire/prefix.h"

#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"

namespace rl4sys::wire {
namespace {

constexpr std::string_view kMagic = "R4SZ";
constexpr std::uint32_t kMustUnderstand = 0xFFFF;  // no such flag is defined

// Messages between a gateway and its workers whose bodies have checksums of their own.
bool is_wrapper(std::uint8_t kind) { return kind == 33 || kind == 49 || kind == 55; }

std::uint64_t bytes_in(const Frames& frames, std::size_t first) {
    std::uint64_t total = 0;
    for (std::size_t n = first; n < frames.size(); ++n) total += frames[n].size();
    return total;
}

std::uint64_t checksum(std::string_view fields, std::string_view header, const std::vector<std::uint64_t>& hashes) {
    hash::Xxh3 sum;
    sum.update(fields.substr(0, 40));
    sum.update(header);
    sum.update(hashes.data(), hashes.size() * sizeof hashes[0]);
    return sum.digest();
}

}  // namespace

Prefix read_prefix(const Frames& frames, bool verify) {
    using support::load;
    const std::string_view head = frames[0];
    const char* at = head.data();
    if (head.size() < kPrefixBytes)
        throw ProtocolError(Refusal::magic, "a first frame of " + std::to_string(head.size()) + " bytes is shorter than the prefix");
    if (head.substr(0, 4) != kMagic) throw ProtocolError(Refusal::magic, "the first bytes are not R4SZ");
    const Prefix out{load<std::uint8_t>(at + 5), load<std::uint8_t>(at + 6), load<std::uint64_t>(at + 24), load<std::uint32_t>(at + 32)};
    const auto major = load<std::uint8_t>(at + 4);
    if (major != kMajor)
        throw ProtocolError(Refusal::version, "protocol " + std::to_string(major) + "." + std::to_string(out.minor) + "; this side speaks " +
                                                  std::to_string(kMajor) + "." + std::to_string(kMinor));
    if (load<std::uint32_t>(at + 8) & kMustUnderstand)
        throw ProtocolError(Refusal::feature, "the flags name a feature that this side does not support");
    const std::size_t body = frames.size() - 1;
    if (load<std::uint8_t>(at + 7) != body)
        throw ProtocolError(Refusal::frames, std::to_string(body) + " body frames; the prefix says " + std::to_string(load<std::uint8_t>(at + 7)));
    if (kPrefixBytes + std::uint64_t{load<std::uint32_t>(at + 12)} != head.size() || load<std::uint64_t>(at + 16) != bytes_in(frames, 1))
        throw ProtocolError(Refusal::malformed, "the lengths in the prefix differ from the lengths of the frames");
    if (verify) {
        std::vector<std::uint64_t> hashes;
        hashes.reserve(body);
        for (std::size_t n = 1; n < frames.size() && !is_wrapper(out.kind); ++n) hashes.push_back(hash::xxh3_64(frames[n]));
        if (checksum(head, head.substr(kPrefixBytes), hashes) != load<std::uint64_t>(at + 40))
            throw ProtocolError(Refusal::checksum, "the checksum does not match the received bytes");
    }
    if (load<std::uint32_t>(at + 36)) throw ProtocolError(Refusal::malformed, "the reserved field of the prefix is not 0");
    return out;
}

std::string seal(const Prefix& prefix, std::string_view header, const Frames& body, const std::vector<std::uint64_t>& hashes) {
    if (body.size() > kMaxBodyFrames)
        throw ProtocolError(Refusal::frames, std::to_string(body.size()) + " body frames; the limit is " + std::to_string(kMaxBodyFrames));
    std::string out;
    out.reserve(kPrefixBytes + header.size());
    out.append(kMagic);
    for (const std::size_t byte : {std::size_t{kMajor}, std::size_t{prefix.minor}, std::size_t{prefix.kind}, body.size()})
        out.push_back(static_cast<char>(byte));
    support::append(out, std::uint32_t{0});
    support::append(out, static_cast<std::uint32_t>(header.size()));
    support::append(out, bytes_in(body, 0));
    support::append(out, prefix.seq);
    support::append(out, prefix.count);
    support::append(out, std::uint32_t{0});
    support::append(out, checksum(out, header, hashes));
    out.append(header);
    return out;
}

}  // namespace rl4sys::wire
