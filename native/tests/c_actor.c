/* A C program that plays five episodes of four steps, and prints its statistics. Its argument is a configuration as JSON. */
#include <rl4sys.h>
#include <stdio.h>
#include <string.h>

#define MUST(call)                                                           \
    do {                                                                     \
        if ((call) != RL4SYS_OK) {                                           \
            fprintf(stderr, "line %d: %s\n", __LINE__, rl4sys_last_error()); \
            return 1;                                                        \
        }                                                                    \
    } while (0)

/* The call fails with a code and a text that has these words. */
#define FAILS(call, code, words)                                                                        \
    do {                                                                                                \
        if ((call) != (code) || !strstr(rl4sys_last_error(), (words))) {                                \
            fprintf(stderr, "line %d: not refused as expected: %s\n", __LINE__, rl4sys_last_error()); \
            return 3;                                                                                   \
        }                                                                                               \
    } while (0)

int main(int argc, char** argv) {
    rl4sys_agent* agent = NULL;
    rl4sys_trajectory* trajectory = NULL;
    rl4sys_step* step = NULL;
    const float zeros[4] = {0, 0, 0, 0};
    char text[8192];
    size_t length = 5;
    int64_t act = 7;
    int episode, n;
    if (argc != 2) return 2;
    FAILS(rl4sys_open_json("{}", NULL, NULL, &agent), RL4SYS_CONFIG, "client_id");
    FAILS(rl4sys_open_json(NULL, NULL, NULL, &agent), RL4SYS_CONFIG, "text is null");
    FAILS(rl4sys_open_file(NULL, NULL, NULL, &agent), RL4SYS_CONFIG, "path is null");
    FAILS(rl4sys_open_json("{}", NULL, NULL, NULL), RL4SYS_CONFIG, "out is null");
    FAILS(rl4sys_flush(NULL, 1.0), RL4SYS_CONFIG, "agent is null");
    if (agent) return 4; /* a failure gives no agent */
    MUST(rl4sys_open_json(argv[1], NULL, NULL, &agent));
    MUST(rl4sys_trajectory_new(&trajectory));
    MUST(rl4sys_step_new(&step));
    if (rl4sys_version(agent) < 0) return 5;

    /* Without an action, calls fail and write nothing. */
    FAILS(rl4sys_act(step, &act), RL4SYS_ACTION, "step: ");
    FAILS(rl4sys_add(agent, trajectory, step), RL4SYS_ACTION, "trajectory: no request");
    MUST(rl4sys_request(agent, trajectory, zeros, 4, NULL, 0, step));
    FAILS(rl4sys_request(agent, trajectory, zeros, 3, NULL, 0, step), RL4SYS_OBSERVATION, "3 elements; expected 4");
    FAILS(rl4sys_act(step, &act), RL4SYS_OBSERVATION, "step: ");
    FAILS(rl4sys_act_floats(step, NULL, 0, &length), RL4SYS_OBSERVATION, "step: ");
    FAILS(rl4sys_add(agent, trajectory, step), RL4SYS_OBSERVATION, "step: ");
    if (act != 7 || length != 5) return 6;
    FAILS(rl4sys_request(NULL, trajectory, zeros, 4, NULL, 0, step), RL4SYS_CONFIG, "agent is null");
    FAILS(rl4sys_request(agent, NULL, zeros, 4, NULL, 0, step), RL4SYS_CONFIG, "trajectory is null");
    FAILS(rl4sys_request(agent, trajectory, NULL, 4, NULL, 0, step), RL4SYS_CONFIG, "observation is null");
    FAILS(rl4sys_request(agent, trajectory, zeros, 4, NULL, 0, NULL), RL4SYS_CONFIG, "step is null");
    FAILS(rl4sys_reward(NULL, 1.0), RL4SYS_CONFIG, "step is null");
    FAILS(rl4sys_end(agent, NULL, NULL, 0, NULL, 0), RL4SYS_CONFIG, "trajectory is null");

    for (episode = 0; episode < 5; ++episode) {
        for (n = 0; n < 4; ++n) {
            const float observation[4] = {0.1f, 0.2f, 0.3f, (float)n};
            const uint8_t mask[3] = {1, 0, 1};
            MUST(rl4sys_request(agent, trajectory, observation, 4, mask, 3, step));
            MUST(rl4sys_act(step, &act));
            MUST(rl4sys_act_floats(step, NULL, 0, &length));
            if (act == 1 || length != 0) return 7;
            FAILS(rl4sys_act(step, NULL), RL4SYS_CONFIG, "out is null");
            MUST(rl4sys_reward(step, 1.0));
            MUST(rl4sys_add(agent, trajectory, step));
        }
        MUST(rl4sys_end(agent, trajectory, step, 0, NULL, 0));
    }
    MUST(rl4sys_flush(agent, 20.0));
    FAILS(rl4sys_stats(agent, text, 8, &length), RL4SYS_BUFFER, "size is 8");
    if (length < 8) return 8;
    FAILS(rl4sys_stats(agent, NULL, sizeof text, NULL), RL4SYS_CONFIG, "out is null");
    MUST(rl4sys_stats(agent, text, sizeof text, &length));
    puts(text);
    rl4sys_step_free(step);
    rl4sys_trajectory_free(trajectory);
    return rl4sys_close(agent, 2.0);
}
