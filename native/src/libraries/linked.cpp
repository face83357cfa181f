// The tables of functions of the libraries that CMake links. The Python extension has found.cpp instead.
#ifdef RL4SYS_LINKED

#include <zmq.h>
#include <zstd.h>

#include "libraries/found.h"

namespace rl4sys::libraries {
namespace {

using io::ZmqMessage;

static_assert(sizeof(ZmqMessage) == sizeof(zmq_msg_t) && alignof(ZmqMessage) >= alignof(zmq_msg_t));
static_assert(sizeof(io::ZmqPollItem) == sizeof(zmq_pollitem_t));

zmq_msg_t* of(ZmqMessage* message) noexcept { return reinterpret_cast<zmq_msg_t*>(message); }
const zmq_msg_t* of(const ZmqMessage* message) noexcept { return reinterpret_cast<const zmq_msg_t*>(message); }

constexpr io::ZmqFunctions kZmq{
    zmq_ctx_new,
    zmq_ctx_set,
    zmq_ctx_term,
    zmq_socket,
    zmq_close,
    zmq_setsockopt,
    zmq_connect,
    zmq_socket_monitor,
    [](ZmqMessage* m) { return zmq_msg_init(of(m)); },
    [](ZmqMessage* m, std::size_t size) { return zmq_msg_init_size(of(m), size); },
    [](ZmqMessage* m, void* data, std::size_t size, void (*free)(void*, void*), void* hint) {
        return zmq_msg_init_data(of(m), data, size, free, hint);
    },
    [](ZmqMessage* m) { return zmq_msg_data(of(m)); },
    [](const ZmqMessage* m) { return zmq_msg_size(of(m)); },
    [](const ZmqMessage* m) { return zmq_msg_more(of(m)); },
    [](ZmqMessage* m) { return zmq_msg_close(of(m)); },
    [](ZmqMessage* m, void* socket, int flags) { return zmq_msg_send(of(m), socket, flags); },
    [](ZmqMessage* m, void* socket, int flags) { return zmq_msg_recv(of(m), socket, flags); },
    [](io::ZmqPollItem* items, int count, long timeout) { return zmq_poll(reinterpret_cast<zmq_pollitem_t*>(items), count, timeout); },
    zmq_errno,
    zmq_strerror,
};

ZSTD_CCtx* compressor(void* context) noexcept { return static_cast<ZSTD_CCtx*>(context); }
ZSTD_DCtx* decompressor(void* context) noexcept { return static_cast<ZSTD_DCtx*>(context); }

constexpr support::ZstdFunctions kZstd{
    []() -> void* { return ZSTD_createCCtx(); },
    [](void* context) { return ZSTD_freeCCtx(compressor(context)); },
    []() -> void* { return ZSTD_createDCtx(); },
    [](void* context) { return ZSTD_freeDCtx(decompressor(context)); },
    [](void* context, int key, int value) { return ZSTD_CCtx_setParameter(compressor(context), static_cast<ZSTD_cParameter>(key), value); },
    [](void* context, int key, int value) { return ZSTD_DCtx_setParameter(decompressor(context), static_cast<ZSTD_dParameter>(key), value); },
    [](void* context, void* to, std::size_t space, const void* from, std::size_t size) {
        return ZSTD_compress2(compressor(context), to, space, from, size);
    },
    [](void* context, void* to, std::size_t space, const void* from, std::size_t size) {
        return ZSTD_decompressDCtx(decompressor(context), to, space, from, size);
    },
    ZSTD_compressBound,
    ZSTD_isError,
};

}  // namespace

const support::ZstdFunctions* find_zstd() noexcept { return &kZstd; }

const io::ZmqFunctions* find_zmq() noexcept { return &kZmq; }

std::string missing() { return {}; }

}  // namespace rl4sys::libraries

#endif
