// The actor's I/O thread. Only this thread uses the sockets, the session and the policy cache (rl4sys_zmq/actor/io/thread.py).
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "actor/outbox.h"
#include "actor/policy_cache.h"

namespace rl4sys::actor {

/// A file descriptor that ends the wait of the I/O thread. Any thread may call `set`, also in a signal handler.
class Wakeup {
public:
    Wakeup() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (fd_ < 0) throw io::TransportError("cannot open a file descriptor; raise the limit of open files with ulimit -n");
    }
    Wakeup(const Wakeup&) = delete;
    ~Wakeup() { ::close(fd_); }
    void set() noexcept {
        const std::uint64_t one = 1;
        if (!is_set_.exchange(true) && ::write(fd_, &one, sizeof one) < 0) return;  // it is readable already
    }
    void clear() noexcept {
        // In this order: a later `set` writes again, and finds this thread not yet looking for work.
        std::uint64_t count;
        [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
        is_set_.store(false);
    }
    int fd() const noexcept { return fd_; }

private:
    std::atomic<bool> is_set_{false};
    int fd_;
};

/// What `stats` reports of the session.
struct SessionStatus : delivery::Figures {
    delivery::Counters counters;
    Outbox::Counts outbox;  // at the time of the call

    /// The finished segments that the session does not have.
    std::size_t waiting() const noexcept { return outbox.items + outbox.in_hand; }
};

class IoThread {
public:
    /// `context` is a ZeroMQ context that outlives the thread.
    IoThread(const Settings& settings, Outbox& outbox, const io::ZmqFunctions& zmq, void* context, const support::ZstdFunctions& zstd);
    IoThread(const IoThread&) = delete;
    ~IoThread() { stop(); }

    void start();
    /// Asks the thread to send Bye and to end, and waits for it. In a forked child, where the thread does not exist, does nothing.
    void stop() noexcept;
    /// Asks the thread to send Bye and to end. Any thread may call it.
    void request_stop() noexcept {
        stopping_.store(true);
        wakeup_.set();
    }
    void wake_now() noexcept { wakeup_.set(); }
    /// Wakes the thread, unless it is in a short sleep after which it reads the outbox anyway.
    void wake_unless_resting() noexcept {
        if (!host.resting.load(std::memory_order_relaxed)) wakeup_.set();
    }
    bool roll_back(const policy::Policy* bad) { return subscriber_.roll_back(bad); }
    bool was_rolled_back(std::uint64_t generation, std::uint64_t version) const { return subscriber_.is_rejected(generation, version); }
    /// Starts with a policy of an earlier start, or of the parent of this process. Call it before `start`.
    void take_up(std::shared_ptr<const policy::PolicySpec> spec, std::shared_ptr<const weights::Snapshot> snapshot, wire::Map document) {
        subscriber_.take_up(std::move(spec), std::move(snapshot), std::move(document));
    }
    /// Takes the policy of the parent process, in a forked child, before `start`. Does nothing if the parent was changing it.
    void inherit(const IoThread& parent);
    SessionStatus status() const {
        const std::lock_guard<std::mutex> lock(host.mutex);
        return {status_, status_.counters, outbox_.counts()};
    }
    /// Keeps all locks while the process forks, so that the child can read.
    void hold() {
        host.mutex.lock();
        outbox_.hold();
    }
    void let_go() {
        outbox_.let_go();
        host.mutex.unlock();
    }

    HostLink host;

private:
    void run() noexcept;
    void serve();
    void turn();
    void wait();
    void read_dealer();
    void read_events();
    void perform(delivery::Actions actions, const wire::Received* cause = nullptr);
    void on_joined(const wire::Received& welcome);
    void refuse(SessionError::Kind kind, Refusal code, const std::string& text, const std::string& field);
    void send_due(double now);
    void drop_stale(delivery::PolicyVersion held);
    std::vector<wire::SharedSegment> take_batch();
    void publish();
    void set_error(SessionError error);
    void set_stage(const std::string& stage);
    // The credit to ask for beyond the need, soon after a message with `steps` steps.
    std::uint64_t ahead(double now, std::uint64_t steps) const noexcept { return now - shipped_at_ < 0.5 ? steps : 0; }

    const Settings& settings_;
    Outbox& outbox_;
    const io::ZmqFunctions& zmq_;
    void* context_;
    support::Zstd zstd_;
    support::Random random_;
    delivery::Counters counters_;
    delivery::ActorSession session_;
    WeightSubscriber subscriber_;
    PolicyCache cache_;
    Wakeup wakeup_;
    std::thread thread_;
    int pid_ = 0;
    std::atomic<bool> stopping_{false};
    std::unique_ptr<io::Socket> dealer_;
    bool reconnect_ = false, had_session_ = false, busy_ = false;
    std::uint64_t seen_items_ = 0, first_version_ = 0, shipped_steps_ = 0;
    double oldest_since_ = 0.0, events_at_ = 0.0, segments_at_ = -kNever, shipped_at_ = -kNever;
    int version_errors_ = 0;
    std::string stage_ = "the learner to answer";
    SessionStatus status_;  // under host.mutex
};

}  // namespace rl4sys::actor
