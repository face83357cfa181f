#include "actor/io_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>

namespace rl4sys::actor {
namespace {

using delivery::State;
using wire::Kind;
using wire::Received;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kSendHwm = 8192, kReceiveHwm = 64;  // more than the learner permits, so that the socket drops none
constexpr std::int64_t kMaxFrameBytes = std::int64_t{256} << 20;
constexpr std::size_t kMaxMessageFrames = 256;
constexpr double kRest = 0.02;         // of a busy thread, which then handles what has accumulated
constexpr double kBusy = 0.05;         // between two segments, below which the thread counts as busy
constexpr double kAckRead = 0.25;      // longest time for which acks stay unread if no thread waits for them
constexpr double kEvents = 1.0;        // between two readings of the connection's events
constexpr double kMaxWeightsRead = 0.05;
constexpr double kCreditAhead = 0.5;   // after a message, credit is requested in advance
constexpr std::uint64_t kMaxBatchSteps = 16'384, kMaxBatchBytes = 1 << 20, kEntryBytes = 65'536;
constexpr std::size_t kMaxBatchItems = 64, kMaxBodyFrames = 200;
constexpr double kCacheInterval = 5.0, kClockSlack = 60.0;  // of a cached policy that was saved in the future
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

double monotonic() noexcept { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Wakeup::Wakeup() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw io::TransportError("cannot open a file descriptor; raise the limit of open files with ulimit -n");
}

Wakeup::~Wakeup() { ::close(fd_); }

void Wakeup::set() noexcept {
    if (is_set_.exchange(true)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

void Wakeup::clear() noexcept {
    // In this order: a later `set` writes again, and finds this thread not yet looking for work.
    std::uint64_t count;
    [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
    is_set_.store(false);
}

IoThread::IoThread(const Settings& settings, Outbox& outbox, const io::ZmqFunctions& zmq, void* context, const support::ZstdFunctions& zstd)
    : settings_(settings),
      outbox_(outbox),
      zmq_(zmq),
      context_(context),
      zstd_(zstd),
      random_(settings.hello.incarnation),
      session_(settings.hello, counters_, random_, settings.compress ? &zstd_ : nullptr),
      subscriber_(settings, host, counters_, random_, zstd_,
                  [this](delivery::PolicyVersion held) {
                      if (session_.state != State::joined || !dealer_) return;
                      wire::Map header;
                      header.set("held_generation", held.first);
                      header.set("held_version", held.second);
                      header.set("client_id", "");
                      dealer_->send({Kind::fetch_weights, wire::encode(Kind::fetch_weights, header), {}});
                  }),
      segments_at_(-kNever),
      shipped_at_(-kNever) {}

IoThread::~IoThread() { stop(); }

void IoThread::start() {
    pid_ = getpid();
    if (!settings_.policy_cache.empty()) take_up_cache();
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

void IoThread::request_stop() noexcept {
    stopping_.store(true);
    wakeup_.set();
}

void IoThread::stop() noexcept {
    request_stop();
    if (!thread_.joinable()) return;
    if (getpid() == pid_)
        thread_.join();
    else
        thread_.detach();  // the thread stayed with the parent
}

SessionStatus IoThread::status() const {
    const std::lock_guard<std::mutex> lock(host.mutex);
    SessionStatus out = status_;
    out.outbox = outbox_.counts();
    return out;
}

SessionStatus IoThread::short_status() const {
    const std::lock_guard<std::mutex> lock(host.mutex);
    SessionStatus out;
    out.state = status_.state;
    out.in_flight = status_.in_flight;
    out.outbox = outbox_.counts();
    return out;
}

void IoThread::hold() {
    host.mutex.lock();
    outbox_.hold();
}

void IoThread::let_go() {
    outbox_.let_go();
    host.mutex.unlock();
}

void IoThread::log(LogLevel level, const std::string& text) const {
    if (settings_.log) settings_.log(level, settings_.hello.client_id + ": " + text);
}

void IoThread::run() noexcept {
    int restarts = 0;
    while (!stopping_.load()) {
        try {
            serve();
            restarts = 0;
        } catch (const std::exception& error) {
            try {
                ++counters_["io_restarts"];
                log(LogLevel::error, std::string("the I/O thread failed and restarts: ") + error.what());
                set_stage(std::string("its I/O thread to restart (") + error.what() + ")");
            } catch (...) {
            }
            pollfd item{wakeup_.fd(), POLLIN, 0};
            const double end = monotonic() + delivery::backoff(0.2, 5.0, restarts++);
            for (double left; !stopping_.load() && (left = end - monotonic()) > 0.0;) {
                ::poll(&item, 1, static_cast<int>(std::ceil(left * 1e3)));
                wakeup_.clear();
            }
        }
    }
    try {
        publish();
    } catch (...) {
    }
    try {
        if (settings_.notice) settings_.notice(Notice::ended);
    } catch (...) {
    }
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

// Starts with the policy and the session parameters of an earlier start. The thread does not run yet.
void IoThread::take_up_cache() {
    cache_.emplace(settings_.policy_cache, counters_);
    std::string problem;
    std::optional<CachedPolicy> cached = cache_->load(problem);
    if (!problem.empty()) log(LogLevel::warning, problem);
    if (!cached) return;
    try {
        const auto text = [](const wire::Map& map, const char* key) {
            const wire::Value* value = map.find(key);
            return value && value->get<std::string>() ? *value->get<std::string>() : std::string();
        };
        const auto number = [](const wire::Map& map, const char* key) {
            const wire::Value* value = map.find(key);
            return value && value->get<std::int64_t>() ? *value->get<std::int64_t>() : std::int64_t{0};
        };
        if (text(cached->extras, "client_id") != settings_.hello.client_id)
            throw std::runtime_error("it belongs to client '" + text(cached->extras, "client_id") + "'");
        for (const auto& [form, theirs] : {std::pair(&settings_.hello.observation_space, &cached->spec.observations),
                                           std::pair(&settings_.hello.action_space, &cached->spec.actions)})
            if (!form->items.empty() && !(policy::read_space(*form) == *theirs)) throw std::runtime_error("its spaces are not this actor's");
        const wire::Value* held = cached->extras.find("session_parameters");
        const auto* said = held ? held->get<wire::Map>() : nullptr;
        if (!said) throw std::runtime_error("it has no session parameters");
        SessionParameters parameters;
        parameters.generation = static_cast<std::uint64_t>(number(*said, "generation"));
        parameters.algorithm_name = text(*said, "algorithm_name");
        parameters.algorithm_type = text(*said, "algorithm_type");
        parameters.rollout_length = static_cast<std::uint64_t>(number(*said, "rollout_length"));
        parameters.max_policy_lag = number(*said, "max_policy_lag");
        parameters.on_lag = text(*said, "on_lag");
        parameters.max_message_bytes = static_cast<std::uint64_t>(number(*said, "max_message_bytes"));
        parameters.max_segment_steps = static_cast<std::uint64_t>(std::max<std::int64_t>(1, number(*said, "max_segment_steps")));
        parameters.inference = text(*said, "inference");
        parameters.no_masks = text(*said, "no_masks");
        cached_ = {cached->snapshot.generation, cached->snapshot.version};
        subscriber_.take_up(std::make_shared<const policy::PolicySpec>(std::move(cached->spec)),
                            std::make_shared<const weights::Snapshot>(std::move(cached->snapshot)), std::move(cached->document));
        const double age = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - cached->saved_unix_s;
        host.current_at.store(age > -kClockSlack ? monotonic() - std::max(0.0, age) : -kNever);
        const std::lock_guard<std::mutex> lock(host.mutex);
        host.parameters = std::move(parameters);
    } catch (const std::exception& error) {
        ++counters_["policy_cache.refused"];
        log(LogLevel::warning, "the policy in " + settings_.policy_cache + " is not used: " + error.what());
    }
}

// Saves the current policy and the session parameters. `force` skips the limit on how often the file is written.
void IoThread::save_cache(bool force) {
    if (!cache_ || (!force && monotonic() < cache_at_)) return;
    std::shared_ptr<const policy::Policy> policy;
    std::optional<SessionParameters> parameters;
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        policy = host.acting.policy;
        parameters = host.parameters;
    }
    if (!policy || !parameters || policy->shared_spec() != subscriber_.spec()) return;
    const delivery::PolicyVersion version{policy->snapshot().generation, policy->snapshot().version};
    if (version == cached_) return;
    cache_at_ = monotonic() + kCacheInterval;
    wire::Map said;
    said.set("generation", parameters->generation);
    said.set("algorithm_name", parameters->algorithm_name);
    said.set("algorithm_type", parameters->algorithm_type);
    said.set("rollout_length", parameters->rollout_length);
    said.set("max_policy_lag", parameters->max_policy_lag);
    said.set("on_lag", parameters->on_lag);
    said.set("max_message_bytes", parameters->max_message_bytes);
    said.set("max_segment_steps", parameters->max_segment_steps);
    said.set("inference", parameters->inference);
    said.set("no_masks", parameters->no_masks);
    wire::Map extras;
    extras.set("client_id", settings_.hello.client_id);
    extras.set("session_parameters", std::move(said));
    std::string problem;
    const bool saved = cache_->save(subscriber_.document(), policy->snapshot(), extras, problem);
    if (saved) cached_ = version;
    if (!saved && !cache_failed_) log(LogLevel::warning, problem);
    cache_failed_ = !saved;
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
    dealer_ = std::make_unique<io::Socket>(zmq_, context_, io::Socket::Role::dealer, settings_.address, kSendHwm, kReceiveHwm, kMaxFrameBytes,
                                           settings_.keys ? &*settings_.keys : nullptr);
    perform(session_.open(monotonic(), subscriber_.held()));
    while (!reconnect_ && !stopping_.load()) turn();
    if (stopping_.load()) perform(session_.close(monotonic()));
    if (stopping_.load()) save_cache(true);
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
    subscriber_.tick(zmq_, context_, now);
    save_cache(false);
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
    if (zmq_.poll(items, count, static_cast<long>(std::ceil(left * 1e3))) < 0 && zmq_.error() == kTerminated) request_stop();
    host.resting.store(false, std::memory_order_relaxed);
    wakeup_.clear();
}

void IoThread::read_dealer() {
    while (dealer_ && !reconnect_) {
        const std::optional<io::Message> message = dealer_->receive(kMaxMessageFrames);
        if (!message) return;
        try {
            const Received received = wire::decode(message->frames());
            const double now = monotonic();
            if (received.kind == Kind::weights_reply) subscriber_.on_fetched(received, now);
            if (received.kind == Kind::beacon) subscriber_.note_alarms(received);
            version_errors_ = 0;
            welcome_ = &received;
            perform(session_.on_message(now, received));
            welcome_ = nullptr;
            if (session_.state == State::joined) host.current_at.store(monotonic());
        } catch (const ProtocolError& error) {
            welcome_ = nullptr;
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
    if (!dealer_) return;
    for (const io::Socket::Event& event : dealer_->events()) {
        ++counters_[std::string("connections.handshake_failed.") + (event.event == kFailedProtocol ? "protocol" : event.event == kFailedAuth ? "auth" : "no_detail")];
        if (session_.state == State::joined) continue;
        if (event.event == kFailedAuth || (event.event == kFailedProtocol && event.value == kMechanism)) {
            session_.reject(monotonic());
            set_error({SessionError::Kind::refused, Refusal::forbidden, explain(event), "keys"});
        } else {
            set_stage("the handshake: " + explain(event));
        }
    }
}

void IoThread::perform(delivery::Actions actions) {
    for (delivery::Action& action : actions) {
        if (auto* send = std::get_if<delivery::Send>(&action)) {
            // The session's timers resend the messages that need it.
            if (!dealer_->send(send->message)) ++counters_["sends_refused.full"];
        } else if (std::get_if<delivery::Joined>(&action)) {
            on_joined(*welcome_);
        } else if (const auto* restarted = std::get_if<delivery::StreamRestarted>(&action)) {
            log(LogLevel::warning, "silent for longer than the lease, so it joins as a new incarnation; " + std::to_string(restarted->in_doubt) +
                                       " segments are in doubt");
        } else if (const auto* replaced = std::get_if<delivery::ReplaceSockets>(&action)) {
            log(LogLevel::warning, "the learner has a record of a later incarnation of " + settings_.hello.actor_id +
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
            if (had_session_) log(LogLevel::warning, "the learner at " + settings_.address + " is silent; reconnecting");
            had_session_ = false;
            set_stage("the learner to answer");
            reconnect_ = true;
        }
    }
}

void IoThread::on_joined(const Received& welcome) {
    if (const std::uint64_t gap = welcome.integer("gap"))
        log(LogLevel::warning, "the learner has lost " + std::to_string(gap) + " segments that it had acknowledged");
    const std::string &wanted = settings_.hello.algorithm_type, &type = welcome.text("algorithm_type");
    if (!wanted.empty() && wanted != type)
        log(LogLevel::warning, "the configuration has type '" + wanted + "', but the algorithm " + welcome.text("algorithm_name") + " is " + type);
    try {
        subscriber_.join(zmq_, context_, welcome, monotonic());
    } catch (const WelcomeRefused& error) {
        session_.reject(monotonic());
        set_error({SessionError::Kind::refused, error.code, error.detail, error.field});
        return;
    } catch (const ProtocolError& error) {
        session_.reject(monotonic());
        set_error({SessionError::Kind::refused, Refusal::spec, std::string("its Welcome message is invalid: ") + error.what(), "spec"});
        return;
    } catch (const io::TransportError& error) {
        session_.reject(monotonic());
        set_error({SessionError::Kind::refused, Refusal::spec, std::string("its Welcome message is invalid: ") + error.what(), "spec"});
        return;
    } catch (const policy::Unsupported& error) {
        session_.reject(monotonic());
        set_error({SessionError::Kind::unsupported, Refusal::spec, error.what(), "spec"});
        return;
    }
    SessionParameters parameters;
    parameters.generation = welcome.integer("generation");
    parameters.algorithm_name = welcome.text("algorithm_name");
    parameters.algorithm_type = welcome.text("algorithm_type");
    parameters.rollout_length = welcome.integer("rollout_length");
    parameters.max_policy_lag = welcome.lag("max_policy_lag");
    parameters.on_lag = welcome.text("on_lag");
    parameters.max_message_bytes = welcome.integer("max_message_bytes");
    parameters.max_segment_steps = std::max<std::uint64_t>(1, welcome.integer("max_segment_steps"));
    parameters.inference = welcome.text("inference");
    parameters.no_masks = welcome.text("no_masks");
    bool again;
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        if (!host.parameters || host.parameters->generation != parameters.generation) first_version_ = welcome.integer("version");
        again = host.joined;
        host.parameters = std::move(parameters);
        host.error.reset();
        host.joined = true;
        host.notify();
    }
    if (again) log(LogLevel::warning, "joined again, generation " + std::to_string(session_.generation));
    had_session_ = true;
    ++counters_["joined"];
    publish();  // before the first weights: a thread that waits for those must not see the old error
}

std::uint64_t IoThread::ahead(double now, std::uint64_t steps) const noexcept { return now - shipped_at_ < kCreditAhead ? steps : 0; }

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
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        if (host.parameters) limit = host.parameters->max_message_bytes;
    }
    const std::size_t least = std::max<std::size_t>(1, settings_.send_frequency);
    std::vector<wire::SharedSegment> batch;
    std::uint64_t steps = 0, bytes = 0;
    std::size_t frames = 0;
    while (steps < kMaxBatchSteps && frames < kMaxBodyFrames && batch.size() < std::max(least, kMaxBatchItems)) {
        const std::optional<Outbox::Head> head = outbox_.peek();
        if (!head || (!batch.empty() && (!session_.has_room(batch.size(), steps) || bytes + 2 * head->bytes > limit))) break;
        if (batch.size() >= least && bytes + head->bytes > kMaxBatchBytes) break;
        if (head->bytes + kEntryBytes > limit) {
            outbox_.drop("too_large");
            continue;
        }
        wire::SharedSegment segment = outbox_.take();
        if (!segment) break;
        batch.push_back(std::move(segment));
        steps += batch.back()->steps;
        bytes += batch.back()->bytes;
        frames += batch.back()->large.size();
    }
    return batch;
}

// Drops segments of policy versions on which the learner would not train, or to which the credit does not apply.
void IoThread::drop_stale(delivery::PolicyVersion held) {
    std::int64_t lag;
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        if (!host.parameters || host.parameters->max_policy_lag < 0 || host.parameters->on_lag != "drop") return;
        lag = host.parameters->max_policy_lag;
    }
    const auto [generation, version] = held;
    const auto allowed = static_cast<std::uint64_t>(lag);
    std::uint64_t lowest = version > allowed ? version - allowed : 0;
    // A host that collects faster than the learner trains sends its newest segments.
    if (settings_.drops && session_.credit_steps > session_.sent_steps && !session_.leaving)
        lowest = std::max(lowest, outbox_.newest_version(session_.credit_steps - session_.sent_steps, generation));
    while (const std::optional<Outbox::Head> head = outbox_.peek()) {
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
    host.in_flight = session_.in_flight();
    if (!counts.items && !host.in_flight) host.settled = counts.put_items;
    status_.state = session_.state;
    status_.in_flight = session_.in_flight();
    status_.unreceived = session_.unreceived();
    status_.accepted = session_.accepted();
    status_.in_doubt = session_.in_doubt;
    status_.durable = session_.durable;
    status_.incarnation = session_.incarnation();
    status_.origin = session_.origin();
    status_.generation = session_.generation;
    status_.sent_steps = session_.sent_steps;
    status_.credit_steps = session_.credit_steps;
    status_.verdicts = session_.verdicts();
    status_.counters = counters_;
    if (changed || host.flushing.load()) host.notify();
}

void IoThread::set_error(SessionError error) {
    bool news;
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        news = !host.error || host.error->text != error.text;
        host.gate = {0, host.gate.generation, 0};
        host.error = error;
        host.notify();
    }
    if (news && (error.kind != SessionError::Kind::unsupported || host.current.load())) log(LogLevel::warning, error.text);
}

void IoThread::set_stage(const std::string& stage) {
    stage_ = stage;
    const std::lock_guard<std::mutex> lock(host.mutex);
    host.stage = stage;
    host.gate = {0, host.gate.generation, 0};
}

}  // namespace rl4sys::actor
