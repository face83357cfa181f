// A small lunar lander with the command line of RL4Sys's C++ example, for its programs' first steps here:
//   lander [--config FILE] [--episodes N] [--max-steps N] [--seed N] [--debug]
#include <rl4sys/rl4sys_agent.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

using namespace rl4sys::cppclient;

// A body above a pad at the origin. The observation: position, velocity, angle and spin, and whether each leg has contact.
class Lander {
public:
    explicit Lander(unsigned seed) : random_(seed) {}

    const std::vector<float>& reset() {
        std::uniform_real_distribution<float> side(-0.5f, 0.5f), push(-0.2f, 0.2f);
        state_ = {side(random_), 1.4f, push(random_), push(random_), push(random_), push(random_), 0.0f, 0.0f};
        potential_ = potential();
        return state_;
    }

    // The actions: nothing, the left engine, the main engine, the right engine. Returns the reward, and sets `over` at the end.
    float step(std::int64_t action, bool& over) {
        constexpr float kStep = 0.05f, kGravity = 0.4f, kMain = 1.0f, kSide = 1.2f;
        float &x = state_[0], &y = state_[1], &speed_x = state_[2], &speed_y = state_[3], &angle = state_[4], &spin = state_[5];
        const float thrust = action == 2 ? kMain : 0.0f, turn = action == 1 ? kSide : action == 3 ? -kSide : 0.0f;
        speed_x -= kStep * thrust * std::sin(angle);
        speed_y += kStep * (thrust * std::cos(angle) - kGravity);
        spin += kStep * turn;
        x += kStep * speed_x;
        y += kStep * speed_y;
        angle += kStep * spin;
        const bool ground = y <= 0.0f, lost = std::fabs(x) > 1.5f || y > 2.5f || std::fabs(angle) > 1.6f;
        state_[6] = ground && angle >= -0.1f;
        state_[7] = ground && angle <= 0.1f;
        const float before = potential_;
        potential_ = potential();
        over = ground || lost;
        landed_ = ground && !lost && std::fabs(x) < 0.4f && std::hypot(speed_x, speed_y) < 0.4f && std::fabs(angle) < 0.3f;
        const float fuel = action == 2 ? 0.1f : action ? 0.02f : 0.0f;
        return potential_ - before - fuel + (!over ? 0.0f : landed_ ? 100.0f : -100.0f);
    }

    const std::vector<float>& observation() const { return state_; }
    bool landed() const { return landed_; }

private:
    // Differences of a potential do not change which policy is best (Ng, Harada and Russell, 1999).
    float potential() const {
        return -50.0f * std::hypot(state_[0], state_[1]) - 50.0f * std::hypot(state_[2], state_[3]) - 50.0f * std::fabs(state_[4]);
    }

    std::mt19937 random_;
    std::vector<float> state_;
    float potential_ = 0.0f;
    bool landed_ = false;
};

int main(int argc, char** argv) {
    std::string config = "lander.json";
    int episodes = 1000, max_steps = 400, seed = 42;
    bool debug = false;
    for (int i = 1; i < argc; ++i) {
        const bool value = i + 1 < argc;
        if (value && !std::strcmp(argv[i], "--config")) config = argv[++i];
        else if (value && !std::strcmp(argv[i], "--episodes")) episodes = std::stoi(argv[++i]);
        else if (value && !std::strcmp(argv[i], "--max-steps")) max_steps = std::stoi(argv[++i]);
        else if (value && !std::strcmp(argv[i], "--seed")) seed = std::stoi(argv[++i]);
        else if (!std::strcmp(argv[i], "--debug")) debug = true;
        else return std::fprintf(stderr, "usage: lander [--config FILE] [--episodes N] [--max-steps N] [--seed N] [--debug]\n"), 2;
    }
    RL4SysAgent agent(config, debug);
    Lander lander(static_cast<unsigned>(seed));
    float mean = 0.0f, landings = 0.0f;  // moving averages
    for (int episode = 1; episode <= episodes; ++episode) {
        std::vector<float> observation = lander.reset();
        std::shared_ptr<RL4SysTrajectory> trajectory;
        float sum = 0.0f;
        bool over = false;
        for (int step = 1; !over; ++step) {
            auto found = agent.requestForAction(trajectory, observation);
            if (!found) return std::fprintf(stderr, "%s\n", agent.getLastError().c_str()), 1;
            auto& [current, action] = *found;
            trajectory = current;
            const float reward = lander.step(action.act(), over);
            observation = lander.observation();
            sum += reward;
            agent.updateActionReward(action, reward);
            agent.addToTrajectory(trajectory, action);
            if (!over && step < max_steps) continue;
            agent.markEndOfTrajectory(trajectory, action, !over, observation);
            break;
        }
        const float weight = std::max(0.01f, 1.0f / static_cast<float>(episode));
        mean += weight * (sum - mean);
        landings += weight * ((over && lander.landed() ? 1.0f : 0.0f) - landings);
        if (episode % 100 == 0 || episode == episodes)
            std::printf("episode %d: mean return %.0f, landed %.0f %%, version %d\n", episode, static_cast<double>(mean),
                        100.0 * static_cast<double>(landings), agent.getCurrentModelVersion());
    }
    std::printf("delivered: %s\n", agent.flushTrajectories() ? "all" : agent.getLastError().c_str());
}
