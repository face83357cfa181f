// Little-endian numbers in byte buffers. The library runs on little-endian machines only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rl4sys needs a little-endian machine"
#endif

namespace rl4sys::support {

template <class T>
T load(const void* at) noexcept {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

inline std::uint32_t load32(const void* at) noexcept { return load<std::uint32_t>(at); }
inline std::uint64_t load64(const void* at) noexcept { return load<std::uint64_t>(at); }

template <class T>
void store(void* at, T value) noexcept {
    std::memcpy(at, &value, sizeof value);
}

template <class T>
void append(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline std::string_view bytes_of(const void* data, std::size_t size) noexcept {
    return {static_cast<const char*>(data), size};
}

/// Calls `call` with each part of a text between separators.
template <class Call>
void split(std::string_view text, char separator, const Call& call) {
    for (;;) {
        const std::size_t end = text.find(separator);
        call(text.substr(0, end));
        if (end == text.npos) return;
        text.remove_prefix(end + 1);
    }
}

}  // namespace rl4sys::support
