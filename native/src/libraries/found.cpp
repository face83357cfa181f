#include "libraries/found.h"

#include <dlfcn.h>

#include <fstream>

namespace rl4sys::libraries {
namespace {

template <class F>
bool bind(void* library, const char* name, F& out) noexcept {
    out = reinterpret_cast<F>(dlsym(library, name));
    return out != nullptr;
}

bool load_zstd(support::ZstdFunctions& out) noexcept {
    void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && bind(library, "ZSTD_createCCtx", out.create_cctx) && bind(library, "ZSTD_freeCCtx", out.free_cctx) &&
           bind(library, "ZSTD_createDCtx", out.create_dctx) && bind(library, "ZSTD_freeDCtx", out.free_dctx) &&
           bind(library, "ZSTD_CCtx_setParameter", out.set_cctx) && bind(library, "ZSTD_DCtx_setParameter", out.set_dctx) &&
           bind(library, "ZSTD_compress2", out.compress2) && bind(library, "ZSTD_decompressDCtx", out.decompress) &&
           bind(library, "ZSTD_compressBound", out.bound) && bind(library, "ZSTD_isError", out.is_error);
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

bool load_zmq(io::ZmqFunctions& out) {
    const std::string path = path_of_pyzmq();
    if (path.empty()) return false;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    return library && bind(library, "zmq_ctx_new", out.ctx_new) && bind(library, "zmq_ctx_set", out.ctx_set) &&
           bind(library, "zmq_ctx_term", out.ctx_term) && bind(library, "zmq_socket", out.socket) && bind(library, "zmq_close", out.close) &&
           bind(library, "zmq_setsockopt", out.setsockopt) && bind(library, "zmq_connect", out.connect) &&
           bind(library, "zmq_socket_monitor", out.socket_monitor) && bind(library, "zmq_msg_init", out.msg_init) &&
           bind(library, "zmq_msg_init_size", out.msg_init_size) && bind(library, "zmq_msg_init_data", out.msg_init_data) &&
           bind(library, "zmq_msg_data", out.msg_data) && bind(library, "zmq_msg_size", out.msg_size) &&
           bind(library, "zmq_msg_more", out.msg_more) && bind(library, "zmq_msg_close", out.msg_close) &&
           bind(library, "zmq_msg_send", out.msg_send) && bind(library, "zmq_msg_recv", out.msg_recv) && bind(library, "zmq_poll", out.poll) &&
           bind(library, "zmq_errno", out.error) && bind(library, "zmq_strerror", out.error_text);
}

}  // namespace

const support::ZstdFunctions* find_zstd() noexcept {
    static support::ZstdFunctions functions;
    static const bool found = load_zstd(functions);
    return found ? &functions : nullptr;
}

const io::ZmqFunctions* find_zmq() noexcept {
    static io::ZmqFunctions functions;
    static const bool found = [] {
        try {
            return load_zmq(functions);
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
