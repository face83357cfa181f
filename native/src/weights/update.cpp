#include "weights/update.h"

#include <cstring>

#include "hash/blake2b.h"
#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "weights/bits.h"

namespace rl4sys::weights {
namespace {

using support::load;

constexpr std::uint8_t kFormat = 3, kPredicted = 1, kOthers = 2;
constexpr std::size_t kCheckAt = 52, kTrailer = 5, kTagBytes = 16;

void check(const Header& head) {
    const bool order = is_diff(head.encoding) ? head.base_version < head.new_version : head.base_version == head.new_version;
    if (!order)
        throw ProtocolError(Refusal::range, "an update cannot go from " + std::to_string(head.base_version) + " to " +
                                                std::to_string(head.new_version));
    if (head.chunk >= head.chunks) throw ProtocolError(Refusal::range, "a chunk is out of range");
    if (head.predicted && !is_diff(head.encoding)) throw ProtocolError(Refusal::range, "a snapshot cannot need another version");
    if (!head.others && head.payload_bytes > item_bytes_of(head.dtype) * std::uint64_t{head.elements})
        throw ProtocolError(Refusal::too_large,
                            std::to_string(head.payload_bytes) + " bytes for " + std::to_string(head.elements) + " elements");
}

// The elements that a wire dtype rounds, and the others, which travel as 4-byte words.
class Division {
public:
    Division(const TensorSizes& tensors, WireDtype dtype) : tensors_(tensors) {
        for (std::size_t t = 0; t < tensors.sizes.size(); ++t) {
            const bool exact = dtype != WireDtype::fp32 && tensors.exact[t];
            exact_.push_back(exact);
            (exact ? kept_ : rounded_) += tensors.sizes[t];
            if (!exact) sizes_.push_back(tensors.sizes[t]);
        }
    }

    std::size_t kept() const noexcept { return kept_; }
    std::size_t rounded() const noexcept { return rounded_; }
    const std::vector<std::size_t>& sizes() const noexcept { return sizes_; }

    std::vector<float> part(const std::vector<float>& flat, bool exact) const {
        std::vector<float> out;
        out.reserve(exact ? kept_ : rounded_);
        std::size_t at = 0;
        for (std::size_t t = 0; t < exact_.size(); at += tensors_.sizes[t++])
            if (exact_[t] == exact) out.insert(out.end(), flat.begin() + at, flat.begin() + at + tensors_.sizes[t]);
        return out;
    }

    std::vector<float> joined(const std::vector<float>& rounded, const float* kept) const {
        std::vector<float> out;
        out.reserve(kept_ + rounded_);
        const float* sources[] = {rounded.data(), kept};
        for (std::size_t t = 0; t < exact_.size(); ++t) {
            const float*& source = sources[exact_[t]];
            out.insert(out.end(), source, source + tensors_.sizes[t]);
            source += tensors_.sizes[t];
        }
        return out;
    }

    // The buffer of everything that is not rounded.
    std::string words(const Snapshot& snapshot) const {
        std::string out = snapshot.others;
        const std::vector<float> exact = part(snapshot.flat, true);
        out.append(reinterpret_cast<const char*>(exact.data()), exact.size() * sizeof(float));
        return out;
    }

private:
    const TensorSizes& tensors_;
    std::vector<bool> exact_;
    std::vector<std::size_t> sizes_;
    std::size_t kept_ = 0, rounded_ = 0;
};

void verify_payload(const Header& head, std::string_view payload, std::size_t elements, std::size_t words) {
    if (head.chunks != 1)
        throw WeightsError("the update has " + std::to_string(head.chunks) + " chunks; this side supports one", "payload");
    const std::uint64_t most = item_bytes_of(head.dtype) * elements + words + kTrailer;
    if (head.others && head.payload_bytes > most)
        throw WeightsError("the payload has " + std::to_string(head.payload_bytes) + " bytes; the limit for this policy is " +
                               std::to_string(most),
                           "payload");
    if (payload.size() != head.payload_bytes)
        throw WeightsError("the payload has " + std::to_string(payload.size()) + " bytes; expected " + std::to_string(head.payload_bytes),
                           "payload");
    if (hash::xxh3_64(payload) != head.payload_hash) throw WeightsError("the checksum does not match the received payload", "payload");
}

bool all_finite(const std::vector<float>& flat) noexcept {
    constexpr std::uint32_t kExponent = 0x7F800000U;
    std::uint32_t found = 0;
    for (const float x : flat) found |= (support::load32(&x) & kExponent) == kExponent;
    return !found;
}

bool precedes(const Snapshot* before, std::uint64_t generation, std::uint64_t version) noexcept {
    return before && before->generation == generation && version && before->version == version - 1;
}

}  // namespace

Header read_header(std::string_view data) {
    if (data.size() != kHeaderBytes)
        throw ProtocolError(Refusal::malformed, "a weights header has " + std::to_string(data.size()) + " bytes; expected 72");
    const char* at = data.data();
    if (data.substr(0, 4) != "R4SW") throw ProtocolError(Refusal::magic, "a weights header does not start with R4SW");
    if (load<std::uint8_t>(at + 4) != kFormat)
        throw ProtocolError(Refusal::version, "weights format " + std::to_string(load<std::uint8_t>(at + 4)) + "; this side reads 3");
    char bare[kHeaderBytes];
    std::memcpy(bare, at, kHeaderBytes);
    std::memset(bare + kCheckAt, 0, 4);
    if (load<std::uint32_t>(at + kCheckAt) != static_cast<std::uint32_t>(hash::xxh3_64(bare, kHeaderBytes)))
        throw ProtocolError(Refusal::checksum, "the checksum does not match the received weights header");
    const auto flags = load<std::uint8_t>(at + 5), code = load<std::uint8_t>(at + 6), dtype = load<std::uint8_t>(at + 7);
    if (flags & ~(kPredicted | kOthers)) throw ProtocolError(Refusal::feature, "unknown weights flags " + std::to_string(flags));
    if (!is_encoding(code)) throw ProtocolError(Refusal::kind, "unknown weights codec " + std::to_string(code));
    if (dtype > static_cast<std::uint8_t>(WireDtype::grid))
        throw ProtocolError(Refusal::dtype, "unknown weights dtype " + std::to_string(dtype));
    Header out;
    out.policy_id = std::string(data.substr(8, 8));
    out.generation = load<std::uint64_t>(at + 16);
    out.base_version = load<std::uint64_t>(at + 24);
    out.new_version = load<std::uint64_t>(at + 32);
    out.encoding = static_cast<Encoding>(code);
    out.dtype = static_cast<WireDtype>(dtype);
    out.chunk = load<std::uint16_t>(at + 40);
    out.chunks = load<std::uint16_t>(at + 42);
    out.elements = load<std::uint32_t>(at + 44);
    out.payload_bytes = load<std::uint32_t>(at + 48);
    out.payload_hash = load<std::uint64_t>(at + 56);
    out.state_hash = load<std::uint64_t>(at + 64);
    out.predicted = flags & kPredicted;
    out.others = flags & kOthers;
    check(out);
    return out;
}

Snapshot apply_update(const Header& head, std::string_view payload, const Snapshot* held, const TensorSizes& tensors,
                      const Snapshot* before, support::Zstd& zstd) {
    if (head.elements != tensors.elements)
        throw WeightsError(std::to_string(head.elements) + " elements for a policy of " + std::to_string(tensors.elements), "size");
    const Division division(tensors, head.dtype);
    const std::size_t word_bytes = tensors.other_bytes + 4 * division.kept();
    if (head.others != (word_bytes > 0))
        throw WeightsError(std::string("an update ") + (head.others ? "with" : "without") + " tensors that are not rounded", "size");
    verify_payload(head, payload, division.rounded(), word_bytes);
    std::string_view coded_words;
    std::uint8_t words_code = 0;
    if (word_bytes) {
        const std::size_t size = payload.size();
        const std::uint64_t count = size >= kTrailer ? load<std::uint32_t>(payload.data() + size - kTrailer) : 0;
        if (size < kTrailer || count > size - kTrailer) bad("a payload of " + std::to_string(size) + " bytes has no room for the other tensors");
        words_code = static_cast<std::uint8_t>(payload[size - 1]);
        coded_words = payload.substr(size - kTrailer - count, count);
        payload = payload.substr(0, size - kTrailer - count);
    }
    std::vector<float> rounded(division.rounded());
    std::vector<float> held_words;
    const auto words_of = [](const std::string& bytes) {
        std::vector<float> out(bytes.size() / 4);
        std::memcpy(out.data(), bytes.data(), bytes.size());
        return out;
    };
    if (is_diff(head.encoding)) {
        if (!held || held->generation != head.generation || held->version != head.base_version)
            throw WeightsError("the diff starts from version " + std::to_string(head.base_version) + " of generation " +
                                   std::to_string(head.generation) + ", which is not held",
                               "gap");
        if (head.predicted && !precedes(before, head.generation, head.base_version))
            throw WeightsError("the diff needs the version before " + std::to_string(head.base_version) + ", which is not held", "gap");
        const bool fits = held->flat.size() == tensors.elements && held->others.size() == tensors.other_bytes &&
                          (!head.predicted || before->flat.size() == tensors.elements);
        if (!fits) throw WeightsError("the held version has the size of another policy", "size");
        std::vector<std::int8_t> exponents;
        if (head.dtype == WireDtype::grid && (head.encoding == Encoding::sparse || head.encoding == Encoding::planes)) {
            const std::vector<std::size_t>& sizes = division.sizes();
            const std::string_view steps = BitReader(payload).take(sizes.size());
            for (std::size_t t = 0; t < sizes.size(); ++t) exponents.insert(exponents.end(), sizes[t], static_cast<std::int8_t>(steps[t]));
            payload.remove_prefix(steps.size());
        }
        const Form form{head.dtype, exponents.data()};
        const std::vector<float> base_part = division.kept() ? division.part(held->flat, false) : std::vector<float>{};
        const std::vector<float> last_part = division.kept() && head.predicted ? division.part(before->flat, false) : std::vector<float>{};
        const float* base = division.kept() ? base_part.data() : held->flat.data();
        const float* last = !head.predicted ? nullptr : division.kept() ? last_part.data() : before->flat.data();
        decode_diff(head.encoding, payload, base, rounded.size(), form, last, zstd, rounded.data());
        if (word_bytes) held_words = words_of(division.words(*held));
    } else {
        decode_snapshot(head.encoding, payload, rounded.size(), head.dtype, zstd, rounded.data());
    }
    Snapshot out;
    out.generation = head.generation;
    out.version = head.new_version;
    out.digest = head.state_hash;
    if (word_bytes) {
        const bool diff = is_diff(head.encoding);
        if (!is_encoding(words_code) || is_diff(static_cast<Encoding>(words_code)) != diff)
            bad("the other tensors have the codec " + std::to_string(words_code) + (diff ? " in a diff" : " in a snapshot"));
        std::vector<float> words(word_bytes / 4);
        if (diff)
            decode_diff(static_cast<Encoding>(words_code), coded_words, held_words.data(), words.size(), Form{}, nullptr, zstd, words.data());
        else
            decode_snapshot(static_cast<Encoding>(words_code), coded_words, words.size(), WireDtype::fp32, zstd, words.data());
        out.others.assign(reinterpret_cast<const char*>(words.data()), tensors.other_bytes);
        out.flat = division.joined(rounded, words.data() + tensors.other_bytes / 4);
    } else {
        out.flat = std::move(rounded);
    }
    // An uncompressed snapshot in float32 is the state itself: its hash is the digest.
    const bool whole = head.encoding == Encoding::snapshot && head.dtype != WireDtype::bf16 && !word_bytes;
    if ((whole ? head.payload_hash : digest_of(out.flat, out.others)) != head.state_hash)
        throw WeightsError("version " + std::to_string(head.new_version) + " does not verify: its digest differs from the learner's", "digest");
    if (!all_finite(out.flat)) throw WeightsError("the weights are not finite", "finite");
    tensors.verify_others(out.others);
    return out;
}

bool is_tag_of(std::string_view tag, std::string_view key, std::string_view policy_id, const Snapshot& snapshot) {
    hash::Blake2b sum(key, "rl4sys-weights", kTagBytes);
    sum.update(policy_id);
    const std::uint64_t numbers[] = {snapshot.generation, snapshot.version};
    sum.update(support::bytes_of(numbers, sizeof numbers));
    sum.update(support::bytes_of(snapshot.flat.data(), snapshot.flat.size() * sizeof(float)));
    sum.update(snapshot.others);
    const std::string own = sum.digest();
    unsigned char difference = tag.size() != own.size();
    for (std::size_t i = 0; i < own.size() && i < tag.size(); ++i) difference |= static_cast<unsigned char>(tag[i] ^ own[i]);
    return !difference;
}

}  // namespace rl4sys::weights
