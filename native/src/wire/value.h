// The values of message headers: what msgpack carries, and numpy arrays in the form of msgpack-numpy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace rl4sys::wire {

class Value;
using List = std::vector<Value>;

struct Nil {};

/// A numpy array, or a scalar if `scalar`. `dtype` is one of `kDtypes`.
struct Array {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::string data;
    bool scalar = false;
};

struct Bytes {
    std::string data;
};

/// A map with string keys, in the order of the message.
struct Map {
    std::vector<std::pair<std::string, Value>> items;

    const Value* find(std::string_view key) const noexcept;
    /// The value of a key if it has this type, else null.
    template <class T>
    const T* get(std::string_view key) const noexcept;
    void set(std::string key, Value value);
};

/// Integers of at least 2^63 are `std::uint64_t`, all others `std::int64_t`.
class Value {
public:
    using Data = std::variant<Nil, bool, std::int64_t, std::uint64_t, double, std::string, Bytes, List, Map, Array>;

    Value() = default;
    Value(bool v) : data(v) {}
    Value(std::int64_t v) : data(v) {}
    Value(int v) : data(static_cast<std::int64_t>(v)) {}
    Value(std::uint64_t v) : data(v >> 63 ? Data(v) : Data(static_cast<std::int64_t>(v))) {}
    Value(double v) : data(v) {}
    Value(std::string v) : data(std::move(v)) {}
    Value(const char* v) : data(std::string(v)) {}
    Value(Bytes v) : data(std::move(v)) {}
    Value(List v) : data(std::move(v)) {}
    Value(Map v) : data(std::move(v)) {}
    Value(Array v) : data(std::move(v)) {}

    template <class T>
    const T* get() const noexcept {
        return std::get_if<T>(&data);
    }

    /// The value of an integer of at least 0.
    std::optional<std::uint64_t> whole() const noexcept;
    bool is_integer() const noexcept { return get<std::int64_t>() || get<std::uint64_t>(); }

    Data data;
};

template <class T>
const T* Map::get(std::string_view key) const noexcept {
    const Value* value = find(key);
    return value ? value->get<T>() : nullptr;
}

/// The dtypes that a message may have, by their numpy strings; 0 bytes for an unknown one.
std::size_t item_bytes(std::string_view dtype) noexcept;

/// The limits on a header: its bytes, and the entries of a list or map.
struct HeaderLimits {
    std::size_t bytes = 1 << 20;
    std::size_t items = 65'536;
};

/// Appends a value as msgpack, in the shortest form of each number, as msgpack for Python does.
void pack(std::string& out, const Value& value);
void pack(std::string& out, const Map& map);

/// Reads one msgpack value that fills `data`. Throws ProtocolError: `too_large`, `malformed`, `dtype` or `shape`.
Value unpack(std::string_view data, const HeaderLimits& limits = {});

}  // namespace rl4sys::wire
