// The functions of libzmq that the library uses, and the sockets of one I/O thread. CMake links libzmq; the Python extension uses
// the one that pyzmq has loaded, so that a process has one libzmq and one version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "wire/segments.h"

namespace rl4sys::io {

/// `zmq_msg_t` of zmq.h: 64 bytes whose content belongs to libzmq.
struct alignas(void*) ZmqMessage {
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
    int (*msg_init)(ZmqMessage*);
    int (*msg_init_size)(ZmqMessage*, std::size_t);
    int (*msg_init_data)(ZmqMessage*, void*, std::size_t, void (*)(void*, void*), void*);
    void* (*msg_data)(ZmqMessage*);
    std::size_t (*msg_size)(const ZmqMessage*);
    int (*msg_more)(const ZmqMessage*);
    int (*msg_close)(ZmqMessage*);
    int (*msg_send)(ZmqMessage*, void*, int);
    int (*msg_recv)(ZmqMessage*, void*, int);
    int (*poll)(ZmqPollItem*, int, long);
    int (*error)();
    const char* (*error_text)(int);
};

/// A socket that cannot be created or connected.
class TransportError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The frames of a received message. They stay valid as long as this object.
class Message {
public:
    explicit Message(const ZmqFunctions& zmq) : zmq_(&zmq) {}
    Message(Message&& other) noexcept : zmq_(other.zmq_), parts_(std::move(other.parts_)), frames_(std::move(other.frames_)) {}
    Message& operator=(Message&&) = delete;
    ~Message();

    const wire::Frames& frames() const noexcept { return frames_; }

private:
    friend class Socket;
    const ZmqFunctions* zmq_;
    std::vector<std::unique_ptr<ZmqMessage>> parts_;
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

    /// `hwm` limits the queued messages. Keys have no effect on inproc. Throws TransportError.
    Socket(const ZmqFunctions& zmq, void* context, Role role, const std::string& address, int send_hwm, int receive_hwm,
           std::int64_t max_frame_bytes, const CurveKeys* keys);
    Socket(const Socket&) = delete;
    ~Socket();

    void* raw() const noexcept { return socket_; }
    void subscribe(std::string_view topic);
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
    void set(int option, int value);
    void set(int option, std::string_view value);
    void set(int option, std::int64_t value);
    [[noreturn]] void fail(const std::string& what);

    const ZmqFunctions& zmq_;
    void* context_;
    void* socket_;
    void* monitor_ = nullptr;
};

}  // namespace rl4sys::io
