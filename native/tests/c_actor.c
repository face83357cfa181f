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

int main(int argc, char** argv) {
    rl4sys_agent* agent = NULL;
    rl4sys_trajectory* trajectory = NULL;
    rl4sys_step* step = NULL;
    char text[8192];
    size_t length = 0;
    int episode, n;
    if (argc != 2) return 2;
    /* A failure has a code and a text, and gives no agent. */
    if (rl4sys_open_json("{}", NULL, NULL, &agent) != RL4SYS_CONFIG || agent || !strstr(rl4sys_last_error(), "client_id"))
        return 3;
    if (rl4sys_open_json(NULL, NULL, NULL, &agent) != RL4SYS_CONFIG || rl4sys_flush(NULL, 1.0) != RL4SYS_CONFIG) return 4;
    MUST(rl4sys_open_json(argv[1], NULL, NULL, &agent));
    MUST(rl4sys_trajectory_new(&trajectory));
    MUST(rl4sys_step_new(&step));
    if (rl4sys_version(agent) < 0) return 5;
    for (episode = 0; episode < 5; ++episode) {
        for (n = 0; n < 4; ++n) {
            const float observation[4] = {0.1f, 0.2f, 0.3f, (float)n};
            const uint8_t mask[3] = {1, 0, 1};
            MUST(rl4sys_request(agent, trajectory, observation, 4, mask, 3, step));
            if (rl4sys_act(step) == 1 || rl4sys_act_floats(step, NULL, 0) != 0) return 6;
            MUST(rl4sys_reward(step, 1.0));
            MUST(rl4sys_add(agent, trajectory, step));
        }
        MUST(rl4sys_end(agent, trajectory, step, 0, NULL, 0));
    }
    MUST(rl4sys_flush(agent, 20.0));
    if (rl4sys_stats(agent, text, 8, &length) != RL4SYS_BUFFER || length < 8) return 7;
    MUST(rl4sys_stats(agent, text, sizeof text, &length));
    puts(text);
    rl4sys_step_free(step);
    rl4sys_trajectory_free(trajectory);
    return rl4sys_close(agent, 2.0);
}
