#include "libraries/linked.h"

#include <zmq.h>
#include <zstd.h>

namespace rl4sys::libraries {
namespace {

static_assert(sizeof(io::ZmqMessage) == sizeof(zmq_msg_t));
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
    zmq_ctx_new, zmq_ctx_set, zmq_ctx_term, zmq_socket, zmq_close, zmq_setsockopt, zmq_connect, zmq_socket_monitor,
    zmq_msg_init, zmq_msg_init_size, zmq_msg_init_data, zmq_msg_data, zmq_msg_size, zmq_msg_more, zmq_msg_close, zmq_msg_send,
    zmq_msg_recv, zmq_poll, zmq_errno, zmq_strerror,
};

}  // namespace

const support::ZstdFunctions& linked_zstd() noexcept { return kZstd; }
const io::ZmqFunctions& linked_zmq() noexcept { return kZmq; }

}  // namespace rl4sys::libraries
