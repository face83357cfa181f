#include "libraries/found.h"

#include <dlfcn.h>

#include <cstring>
#include <fstream>

namespace rl4sys::libraries {
namespace {

// Fills a struct of function pointers, all of which the library must have. `names` are theirs, in the order of the struct.
template <class T, std::size_t N>
bool bind(void* library, T& functions, const char* const (&names)[N]) noexcept {
    static_assert(sizeof(T) == N * sizeof(void*));
    void* found[N];
    for (std::size_t n = 0; n < N; ++n)
        if (!library || !(found[n] = dlsym(library, names[n]))) return false;
    std::memcpy(&functions, found, sizeof found);
    return true;
}

// The path of pyzmq's extension, which leads to its libzmq: the process can have others. Linux lists the mapped files.
std::string path_of_pyzmq() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t path = line.find('/');
        if (path != std::string::npos && line.find("/zmq/backend/", path) != std::string::npos && line.find(".so", path) != std::string::npos)
            return line.substr(path);
    }
    return {};
}

}  // namespace

const support::ZstdFunctions* find_zstd() noexcept {
    static support::ZstdFunctions functions;
    static const bool found = bind(dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL), functions, {
        "ZSTD_createCCtx", "ZSTD_freeCCtx", "ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_CCtx_setParameter",
        "ZSTD_DCtx_setParameter", "ZSTD_compress2", "ZSTD_decompressDCtx", "ZSTD_compressBound", "ZSTD_isError",
    });
    return found ? &functions : nullptr;
}

const io::ZmqFunctions* find_zmq() noexcept {
    static io::ZmqFunctions functions;
    static const bool found = [] {
        try {
            const std::string path = path_of_pyzmq();
            return !path.empty() && bind(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD), functions, {
                "zmq_ctx_new", "zmq_ctx_set", "zmq_ctx_term", "zmq_socket", "zmq_close", "zmq_setsockopt", "zmq_connect",
                "zmq_socket_monitor", "zmq_msg_init", "zmq_msg_init_size", "zmq_msg_init_data", "zmq_msg_data", "zmq_msg_size",
                "zmq_msg_more", "zmq_msg_close", "zmq_msg_send", "zmq_msg_recv", "zmq_poll", "zmq_errno", "zmq_strerror",
            });
        } catch (...) {
            return false;
        }
    }();
    return found ? &functions : nullptr;
}

std::string missing() {
    if (!find_zmq()) return "pyzmq has loaded no libzmq whose path is known";
    if (!find_zstd()) return "the system has no libzstd.so.1";
    return {};
}

}  // namespace rl4sys::libraries
