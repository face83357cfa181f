// The functions of libzmq that the library uses, and the sockets of one I/O thread. CMake links libzmq; the Python extension uses
// the one that pyzmq has loaded, so that a process has one libzmq and one version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "wire/segments.h"

struct zmq_msg_t;
struct zmq_pollitem_t;

namespace rl4sys::io {

/// `zmq_msg_t` of zmq.h: 64 bytes whose content belongs to libzmq.
struct alignas(void*) ZmqMessage {
    operator zmq_msg_t*() noexcept { return reinterpret_cast<zmq_msg_t*>(opaque); }

    unsigned char opaque[64];
};

/// `zmq_pollitem_t` of zmq.h on systems whose file descriptors are integers.
struct ZmqPollItem {
    void* socket;
    int fd;
    short events, revents;
};

struct ZmqFunctions {
    void* (*ctx_new)();
    int (*ctx_set)(void*, int, int);
    int (*ctx_term)(void*);
    void* (*socket)(void*, int);
    int (*close)(void*);
    int (*setsockopt)(void*, int, const void*, std::size_t);
    int (*connect)(void*, const char*);
    int (*socket_monitor)(void*, const char*, int);
    int (*msg_init)(zmq_msg_t*);
    int (*msg_init_size)(zmq_msg_t*, std::size_t);
    int (*msg_init_data)(zmq_msg_t*, void*, std::size_t, void (*)(void*, void*), void*);
    void* (*msg_data)(zmq_msg_t*);
    std::size_t (*msg_size)(const zmq_msg_t*);
    int (*msg_more)(const zmq_msg_t*);
    int (*msg_close)(zmq_msg_t*);
    int (*msg_send)(zmq_msg_t*, void*, int);
    int (*msg_recv)(zmq_msg_t*, void*, int);
    int (*poll)(zmq_pollitem_t*, int, long);
    int (*error)();
    const char* (*error_text)(int);
};

constexpr std::int64_t kMaxFrameBytes = std::int64_t{256} << 20;

/// A socket that cannot be created or connected.
class TransportError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The frames of a received message. They stay valid as long as this object.
class Message {
public:
    explicit Message(const ZmqFunctions& zmq) : zmq_(zmq) {}
    Message(Message&&) = default;
    ~Message();

    const wire::Frames& frames() const noexcept { return frames_; }

private:
    friend class Socket;
    const ZmqFunctions& zmq_;
    std::deque<ZmqMessage> parts_;  // they stay where they are: short frames lie in them
    wire::Frames frames_;
};

/// The keys of CURVE, each 40 characters of Z85.
struct CurveKeys {
    std::string own_public, own_secret, server_public;
};

/// A connecting socket, for one thread.
class Socket {
public:
    enum class Role { dealer, sub };

    /// Keys have no effect on inproc. Throws TransportError.
    Socket(const ZmqFunctions& zmq, void* context, Role role, const std::string& address, const std::optional<CurveKeys>& keys);
    Socket(const Socket&) = delete;
    ~Socket() { close(); }

    void* raw() const noexcept { return socket_; }
    void subscribe(const std::string& topic);
    /// Returns false if the queue is full. Large frames are not copied.
    bool send(const wire::Outgoing& message);
    /// The next message, if one is waiting. One with more than `most` frames is read to its end, and comes without frames.
    std::optional<Message> receive(std::size_t most);

    /// A failed connection: the numbers of libzmq's monitor.
    struct Event {
        std::uint16_t event;
        std::uint32_t value;
    };
    std::vector<Event> events();

private:
    void close() noexcept;
    void set(int option, const void* value, std::size_t size, const std::string& problem);
    [[noreturn]] void fail(const std::string& problem);
    bool read(ZmqMessage& part, void* from) noexcept;

    const ZmqFunctions& zmq_;
    void* const socket_;
    void* monitor_ = nullptr;
};

}  // namespace rl4sys::io
