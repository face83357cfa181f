/* A C program that only sees the installed header and library. */
#include <rl4sys.h>
#include <string.h>

int main(void) {
    rl4sys_agent* agent = NULL;
    if (rl4sys_open_json("{}", NULL, NULL, &agent) != RL4SYS_CONFIG || agent) return 1;
    return strstr(rl4sys_last_error(), "client_id") ? 0 : 2;
}
