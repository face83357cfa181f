/* A client that plays a trace of GETs, and SETs what was missing. Usage: kv_load PORT SEED PHASES.

   The phases of a trace are of two kinds, in random order. In the first, popular keys with a Zipf distribution are mixed with
   scans over keys that never come again: an entry that was used often is worth keeping. In the second, all requests go to a
   working set that moves: what was used often is worth nothing once the set has moved on. Prints the hit rate of each kind. */
#include <arpa/inet.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PHASE = 256 * 40, BATCH = 16, POPULAR = 400, WORKING = 700, STAY = 1500 };

static uint64_t state;
static double sums[POPULAR];

static double uniform(void) { /* splitmix64 */
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int zipf(void) {
    const double x = uniform() * sums[POPULAR - 1];
    int low = 0, high = POPULAR - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (sums[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static unsigned long scanned, moved;
static int scanning;

static void next_key(int kind, int at, char* out) {
    if (kind == 0) {
        if (!scanning && uniform() < 0.01) scanning = 400;
        if (scanning > 0 && uniform() < 0.7) {
            --scanning;
            sprintf(out, "s%lu", scanned++);
        } else {
            sprintf(out, "p%d", zipf());
        }
    } else {
        if (at % STAY == 0) ++moved;
        sprintf(out, "w%lu", moved * (WORKING / 2) + (unsigned long)(uniform() * WORKING));
    }
}

static FILE *in, *out;

static void expect(char* line, int size) {
    if (fflush(out) || !fgets(line, size, in)) {
        fputs("kv_load: the server has gone\n", stderr);
        exit(1);
    }
}

int main(int argc, char** argv) {
    if (argc != 4) return fprintf(stderr, "usage: kv_load PORT SEED PHASES\n"), 2;
    const uint16_t port = htons((uint16_t)atoi(argv[1]));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address)) return perror("kv_load"), 1;
    in = fdopen(fd, "r");
    out = fdopen(dup(fd), "w");
    state = strtoull(argv[2], NULL, 10);
    for (int i = 0; i < POPULAR; ++i) sums[i] = (i ? sums[i - 1] : 0.0) + 1.0 / pow(i + 1, 0.3);
    char line[128], keys[BATCH][32];
    double hits[2] = {0, 0}, gets[2] = {0, 0};
    fputs("RESET\n", out);
    expect(line, sizeof line);
    for (int phase = 0; phase < atoi(argv[3]); ++phase) {
        const int kind = uniform() < 0.5;
        for (int at = 0; at < PHASE; at += BATCH) {
            int missing = 0;
            for (int i = 0; i < BATCH; ++i) {
                next_key(kind, at + i, keys[i]);
                fprintf(out, "GET %s\n", keys[i]);
            }
            for (int i = 0; i < BATCH; ++i) {
                expect(line, sizeof line);
                if (line[0] == 'H')
                    hits[kind] += 1;
                else
                    memmove(keys[missing++], keys[i], sizeof keys[i]);
            }
            gets[kind] += BATCH;
            for (int i = 0; i < missing; ++i) fprintf(out, "SET %s v%s\n", keys[i], keys[i]);
            for (int i = 0; i < missing; ++i) expect(line, sizeof line);
        }
    }
    printf("%.4f", (hits[0] + hits[1]) / (gets[0] + gets[1]));
    for (int kind = 0; kind < 2; ++kind) printf(" %.4f", hits[kind] / (gets[kind] > 0 ? gets[kind] : 1));
    puts("");
    fclose(in);
    return fclose(out) != 0;
}
