// Policies: the actions, log-probabilities and random draws of the Python form.
#include "policy/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "vectors.h"
#include "weights/tensors.h"

using namespace rl4sys;
using tests::Case;

static bool near(double a, double b, double tolerance) { return a == b || std::fabs(a - b) <= tolerance * (1.0 + std::fabs(b)); }

TEST(policies_act_as_in_python) {
    std::size_t steps = 0, other_actions = 0;
    for (const Case& one : tests::read_vectors("policies")) {
        const auto spec = std::make_shared<const policy::PolicySpec>(policy::read_spec(one.map("spec")));
        auto snapshot = std::make_shared<weights::Snapshot>();
        snapshot->flat = tests::numbers_of<float>(tests::case_of(one.map("state")).bytes("flat"));
        const policy::Policy policy(spec, snapshot);
        const bool looks_up = spec->observations.discrete, discrete = spec->actions.discrete, explore = *one.header.find("explore")->get<bool>();
        const auto indices = tests::numbers_of<std::int64_t>(looks_up ? one.bytes("rows") : std::string());
        const auto rows = tests::numbers_of<float>(looks_up ? std::string() : one.bytes("rows"));
        const auto log_probs = tests::numbers_of<double>(one.bytes("log_probs"));
        const auto chosen = tests::numbers_of<std::int64_t>(discrete ? one.bytes("raws") : std::string());
        const auto raws = tests::numbers_of<float>(discrete ? std::string() : one.bytes("raws"));
        const auto acts = tests::numbers_of<double>(one.bytes("acts"));
        const std::string& masks = one.bytes("masks");
        std::vector<std::uint32_t> words;
        for (const wire::Value& word : one.list("words")) words.push_back(static_cast<std::uint32_t>(*word.get<std::int64_t>()));
        policy::Sampler sampler(words, one.number("place"));
        policy::Scratch scratch(*spec);
        std::vector<float> state(spec->state_size);
        const std::size_t width = spec->actions.size();
        tests::context = "head " + std::to_string(static_cast<int>(spec->head.kind));
        for (std::size_t t = 0; t < log_probs.size(); ++t) {
            const auto* mask = masks.empty() ? nullptr : reinterpret_cast<const std::uint8_t*>(masks.data()) + t * width;
            const policy::Choice choice = policy.act(looks_up ? nullptr : rows.data() + t * spec->features, looks_up ? indices[t] : 0, mask,
                                                     explore, state.data(), sampler, scratch);
            ++steps;
            if (discrete) {
                // A draw within rounding of a boundary can fall on its other side.
                other_actions += choice.index != chosen[t];
                if (choice.index == chosen[t]) CHECK(near(choice.log_prob, log_probs[t], 1e-5));
                if (mask) CHECK(mask[choice.index - spec->actions.start]);
            } else {
                CHECK(near(choice.log_prob, log_probs[t], 1e-4));
                for (std::size_t i = 0; i < width; ++i) {
                    CHECK(near(choice.raw[i], raws[t * width + i], 1e-4));
                    CHECK(near(choice.act[i], acts[t * width + i], 1e-4));
                    CHECK(choice.act[i] >= spec->actions.low[i] && choice.act[i] <= spec->actions.high[i]);
                }
            }
        }
    }
    CHECK(steps > 1000);
    CHECK(other_actions * 1000 <= steps);
}

// Sums in another order have other errors: at most four times those of numpy, and two units in the last place of the largest output.
TEST(outputs_are_as_exact_as_in_python) {
    for (const Case& one : tests::read_vectors("policies")) {
        const auto spec = std::make_shared<const policy::PolicySpec>(policy::read_spec(one.map("spec")));
        auto snapshot = std::make_shared<weights::Snapshot>();
        snapshot->flat = tests::numbers_of<float>(tests::case_of(one.map("state")).bytes("flat"));
        const policy::Policy policy(spec, snapshot);
        policy::Scratch scratch(*spec);
        const bool looks_up = spec->observations.discrete;
        const auto indices = tests::numbers_of<std::int64_t>(looks_up ? one.bytes("rows") : std::string());
        const auto rows = tests::numbers_of<float>(looks_up ? std::string() : one.bytes("rows"));
        const auto in_python = tests::numbers_of<float>(one.bytes("outputs"));
        const auto exact = tests::numbers_of<double>(one.bytes("exact"));
        std::vector<float> state(spec->state_size);
        double own = 0.0, theirs = 0.0, largest = 0.0;
        for (std::size_t t = 0; t * spec->outputs < exact.size(); ++t) {
            const float* found =
                policy.forward(looks_up ? nullptr : rows.data() + t * spec->features, looks_up ? indices[t] : 0, state.data(), scratch);
            for (std::size_t i = 0; i < spec->outputs; ++i) {
                const double right = exact[t * spec->outputs + i];
                own = std::max(own, std::fabs(found[i] - right));
                theirs = std::max(theirs, std::fabs(in_python[t * spec->outputs + i] - right));
                largest = std::max(largest, std::fabs(right));
            }
        }
        CHECK(own <= 4.0 * theirs + 2.0 * std::numeric_limits<float>::epsilon() * largest);
    }
}

TEST(a_weight_that_is_not_finite_gives_no_log_prob) {
    for (const Case& one : tests::read_vectors("policies")) {
        const auto spec = std::make_shared<const policy::PolicySpec>(policy::read_spec(one.map("spec")));
        auto snapshot = std::make_shared<weights::Snapshot>();
        snapshot->flat.assign(spec->weights, std::nanf(""));
        const policy::Policy policy(spec, snapshot);
        policy::Sampler sampler({1}, 0.0);
        policy::Scratch scratch(*spec);
        const std::vector<float> row(spec->features, 1.0f);
        std::vector<float> state(spec->state_size);
        CHECK(!std::isfinite(policy.act(row.data(), 0, nullptr, true, state.data(), sampler, scratch).log_prob));
    }
}
