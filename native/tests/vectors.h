// The vectors that make_vectors.py wrote: a list of maps for each room, with what the Python form gives.
#pragma once

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "wire/codec.h"

namespace rl4sys::tests {

/// One case. The fields are read like those of a message.
using Case = wire::Received;

inline Case case_of(const wire::Map& map) {
    Case out;
    out.header = map;
    return out;
}

inline std::vector<Case> cases_of(const wire::List& list) {
    std::vector<Case> out;
    for (const wire::Value& value : list) out.push_back(case_of(*value.get<wire::Map>()));
    return out;
}

/// The cases of one file in the folder that RL4SYS_VECTORS names.
inline std::vector<Case> read_vectors(const char* name) {
    const char* folder = std::getenv("RL4SYS_VECTORS");
    if (!folder) throw std::runtime_error("RL4SYS_VECTORS names no folder of make_vectors.py");
    std::ifstream file(std::string(folder) + "/" + name, std::ios::binary);
    const std::string data((std::istreambuf_iterator<char>(file)), {});
    if (data.empty()) throw std::runtime_error(std::string("no vectors ") + name);
    const wire::Value value = wire::unpack(data, {data.size(), std::size_t{1} << 24});
    return cases_of(*value.get<wire::List>());
}

inline const wire::Bytes& bytes_at(const wire::List& list, std::size_t n) { return *list.at(n).get<wire::Bytes>(); }

/// A list of byte strings, as frames that refer to them.
inline wire::Frames frames_of(const wire::List& list) {
    wire::Frames out;
    for (const wire::Value& value : list) out.emplace_back(value.get<wire::Bytes>()->data);
    return out;
}

template <class T>
std::vector<T> numbers_of(std::string_view bytes) {
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
}

}  // namespace rl4sys::tests
