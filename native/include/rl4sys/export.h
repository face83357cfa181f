// The mark of what the library exports.
#pragma once

#if defined(__GNUC__)
#define RL4SYS_API __attribute__((visibility("default")))
#else
#define RL4SYS_API
#endif
