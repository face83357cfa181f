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
    for (ZmqMessage& part : parts_) zmq_.msg_close(part);
}

Socket::Socket(const ZmqFunctions& zmq, void* context, Role role, const std::string& address,
               const std::optional<CurveKeys>& keys)
    : zmq_(zmq), socket_(zmq.socket(context, role == Role::dealer ? kDealer : kSub)) {
    if (!socket_) throw TransportError(std::string("cannot create a socket: ") + zmq_.error_text(zmq_.error()) + "; raise the limit of open files with ulimit -n");
    try {
        const std::pair<int, int> options[] = {
            {kLinger, 0}, {kHandshakeIvl, 3000}, {kTcpKeepalive, 1}, {kTcpKeepaliveIdle, 30}, {kTcpKeepaliveInterval, 10},
            {kTcpKeepaliveCount, 3}, {kConnectTimeout, 3000}, {kReconnectIvl, between(50, 500)},
            {kReconnectIvlMax, between(2000, 4000)}, {kIpv6, address.find('[') != std::string::npos},
            {kSendHwm, 8192}, {kReceiveHwm, 64},  // more than the learner permits, so that the socket drops none
        };
        for (const auto& [option, value] : options)
            set(option, &value, sizeof value, "cannot set option " + std::to_string(option));
        set(kMaxMsgSize, &kMaxFrameBytes, sizeof kMaxFrameBytes, "cannot set option " + std::to_string(kMaxMsgSize));
        if (keys && address.rfind("inproc://", 0) != 0) {
            // A Z85 key may come as text with its terminating zero.
            set(kCurvePublicKey, keys->own_public.c_str(), keys->own_public.size() + 1, "a key is not valid");
            set(kCurveSecretKey, keys->own_secret.c_str(), keys->own_secret.size() + 1, "a key is not valid");
            set(kCurveServerKey, keys->server_public.c_str(), keys->server_public.size() + 1, "a key is not valid");
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
        close();
        throw;
    }
}

void Socket::close() noexcept {
    if (monitor_) {
        zmq_.socket_monitor(socket_, nullptr, 0);
        zmq_.close(monitor_);
    }
    zmq_.close(socket_);
}

void Socket::fail(const std::string& problem) { throw TransportError(problem + ": " + zmq_.error_text(zmq_.error())); }

void Socket::set(int option, const void* value, std::size_t size, const std::string& problem) {
    if (zmq_.setsockopt(socket_, option, value, size) != 0) fail(problem);
}

void Socket::subscribe(const std::string& topic) { set(kSubscribe, topic.data(), topic.size(), "cannot subscribe"); }

bool Socket::send(const wire::Outgoing& message) {
    const std::size_t last = message.body.size();
    for (std::size_t n = 0; n <= last; ++n) {
        const std::string& frame = n ? *message.body[n - 1] : message.first;
        ZmqMessage part;
        if (n && frame.size() > kCopied) {
            auto held = std::make_unique<std::shared_ptr<const std::string>>(message.body[n - 1]);
            auto* const data = const_cast<char*>(frame.data());
            if (zmq_.msg_init_data(part, data, frame.size(), release, held.get()) != 0) throw std::bad_alloc();
            held.release();
        } else {
            if (zmq_.msg_init_size(part, frame.size()) != 0) throw std::bad_alloc();
            std::memcpy(zmq_.msg_data(part), frame.data(), frame.size());
        }
        // A queue that is not full takes all frames of a message, so only the first can be refused.
        int sent;
        do sent = zmq_.msg_send(part, socket_, kDontWait | (n < last ? kSendMore : 0));
        while (sent < 0 && zmq_.error() == EINTR);
        if (sent < 0) {
            zmq_.msg_close(part);
            return false;
        }
    }
    return true;
}

// Receives a frame. False if none is waiting.
bool Socket::read(ZmqMessage& part, void* from) noexcept {
    zmq_.msg_init(part);
    int size;
    do size = zmq_.msg_recv(part, from, kDontWait);
    while (size < 0 && zmq_.error() == EINTR);
    if (size < 0) zmq_.msg_close(part);
    return size >= 0;
}

std::optional<Message> Socket::receive(std::size_t most) {
    std::optional<Message> out(std::in_place, zmq_);
    do
        if (!read(out->parts_.emplace_back(), socket_)) {
            out->parts_.pop_back();
            return std::nullopt;
        }
    while (zmq_.msg_more(out->parts_.back()));
    if (out->parts_.size() <= most)
        for (ZmqMessage& part : out->parts_)
            out->frames_.emplace_back(static_cast<const char*>(zmq_.msg_data(part)), zmq_.msg_size(part));
    return out;
}

std::vector<Socket::Event> Socket::events() {
    std::vector<Event> out;
    for (ZmqMessage part; monitor_ && read(part, monitor_); zmq_.msg_close(part)) {
        // Two frames: a number of 16 bits and a value of 32, then the address.
        if (!zmq_.msg_more(part) || zmq_.msg_size(part) != 6) continue;
        const auto* at = static_cast<const char*>(zmq_.msg_data(part));
        out.push_back({support::load<std::uint16_t>(at), support::load<std::uint32_t>(at + 2)});
    }
    return out;
}

}  // namespace rl4sys::io
