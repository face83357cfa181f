#include "weights/integers.h"

#include "support/errors.h"

namespace rl4sys::weights {

Symbols::Symbols() noexcept {
    constexpr std::uint64_t kMaxMagnitude = std::uint64_t{1} << 31;
    for (int fine = 0; fine <= kMaxFine; ++fine) {
        std::fill_n(open_bits[fine], 256, std::uint8_t{0});
        std::fill_n(least[fine], 256, std::int64_t{-1});
        least[fine][0] = 0;
        for (int index = 0; index < 255; ++index) {
            const int exponent = index >> fine;
            if (exponent > 40) continue;  // beyond the largest magnitude
            std::uint64_t base = static_cast<std::uint64_t>(1 << fine | (index & ((1 << fine) - 1))) << exponent;
            if (base % (std::uint64_t{1} << fine)) continue;
            base >>= fine;
            if (base > kMaxMagnitude) continue;
            least[fine][index + 1] = static_cast<std::int64_t>(base);
            open_bits[fine][index + 1] = static_cast<std::uint8_t>(exponent > fine ? exponent - fine : 0);
        }
    }
}

const Symbols& symbol_table() noexcept {
    static const Symbols table;
    return table;
}

void refuse_bits(std::int32_t doubtful) {
    if (doubtful) throw WeightsError("the state has values that bf16 cannot represent", "dtype");
}

}  // namespace rl4sys::weights
