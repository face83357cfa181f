#include "wire/value.h"

#include <algorithm>

#include "support/bytes.h"
#include "support/errors.h"

namespace rl4sys::wire {
namespace {

constexpr std::size_t kMaxString = 16'384;
constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxNesting = 1'024;  // of what is read in spite of its depth
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr std::size_t kMaxDimensions = 8;
constexpr std::size_t kReserved = 64;  // entries, so that a false count takes no memory

// The first bytes of a type: one byte from `fix` on for the numbers below `most`, else a code for each width; 0: no such width.
struct Heads {
    unsigned most, fix;
    unsigned char codes[4];  // for 1, 2, 4 and 8 bytes
};
constexpr Heads kNumber{0x80, 0x00, {0xCC, 0xCD, 0xCE, 0xCF}}, kText{32, 0xA0, {0xD9, 0xDA, 0xDB}}, kBytes{0, 0, {0xC4, 0xC5, 0xC6}};
constexpr Heads kList{16, 0x90, {0, 0xDC, 0xDD}}, kMap{16, 0x80, {0, 0xDE, 0xDF}};
constexpr unsigned char kNegative = 0xD0, kNil = 0xC0, kFalse = 0xC2, kTrue = 0xC3, kFloat = 0xCA, kDouble = 0xCB;

struct Packer {
    std::string& out;

    void byte(std::uint64_t value) const { out.push_back(static_cast<char>(value)); }
    void number(std::uint64_t value, int bytes) const {
        while (bytes--) byte(value >> 8 * bytes);
    }
    void head(const Heads& heads, std::uint64_t n) const {
        if (n < heads.most) return byte(heads.fix | n);
        int width = 0;
        while (!heads.codes[width] || (width < 3 && n >> (8 << width))) ++width;
        byte(heads.codes[width]);
        number(n, 1 << width);
    }
    void bytes(std::string_view data) const {
        head(kBytes, data.size());
        out.append(data);
    }

    void operator()(const Nil&) const { byte(kNil); }
    void operator()(bool flag) const { byte(flag ? kTrue : kFalse); }
    void operator()(std::uint64_t n) const { head(kNumber, n); }
    void operator()(std::int64_t n) const {
        if (n >= 0) return head(kNumber, static_cast<std::uint64_t>(n));
        if (n >= -32) return byte(static_cast<std::uint64_t>(n));
        int width = 0;
        while (width < 3 && ~n >> ((8 << width) - 1)) ++width;
        byte(kNegative + static_cast<unsigned>(width));
        number(static_cast<std::uint64_t>(n), 1 << width);
    }
    void operator()(double x) const {
        byte(kDouble);
        number(support::load64(&x), 8);
    }
    void operator()(const std::string& text) const {
        head(kText, text.size());
        out.append(text);
    }
    void operator()(const Bytes& data) const { bytes(data.data); }
    void operator()(const List& list) const {
        head(kList, list.size());
        for (const Value& item : list) std::visit(*this, item.data);
    }
    void operator()(const Map& map) const {
        head(kMap, map.items.size());
        for (const auto& [key, item] : map.items) {
            (*this)(key);
            std::visit(*this, item.data);
        }
    }
    void operator()(const Array& array) const {
        head(kMap, array.scalar ? 3 : 5);
        bytes("nd");
        (*this)(!array.scalar);
        bytes("type");
        (*this)(array.dtype);
        if (!array.scalar) {
            bytes("kind");
            bytes("");
            bytes("shape");
            head(kList, array.shape.size());
            for (const std::uint64_t n : array.shape) (*this)(n);
        }
        bytes("data");
        bytes(array.data);
    }
};

bool is_utf8(std::string_view text) {
    constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};  // with so many further bytes
    for (std::size_t at = 0; at < text.size();) {
        const auto lead = static_cast<unsigned char>(text[at++]);
        if (lead < 0x80) continue;
        const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC0 || lead >= 0xF8 || text.size() - at < more) return false;
        std::uint32_t point = lead & 0x3FU >> more;
        for (const std::size_t end = at + more; at < end; ++at) {
            if ((text[at] & 0xC0) != 0x80) return false;
            point = point << 6 | (text[at] & 0x3F);
        }
        if (point < kLeast[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    }
    return true;
}

// The array of the keys of bytes of a map with `entries` keys, which has the key `nd`.
Value array_of(const Map& form, std::size_t entries) {
    const auto *type = form.get<std::string>("type");
    const std::size_t size = type ? item_bytes(*type) : 0;
    if (!size) reject(Refusal::dtype, "an array has an unsupported dtype");
    const auto* flag = form.get<bool>("nd");
    const auto* data = form.get<Bytes>("data");
    const bool has_data = form.find("data");
    Array out{*type, {}, {}, false};
    if (flag && !*flag && entries == 3 && has_data) {
        if (!data || data->data.size() != size) reject(Refusal::shape, "the bytes of a scalar do not fit its dtype");
        out.scalar = true;
        out.data = data->data;
        return out;
    }
    const auto* kind = form.get<Bytes>("kind");
    if (!flag || !*flag || entries != 5 || !has_data || !form.find("shape") || !kind || !kind->data.empty())
        reject(Refusal::malformed, "a map with the key `nd` is not a valid array");
    if (!data) reject(Refusal::shape, "the bytes of an array do not fit its shape");
    const auto* shape = form.get<List>("shape");
    if (!shape || shape->size() > kMaxDimensions) reject(Refusal::shape, "an array has an invalid shape");
    // One dimension may be any number up to the limit, as in Python; more are checked together.
    std::uint64_t count = 1;
    bool over = false;
    for (const Value& dimension : *shape) {
        const std::optional<std::uint64_t> n = dimension.whole();
        if (!n) reject(Refusal::shape, "an array has an invalid shape");
        out.shape.push_back(*n);
        const std::uint64_t factor = std::max<std::uint64_t>(*n, 1);
        over |= factor > kMaxElements || count * factor > kMaxElements;
        if (!over) count *= factor;
    }
    if (over) reject(Refusal::shape, "an array has too many elements");
    if (std::count(out.shape.begin(), out.shape.end(), 0U)) count = 0;
    if (count * size != data->data.size()) reject(Refusal::shape, "the bytes of an array do not fit its shape");
    out.data = data->data;
    return out;
}

class Reader {
public:
    Reader(std::string_view data, std::size_t items) : data_(data), items_(items) {}

    Value whole() {
        Value out = value(0);
        if (!data_.empty()) reject(Refusal::malformed, "not a msgpack value: bytes are left over");
        if (problem_) throw *problem_;
        return out;
    }

private:
    Value value(std::size_t depth) {
        if (depth > kMaxNesting) reject(Refusal::malformed, "not a msgpack value: nested too deeply");
        if (depth > kMaxDepth && !problem_) problem_.emplace(Refusal::malformed, "nested deeper than 16");
        const auto head = static_cast<unsigned char>(take(1)[0]);
        if (head < 0x80) return std::uint64_t{head};
        if (head < 0x90) return map(head & 0x0F, depth);
        if (head < 0xA0) return list(head & 0x0F, depth);
        if (head < 0xC0) return text(head & 0x1F);
        if (head >= 0xE0) return std::int64_t{static_cast<signed char>(head)};
        if (head == kNil) return {};
        if (head == kFalse || head == kTrue) return head == kTrue;
        if (head == kDouble) return number<double>(big(8));
        if (head == kFloat) return double{number<float>(big(4))};
        // The width of the number that follows if the type has one code for each width from `least` on.
        const auto width = [&](int first, int last, int least = 1) { return head < first || head > last ? 0 : least << (head - first); };
        if (const int bytes = width(0xC4, 0xC6)) return Bytes{std::string(take(big(bytes)))};
        if (const int bytes = width(0xCC, 0xCF)) return big(bytes);
        if (const int bytes = width(0xD0, 0xD3)) return static_cast<std::int64_t>(big(bytes) << (64 - 8 * bytes)) >> (64 - 8 * bytes);
        if (const int bytes = width(0xD9, 0xDB)) return text(big(bytes));
        if (const int bytes = width(0xDC, 0xDD, 2)) return list(big(bytes), depth);
        if (const int bytes = width(0xDE, 0xDF, 2)) return map(big(bytes), depth);
        reject(Refusal::malformed, "not a msgpack value: an extension or an unknown type");
    }

    std::string_view take(std::size_t count) {
        if (count > data_.size()) reject(Refusal::malformed, "not a msgpack value: the bytes end too early");
        const std::string_view out = data_.substr(0, count);
        data_.remove_prefix(count);
        return out;
    }

    std::uint64_t big(int bytes) {
        std::uint64_t value = 0;
        for (const char c : take(static_cast<std::size_t>(bytes))) value = value << 8 | static_cast<unsigned char>(c);
        return value;
    }

    template <class T>
    static T number(std::uint64_t bits) {
        return support::load<T>(&bits);
    }

    Value text(std::size_t size) {
        if (size > kMaxString) reject(Refusal::malformed, "not a msgpack value: a string is too long");
        const std::string_view out = take(size);
        if (!is_utf8(out)) reject(Refusal::malformed, "not a msgpack value: a string is not UTF-8");
        return std::string(out);
    }

    void check_items(std::size_t count) const {
        if (count > items_) reject(Refusal::malformed, "not a msgpack value: a list or map is too long");
    }

    Value list(std::size_t count, std::size_t depth) {
        check_items(count);
        List out;
        out.reserve(std::min(count, kReserved));
        for (std::size_t n = 0; n < count; ++n) out.push_back(value(depth + 1));
        return Value(std::move(out));
    }

    Value map(std::size_t count, std::size_t depth) {
        check_items(count);
        const bool had_problem = problem_.has_value();
        Map texts, forms;  // the entries with keys of text, and with keys of bytes
        texts.items.reserve(std::min(count, kReserved));
        for (std::size_t n = 0; n < count; ++n) {
            Value key = value(depth + 1);
            if (auto* text = std::get_if<std::string>(&key.data))
                texts.set(std::move(*text), value(depth + 1));
            else if (auto* bytes = std::get_if<Bytes>(&key.data))
                forms.set(std::move(bytes->data), value(depth + 1));
            else
                reject(Refusal::malformed, "not a msgpack value: a key is not a string");
        }
        if (has_repeated(texts) || has_repeated(forms)) reject(Refusal::malformed, "a map has the same key twice");
        if (forms.items.empty()) return Value(std::move(texts));
        // The problems inside such a map come after its own.
        if (!had_problem) problem_.reset();
        try {
            if (forms.find("nd")) return array_of(forms, count);
            reject(Refusal::malformed, "a map key is not a string");
        } catch (const ProtocolError& error) {
            if (!problem_) problem_ = error;
            return {};
        }
    }

    static bool has_repeated(const Map& map) {
        std::vector<std::string_view> keys;
        keys.reserve(map.items.size());
        for (const auto& [key, _] : map.items) keys.emplace_back(key);
        std::sort(keys.begin(), keys.end());
        return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
    }

    std::string_view data_;
    std::size_t items_;
    std::optional<ProtocolError> problem_;  // the first of a rule that is checked once the bytes are known to be msgpack
};

}  // namespace

const Value* Map::find(std::string_view key) const noexcept {
    for (const auto& [name, value] : items)
        if (name == key) return &value;
    return nullptr;
}

void Map::set(std::string key, Value value) { items.emplace_back(std::move(key), std::move(value)); }

std::optional<std::uint64_t> Value::whole() const noexcept {
    if (const auto* large = get<std::uint64_t>()) return *large;
    const auto* n = get<std::int64_t>();
    return n && *n >= 0 ? std::optional<std::uint64_t>(*n) : std::nullopt;
}

std::size_t item_bytes(std::string_view dtype) noexcept {
    constexpr std::string_view kDtypes[] = {"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"};
    return std::find(std::begin(kDtypes), std::end(kDtypes), dtype) != std::end(kDtypes) ? static_cast<std::size_t>(dtype[2] - '0') : 0;
}

void pack(std::string& out, const Value& value) { std::visit(Packer{out}, value.data); }

void pack(std::string& out, const Map& map) { Packer{out}(map); }

Value unpack(std::string_view data, const HeaderLimits& limits) {
    if (data.size() > limits.bytes)
        reject(Refusal::too_large, "the header has ", data.size(), " bytes; the limit is ", limits.bytes);
    return Reader(data, std::min(limits.items, data.size())).whole();
}

}  // namespace rl4sys::wire
