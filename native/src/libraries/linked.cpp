#include "libraries/linked.h"

#include <zmq.h>
#include <zstd.h>

namespace rl4sys::libraries {
namespace {

zmq_msg_t* own(io::ZmqMessage* message) noexcept { return reinterpret_cast<zmq_msg_t*>(message); }
const zmq_msg_t* own(const io::ZmqMessage* message) noexcept { return reinterpret_cast<const zmq_msg_t*>(message); }

static_assert(sizeof(io::ZmqMessage) == sizeof(zmq_msg_t) && alignof(io::ZmqMessage) >= alignof(void*));
static_assert(sizeof(io::ZmqPollItem) == sizeof(zmq_pollitem_t));

constexpr support::ZstdFunctions kZstd = {
    []() -> void* { return ZSTD_createCCtx(); },
    [](void* context) { return ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context)); },
    []() -> void* { return ZSTD_createDCtx(); },
    [](void* context) { return ZSTD_freeDCtx(static_cast<ZSTD_DCtx*>(context)); },
    [](void* context, int parameter, int value) {
        return ZSTD_CCtx_setParameter(static_cast<ZSTD_CCtx*>(context), static_cast<ZSTD_cParameter>(parameter), value);
    },
    [](void* context, int parameter, int value) {
        return ZSTD_DCtx_setParameter(static_cast<ZSTD_DCtx*>(context), static_cast<ZSTD_dParameter>(parameter), value);
    },
    [](void* context, void* out, std::size_t size, const void* in, std::size_t length) {
        return ZSTD_compress2(static_cast<ZSTD_CCtx*>(context), out, size, in, length);
    },
    [](void* context, void* out, std::size_t size, const void* in, std::size_t length) {
        return ZSTD_decompressDCtx(static_cast<ZSTD_DCtx*>(context), out, size, in, length);
    },
    ZSTD_compressBound,
    ZSTD_isError,
};

constexpr io::ZmqFunctions kZmq = {
    zmq_ctx_new,
    zmq_ctx_set,
    zmq_ctx_term,
    zmq_socket,
    zmq_close,
    zmq_setsockopt,
    zmq_connect,
    zmq_socket_monitor,
    [](io::ZmqMessage* message) { return zmq_msg_init(own(message)); },
    [](io::ZmqMessage* message, std::size_t size) { return zmq_msg_init_size(own(message), size); },
    [](io::ZmqMessage* message, void* data, std::size_t size, void (*release)(void*, void*), void* hint) {
        return zmq_msg_init_data(own(message), data, size, release, hint);
    },
    [](io::ZmqMessage* message) { return zmq_msg_data(own(message)); },
    [](const io::ZmqMessage* message) { return zmq_msg_size(own(message)); },
    [](const io::ZmqMessage* message) { return zmq_msg_more(own(message)); },
    [](io::ZmqMessage* message) { return zmq_msg_close(own(message)); },
    [](io::ZmqMessage* message, void* socket, int flags) { return zmq_msg_send(own(message), socket, flags); },
    [](io::ZmqMessage* message, void* socket, int flags) { return zmq_msg_recv(own(message), socket, flags); },
    [](io::ZmqPollItem* items, int count, long timeout) { return zmq_poll(reinterpret_cast<zmq_pollitem_t*>(items), count, timeout); },
    zmq_errno,
    zmq_strerror,
};

}  // namespace

const support::ZstdFunctions& linked_zstd() noexcept { return kZstd; }
const io::ZmqFunctions& linked_zmq() noexcept { return kZmq; }

}  // namespace rl4sys::libraries
