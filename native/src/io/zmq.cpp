#include "io/zmq.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>

#include "support/bytes.h"

namespace rl4sys::io {
namespace {

// From zmq.h.
constexpr int kPair = 0, kSub = 2, kDealer = 5;
constexpr int kSubscribe = 6, kLinger = 17, kReconnectIvl = 18, kReconnectIvlMax = 21, kMaxMsgSize = 22, kSendHwm = 23, kReceiveHwm = 24,
              kTcpKeepalive = 34, kTcpKeepaliveCount = 35, kTcpKeepaliveIdle = 36, kTcpKeepaliveInterval = 37, kIpv6 = 42,
              kCurvePublicKey = 48, kCurveSecretKey = 49, kCurveServerKey = 50, kHandshakeIvl = 66, kConnectTimeout = 79;
constexpr int kDontWait = 1, kSendMore = 2;
constexpr int kFailures = 0x0800 | 0x2000 | 0x4000;  // handshake failed: no detail, protocol, authentication
constexpr std::size_t kCopied = 4096;                // smaller frames are copied: a reference costs as much

int between(int least, int most) {
    // libzmq does not vary its intervals if a longest one is set; with equal ones, all actors would reconnect at the same moments.
    std::random_device device;
    return std::uniform_int_distribution<int>(least, most)(device);
}

void release(void*, void* hint) { delete static_cast<std::shared_ptr<const std::string>*>(hint); }

}  // namespace

Message::~Message() {
    for (const auto& part : parts_) zmq_->msg_close(part.get());
}

Socket::Socket(const ZmqFunctions& zmq, void* context, Role role, const std::string& address, int send_hwm, int receive_hwm,
               std::int64_t max_frame_bytes, const CurveKeys* keys)
    : zmq_(zmq), context_(context), socket_(zmq.socket(context, role == Role::dealer ? kDealer : kSub)) {
    if (!socket_) throw TransportError(std::string("cannot create a socket: ") + zmq_.error_text(zmq_.error()) + "; raise the limit of open files with ulimit -n");
    try {
        set(kLinger, 0);
        set(kHandshakeIvl, 3000);
        set(kTcpKeepalive, 1);
        set(kTcpKeepaliveIdle, 30);
        set(kTcpKeepaliveInterval, 10);
        set(kTcpKeepaliveCount, 3);
        set(kConnectTimeout, 3000);
        set(kReconnectIvl, between(50, 500));
        set(kReconnectIvlMax, between(2000, 4000));
        if (role == Role::dealer) set(kSendHwm, send_hwm);
        set(kReceiveHwm, receive_hwm);
        set(kMaxMsgSize, max_frame_bytes);
        if (address.find('[') != std::string::npos) set(kIpv6, 1);
        if (keys && address.rfind("inproc://", 0) != 0) {
            set(kCurvePublicKey, keys->own_public);
            set(kCurveSecretKey, keys->own_secret);
            set(kCurveServerKey, keys->server_public);
        }
        if (role == Role::dealer) {
            static std::atomic<std::uint64_t> next{0};
            const std::string name = "inproc://rl4sys-monitor-" + std::to_string(next++);
            if (zmq_.socket_monitor(socket_, name.c_str(), kFailures) == 0) {
                monitor_ = zmq_.socket(context, kPair);
                if (!monitor_ || zmq_.connect(monitor_, name.c_str()) != 0) fail("cannot watch a socket");
                const int zero = 0;
                zmq_.setsockopt(monitor_, kLinger, &zero, sizeof zero);
            }
        }
        if (zmq_.connect(socket_, address.c_str()) != 0) fail("cannot connect to " + address);
    } catch (...) {
        if (monitor_) zmq_.close(monitor_);
        zmq_.close(socket_);
        throw;
    }
}

Socket::~Socket() {
    if (monitor_) {
        zmq_.socket_monitor(socket_, nullptr, 0);
        zmq_.close(monitor_);
    }
    zmq_.close(socket_);
}

void Socket::fail(const std::string& what) { throw TransportError(what + ": " + zmq_.error_text(zmq_.error())); }

void Socket::set(int option, int value) {
    if (zmq_.setsockopt(socket_, option, &value, sizeof value) != 0) fail("cannot set option " + std::to_string(option));
}

void Socket::set(int option, std::int64_t value) {
    if (zmq_.setsockopt(socket_, option, &value, sizeof value) != 0) fail("cannot set option " + std::to_string(option));
}

void Socket::set(int option, std::string_view value) {
    // A Z85 key may come as text with its terminating zero.
    const std::string text(value);
    if (zmq_.setsockopt(socket_, option, text.c_str(), text.size() + 1) != 0) fail("a key is not valid");
}

void Socket::subscribe(std::string_view topic) {
    if (zmq_.setsockopt(socket_, kSubscribe, topic.data(), topic.size()) != 0) fail("cannot subscribe");
}

bool Socket::send(const wire::Outgoing& message) {
    const std::size_t last = message.body.size();
    for (std::size_t n = 0; n <= last; ++n) {
        const std::string& frame = n ? *message.body[n - 1] : message.first;
        ZmqMessage part;
        if (n && frame.size() > kCopied) {
            auto* held = new std::shared_ptr<const std::string>(message.body[n - 1]);
            if (zmq_.msg_init_data(&part, const_cast<char*>(frame.data()), frame.size(), release, held) != 0) {
                delete held;
                throw std::bad_alloc();
            }
        } else {
            if (zmq_.msg_init_size(&part, frame.size()) != 0) throw std::bad_alloc();
            std::memcpy(zmq_.msg_data(&part), frame.data(), frame.size());
        }
        // A queue that is not full takes all frames of a message, so only the first can be refused.
        int sent;
        do sent = zmq_.msg_send(&part, socket_, kDontWait | (n < last ? kSendMore : 0));
        while (sent < 0 && zmq_.error() == EINTR);
        if (sent < 0) {
            zmq_.msg_close(&part);
            return false;
        }
    }
    return true;
}

std::optional<Message> Socket::receive(std::size_t most) {
    Message out(zmq_);
    bool more = true, whole = true;
    while (more) {
        auto part = std::make_unique<ZmqMessage>();
        zmq_.msg_init(part.get());
        int size;
        do size = zmq_.msg_recv(part.get(), socket_, kDontWait);
        while (size < 0 && zmq_.error() == EINTR);
        if (size < 0) {
            zmq_.msg_close(part.get());
            return std::nullopt;
        }
        more = zmq_.msg_more(part.get());
        whole = whole && out.parts_.size() < most;
        if (whole)
            out.parts_.push_back(std::move(part));
        else
            zmq_.msg_close(part.get());
    }
    if (whole)
        for (const auto& part : out.parts_)
            out.frames_.emplace_back(static_cast<const char*>(zmq_.msg_data(part.get())), zmq_.msg_size(part.get()));
    return std::optional<Message>(std::move(out));
}

std::vector<Socket::Event> Socket::events() {
    std::vector<Event> out;
    while (monitor_) {
        // Two frames: a number of 16 bits and a value of 32, then the address.
        ZmqMessage part;
        zmq_.msg_init(&part);
        if (zmq_.msg_recv(&part, monitor_, kDontWait) < 0) {
            zmq_.msg_close(&part);
            break;
        }
        const bool first = zmq_.msg_more(&part);
        if (first && zmq_.msg_size(&part) == 6) {
            const auto* at = static_cast<const char*>(zmq_.msg_data(&part));
            out.push_back({support::load<std::uint16_t>(at), support::load<std::uint32_t>(at + 2)});
        }
        zmq_.msg_close(&part);
    }
    return out;
}

}  // namespace rl4sys::io
