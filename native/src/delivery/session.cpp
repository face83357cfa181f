#include "delivery/session.h"

#include <algorithm>
#include <limits>

namespace rl4sys::delivery {
namespace {

using wire::Kind;
using wire::Map;
using wire::Received;

constexpr std::size_t kMaxBatchItems = 64;  // of a message that is resent
constexpr std::uint64_t kMaxBatchBytes = 1 << 20;
constexpr int kRandomBits = 24;  // of an incarnation
constexpr const char* kFieldRights = "keys";  // the actor lacks a right: the session is refused, not only one message
constexpr const char* kFieldRate = "rate";    // a rate limit was exceeded: the same message is accepted later

bool is_session_lost(Refusal code) noexcept { return code == Refusal::no_session || code == Refusal::closing; }

bool is_temporary(Refusal code) noexcept {
    return is_session_lost(code) || code == Refusal::starting || code == Refusal::conflict || code == Refusal::gap ||
           code == Refusal::checksum;
}

}  // namespace

const std::array<const char*, kVerdicts> verdict_names = {"trained",    "stale",   "quarantined", "evaluated",
                                                          "overridden", "refused", "duplicate"};

Actions ActorSession::take(double now, std::vector<wire::SharedSegment> segments, std::uint64_t ahead_steps) {
    const std::size_t first = window_.size();
    for (wire::SharedSegment& segment : segments) {
        const std::uint64_t steps = segment->steps, bytes = segment->bytes;
        window_.push_back({next_seq_++, std::move(segment), taken_steps_, taken_bytes_});
        sent_steps += steps;
        taken_steps_ += steps;
        taken_bytes_ += bytes;
    }
    want_steps_ = std::max(want_steps_, sent_steps + ahead_steps);
    resend_timer_.sent(now, window_.back().seq);
    Actions out;
    submit(now, first, segments.size(), std::numeric_limits<std::uint64_t>::max(), out);
    return out;
}

Actions ActorSession::want(double now, std::uint64_t steps) {
    if (state != State::joined || steps == want_steps_) return {};
    const bool more = steps > want_steps_;
    want_steps_ = steps;
    credit_steps = std::min(credit_steps, steps);
    if (!more || steps == credit_steps) return {};
    return {heartbeat(now)};
}

Actions ActorSession::tick(double now, PolicyVersion held) {
    if (state == State::closed) return {};
    silence_.after = kMissedMessages * (state == State::refused ? kRefusedRetry : heartbeat_.after);
    if (silence_.expired(now)) {
        if (state == State::joined) {
            ++counters_["sessions_lost.silence"];
            state = State::joining;
        }
        const double silence = now - silence_.started;
        silence_.restart(now);
        return {Reconnect{silence}};
    }
    if (state != State::joined) return now >= next_hello_ ? join(now, held) : Actions{};
    if (resend_timer_.expired(now)) return resend(now);
    if (heartbeat_.expired(now)) return {heartbeat(now)};
    return {};
}

double ActorSession::next_deadline() const noexcept {
    if (state != State::joined) return next_hello_;
    const double deadline = std::min(heartbeat_.deadline(), silence_.deadline());
    return resend_timer_.at != 0.0 ? std::min(deadline, resend_timer_.at) : deadline;
}

Actions ActorSession::on_message(double now, const Received& message) {
    silence_.restart(now);
    if (state == State::closed) return {};
    if (message.kind == Kind::welcome) return on_welcome(now, message);
    if (message.kind == Kind::refused) return on_refused(now, message);
    if (message.kind == Kind::ack) on_ack(now, message);
    return {};
}

Actions ActorSession::close(double now) {
    const bool joined = state == State::joined;
    state = State::closed;
    return joined ? Actions{send(now, Kind::bye, {})} : Actions{};
}

Verdicts ActorSession::verdicts() const noexcept {
    Verdicts out;
    for (std::size_t n = 0; n < kVerdicts; ++n) out[n] = earlier_[n] + verdicts_[n];
    return out;
}

Actions ActorSession::join(double now, PolicyVersion held) {
    if (state != State::refused) state = State::joining;
    next_hello_ = now + jittered(state == State::refused ? kRefusedRetry : kHelloRetry, random_);
    const Hello& own = hello_;
    const Map header{{
        {"client_id", own.client_id}, {"actor_id", own.actor_id}, {"incarnation", own.incarnation}, {"first_seq", first_held()},
        {"held_generation", held.first}, {"held_version", held.second}, {"algorithm_name", own.algorithm_name},
        {"algorithm_parameters", own.algorithm_parameters}, {"algorithm_type", own.algorithm_type},
        {"observation_space", own.observation_space}, {"action_space", own.action_space}, {"submits", own.submits},
        {"library", own.library}, {"origin", own.origin}, {"journal_id", journal_id}, {"spooled", false},
        {"weights", own.weights}, {"previously_welcomed", previously_welcomed_}, {"relay", own.relay},
    }};
    return {send(now, Kind::hello, header)};
}

Actions ActorSession::on_welcome(double now, const Received& welcome) {
    const std::uint64_t journal = welcome.integer("journal_id"), its_generation = welcome.integer("generation");
    // A repeated reply. A Welcome of a restarted learner, to a Hello that was still queued, is not one.
    if (state == State::joined && journal == journal_id && its_generation <= generation) return {};
    const std::uint64_t its_received = welcome.integer("received"), its_durable = welcome.integer("durable");
    if (its_received > next_seq_ || its_durable > its_received) {
        ++counters_["ignored.welcome"];
        return {};
    }
    state = State::joined;
    previously_welcomed_ = true;
    const std::uint64_t first = first_held();
    if (const std::uint64_t gap = welcome.integer("gap")) counters_["gap_segments"] += gap;
    heartbeat_.after = std::min(std::max(welcome.number("heartbeat_s"), kShortestHeartbeat), kLongestHeartbeat);
    received = std::max(first, its_received);
    durable = its_durable;
    next_seq_ = std::max(next_seq_, received);
    release();
    if (journal != journal_id) count_as_earlier();  // another journal, whose verdicts start at 0
    journal_id = journal;
    generation = its_generation;
    gap_at_.reset();
    credit_items_ = next_seq_;
    credit_bytes_ = 0;
    credit_steps = 0;
    sent_steps = welcome.integer("accepted_steps") + sent_from(received).first;
    want_steps_ = min_version = 0;
    resend_timer_.reset();
    return resend(now, {Joined{}});
}

void ActorSession::on_ack(double now, const Received& ack) {
    const std::uint64_t its_generation = ack.integer("generation");
    // A later generation of the learner thread has this actor in a session, and its Welcome was lost.
    if (state == State::joined && its_generation > generation) lose_session(now);
    const std::uint64_t its_received = ack.integer("received"), its_durable = ack.integer("durable");
    const bool stale = state != State::joined || its_generation != generation;
    if (stale || !(durable <= its_durable && its_durable <= its_received && its_received <= next_seq_)) {
        ++counters_["ignored.ack"];
        return;
    }
    if (its_received > received) {
        received = its_received;
        gap_at_.reset();
        resend_timer_.acknowledged(now, received, received < next_seq_);
    }
    durable = its_durable;
    const auto [steps, bytes] = sent_from(its_received);
    // Else the ack is outdated, or was sent before a gap.
    if (its_received >= received) sent_steps = ack.integer("accepted_steps") + steps;
    credit_steps = std::min(ack.integer("credit_steps"), std::max(want_steps_, sent_steps));
    credit_items_ = ack.integer("credit_items");
    credit_bytes_ = taken_bytes_ - bytes + ack.integer("credit_bytes");
    min_version = ack.integer("min_version");
    const bool newer = its_generation != verdicts_of_;  // after a rollback to a checkpoint, the counts can be lower
    verdicts_of_ = its_generation;
    const Map& counts = ack.map("verdicts");
    for (std::size_t n = 0; n < kVerdicts; ++n) {
        const wire::Value* value = counts.find(verdict_names[n]);
        if (value && !value->is_integer()) continue;
        const auto* small = value ? value->get<std::int64_t>() : nullptr;
        const auto* large = value ? value->get<std::uint64_t>() : nullptr;
        const std::uint64_t known = large ? *large : small && *small > 0 ? static_cast<std::uint64_t>(*small) : 0;
        if (newer || known > verdicts_[n]) verdicts_[n] = known;
    }
    release();
}

void ActorSession::lose_session(double now) {
    ++counters_["sessions_lost.learner"];
    rejoin(now);
}

Actions ActorSession::on_refused(double now, const Received& refused) {
    const Refusal code = refusal_of(refused.text("code"));
    const std::string &field = refused.text("field"), &reason = refused.text("reason");
    ++counters_[std::string("refused_by_learner.") + name_of(code)];
    if (state == State::joined) {
        if (code == Refusal::gap) return on_gap(now, refused.integer("expected_seq"));
        if (is_session_lost(code)) {
            lose_session(now);
            return {};
        }
        if (code != Refusal::failed && field != kFieldRights) {
            resend_timer_.refused();
            return {};  // of one message: the mark did not move, and the resend timer sends it again
        }
    }
    if (code == Refusal::expired) return journal_id ? renew(now) : Actions{};  // a repeated reply does nothing
    if (code == Refusal::fenced && refused.integer("incarnation")) return raise(now, refused.integer("incarnation"));
    if (is_temporary(code) || field == kFieldRate) {
        if (is_session_lost(code) && state == State::refused) rejoin(now);  // the reason for the permanent refusal is gone
        return {RefusedForNow{code, field, reason}};
    }
    reject(now);
    return {RefusedForGood{code, field, reason}};
}

// Takes an incarnation above `known`, which the learner has on record. The segments keep their sequence numbers.
Actions ActorSession::raise(double now, std::uint64_t known) {
    // A repeated reply to a lower incarnation, or to a Hello from before the first Welcome.
    if (known < hello_.incarnation || (known == hello_.incarnation && previously_welcomed_)) return {};
    ++counters_["raised"];
    const std::uint64_t first = previously_welcomed_ ? origin() : 0;
    hello_.incarnation = known + 1 + random_.bits(kRandomBits);
    hello_.origin = first;
    rejoin(now);
    return {ReplaceSockets{hello_.incarnation}};
}

// Starts the numbering again with the next incarnation: the learner has discarded its record of the old one.
Actions ActorSession::renew(double now) {
    const std::uint64_t doubtful = window_.size();
    const std::uint64_t settled = next_seq_ - doubtful;  // `durable` can be lower, after a Welcome that was long under way
    in_doubt += doubtful;
    ++counters_["expired"];
    window_.clear();
    const std::uint64_t refused = refused_of_origin();
    earlier_accepted_ += excess(settled, refused);
    count_as_earlier();
    earlier_[kRefusedVerdict] -= excess(refused, settled);  // these are counted as in doubt
    earlier_refused_ = earlier_[kRefusedVerdict];
    next_seq_ = received = durable = 0;
    taken_steps_ = taken_bytes_ = 0;
    resend_timer_.stop();
    hello_.origin = ++hello_.incarnation;
    hello_.first_seq = 0;
    journal_id = 0;
    previously_welcomed_ = false;
    next_hello_ = now;
    return {StreamRestarted{doubtful}};
}

void ActorSession::count_as_earlier() noexcept {
    for (std::size_t n = 0; n < kVerdicts; ++n) {
        earlier_[n] += verdicts_[n];
        verdicts_[n] = 0;
    }
}

// Resends the segments from `expected` on, once for each such number. The resend timer handles further losses.
Actions ActorSession::on_gap(double now, std::uint64_t expected) {
    if (expected > next_seq_) {
        ++counters_["ignored.gap"];
    } else if (expected < first_held()) {  // the segments before the window are gone; only a Hello reports that
        ++counters_["sessions_lost.gap"];
        rejoin(now + jittered(kHelloRetry, random_));
    } else if (expected != gap_at_) {
        gap_at_ = received = expected;
        return resend(now);
    }
    return {};
}

// Sends the window from index `first` on, in messages of at most `most` segments and `most_bytes`. One segment can be larger.
void ActorSession::submit(double now, std::size_t first, std::size_t most, std::uint64_t most_bytes, Actions& out) {
    while (first < window_.size()) {
        std::vector<wire::SharedSegment> batch;
        std::uint64_t bytes = 0;
        const std::uint64_t seq = window_[first].seq;
        for (; first < window_.size() && batch.size() < most; ++first) {
            const wire::SharedSegment& segment = window_[first].segment;
            if (!batch.empty() && bytes + segment->bytes > most_bytes) break;
            batch.push_back(segment);
            bytes += segment->bytes;
        }
        heartbeat_.restart(now);
        out.emplace_back(Send{wire::join_submit(seq, want_steps_, batch, zstd_)});
    }
}

// Adds the messages to `out`.
Actions ActorSession::resend(double now, Actions out) {
    const std::size_t before = out.size(), first = excess(received, first_held());
    submit(now, first, kMaxBatchItems, kMaxBatchBytes, out);
    counters_["resent_messages"] += out.size() - before;
    if (out.size() == before)
        resend_timer_.stop();
    else
        resend_timer_.resent(now);
    return out;
}

Action ActorSession::send(double now, Kind kind, const Map& header) {
    heartbeat_.restart(now);
    return Send{{kind, wire::encode(kind, header), {}}};
}

// The steps and the bytes of the segments in the window from `seq` on.
std::pair<std::uint64_t, std::uint64_t> ActorSession::sent_from(std::uint64_t seq) const noexcept {
    if (window_.empty() || seq >= next_seq_) return {0, 0};
    const InFlight& first = window_[excess(seq, window_.front().seq)];
    return {taken_steps_ - first.before_steps, taken_bytes_ - first.before_bytes};
}

}  // namespace rl4sys::delivery
