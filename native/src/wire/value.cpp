#include "wire/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "support/bytes.h"
#include "support/errors.h"

namespace rl4sys::wire {
namespace {

constexpr std::size_t kMaxString = 16'384;
constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxNesting = 1'024;  // of what is read before the depth is checked
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr std::size_t kMaxDimensions = 8;

[[noreturn]] void malformed(const std::string& detail) { throw ProtocolError(Refusal::malformed, detail); }

template <class T>
void append_big(std::string& out, T value) {
    for (int shift = 8 * (static_cast<int>(sizeof value) - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

void pack_unsigned(std::string& out, std::uint64_t v) {
    if (v < 0x80) {
        out.push_back(static_cast<char>(v));
    } else if (v <= 0xFF) {
        out.push_back('\xcc');
        out.push_back(static_cast<char>(v));
    } else if (v <= 0xFFFF) {
        out.push_back('\xcd');
        append_big(out, static_cast<std::uint16_t>(v));
    } else if (v <= 0xFFFFFFFF) {
        out.push_back('\xce');
        append_big(out, static_cast<std::uint32_t>(v));
    } else {
        out.push_back('\xcf');
        append_big(out, v);
    }
}

void pack_signed(std::string& out, std::int64_t v) {
    if (v >= 0) return pack_unsigned(out, static_cast<std::uint64_t>(v));
    if (v >= -32) {
        out.push_back(static_cast<char>(v));
    } else if (v >= -0x80) {
        out.push_back('\xd0');
        out.push_back(static_cast<char>(v));
    } else if (v >= -0x8000) {
        out.push_back('\xd1');
        append_big(out, static_cast<std::uint16_t>(v));
    } else if (v >= -0x80000000LL) {
        out.push_back('\xd2');
        append_big(out, static_cast<std::uint32_t>(v));
    } else {
        out.push_back('\xd3');
        append_big(out, static_cast<std::uint64_t>(v));
    }
}

void pack_bytes(std::string& out, std::string_view bytes) {
    if (bytes.size() <= 0xFF) {
        out.push_back('\xc4');
        out.push_back(static_cast<char>(bytes.size()));
    } else if (bytes.size() <= 0xFFFF) {
        out.push_back('\xc5');
        append_big(out, static_cast<std::uint16_t>(bytes.size()));
    } else {
        out.push_back('\xc6');
        append_big(out, static_cast<std::uint32_t>(bytes.size()));
    }
    out.append(bytes);
}

void pack_size(std::string& out, std::size_t size, unsigned char fix, char wide16, char wide32) {
    if (size < 16) {
        out.push_back(static_cast<char>(fix | size));
    } else if (size <= 0xFFFF) {
        out.push_back(wide16);
        append_big(out, static_cast<std::uint16_t>(size));
    } else {
        out.push_back(wide32);
        append_big(out, static_cast<std::uint32_t>(size));
    }
}

void pack_array(std::string& out, const Array& array) {
    pack_map_size(out, array.scalar ? 3 : 5);
    pack_bytes(out, "nd");
    out.push_back(array.scalar ? '\xc2' : '\xc3');
    pack_bytes(out, "type");
    pack_text(out, array.dtype);
    if (!array.scalar) {
        pack_bytes(out, "kind");
        pack_bytes(out, "");
        pack_bytes(out, "shape");
        pack_size(out, array.shape.size(), 0x90, '\xdc', '\xdd');
        for (const std::uint64_t n : array.shape) pack_unsigned(out, n);
    }
    pack_bytes(out, "data");
    pack_bytes(out, array.data);
}

// What msgpack holds before arrays are recognised: maps can have keys of bytes.
struct Raw;
using RawPairs = std::vector<std::pair<Raw, Raw>>;
struct Raw {
    std::variant<Nil, bool, std::int64_t, std::uint64_t, double, std::string_view, std::vector<Raw>, RawPairs> data;
    bool binary = false;  // of a string: bytes
};

bool is_utf8(std::string_view text) {
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    const auto* const end = at + text.size();
    while (at < end) {
        const unsigned char lead = *at++;
        if (lead < 0x80) continue;
        const int more = lead >= 0xC2 && lead < 0xE0 ? 1 : (lead & 0xF0) == 0xE0 ? 2 : lead >= 0xF0 && lead < 0xF5 ? 3 : 0;
        if (!more || end - at < more) return false;
        const unsigned char second = *at;
        if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
            (lead == 0xF4 && second > 0x8F))
            return false;
        for (int n = 0; n < more; ++n)
            if ((*at++ & 0xC0) != 0x80) return false;
    }
    return true;
}

class Reader {
public:
    Reader(std::string_view data, std::size_t items) : data_(data), items_(items) {}

    Raw value(std::size_t depth) {
        if (depth > kMaxNesting) malformed("not a msgpack value: nested too deeply");
        const auto head = static_cast<unsigned char>(take(1)[0]);
        if (head < 0x80) return {std::int64_t{head}};
        if (head >= 0xE0) return {std::int64_t{static_cast<signed char>(head)}};
        if (head < 0x90) return map(head & 0x0F, depth);
        if (head < 0xA0) return list(head & 0x0F, depth);
        if (head < 0xC0) return text(head & 0x1F);
        switch (head) {
            case 0xC0: return {Nil{}};
            case 0xC2: return {false};
            case 0xC3: return {true};
            case 0xC4: return bytes(big<std::uint8_t>());
            case 0xC5: return bytes(big<std::uint16_t>());
            case 0xC6: return bytes(big<std::uint32_t>());
            case 0xCA: return {static_cast<double>(bits<float>(big<std::uint32_t>()))};
            case 0xCB: return {bits<double>(big<std::uint64_t>())};
            case 0xCC: return {std::int64_t{big<std::uint8_t>()}};
            case 0xCD: return {std::int64_t{big<std::uint16_t>()}};
            case 0xCE: return {std::int64_t{big<std::uint32_t>()}};
            case 0xCF: return unsigned_number(big<std::uint64_t>());
            case 0xD0: return {std::int64_t{static_cast<std::int8_t>(big<std::uint8_t>())}};
            case 0xD1: return {std::int64_t{static_cast<std::int16_t>(big<std::uint16_t>())}};
            case 0xD2: return {std::int64_t{static_cast<std::int32_t>(big<std::uint32_t>())}};
            case 0xD3: return {static_cast<std::int64_t>(big<std::uint64_t>())};
            case 0xD9: return text(big<std::uint8_t>());
            case 0xDA: return text(big<std::uint16_t>());
            case 0xDB: return text(big<std::uint32_t>());
            case 0xDC: return list(big<std::uint16_t>(), depth);
            case 0xDD: return list(big<std::uint32_t>(), depth);
            case 0xDE: return map(big<std::uint16_t>(), depth);
            case 0xDF: return map(big<std::uint32_t>(), depth);
            default: malformed("not a msgpack value: an extension or an unknown type");
        }
    }

    bool at_end() const { return data_.empty(); }

private:
    std::string_view take(std::size_t count) {
        if (count > data_.size()) malformed("not a msgpack value: the bytes end too early");
        const std::string_view out = data_.substr(0, count);
        data_.remove_prefix(count);
        return out;
    }

    template <class T>
    T big() {
        T value = 0;
        for (const char c : take(sizeof value)) value = static_cast<T>(value << 8 | static_cast<unsigned char>(c));
        return value;
    }

    template <class F, class T>
    static F bits(T value) {
        F out;
        std::memcpy(&out, &value, sizeof out);
        return out;
    }

    static Raw unsigned_number(std::uint64_t v) {
        if (v >> 63) return {v};
        return {static_cast<std::int64_t>(v)};
    }

    Raw text(std::size_t size) {
        if (size > kMaxString) malformed("not a msgpack value: a string is too long");
        const std::string_view out = take(size);
        if (!is_utf8(out)) malformed("not a msgpack value: a string is not UTF-8");
        return {out};
    }

    Raw bytes(std::size_t size) {
        Raw out{take(size)};
        out.binary = true;
        return out;
    }

    void check_items(std::size_t count) const {
        if (count > items_) malformed("not a msgpack value: a list or map is too long");
    }

    Raw list(std::size_t count, std::size_t depth) {
        check_items(count);
        std::vector<Raw> out;
        out.reserve(std::min(count, data_.size()));
        for (std::size_t n = 0; n < count; ++n) out.push_back(value(depth + 1));
        return {std::move(out)};
    }

    Raw map(std::size_t count, std::size_t depth) {
        check_items(count);
        RawPairs out;
        out.reserve(std::min(count, data_.size()));
        for (std::size_t n = 0; n < count; ++n) {
            Raw key = value(depth + 1);
            if (!std::holds_alternative<std::string_view>(key.data)) malformed("not a msgpack value: a key is not a string");
            out.emplace_back(std::move(key), value(depth + 1));
        }
        std::vector<std::pair<bool, std::string_view>> keys;
        keys.reserve(out.size());
        for (const auto& [key, _] : out) keys.emplace_back(key.binary, std::get<std::string_view>(key.data));
        std::sort(keys.begin(), keys.end());
        if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) malformed("a map has the same key twice");
        return {std::move(out)};
    }

    std::string_view data_;
    std::size_t items_;
};

const Raw* find(const RawPairs& pairs, std::string_view key) {
    for (const auto& [name, value] : pairs)
        if (name.binary && std::get<std::string_view>(name.data) == key) return &value;
    return nullptr;
}

std::optional<std::string_view> bytes_in(const Raw* raw) {
    if (!raw || !raw->binary) return std::nullopt;
    return std::get<std::string_view>(raw->data);
}

// The elements of an array with this shape, which it also stores.
std::uint64_t elements(const Raw* raw, std::vector<std::uint64_t>& shape) {
    const auto* list = raw ? std::get_if<std::vector<Raw>>(&raw->data) : nullptr;
    // One dimension may be any number up to the limit, as in Python; more are checked together.
    if (!list || list->size() > kMaxDimensions) throw ProtocolError(Refusal::shape, "an array has an invalid shape");
    bool over = false, empty = false;
    std::uint64_t count = 1;
    for (const Raw& dimension : *list) {
        const auto* n = std::get_if<std::int64_t>(&dimension.data);
        const auto* large = std::get_if<std::uint64_t>(&dimension.data);
        if ((!n && !large) || (n && *n < 0)) throw ProtocolError(Refusal::shape, "an array has an invalid shape");
        const std::uint64_t size = n ? static_cast<std::uint64_t>(*n) : *large;
        shape.push_back(size);
        empty |= size == 0;
        const std::uint64_t factor = std::max<std::uint64_t>(size, 1);
        over |= factor > kMaxElements || count * factor > kMaxElements;
        if (!over) count *= factor;
    }
    if (over) throw ProtocolError(Refusal::shape, "an array has too many elements");
    return empty ? 0 : count;
}

Value array(const RawPairs& form) {
    const Raw* type = find(form, "type");
    const auto* dtype = type && !type->binary ? std::get_if<std::string_view>(&type->data) : nullptr;
    const std::size_t size = dtype ? item_bytes(*dtype) : 0;
    if (!size) throw ProtocolError(Refusal::dtype, "an array has an unsupported dtype");
    const Raw* nd = find(form, "nd");
    const bool* flag = std::get_if<bool>(&nd->data);
    const auto data = bytes_in(find(form, "data"));
    Array out{std::string(*dtype), {}, {}, false};
    const bool has_data = find(form, "data") != nullptr;
    if (flag && !*flag && form.size() == 3 && has_data) {
        if (!data || data->size() != size) throw ProtocolError(Refusal::shape, "the bytes of a scalar do not fit its dtype");
        out.scalar = true;
    } else {
        const auto kind = bytes_in(find(form, "kind"));
        if (!flag || !*flag || form.size() != 5 || !has_data || !find(form, "shape") || !kind || !kind->empty())
            malformed("a map with the key `nd` is not a valid array");
        if (!data) throw ProtocolError(Refusal::shape, "the bytes of an array do not fit its shape");
        if (elements(find(form, "shape"), out.shape) * size != data->size())
            throw ProtocolError(Refusal::shape, "the bytes of an array do not fit its shape");
    }
    out.data = std::string(*data);
    return out;
}

Value decoded(Raw&& raw, std::size_t depth) {
    if (depth > kMaxDepth) malformed("nested deeper than 16");
    if (auto* list = std::get_if<std::vector<Raw>>(&raw.data)) {
        List out;
        out.reserve(list->size());
        for (Raw& item : *list) out.push_back(decoded(std::move(item), depth + 1));
        return out;
    }
    if (auto* pairs = std::get_if<RawPairs>(&raw.data)) {
        if (find(*pairs, "nd")) return array(*pairs);
        for (const auto& [key, _] : *pairs)
            if (key.binary) malformed("a map key is not a string");
        Map out;
        out.items.reserve(pairs->size());
        for (auto& [key, value] : *pairs)
            out.items.emplace_back(std::string(std::get<std::string_view>(key.data)), decoded(std::move(value), depth + 1));
        return out;
    }
    if (const auto* text = std::get_if<std::string_view>(&raw.data)) {
        if (raw.binary) return Bytes{std::string(*text)};
        return std::string(*text);
    }
    if (const auto* v = std::get_if<bool>(&raw.data)) return *v;
    if (const auto* v = std::get_if<std::int64_t>(&raw.data)) return *v;
    if (const auto* v = std::get_if<std::uint64_t>(&raw.data)) return *v;
    if (const auto* v = std::get_if<double>(&raw.data)) return *v;
    return {};
}

}  // namespace

Value::Value(std::uint64_t v) {
    if (v >> 63)
        data = v;
    else
        data = static_cast<std::int64_t>(v);
}

const Value* Map::find(std::string_view key) const noexcept {
    for (const auto& [name, value] : items)
        if (name == key) return &value;
    return nullptr;
}

void Map::set(std::string key, Value value) { items.emplace_back(std::move(key), std::move(value)); }

std::size_t item_bytes(std::string_view dtype) noexcept {
    constexpr std::string_view kDtypes[] = {"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"};
    for (const std::string_view known : kDtypes)
        if (known == dtype) return static_cast<std::size_t>(known[2] - '0');
    return 0;
}

void pack_text(std::string& out, std::string_view text) {
    if (text.size() < 32) {
        out.push_back(static_cast<char>(0xA0 | text.size()));
    } else if (text.size() <= 0xFF) {
        out.push_back('\xd9');
        out.push_back(static_cast<char>(text.size()));
    } else if (text.size() <= 0xFFFF) {
        out.push_back('\xda');
        append_big(out, static_cast<std::uint16_t>(text.size()));
    } else {
        out.push_back('\xdb');
        append_big(out, static_cast<std::uint32_t>(text.size()));
    }
    out.append(text);
}

void pack_map_size(std::string& out, std::size_t items) { pack_size(out, items, 0x80, '\xde', '\xdf'); }

void pack(std::string& out, const Value& value) {
    if (value.get<Nil>()) {
        out.push_back('\xc0');
    } else if (const auto* flag = value.get<bool>()) {
        out.push_back(*flag ? '\xc3' : '\xc2');
    } else if (const auto* n = value.get<std::int64_t>()) {
        pack_signed(out, *n);
    } else if (const auto* large = value.get<std::uint64_t>()) {
        pack_unsigned(out, *large);
    } else if (const auto* x = value.get<double>()) {
        out.push_back('\xcb');
        append_big(out, support::load64(x));
    } else if (const auto* text = value.get<std::string>()) {
        pack_text(out, *text);
    } else if (const auto* bytes = value.get<Bytes>()) {
        pack_bytes(out, bytes->data);
    } else if (const auto* list = value.get<List>()) {
        pack_size(out, list->size(), 0x90, '\xdc', '\xdd');
        for (const Value& item : *list) pack(out, item);
    } else if (const auto* map = value.get<Map>()) {
        pack_map_size(out, map->items.size());
        for (const auto& [key, item] : map->items) {
            pack_text(out, key);
            pack(out, item);
        }
    } else if (const auto* array = value.get<Array>()) {
        pack_array(out, *array);
    }
}

Value unpack(std::string_view data, const HeaderLimits& limits) {
    if (data.size() > limits.bytes)
        throw ProtocolError(Refusal::too_large,
                            "the header has " + std::to_string(data.size()) + " bytes; the limit is " + std::to_string(limits.bytes));
    Reader reader(data, std::min(limits.items, data.size()));
    Raw raw = reader.value(0);
    if (!reader.at_end()) malformed("not a msgpack value: bytes are left over");
    return decoded(std::move(raw), 0);
}

}  // namespace rl4sys::wire
