// CartPole in C++: the program acts and records, a learner trains. Usage: cartpole CONFIG.json [STEPS]
#include <rl4sys/rl4sys_agent.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

using namespace rl4sys::cppclient;

int main(int argc, char** argv) {
    if (argc < 2) return std::fprintf(stderr, "usage: cartpole CONFIG.json [STEPS]\n"), 2;
    const long steps = argc > 2 ? std::atol(argv[2]) : 200'000;
    RL4SysAgent agent(argv[1]);
    std::mt19937 random(7);
    std::uniform_real_distribution<float> start(-0.05f, 0.05f);
    std::shared_ptr<RL4SysTrajectory> trajectory;
    RL4SysAction action;
    float state[4], mean = 0.0f;  // position, velocity, angle, angular velocity
    int length = 0;
    for (float& x : state) x = start(random);
    for (long step = 0; step < steps; ++step) {
        agent.requestForAction(trajectory, action, state, 4);
        const float force = action.act() ? 10.0f : -10.0f, cosine = std::cos(state[2]), sine = std::sin(state[2]);
        const float push = (force + 0.05f * state[3] * state[3] * sine) / 1.1f;
        const float turn = (9.8f * sine - cosine * push) / (0.5f * (4.0f / 3.0f - 0.1f * cosine * cosine / 1.1f));
        const float change[4] = {state[1], push - 0.05f * turn * cosine / 1.1f, state[3], turn};
        for (int i = 0; i < 4; ++i) state[i] += 0.02f * change[i];
        agent.updateActionReward(action, 1.0);
        agent.addToTrajectory(trajectory, action);
        const bool fell = std::fabs(state[0]) > 2.4f || std::fabs(state[2]) > 0.2095f;
        if (++length < 500 && !fell) continue;
        agent.markEndOfTrajectory(trajectory, action, !fell, {state, state + 4});
        mean += 0.02f * (static_cast<float>(length) - mean);
        length = 0;
        for (float& x : state) x = start(random);
    }
    std::printf("mean length %.0f, version %d, delivered: %s\n", static_cast<double>(mean), agent.getCurrentModelVersion(),
                agent.flushTrajectories() ? "all" : agent.getLastError().c_str());
}
