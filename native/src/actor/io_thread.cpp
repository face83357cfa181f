#include "actor/io_thread.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>

namespace rl4sys::actor {
namespace {

using delivery::State;
using wire::Kind;
using wire::Received;

constexpr std::size_t kMaxMessageFrames = 256;
constexpr double kRest = 0.02;         // of a busy thread, which then handles what has accumulated
constexpr double kBusy = 0.05;         // between two segments, below which the thread counts as busy
constexpr double kAckRead = 0.25;      // longest time for which acks stay unread if no thread waits for them
constexpr double kEvents = 1.0;        // between two readings of the connection's events
constexpr double kMaxWeightsRead = 0.05;
constexpr std::uint64_t kMaxBatchSteps = 16'384, kMaxBatchBytes = 1 << 20, kEntryBytes = 65'536;
constexpr std::size_t kMaxBatchItems = 64, kMaxBodyFrames = 200;
constexpr short kPollIn = 1;  // ZMQ_POLLIN
constexpr int kTerminated = 156'384'765;  // ETERM: the context ends, and waits for this thread's sockets
constexpr std::uint16_t kFailedProtocol = 0x2000, kFailedAuth = 0x4000;  // events of libzmq's monitor
constexpr std::uint32_t kCrypto = 0x1100'0001, kMechanism = 0x1100'0002, kDenied = 400;

// The meaning of a failed connection and the remedy (rl4sys_zmq/transports/monitor.py).
std::string explain(const io::Socket::Event& event) {
    if (event.event == kFailedAuth) {
        if (event.value == kDenied) return "the learner does not accept our key; have it listed (or renewed) on the learner, or use a listed key";
        return "the learner could not check our key (ZAP status " + std::to_string(event.value) + "); see the learner's log";
    }
    if (event.event != kFailedProtocol) {
        if (event.value == EAGAIN) return "the learner did not finish the handshake in time; it is overloaded, or does not speak our protocol";
        return "the learner closed the connection, for a wrong or missing key; set keys, or copy learner.public again";
    }
    if (event.value == kMechanism)
        return "one side uses keys and the other does not; give this actor keys if the learner has them, else remove them";
    if (event.value == kCrypto) return "our copy of the learner's key does not match its reply; copy learner.public again from the learner";
    char code[16];
    std::snprintf(code, sizeof code, "%#x", event.value);
    return std::string("the peer at this address does not speak our protocol (code ") + code + "); check host and port";
}

}  // namespace

IoThread::IoThread(const Settings& settings, Outbox& outbox, const io::ZmqFunctions& zmq, void* context, const support::ZstdFunctions& zstd)
    : settings_(settings), outbox_(outbox), zmq_(zmq), context_(context), zstd_(zstd), random_(settings.hello.incarnation),
      session_(settings.hello, counters_, random_, settings.compress ? &zstd_ : nullptr),
      subscriber_(settings, host, counters_, random_, zstd_, zmq, context,
                  [this](delivery::PolicyVersion held) {
                      if (session_.state != State::joined) return;
                      const wire::Map header{{{"held_generation", held.first}, {"held_version", held.second}, {"client_id", ""}}};
                      dealer_->send({Kind::fetch_weights, wire::encode(Kind::fetch_weights, header), {}});
                  }),
      cache_(settings, host, subscriber_, counters_) {}

void IoThread::start() {
    pid_ = getpid();
    cache_.take_up();
    // The signals of the host stay with its threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void IoThread::stop() noexcept {
    request_stop();
    if (!thread_.joinable()) return;
    if (getpid() == pid_)
        thread_.join();
    else
        thread_.detach();  // the thread stayed with the parent
}

void IoThread::run() noexcept {
    const auto quietly = [](const auto& call) {
        try {
            call();
        } catch (...) {
        }
    };
    int restarts = 0;
    while (!stopping_.load()) {
        try {
            serve();
            restarts = 0;
        } catch (const std::exception& error) {
            quietly([&] {
                ++counters_["io_restarts"];
                settings_.report(LogLevel::error, std::string("the I/O thread failed and restarts: ") + error.what());
                set_stage(std::string("its I/O thread to restart (") + error.what() + ")");
            });
            pollfd item{wakeup_.fd(), POLLIN, 0};
            const double end = monotonic() + delivery::backoff(0.2, 5.0, restarts++);
            for (double left; !stopping_.load() && (left = end - monotonic()) > 0.0;) {
                ::poll(&item, 1, static_cast<int>(std::ceil(left * 1e3)));
                wakeup_.clear();
            }
        }
    }
    quietly([&] { publish(); });
    if (settings_.notice) quietly([&] { settings_.notice(Notice::ended); });
}

void IoThread::inherit(const IoThread& parent) {
    const std::unique_lock<std::mutex> lock(parent.host.mutex, std::try_to_lock);
    if (!lock || !parent.host.acting.policy || !parent.host.parameters) return;
    const policy::Policy& policy = *parent.host.acting.policy;
    subscriber_.take_up(policy.shared_spec(), std::make_shared<const weights::Snapshot>(policy.snapshot()));
    host.current_at.store(parent.host.current_at.load());
    const std::lock_guard<std::mutex> own(host.mutex);
    host.parameters = parent.host.parameters;
}

// Sends and receives with one set of sockets, until they must be replaced or the thread stops.
void IoThread::serve() {
    struct Leave {
        IoThread& thread;
        ~Leave() {
            thread.reconnect_ = false;
            thread.subscriber_.leave();
            thread.dealer_.reset();
        }
    } leave{*this};
    dealer_ = std::make_unique<io::Socket>(zmq_, context_, io::Socket::Role::dealer, settings_.address, settings_.keys);
    perform(session_.open(monotonic(), subscriber_.held()));
    while (!reconnect_ && !stopping_.load()) turn();
    if (!stopping_.load()) return;
    perform(session_.close(monotonic()));
    cache_.save(true);
}

void IoThread::turn() {
    wait();
    session_.leaving = host.leaving.load();
    double now = monotonic();
    const std::uint64_t items = outbox_.counts().put_items;
    busy_ = items != seen_items_ && now - segments_at_ < kBusy;
    if (items != seen_items_) segments_at_ = now;
    seen_items_ = items;
    while (subscriber_.receive_one(now) && monotonic() < now + kMaxWeightsRead) {
    }
    read_dealer();
    if (now >= events_at_ || session_.state != State::joined) {
        events_at_ = now + kEvents;
        read_events();
    }
    now = monotonic();
    const delivery::PolicyVersion held = subscriber_.held();
    if (host.current.load() && settings_.explore) drop_stale(held);
    send_due(now);
    const Outbox::Counts counts = outbox_.counts();
    const std::uint64_t assigned = counts.put_steps - counts.steps, asked = host.want_steps.load();
    const std::uint64_t need = std::max({counts.steps, asked > assigned ? asked - assigned : 0, ahead(now, shipped_steps_)});
    perform(session_.want(now, session_.sent_steps + need));
    perform(session_.tick(now, held));
    subscriber_.tick(now);
    cache_.save(false);
    publish();
}

// Waits for work: messages, weights, a host thread, or a timer.
void IoThread::wait() {
    const bool rests = busy_ && session_.state == State::joined && !host.urgent() && !stopping_.load();
    const bool listens = !rests && (session_.state != State::joined || !session_.in_flight() || subscriber_.fetching() || host.urgent() ||
                                    (outbox_.counts().items > 0 && !session_.can_take()));
    double left = kRest;
    if (!rests) {
        const double linger = oldest_since_ != 0.0 && session_.can_take() ? oldest_since_ + settings_.linger_s : kNever;
        left = std::min({session_.next_deadline(), subscriber_.next_deadline(), linger}) - monotonic();
        left = std::min(std::max(0.0, left), listens ? 1.0 : kAckRead);
    }
    io::ZmqPollItem items[3] = {{nullptr, wakeup_.fd(), kPollIn, 0}, {nullptr, 0, kPollIn, 0}, {nullptr, 0, kPollIn, 0}};
    int count = 1;
    if (subscriber_.socket()) items[count++].socket = subscriber_.socket()->raw();
    if (listens) items[count++].socket = dealer_->raw();
    host.resting.store(rests, std::memory_order_relaxed);
    const int ready = zmq_.poll(reinterpret_cast<zmq_pollitem_t*>(items), count, static_cast<long>(std::ceil(left * 1e3)));
    if (ready < 0 && zmq_.error() == kTerminated) request_stop();
    host.resting.store(false, std::memory_order_relaxed);
    wakeup_.clear();
}

void IoThread::read_dealer() {
    while (!reconnect_) {
        const std::optional<io::Message> message = dealer_->receive(kMaxMessageFrames);
        if (!message) return;
        try {
            const Received received = wire::decode(message->frames());
            const double now = monotonic();
            if (received.kind == Kind::weights_reply) subscriber_.on_fetched(received, now);
            if (received.kind == Kind::beacon) subscriber_.note_alarms(received);
            version_errors_ = 0;
            perform(session_.on_message(now, received), &received);
            if (session_.state == State::joined) host.current_at.store(monotonic());
        } catch (const ProtocolError& error) {
            ++counters_[std::string("refused.") + name_of(error.code)];
            version_errors_ += error.code == Refusal::version;
            // A single one can be a flipped bit, and a learner that has sent a Welcome uses this version.
            if (error.code == Refusal::version && version_errors_ > 1 && session_.state != State::joined)
                set_error({SessionError::Kind::refused, error.code, "it uses " + error.detail + "; install the same major version", ""});
        }
    }
}

// Records the reasons of failed connections, so that errors can tell a wrong key from an absent learner.
void IoThread::read_events() {
    for (const io::Socket::Event& event : dealer_->events()) {
        const bool protocol = event.event == kFailedProtocol, auth = event.event == kFailedAuth;
        ++counters_[std::string("connections.handshake_failed.") + (protocol ? "protocol" : auth ? "auth" : "no_detail")];
        if (session_.state == State::joined) continue;
        if (auth || (protocol && event.value == kMechanism))
            refuse(SessionError::Kind::refused, Refusal::forbidden, explain(event), "keys");
        else
            set_stage("the handshake: " + explain(event));
    }
}

// `cause` is the message to which the actions answer.
void IoThread::perform(delivery::Actions actions, const Received* cause) {
    for (delivery::Action& action : actions) {
        if (auto* send = std::get_if<delivery::Send>(&action)) {
            // The session's timers resend the messages that need it.
            if (!dealer_->send(send->message)) ++counters_["sends_refused.full"];
        } else if (std::get_if<delivery::Joined>(&action)) {
            on_joined(*cause);
        } else if (const auto* restarted = std::get_if<delivery::StreamRestarted>(&action)) {
            settings_.report(LogLevel::warning, "silent for longer than the lease, so it joins as a new incarnation; " +
                                                std::to_string(restarted->in_doubt) + " segments are in doubt");
        } else if (const auto* replaced = std::get_if<delivery::ReplaceSockets>(&action)) {
            settings_.report(LogLevel::warning, "the learner has a record of a later incarnation of " + settings_.hello.actor_id +
                                                "; this start continues as incarnation " + std::to_string(replaced->incarnation));
            reconnect_ = true;
        } else if (const auto* refused = std::get_if<delivery::RefusedForGood>(&action)) {
            const bool failed = refused->code == Refusal::failed;
            set_error({failed ? SessionError::Kind::client_failed : SessionError::Kind::refused, refused->code, refused->reason, refused->field});
        } else if (const auto* later = std::get_if<delivery::RefusedForNow>(&action)) {
            if (later->code == Refusal::starting) host.starting_at.store(monotonic());
            if (later->code != Refusal::no_session) set_stage("the learner to accept this actor: " + later->reason);
        } else if (std::get_if<delivery::Reconnect>(&action)) {
            ++counters_["redials"];
            if (std::exchange(had_session_, false))
                settings_.report(LogLevel::warning, "the learner at " + settings_.address + " is silent; reconnecting");
            set_stage("the learner to answer");
            reconnect_ = true;
        }
    }
}

void IoThread::on_joined(const Received& welcome) {
    if (const std::uint64_t gap = welcome.integer("gap"))
        settings_.report(LogLevel::warning, "the learner has lost " + std::to_string(gap) + " segments that it had acknowledged");
    const std::string &wanted = settings_.hello.algorithm_type, &type = welcome.text("algorithm_type");
    if (!wanted.empty() && wanted != type)
        settings_.report(LogLevel::warning, "the configuration has type '" + wanted + "', but the algorithm " +
                                                welcome.text("algorithm_name") + " is " + type);
    try {
        subscriber_.join(welcome, monotonic());
    } catch (const SessionError& error) {
        return refuse(error.kind, error.code, error.text, error.field);
    } catch (const policy::Unsupported& error) {
        return refuse(SessionError::Kind::unsupported, Refusal::spec, error.what(), "spec");
    } catch (const std::runtime_error& error) {
        const std::string what = error.what();
        return refuse(SessionError::Kind::refused, Refusal::spec, "its Welcome message is invalid: " + what, "spec");
    }
    std::unique_lock<std::mutex> lock(host.mutex);
    if (!host.parameters || host.parameters->generation != session_.generation) first_version_ = welcome.integer("version");
    const bool again = std::exchange(host.joined, true);
    host.parameters = read_parameters(welcome);
    host.error.reset();
    host.notify();
    lock.unlock();
    if (again) settings_.report(LogLevel::warning, "joined again, generation " + std::to_string(session_.generation));
    had_session_ = true;
    ++counters_["joined"];
    publish();  // before the first weights: a thread that waits for those must not see the old error
}

// Passes queued segments to the session, if it is time.
void IoThread::send_due(double now) {
    Outbox::Counts counts = outbox_.counts();
    if (!counts.items) {
        oldest_since_ = 0.0;
        return;
    }
    if (oldest_since_ == 0.0) oldest_since_ = now;
    const bool due = host.urgent() || counts.items >= settings_.send_frequency || now - oldest_since_ >= settings_.linger_s ||
                     session_.sent_steps + counts.steps >= session_.credit_steps;
    std::uint64_t shipped = 0;
    while (due && session_.can_take()) {
        std::vector<wire::SharedSegment> batch = take_batch();
        if (batch.empty()) break;
        for (const wire::SharedSegment& segment : batch) shipped += segment->steps;
        perform(session_.take(now, std::move(batch), ahead(now, shipped)));
    }
    if (shipped) {
        shipped_at_ = now;
        shipped_steps_ = shipped;
    }
    if (!outbox_.counts().items) oldest_since_ = 0.0;
}

std::vector<wire::SharedSegment> IoThread::take_batch() {
    std::uint64_t limit = 0;
    if (const std::lock_guard<std::mutex> lock(host.mutex); host.parameters) limit = host.parameters->max_message_bytes;
    const std::size_t least = std::max<std::size_t>(1, settings_.send_frequency);
    std::vector<wire::SharedSegment> batch;
    std::uint64_t steps = 0, bytes = 0;
    std::size_t frames = 0;
    while (steps < kMaxBatchSteps && frames < kMaxBodyFrames && batch.size() < std::max(least, kMaxBatchItems)) {
        const wire::SharedSegment head = outbox_.peek();
        if (!head || (!batch.empty() && (!session_.has_room(batch.size(), steps) || bytes + 2 * head->bytes > limit))) break;
        if (batch.size() >= least && bytes + head->bytes > kMaxBatchBytes) break;
        if (head->bytes + kEntryBytes > limit) {
            outbox_.drop("too_large");
            continue;
        }
        wire::SharedSegment segment = outbox_.take();
        if (!segment) break;
        steps += segment->steps;
        bytes += segment->bytes;
        frames += segment->large.size();
        batch.push_back(std::move(segment));
    }
    return batch;
}

// Drops segments of policy versions on which the learner would not train, or to which the credit does not apply.
void IoThread::drop_stale(delivery::PolicyVersion held) {
    std::int64_t lag = -1;
    if (const std::lock_guard<std::mutex> lock(host.mutex); host.parameters && host.parameters->on_lag == "drop")
        lag = host.parameters->max_policy_lag;
    if (lag < 0) return;
    const auto [generation, version] = held;
    const auto allowed = static_cast<std::uint64_t>(lag);
    std::uint64_t lowest = version > allowed ? version - allowed : 0;
    // A host that collects faster than the learner trains sends its newest segments.
    if (settings_.drops && session_.credit_steps > session_.sent_steps && !session_.leaving)
        lowest = std::max(lowest, outbox_.newest_version(session_.credit_steps - session_.sent_steps, generation));
    while (const wire::SharedSegment head = outbox_.peek()) {
        // In an earlier generation, no newer than the first version of this one.
        const std::uint64_t oldest = head->generation == generation ? head->oldest_version : std::min(head->oldest_version, first_version_);
        if (oldest >= lowest) return;
        outbox_.drop("lag");
    }
}

// Publishes what host threads read: the credit gate, and the numbers of the session.
void IoThread::publish() {
    const bool joined = session_.state == State::joined;
    const std::lock_guard<std::mutex> lock(host.mutex);
    const Outbox::Counts counts = outbox_.settle();
    const std::int64_t limit = joined ? static_cast<std::int64_t>(counts.put_steps - counts.steps + session_.credit_steps) -
                                            static_cast<std::int64_t>(session_.sent_steps)
                                      : 0;
    const CreditGate gate = {limit, host.parameters ? host.parameters->generation : 0, session_.min_version};
    const char* const stage = !joined ? stage_.c_str() : host.acting.policy ? "credit or newer weights" : "the first weights";
    const bool changed = !(gate == host.gate) || host.stage != stage || joined != (status_.state == State::joined);
    host.gate = gate;
    host.stage = stage;
    if (!counts.items && !session_.in_flight()) host.settled = counts.put_items;
    static_cast<delivery::Figures&>(status_) = session_.figures();
    status_.counters = counters_;
    if (changed || host.flushing.load()) host.notify();
}

// Rejects the session, although the learner answers.
void IoThread::refuse(SessionError::Kind kind, Refusal code, const std::string& text, const std::string& field) {
    session_.reject(monotonic());
    set_error({kind, code, text, field});
}

void IoThread::set_error(SessionError error) {
    std::unique_lock<std::mutex> lock(host.mutex);
    const bool news = !host.error || host.error->text != error.text;
    host.gate = {0, host.gate.generation, 0};
    host.error = error;
    host.notify();
    lock.unlock();
    const bool expected = error.kind == SessionError::Kind::unsupported && !host.current.load();
    if (news && !expected) settings_.report(LogLevel::warning, error.text);
}

void IoThread::set_stage(const std::string& stage) {
    stage_ = stage;
    const std::lock_guard<std::mutex> lock(host.mutex);
    host.stage = stage;
    host.gate = {0, host.gate.generation, 0};
}

}  // namespace rl4sys::actor
