// A session behind calls and results that are values. Tests compare it with the Python session, and replay recorded calls.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "delivery/session.h"

namespace rl4sys::delivery {

/// A session with its counters and its generator, which has the seed `seed`.
class SessionCalls {
public:
    SessionCalls(const wire::Map& hello, std::uint64_t seed, support::Zstd* zstd)
        : random_(seed), session_(hello_of(hello), counters_, random_, zstd) {}

    /// Calls the method `name`. Returns the actions as rows: the name of each, and its fields.
    wire::List call(std::string_view name, const wire::List& arguments) {
        const auto count = [&](std::size_t n) { return count_of(arguments.at(n)); };
        const auto now = [&] { return std::get<double>(arguments.at(0).data); };
        if (name == "open") return rows(session_.open(now(), {count(1), count(2)}));
        if (name == "tick") return rows(session_.tick(now(), {count(1), count(2)}));
        if (name == "want") return rows(session_.want(now(), count(1)));
        if (name == "close") return rows(session_.close(now()));
        if (name == "on_message") return rows(session_.on_message(now(), wire::decode(frames_of(arguments.at(1)))));
        if (name == "take") {
            std::vector<wire::SharedSegment> segments;
            for (const wire::Value& row : std::get<wire::List>(arguments.at(1).data))
                segments.push_back(segment_of(std::get<wire::List>(row.data)));
            return rows(session_.take(now(), std::move(segments), count(2)));
        }
        if (name == "has_room") return {wire::List{"room", session_.has_room(count(0), count(1))}};
        if (name == "leaving") session_.leaving = std::get<bool>(arguments.at(0).data);
        else if (name == "reject") session_.reject(now());
        else throw std::invalid_argument("a session has no such method");
        return {};
    }

    /// All that a caller can read.
    wire::Map look() const {
        constexpr const char* kStates[] = {"joining", "joined", "refused", "closed"};
        wire::Map verdicts, counters;
        for (std::size_t n = 0; n < kVerdicts; ++n) verdicts.set(verdict_names[n], session_.verdicts()[n]);
        for (const auto& [name, events] : counters_) counters.set(name, events);
        return {{
            {"state", kStates[static_cast<std::size_t>(session_.state)]}, {"deadline", session_.next_deadline()},
            {"can_take", session_.can_take()}, {"leaving", session_.leaving}, {"credit_steps", session_.credit_steps},
            {"sent_steps", session_.sent_steps}, {"min_version", session_.min_version}, {"generation", session_.generation},
            {"received", session_.received}, {"durable", session_.durable}, {"journal_id", session_.journal_id},
            {"in_doubt", session_.in_doubt}, {"in_flight", session_.in_flight()}, {"unreceived", session_.unreceived()},
            {"origin", session_.origin()}, {"accepted", session_.accepted()}, {"verdicts", std::move(verdicts)},
            {"counters", std::move(counters)},
        }};
    }

private:
    static std::uint64_t count_of(const wire::Value& value) {
        const auto* large = value.get<std::uint64_t>();
        return large ? *large : static_cast<std::uint64_t>(std::get<std::int64_t>(value.data));
    }

    static Hello hello_of(const wire::Map& header) {
        wire::Received fields;
        fields.header = header;
        Hello out;
        for (const auto& [name, field] : {std::pair{"client_id", &Hello::client_id}, {"actor_id", &Hello::actor_id},
                                          {"algorithm_name", &Hello::algorithm_name}, {"algorithm_type", &Hello::algorithm_type},
                                          {"library", &Hello::library}, {"relay", &Hello::relay}})
            out.*field = fields.text(name);
        for (const auto& [name, field] : {std::pair{"incarnation", &Hello::incarnation}, {"first_seq", &Hello::first_seq},
                                          {"origin", &Hello::origin}, {"journal_id", &Hello::journal_id}})
            out.*field = fields.integer(name);
        for (const auto& [name, field] : {std::pair{"weights", &Hello::weights}, {"observation_space", &Hello::observation_space},
                                          {"action_space", &Hello::action_space},
                                          {"algorithm_parameters", &Hello::algorithm_parameters}})
            out.*field = fields.map(name);
        const wire::Value* const submits = header.find("submits");
        out.submits = !submits || std::get<bool>(submits->data);
        return out;
    }

    static wire::Frames frames_of(const wire::Value& list) {
        wire::Frames out;
        for (const wire::Value& frame : std::get<wire::List>(list.data)) out.push_back(std::get<wire::Bytes>(frame.data).data);
        return out;
    }

    // A row has the fields of a packed segment, in their order.
    static wire::SharedSegment segment_of(const wire::List& row) {
        auto out = std::make_shared<wire::PackedSegment>();
        out->layout = std::get<std::string>(row.at(0).data);
        std::get<wire::Bytes>(row.at(1).data).data.copy(out->head.data(), wire::kHeadBytes);
        for (const std::string_view part : frames_of(row.at(2))) out->small.emplace_back(part);
        for (const std::string_view part : frames_of(row.at(3))) out->large.emplace_back(part);
        for (const wire::Value& hash : std::get<wire::List>(row.at(4).data)) out->hashes.push_back(count_of(hash));
        out->steps = static_cast<std::uint32_t>(count_of(row.at(5)));
        out->generation = count_of(row.at(6));
        out->oldest_version = count_of(row.at(7));
        out->bytes = count_of(row.at(8));
        return out;
    }

    static wire::List row_of(const Send& action) {
        wire::List frames{wire::Bytes{action.message.first}};
        for (const auto& frame : action.message.body) frames.emplace_back(wire::Bytes{*frame});
        return {"send", std::move(frames)};
    }
    static wire::List row_of(const Joined&) { return {"joined"}; }
    static wire::List row_of(const RefusedForGood& action) { return {"refused", name_of(action.code), action.field, action.reason}; }
    static wire::List row_of(const RefusedForNow& action) { return {"refused_for_now", name_of(action.code), action.field, action.reason}; }
    static wire::List row_of(const Reconnect& action) { return {"reconnect", action.silence_s}; }
    static wire::List row_of(const StreamRestarted& action) { return {"restarted", action.in_doubt}; }
    static wire::List row_of(const ReplaceSockets& action) { return {"replace_sockets", action.incarnation}; }

    static wire::List rows(const Actions& actions) {
        wire::List out;
        for (const Action& action : actions) out.emplace_back(std::visit([](const auto& one) { return row_of(one); }, action));
        return out;
    }

    Counters counters_;
    support::Random random_;
    ActorSession session_;
};

}  // namespace rl4sys::delivery
