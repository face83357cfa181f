// The actor's side of the delivery protocol, without I/O (rl4sys_zmq/delivery/session.py): it takes messages and the time, and
// returns actions to carry out. The I/O thread makes all calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "delivery/resend_timer.h"
#include "support/errors.h"
#include "support/random.h"
#include "support/zstd.h"
#include "wire/codec.h"
#include "wire/segments.h"

namespace rl4sys::delivery {

/// A count of events by name.
using Counters = std::map<std::string, std::uint64_t>;

using PolicyVersion = std::pair<std::uint64_t, std::uint64_t>;  // generation and version

enum class State { joining, joined, refused, closed };

/// The fields of a Hello that stay the same, and those with which the numbering begins.
struct Hello {
    std::string client_id, actor_id;
    std::uint64_t incarnation = 0, first_seq = 0;
    std::string algorithm_name;
    wire::Map algorithm_parameters;
    std::string algorithm_type;
    wire::Map observation_space, action_space;
    bool submits = true;
    std::string library;
    std::uint64_t origin = 0, journal_id = 0;
    wire::Map weights;
    std::string relay;
};

// The actions.
struct Send {
    wire::Outgoing message;
};
/// The learner accepted the session. The message is the one that was passed to `on_message`.
struct Joined {};
/// The learner refused the session permanently, or ended it.
struct RefusedForGood {
    Refusal code;
    std::string field, reason;
};
/// The learner refuses this actor for a time. The session retries by itself.
struct RefusedForNow {
    Refusal code;
    std::string field, reason;
};
/// Replace the sockets: no message arrived for `silence_s` seconds.
struct Reconnect {
    double silence_s;
};
/// The learner discarded its record of this actor, so segments are numbered anew. Those in doubt are not sent again.
struct StreamRestarted {
    std::uint64_t in_doubt;
};
/// Replace the sockets: this start took a higher incarnation, and no reply to the lower one may arrive.
struct ReplaceSockets {
    std::uint64_t incarnation;
};

using Action = std::variant<Send, Joined, RefusedForGood, RefusedForNow, Reconnect, StreamRestarted, ReplaceSockets>;
using Actions = std::vector<Action>;

/// The verdicts on segments, in the order of `verdict_names`.
constexpr std::size_t kVerdicts = 7, kRefusedVerdict = 5;
extern const std::array<const char*, kVerdicts> verdict_names;
using Verdicts = std::array<std::uint64_t, kVerdicts>;

/// What a session counts, for `stats`.
struct Figures {
    State state = State::joining;
    std::uint64_t in_flight = 0, unreceived = 0, accepted = 0, in_doubt = 0, durable = 0, sent_steps = 0, credit_steps = 0;
    Verdicts verdicts{};
};

/// The session of one actor with one learner. Sequence numbers start at `Hello::first_seq`.
class ActorSession {
public:
    /// `zstd` compresses bodies; null for none. `random` varies the pauses between retries.
    ActorSession(Hello hello, Counters& counters, support::Random& random, support::Zstd* zstd = nullptr)
        : received(hello.first_seq), durable(hello.first_seq), journal_id(hello.journal_id), hello_(std::move(hello)),
          counters_(counters), random_(random), zstd_(zstd), resend_timer_(random), next_seq_(received) {}

    /// Starts the session, or restarts it on new sockets. `held` is the version of the actor's policy.
    Actions open(double now, PolicyVersion held) {
        silence_.restart(now);
        return join(now, held);
    }
    /// True if the learner has accepted the session and permits one more segment.
    bool can_take() const noexcept { return state == State::joined && taken_bytes_ < credit_bytes_ && has_room(0, 0); }
    /// True if the learner permits one more segment after `items` others, which have `steps` steps.
    bool has_room(std::uint64_t items, std::uint64_t steps) const noexcept {
        return (leaving || sent_steps + steps < credit_steps) && next_seq_ + items < credit_items_;
    }
    /// Sends segments, and keeps them until they are in the learner's journal. Asks for credit for `ahead_steps` more.
    Actions take(double now, std::vector<wire::SharedSegment> segments, std::uint64_t ahead_steps = 0);
    /// Requests credit for a total of `steps` steps since the numbering began.
    Actions want(double now, std::uint64_t steps);
    /// The actions due at the time `now`.
    Actions tick(double now, PolicyVersion held);
    /// The time at which `tick` must be called next, at the latest.
    double next_deadline() const noexcept;
    Actions on_message(double now, const wire::Received& message);
    /// Rejects a session that the learner has accepted, because the actor cannot use it. The session retries later.
    void reject(double now) noexcept {
        state = State::refused;
        next_hello_ = now + kRefusedRetry;
    }
    /// Closes the session: Bye, if the learner has accepted it.
    Actions close(double now);

    State state = State::joining;
    bool leaving = false;  // segments without credit in steps are sent too, as many as the learner can store
    std::uint64_t credit_steps = 0, sent_steps = 0, min_version = 0, generation = 0;
    std::uint64_t received, durable, journal_id, in_doubt = 0;

    std::size_t in_flight() const noexcept { return window_.size(); }
    std::uint64_t unreceived() const noexcept { return next_seq_ - received; }
    std::uint64_t origin() const noexcept { return hello_.origin ? hello_.origin : hello_.incarnation; }
    /// The segments that the learner has acknowledged and not refused, over all sessions.
    std::uint64_t accepted() const noexcept { return earlier_accepted_ + excess(received, refused_of_origin()); }
    Verdicts verdicts() const noexcept;
    Figures figures() const noexcept {
        return {state, in_flight(), unreceived(), accepted(), in_doubt, durable, sent_steps, credit_steps, verdicts()};
    }

private:
    struct InFlight {
        std::uint64_t seq;
        wire::SharedSegment segment;
        std::uint64_t before_steps, before_bytes;
    };

    Actions join(double now, PolicyVersion held);
    Actions on_welcome(double now, const wire::Received& welcome);
    void on_ack(double now, const wire::Received& ack);
    Actions on_refused(double now, const wire::Received& refused);
    Actions raise(double now, std::uint64_t known);
    Actions renew(double now);
    Actions on_gap(double now, std::uint64_t expected);
    void rejoin(double at) noexcept {
        state = State::joining;
        next_hello_ = at;
    }
    void lose_session(double now);
    Actions resend(double now, Actions out = {});
    void submit(double now, std::size_t first, std::size_t most, std::uint64_t most_bytes, Actions& out);
    Action send(double now, wire::Kind kind, const wire::Map& header);
    Action heartbeat(double now) { return send(now, wire::Kind::heartbeat, {{{"want_steps", want_steps_}}}); }
    void release() noexcept {
        while (!window_.empty() && window_.front().seq < durable) window_.pop_front();
    }
    void count_as_earlier() noexcept;
    std::uint64_t refused_of_origin() const noexcept {
        return earlier_[kRefusedVerdict] + verdicts_[kRefusedVerdict] - earlier_refused_;
    }
    std::pair<std::uint64_t, std::uint64_t> sent_from(std::uint64_t seq) const noexcept;
    std::uint64_t first_held() const noexcept { return window_.empty() ? next_seq_ : window_.front().seq; }
    static std::uint64_t excess(std::uint64_t a, std::uint64_t b) noexcept { return a > b ? a - b : 0; }

    Hello hello_;
    Counters& counters_;
    support::Random& random_;
    support::Zstd* zstd_;
    ResendTimer resend_timer_;
    std::deque<InFlight> window_;
    std::uint64_t next_seq_, taken_steps_ = 0, taken_bytes_ = 0;
    std::uint64_t credit_items_ = 0, credit_bytes_ = 0, want_steps_ = 0;
    std::optional<std::uint64_t> gap_at_;
    bool previously_welcomed_ = false;
    Verdicts verdicts_{}, earlier_{};
    std::uint64_t verdicts_of_ = 0, earlier_accepted_ = 0, earlier_refused_ = 0;
    SilenceTimer heartbeat_{kHeartbeat}, silence_{kSilence};
    double next_hello_ = 0.0;
};

}  // namespace rl4sys::delivery
