#include "weights/update.h"

#include <algorithm>
#include <cmath>

#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "weights/bits.h"
#include "wire/value.h"

namespace rl4sys::weights {
namespace {

using support::load;

constexpr std::uint8_t kFormat = 3;
constexpr std::size_t kWord = 4, kTrailer = 5;

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
    if (head.chunks != 1) reject("payload", "the update has ", head.chunks, " chunks; this side supports one");
    const std::uint64_t most = item_bytes_of(head.dtype) * elements + words + kTrailer;
    if (head.others && head.payload_bytes > most)
        reject("payload", "the payload has ", head.payload_bytes, " bytes; the limit for this policy is ", most);
    if (payload.size() != head.payload_bytes)
        reject("payload", "the payload has ", payload.size(), " bytes; expected ", head.payload_bytes);
    if (hash::xxh3_64(payload) != head.payload_hash) reject("payload", "the checksum does not match the received payload");
}

bool all_finite(const std::vector<float>& flat) noexcept {
    constexpr std::uint32_t kExponent = 0x7F800000U;
    std::uint32_t found = 0;
    for (const float x : flat) found |= (support::load32(&x) & kExponent) == kExponent;
    return !found;
}

void verify_held(const Header& head, const Snapshot* held, const Snapshot* before, const TensorSizes& tensors) {
    if (!held || held->generation != head.generation || held->version != head.base_version)
        reject("gap", "the diff starts from version ", head.base_version, " of generation ", head.generation, ", which is not held");
    const bool precedes = before && before->generation == head.generation && head.base_version && before->version == head.base_version - 1;
    if (head.predicted && !precedes)
        reject("gap", "the diff needs the version before ", head.base_version, ", which is not held");
    if (held->flat.size() != tensors.elements || held->others.size() != tensors.other_bytes ||
        (head.predicted && before->flat.size() != tensors.elements))
        reject("size", "the held version has the size of another policy");
}

}  // namespace

TensorSizes::TensorSizes(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) {
        if (tensor.is_float32()) {
            sizes.push_back(tensor.size());
            exact.push_back(tensor.exact);
            elements += tensor.size();
        } else {
            others_.push_back(tensor);
            other_bytes += tensor.size() * wire::item_bytes(tensor.dtype);
        }
    }
    other_bytes = (other_bytes + kWord - 1) / kWord * kWord;
    std::stable_sort(others_.begin(), others_.end(),
                     [](const Tensor& a, const Tensor& b) { return wire::item_bytes(a.dtype) > wire::item_bytes(b.dtype); });
}

void TensorSizes::verify_others(std::string_view others) const {
    if (others.size() != other_bytes)
        reject("size", others.size(), " bytes of tensors that are not float32; the policy has ", other_bytes);
    const char* at = others.data();
    for (const Tensor& tensor : others_) {
        const bool is_double = tensor.dtype == "<f8", is_half = tensor.dtype == "<f2", is_flag = tensor.dtype == "|b1";
        const std::size_t item = wire::item_bytes(tensor.dtype);
        for (std::size_t left = tensor.size(); left > 0; --left, at += item) {
            if ((is_double && !std::isfinite(load<double>(at))) || (is_half && (load<std::uint16_t>(at) & 0x7C00) == 0x7C00))
                reject("finite", "the tensor ", tensor.name, " is not finite");
            if (is_flag && static_cast<unsigned char>(*at) > 1)
                reject("payload", "the tensor ", tensor.name, " has booleans that are not 0 or 1");
        }
    }
    if (others.find_first_not_of('\0', static_cast<std::size_t>(at - others.data())) != others.npos)
        reject("payload", "the padding of the other tensors is not 0");
}

std::uint64_t digest_of(const std::vector<float>& flat, std::string_view others) noexcept {
    hash::Xxh3 sum;
    sum.update(flat.data(), flat.size() * sizeof(float));
    sum.update(others);
    return sum.digest();
}

Header read_header(std::string_view data) {
    if (data.size() != sizeof(Header)) reject(Refusal::malformed, "a weights header has ", data.size(), " bytes; expected 72");
    const auto head = load<Header>(data.data());
    if (data.substr(0, 4) != "R4SW") reject(Refusal::magic, "a weights header does not start with R4SW");
    if (head.format != kFormat) reject(Refusal::version, "weights format ", head.format, "; this side reads 3");
    Header bare = head;
    bare.check = 0;
    if (head.check != static_cast<std::uint32_t>(hash::xxh3_64(&bare, sizeof bare)))
        reject(Refusal::checksum, "the checksum does not match the received weights header");
    const auto encoding = static_cast<std::uint8_t>(head.encoding), dtype = static_cast<std::uint8_t>(head.dtype);
    if (head.unknown_flags) reject(Refusal::feature, "unknown weights flags ", load<std::uint8_t>(&data[5]));
    if (!is_encoding(encoding)) reject(Refusal::kind, "unknown weights codec ", encoding);
    if (head.dtype > WireDtype::grid) reject(Refusal::dtype, "unknown weights dtype ", dtype);
    const bool diff = is_diff(head.encoding);
    if (diff ? head.base_version >= head.new_version : head.base_version != head.new_version)
        reject(Refusal::range, "an update cannot go from ", head.base_version, " to ", head.new_version);
    if (head.chunk >= head.chunks) reject(Refusal::range, "a chunk is out of range");
    if (head.predicted && !diff) reject(Refusal::range, "a snapshot cannot need another version");
    if (!head.others && head.payload_bytes > item_bytes_of(head.dtype) * std::uint64_t{head.elements})
        reject(Refusal::too_large, head.payload_bytes, " bytes for ", head.elements, " elements");
    return head;
}

Snapshot apply_update(const Header& head, std::string_view payload, const Snapshot* held, const TensorSizes& tensors,
                      const Snapshot* before, support::Zstd& zstd) {
    if (head.elements != tensors.elements) reject("size", head.elements, " elements for a policy of ", tensors.elements);
    const Division division(tensors, head.dtype);
    const std::size_t word_bytes = tensors.other_bytes + 4 * division.kept;
    if (head.others != (word_bytes > 0))
        reject("size", "an update ", head.others ? "with" : "without", " tensors that are not rounded");
    verify_payload(head, payload, division.rounded, word_bytes);
    std::string_view coded_words;
    std::uint8_t words_code = 0;
    if (word_bytes) {
        const std::size_t size = payload.size();
        const std::uint64_t count = size >= kTrailer ? load<std::uint32_t>(payload.data() + size - kTrailer) : 0;
        if (size < kTrailer || count > size - kTrailer) bad("a payload of ", size, " bytes has no room for the other tensors");
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
            bad("the other tensors have the codec ", words_code, diff ? " in a diff" : " in a snapshot");
        const std::vector<float> words = decode(code, coded_words, {}, held_words.data(), nullptr, word_bytes / 4);
        out.others.assign(reinterpret_cast<const char*>(words.data()), tensors.other_bytes);
        out.flat = division.joined(out.flat.data(), words.data() + tensors.other_bytes / 4);
    }
    // An uncompressed snapshot in float32 is the state itself: its hash is the digest.
    const bool whole = head.encoding == Encoding::snapshot && head.dtype != WireDtype::bf16 && !word_bytes;
    if ((whole ? head.payload_hash : digest_of(out.flat, out.others)) != head.state_hash)
        reject("digest", "version ", head.new_version, " does not verify: its digest differs from the learner's");
    if (!all_finite(out.flat)) reject("finite", "the weights are not finite");
    tensors.verify_others(out.others);
    return out;
}

}  // namespace rl4sys::weights
