// The functions of shared libraries that are found at run time.
#pragma once

#include "support/zstd.h"

namespace rl4sys::libraries {

/// The functions of the system's libzstd; null if there is none.
const support::ZstdFunctions* find_zstd() noexcept;

}  // namespace rl4sys::libraries
