/* The C interface of the client: an actor, which acts with the learner's newest policy and sends the steps to the learner.
   No function throws or ends the process. Each returns a code: RL4SYS_OK, or why it failed. */
#ifndef RL4SYS_H
#define RL4SYS_H

#include <stddef.h>
#include <stdint.h>

#define RL4SYS_C_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rl4sys_code {
    RL4SYS_OK = 0,
    RL4SYS_CONFIG = 1,      /* the configuration or an argument is invalid */
    RL4SYS_UNAVAILABLE = 2, /* the learner did not answer in time */
    RL4SYS_REFUSED = 3,     /* the learner refuses this actor */
    RL4SYS_OBSERVATION = 4, /* an observation is invalid */
    RL4SYS_MASK = 5,        /* a mask is invalid */
    RL4SYS_ACTION = 6,      /* an action or a trajectory cannot be used here */
    RL4SYS_REWARD = 7,      /* a reward is invalid or comes too late */
    RL4SYS_STALE = 8,       /* the policy is too old, with on_stale: raise */
    RL4SYS_CLOSED = 9,      /* the agent is closed */
    RL4SYS_BUFFER = 10,     /* the caller's buffer is too small */
    RL4SYS_INTERNAL = 11    /* an unexpected error, such as no memory */
} rl4sys_code;

typedef struct rl4sys_agent rl4sys_agent;
typedef struct rl4sys_trajectory rl4sys_trajectory;
/* One requested action. It can be requested again, which allocates nothing. */
typedef struct rl4sys_step rl4sys_step;

/* The host's fallback function: writes `action_size` elements of an action, one for a discrete one, and returns 0. `mask` is
   null if all actions are allowed. After any other result, the idle action is taken and counted. */
typedef int (*rl4sys_baseline)(void* user, const float* observation, size_t observation_size, const float* mask, size_t mask_size,
                               float* action, size_t action_size);

/* Opens an agent from a JSON file or from JSON text, and waits for a policy. `*out` is null after a failure. */
RL4SYS_C_API int rl4sys_open_file(const char* path, rl4sys_baseline baseline, void* user, rl4sys_agent** out);
RL4SYS_C_API int rl4sys_open_json(const char* text, rl4sys_baseline baseline, void* user, rl4sys_agent** out);
/* Sends the finished segments for at most `timeout_s` seconds and frees the agent. Null is allowed. */
RL4SYS_C_API int rl4sys_close(rl4sys_agent* agent, double timeout_s);

/* A trajectory runs one episode after the other. One thread at a time uses it and its steps. */
RL4SYS_C_API int rl4sys_trajectory_new(rl4sys_trajectory** out);
RL4SYS_C_API void rl4sys_trajectory_free(rl4sys_trajectory* trajectory);
RL4SYS_C_API int rl4sys_step_new(rl4sys_step** out);
RL4SYS_C_API void rl4sys_step_free(rl4sys_step* step);

/* Chooses an action for an observation. `mask` has a byte for each discrete action, not 0 where it is allowed; null allows
   all. After the end of an episode, the next one begins. */
RL4SYS_C_API int rl4sys_request(rl4sys_agent* agent, rl4sys_trajectory* trajectory, const float* observation,
                                size_t observation_size, const uint8_t* mask, size_t mask_size, rl4sys_step* step);
/* Writes the number of a discrete action. After a failed request, returns that request's code, and writes nothing. */
RL4SYS_C_API int rl4sys_act(const rl4sys_step* step, int64_t* out);
/* Writes the elements of a continuous action, and how many it has to `*count`, which can be null. A discrete one has none. */
RL4SYS_C_API int rl4sys_act_floats(const rl4sys_step* step, float* out, size_t size, size_t* count);
/* Stores the action as the next step. */
RL4SYS_C_API int rl4sys_add(rl4sys_agent* agent, rl4sys_trajectory* trajectory, rl4sys_step* step);
/* Sets the reward, before or after the action is added. */
RL4SYS_C_API int rl4sys_reward(rl4sys_step* step, double reward);
/* Ends the episode. `step` is its last action, which is added if it was not; null for none. `truncated`: not 0 if a time limit
   or the host ended it; `final_observation` is then what came after the last action. */
RL4SYS_C_API int rl4sys_end(rl4sys_agent* agent, rl4sys_trajectory* trajectory, rl4sys_step* step, int truncated,
                            const float* final_observation, size_t observation_size);

/* Waits until the learner has stored all finished segments. */
RL4SYS_C_API int rl4sys_flush(rl4sys_agent* agent, double timeout_s);
/* The version of the current policy; -1 before the first. */
RL4SYS_C_API int64_t rl4sys_version(const rl4sys_agent* agent);
RL4SYS_C_API int rl4sys_wait_version(rl4sys_agent* agent, int64_t version, double timeout_s);
/* Writes the counters and the state as JSON text, and its length without the final 0 to `*length`. */
RL4SYS_C_API int rl4sys_stats(const rl4sys_agent* agent, char* out, size_t size, size_t* length);
/* What went wrong in the last call of this thread that failed. Valid until the thread's next call. */
RL4SYS_C_API const char* rl4sys_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
