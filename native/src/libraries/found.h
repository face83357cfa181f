// The functions of shared libraries that are found at run time.
#pragma once

#include <string>

#include "io/zmq.h"
#include "support/zstd.h"

namespace rl4sys::libraries {

/// The functions of the system's libzstd; null if there is none.
const support::ZstdFunctions* find_zstd() noexcept;

/// The functions of the libzmq that pyzmq has loaded in this process; null if there is none.
const io::ZmqFunctions* find_zmq() noexcept;

/// What is missing, as text; empty if both libraries are here.
std::string missing();

}  // namespace rl4sys::libraries
