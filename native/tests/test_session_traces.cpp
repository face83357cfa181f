// Recorded sessions of the simulator: each call gives the actions, deadlines and numbers that the session in Python gave.
#include "check.h"
#include "extension/session_calls.h"
#include "vectors.h"

using namespace rl4sys;

template <class T>
static std::string packed(T value) {
    std::string out;
    wire::pack(out, wire::Value(std::move(value)));
    return out;
}

TEST(recorded_sessions_replay) {
    std::size_t count = 0;
    for (const tests::Case& one : tests::read_vectors("sessions")) {
        delivery::SessionCalls session(one.map("hello"), one.integer("seed"), nullptr);
        for (const tests::Case& call : tests::cases_of(one.list("calls"))) {
            tests::context = call.text("name") + ", call " + std::to_string(count++);
            if (!CHECK(packed(session.call(call.text("name"), call.list("arguments"))) == packed(call.list("rows")))) break;
            if (!CHECK(packed(session.look()) == packed(call.map("seen")))) break;
        }
    }
    CHECK(count > 1000);
}
