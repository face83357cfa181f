// For tests, which run the Python form beside them: the session of an actor, and the checks of received bytes. An extension that
// is built in place has them.
#include "python/parts.h"
#include "session_calls.h"
#include "weights/update.h"

namespace rl4sys::python {
namespace {

using delivery::SessionCalls;

Ref new_session(const wire::Map& hello, std::uint64_t seed, bool coded) {
    return new_object<SessionCalls>(hello, seed, coded ? &thread_zstd() : nullptr);
}

wire::Map look(SessionCalls& calls) { return calls.look(); }

wire::Received received(const std::vector<Buffer>& buffers, std::uint64_t max_bytes = std::uint64_t{1} << 32) {
    wire::Frames frames;
    for (const Buffer& buffer : buffers) frames.push_back(buffer.bytes());
    return wire::decode(frames, max_bytes);
}

wire::List read_message(const std::vector<Buffer>& frames, std::uint64_t max_bytes) {
    const wire::Received message = received(frames, max_bytes);
    return {static_cast<int>(message.kind), message.header, message.first_seq, std::uint64_t{message.count}};
}

wire::List bad_heads(const std::vector<Buffer>& frames) {
    const wire::Received message = received(frames);
    wire::find_columns(message);
    const char* const heads = message.bytes("heads").data();
    wire::List out;
    for (std::uint64_t n = 0; n < message.count; ++n)
        if (wire::is_bad_head(heads + n * wire::kHeadBytes, ~std::uint64_t{0})) out.emplace_back(n);
    return out;
}

wire::List read_weights_header(Buffer data) {
    const weights::Header head = weights::read_header(data.bytes());
    return {wire::Bytes{std::string(head.policy_id())}, head.generation, head.base_version, head.new_version, static_cast<int>(head.encoding),
            std::uint64_t{head.elements}, std::uint64_t{head.payload_bytes}, head.payload_hash, head.state_hash,
            static_cast<int>(head.dtype), int{head.chunk}, int{head.chunks}, head.predicted, head.others};
}

PyMethodDef kMethods[] = {
    function<&SessionCalls::call>("call"), function<look>("look"),
    {},
};

PyMethodDef kFunctions[] = {
    function<read_message>("read_message"), function<bad_heads>("bad_heads"),
    function<read_weights_header>("read_weights_header"),
    {},
};

}  // namespace

void add_session(PyObject* module) {
    add_type_of<SessionCalls>(module, "rl4sys_zmq._native.Session", kMethods, {slot(Py_tp_new, construct<new_session>)});
    if (PyModule_AddFunctions(module, kFunctions) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
