/* A cache server whose eviction rule an agent chooses, again for each period of 256 GETs, from the counters of the last ones.

   Usage: kv_server RULE CAPACITY, where RULE is lru, lfu, fifo, random, or the path of an agent's configuration. The server
   listens on a free port of 127.0.0.1 and prints it. Commands are lines: "GET KEY", "SET KEY VALUE", "STATS", "RESET", "STOP". */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rl4sys.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PERIOD = 256, CLIENTS = 16, WORD = 24, SAMPLES = 12, RULES = 4, AGEING = 10, FEATURES = 10, BUFFER = 1 << 16 };

static const char* const rule_names[RULES] = {"lru", "lfu", "fifo", "random"};

/* ---- the cache: entries in one array, found by a hash table with chains ---- */

typedef struct {
    char key[WORD], value[WORD];
    uint64_t used_at, stored_at, uses;
    int next;
} entry;

static entry* entries;
static int *buckets, capacity, filled, bucket_count;
static uint64_t now, random_state;
static uint32_t* ghosts; /* hashes of keys that were evicted lately */
static int ghost_count;
static struct {
    double gets, hits, hot_hits, old_hits, evicted, unused, ghost_misses;
} period, total;

static uint32_t hash_of(const char* key) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *key; ++key) hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash;
}

static uint64_t next_random(void) { /* xorshift */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static int find(const char* key) {
    int at = buckets[hash_of(key) % (uint32_t)bucket_count];
    while (at >= 0 && strcmp(entries[at].key, key) != 0) at = entries[at].next;
    return at;
}

static void clear_cache(void) {
    filled = 0;
    now = 0;
    random_state = 88172645463325252u;
    memset(ghosts, 0, sizeof *ghosts * (size_t)ghost_count);
    for (int i = 0; i < bucket_count; ++i) buckets[i] = -1;
    memset(&period, 0, sizeof period);
    memset(&total, 0, sizeof total);
}

/* The worst of some random entries by the rule, as Redis chooses. */
static int victim(int rule) {
    int worst = (int)(next_random() % (uint64_t)filled);
    for (int i = 1; i < SAMPLES && rule != 3; ++i) {
        const int other = (int)(next_random() % (uint64_t)filled);
        const entry *a = &entries[other], *b = &entries[worst];
        const int fewer_uses = a->uses < b->uses || (a->uses == b->uses && a->used_at < b->used_at);
        if (rule == 0 ? a->used_at < b->used_at : rule == 1 ? fewer_uses : a->stored_at < b->stored_at) worst = other;
    }
    return worst;
}

static void evict(int at) {
    entry* gone = &entries[at];
    const uint32_t hash = hash_of(gone->key);
    int* link = &buckets[hash % (uint32_t)bucket_count];
    while (*link != at) link = &entries[*link].next;
    *link = gone->next;
    ghosts[hash % (uint32_t)ghost_count] = hash;
    period.evicted += 1;
    period.unused += gone->uses == 0;
}

static void set(const char* key, const char* value, int rule) {
    int at = find(key);
    if (at < 0) {
        if (filled < capacity) {
            at = filled++;
        } else {
            at = victim(rule);
            evict(at);
        }
        entry* fresh = &entries[at];
        int* bucket = &buckets[hash_of(key) % (uint32_t)bucket_count];
        snprintf(fresh->key, WORD, "%s", key);
        fresh->used_at = fresh->stored_at = now;
        fresh->uses = 0;
        fresh->next = *bucket;
        *bucket = at;
    }
    snprintf(entries[at].value, WORD, "%s", value);
}

static const char* get(const char* key) {
    const int at = find(key);
    ++now;
    period.gets += 1;
    if (at < 0) {
        const uint32_t hash = hash_of(key);
        period.ghost_misses += ghosts[hash % (uint32_t)ghost_count] == hash;
        return NULL;
    }
    entry* found = &entries[at];
    period.hits += 1;
    period.hot_hits += found->uses >= 4;
    period.old_hits += now - found->used_at > (uint64_t)capacity / 2;
    found->used_at = now;
    found->uses += 1;
    return found->value;
}

/* ---- the agent ---- */

static rl4sys_agent* agent;
static rl4sys_trajectory* trajectory;
static rl4sys_step* step;
static int rule, stepping;
static float observation[FEATURES];

static void must(int code, const char* what) {
    if (code == RL4SYS_OK) return;
    fprintf(stderr, "%s: %s\n", what, rl4sys_last_error());
    exit(1);
}

static void observe(void) {
    const double shares[][2] = {
        {period.hits, period.gets},    {period.hot_hits, period.hits},  {period.old_hits, period.hits},
        {period.evicted, period.gets}, {period.unused, period.evicted}, {period.ghost_misses, period.gets},
    };
    for (int i = 0; i < 6; ++i) observation[i] = (float)(2 * shares[i][0] / (shares[i][1] > 0 ? shares[i][1] : 1) - 1);
    for (int i = 0; i < RULES; ++i) observation[6 + i] = i == rule;
}

static void next_step(void) {
    int64_t chosen;
    if (!agent) return;
    if (stepping) {
        must(rl4sys_reward(step, period.hits / period.gets), "reward");
        must(rl4sys_add(agent, trajectory, step), "add");
    }
    observe();
    must(rl4sys_request(agent, trajectory, observation, FEATURES, NULL, 0, step), "request");
    must(rl4sys_act(step, &chosen), "act");
    rule = (int)chosen;
    stepping = 1;
}

static void end_period(void) {
    static int age;
    next_step();
    if (++age % AGEING == 0) /* what was used often long ago counts less */
        for (int i = 0; i < filled; ++i) entries[i].uses /= 2;
    total.gets += period.gets;
    total.hits += period.hits;
    memset(&period, 0, sizeof period);
}

/* A new trace: the episode ends at a time limit, in the middle of a period, whose step is not added. */
static void reset(void) {
    if (stepping) must(rl4sys_end(agent, trajectory, NULL, 1, observation, FEATURES), "end");
    stepping = 0;
    clear_cache();
    observe();
    next_step();
}

/* ---- the server ---- */

static int stopped;

static void answer(char* line, FILE* out) {
    char *save = NULL, *word = strtok_r(line, " ", &save), *key = strtok_r(NULL, " ", &save), *value = strtok_r(NULL, " ", &save);
    if (word && !strcmp(word, "GET") && key) {
        const char* found = get(key);
        if (found)
            fprintf(out, "HIT %s\n", found);
        else
            fputs("MISS\n", out);
        if (period.gets == PERIOD) end_period();
    } else if (word && !strcmp(word, "SET") && key && value) {
        set(key, value, rule);
        fputs("OK\n", out);
    } else if (word && !strcmp(word, "STATS")) {
        fprintf(out, "%.0f %.0f %s\n", total.hits, total.gets, rule_names[rule]);
    } else if (word && !strcmp(word, "RESET")) {
        reset();
        fputs("OK\n", out);
    } else if (word && !strcmp(word, "STOP")) {
        stopped = 1;
        fputs("OK\n", out);
    } else {
        fputs("ERROR unknown command\n", out);
    }
}

typedef struct {
    FILE* out;
    size_t size;
    char text[BUFFER];
} client;

/* Answers the whole lines that have arrived. Returns 0 if the client has gone. */
static int serve(int fd, client* from) {
    const ssize_t got = read(fd, from->text + from->size, BUFFER - from->size);
    if (got <= 0) return got < 0 && errno == EINTR;
    from->size += (size_t)got;
    char *start = from->text, *end;
    while ((end = memchr(start, '\n', (size_t)(from->text + from->size - start))) != NULL) {
        *end = 0;
        answer(start, from->out);
        start = end + 1;
    }
    from->size -= (size_t)(start - from->text);
    memmove(from->text, start, from->size);
    return from->size < BUFFER && fflush(from->out) == 0;
}

static void listen_and_serve(void) {
    static client clients[CLIENTS];
    struct pollfd polled[1 + CLIENTS];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int count = 1;
    polled[0] = (struct pollfd){socket(AF_INET, SOCK_STREAM, 0), POLLIN, 0};
    if (bind(polled[0].fd, (struct sockaddr*)&address, size) || listen(polled[0].fd, CLIENTS) ||
        getsockname(polled[0].fd, (struct sockaddr*)&address, &size)) {
        perror("kv_server");
        exit(1);
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (!stopped) {
        if (poll(polled, (nfds_t)count, -1) < 0 && errno != EINTR) break;
        for (int i = count - 1; i > 0; --i) {
            if (!polled[i].revents || serve(polled[i].fd, &clients[i - 1])) continue;
            fclose(clients[i - 1].out);
            --count;
            polled[i] = polled[count];
            clients[i - 1] = clients[count - 1];
        }
        if (polled[0].revents && count <= CLIENTS) {
            const int fd = accept(polled[0].fd, NULL, NULL);
            if (fd < 0) continue;
            clients[count - 1].out = fdopen(fd, "r+");
            clients[count - 1].size = 0;
            polled[count++] = (struct pollfd){fd, POLLIN, 0};
        }
    }
    for (int i = 1; i < count; ++i) fclose(clients[i - 1].out);
    close(polled[0].fd);
}

int main(int argc, char** argv) {
    if (argc != 3 || (capacity = atoi(argv[2])) <= 0) return fprintf(stderr, "usage: kv_server RULE|CONFIG.json CAPACITY\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    bucket_count = ghost_count = 2 * capacity + 1;
    entries = calloc((size_t)capacity, sizeof *entries);
    buckets = calloc((size_t)bucket_count, sizeof *buckets);
    ghosts = calloc((size_t)ghost_count, sizeof *ghosts);
    if (!entries || !buckets || !ghosts) return 1;
    while (rule < RULES && strcmp(argv[1], rule_names[rule]) != 0) ++rule;
    if (rule == RULES) {
        rule = 0;
        must(rl4sys_open_file(argv[1], NULL, NULL, &agent), "open");
        must(rl4sys_trajectory_new(&trajectory), "trajectory");
        must(rl4sys_step_new(&step), "step");
    }
    clear_cache();
    next_step();
    listen_and_serve();
    if (agent) {
        reset();
        rl4sys_flush(agent, 5.0);
        rl4sys_step_free(step);
        rl4sys_trajectory_free(trajectory);
        must(rl4sys_close(agent, 2.0), "close");
    }
    free(ghosts);
    free(buckets);
    free(entries);
    return 0;
}
