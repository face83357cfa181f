#include "weights/update.h"

#include <algorithm>

#include "hash/blake2b.h"
#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "weights/bits.h"

namespace rl4sys::weights {
namespace {

using support::load;

constexpr std::uint8_t kFormat = 3;
constexpr std::size_t kTrailer = 5, kTagBytes = 16;

// The elements that a wire dtype rounds, and the ones that are kept exact, which travel as 4-byte words with the other tensors.
class Division {
public:
    Division(const TensorSizes& tensors, WireDtype dtype) {
        for (std::size_t t = 0; t < tensors.sizes.size(); ++t) {
            pieces_.push_back({tensors.sizes[t], dtype != WireDtype::fp32 && tensors.exact[t]});
            (pieces_.back().kept ? kept : rounded) += tensors.sizes[t];
        }
    }

    std::size_t kept = 0, rounded = 0;

    std::vector<float> part(const std::vector<float>& flat, bool is_kept) const {
        std::vector<float> out;
        out.reserve(is_kept ? kept : rounded);
        auto at = flat.begin();
        for (const Piece& piece : pieces_) {
            if (piece.kept == is_kept) out.insert(out.end(), at, at + piece.size);
            at += piece.size;
        }
        return out;
    }

    std::vector<float> joined(const float* rounded_part, const float* kept_part) const {
        std::vector<float> out;
        out.reserve(kept + rounded);
        for (const Piece& piece : pieces_) {
            const float*& source = piece.kept ? kept_part : rounded_part;
            out.insert(out.end(), source, source + piece.size);
            source += piece.size;
        }
        return out;
    }

    // Everything that is not rounded.
    std::vector<float> words(const Snapshot& snapshot) const {
        std::vector<float> out = part(snapshot.flat, true);
        out.insert(out.begin(), snapshot.others.size() / 4, 0.0f);
        snapshot.others.copy(reinterpret_cast<char*>(out.data()), snapshot.others.size());
        return out;
    }

    // The exponent of each rounded element, from those of the tensors at the front of a payload.
    std::vector<std::int8_t> take_exponents(std::string_view& payload) const {
        BitReader reader(payload);
        std::vector<std::int8_t> out;
        out.reserve(rounded);
        const auto count = std::count_if(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return !piece.kept; });
        const char* step = reader.take(static_cast<std::size_t>(count)).data();
        for (const Piece& piece : pieces_)
            if (!piece.kept) out.insert(out.end(), piece.size, static_cast<std::int8_t>(*step++));
        payload.remove_prefix(static_cast<std::size_t>(count));
        return out;
    }

private:
    struct Piece {
        std::size_t size;
        bool kept;
    };
    std::vector<Piece> pieces_;
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
    std::uint32_t worst = 0;
    for (const float x : flat) worst = std::max(worst, support::load32(&x) & 0x7FFFFFFFU);
    return worst < 0x7F800000U;
}

void verify_held(const Header& head, const Snapshot* held, const Snapshot* before, const TensorSizes& tensors) {
    if (!held || held->generation != head.generation || held->version != head.base_version)
        throw WeightsError("the diff starts from version " + std::to_string(head.base_version) + " of generation " +
                               std::to_string(head.generation) + ", which is not held",
                           "gap");
    const bool precedes = before && before->generation == head.generation && head.base_version && before->version == head.base_version - 1;
    if (head.predicted && !precedes)
        throw WeightsError("the diff needs the version before " + std::to_string(head.base_version) + ", which is not held", "gap");
    if (held->flat.size() != tensors.elements || held->others.size() != tensors.other_bytes ||
        (head.predicted && before->flat.size() != tensors.elements))
        throw WeightsError("the held version has the size of another policy", "size");
}

}  // namespace

Header read_header(std::string_view data) {
    if (data.size() != sizeof(Header))
        throw ProtocolError(Refusal::malformed, "a weights header has " + std::to_string(data.size()) + " bytes; expected 72");
    const auto head = load<Header>(data.data());
    if (data.substr(0, 4) != "R4SW") throw ProtocolError(Refusal::magic, "a weights header does not start with R4SW");
    if (head.format != kFormat)
        throw ProtocolError(Refusal::version, "weights format " + std::to_string(head.format) + "; this side reads 3");
    Header bare = head;
    bare.check = 0;
    if (head.check != static_cast<std::uint32_t>(hash::xxh3_64(&bare, sizeof bare)))
        throw ProtocolError(Refusal::checksum, "the checksum does not match the received weights header");
    const auto encoding = static_cast<std::uint8_t>(head.encoding), dtype = static_cast<std::uint8_t>(head.dtype);
    if (head.unknown_flags) throw ProtocolError(Refusal::feature, "unknown weights flags " + std::to_string(load<std::uint8_t>(&data[5])));
    if (!is_encoding(encoding)) throw ProtocolError(Refusal::kind, "unknown weights codec " + std::to_string(encoding));
    if (head.dtype > WireDtype::grid) throw ProtocolError(Refusal::dtype, "unknown weights dtype " + std::to_string(dtype));
    const bool diff = is_diff(head.encoding);
    if (diff ? head.base_version >= head.new_version : head.base_version != head.new_version)
        throw ProtocolError(Refusal::range, "an update cannot go from " + std::to_string(head.base_version) + " to " +
                                                std::to_string(head.new_version));
    if (head.chunk >= head.chunks) throw ProtocolError(Refusal::range, "a chunk is out of range");
    if (head.predicted && !diff) throw ProtocolError(Refusal::range, "a snapshot cannot need another version");
    if (!head.others && head.payload_bytes > item_bytes_of(head.dtype) * std::uint64_t{head.elements})
        throw ProtocolError(Refusal::too_large,
                            std::to_string(head.payload_bytes) + " bytes for " + std::to_string(head.elements) + " elements");
    return head;
}

Snapshot apply_update(const Header& head, std::string_view payload, const Snapshot* held, const TensorSizes& tensors,
                      const Snapshot* before, support::Zstd& zstd) {
    if (head.elements != tensors.elements)
        throw WeightsError(std::to_string(head.elements) + " elements for a policy of " + std::to_string(tensors.elements), "size");
    const Division division(tensors, head.dtype);
    const std::size_t word_bytes = tensors.other_bytes + 4 * division.kept;
    if (head.others != (word_bytes > 0))
        throw WeightsError(std::string("an update ") + (head.others ? "with" : "without") + " tensors that are not rounded", "size");
    verify_payload(head, payload, division.rounded, word_bytes);
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
    const bool diff = is_diff(head.encoding);
    const auto decode = [&](Encoding code, std::string_view coded, const Form& form, const float* base, const float* last, std::size_t size) {
        std::vector<float> out(size);
        if (diff)
            decode_diff(code, coded, base, size, form, last, zstd, out.data());
        else
            decode_snapshot(code, coded, size, form.dtype, zstd, out.data());
        return out;
    };
    std::vector<std::int8_t> exponents;
    std::vector<float> base_part, last_part, held_words;
    const float *base = nullptr, *last = nullptr;
    if (diff) {
        verify_held(head, held, before, tensors);
        if (head.dtype == WireDtype::grid && (head.encoding == Encoding::sparse || head.encoding == Encoding::planes))
            exponents = division.take_exponents(payload);
        const auto rounded_of = [&](const Snapshot& snapshot, std::vector<float>& part) {
            return (division.kept ? part = division.part(snapshot.flat, false) : snapshot.flat).data();
        };
        base = rounded_of(*held, base_part);
        if (head.predicted) last = rounded_of(*before, last_part);
        if (word_bytes) held_words = division.words(*held);
    }
    Snapshot out;
    out.generation = head.generation;
    out.version = head.new_version;
    out.digest = head.state_hash;
    out.flat = decode(head.encoding, payload, {head.dtype, exponents.data()}, base, last, division.rounded);
    if (word_bytes) {
        const auto code = static_cast<Encoding>(words_code);
        if (!is_encoding(words_code) || is_diff(code) != diff)
            bad("the other tensors have the codec " + std::to_string(words_code) + (diff ? " in a diff" : " in a snapshot"));
        const std::vector<float> words = decode(code, coded_words, {}, held_words.data(), nullptr, word_bytes / 4);
        out.others.assign(reinterpret_cast<const char*>(words.data()), tensors.other_bytes);
        out.flat = division.joined(out.flat.data(), words.data() + tensors.other_bytes / 4);
    }
    if (digest_of(out.flat, out.others) != head.state_hash)
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
