// The functions of the libraries with which CMake links the C++ client.
#pragma once

#include "io/zmq.h"
#include "support/zstd.h"

namespace rl4sys::libraries {

const support::ZstdFunctions& linked_zstd() noexcept;
const io::ZmqFunctions& linked_zmq() noexcept;

}  // namespace rl4sys::libraries
