/* Opening the shared state, and taking turns at it.
 *
 * The turn is a flock on a descriptor opened for each call: the kernel drops it when its holder
 * is killed, it keeps threads and forked children apart as well, and it costs microseconds.
 */
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct state *mapped;
static char state_path[4096];
static _Thread_local int turn = -1;

int state_open(void)
{
    if (mapped != NULL)
        return 0;
    const char *path = getenv("JOULECUT_FAKE_NVML_STATE");
    if (path == NULL || path[0] == '\0')
        path = "/tmp/joulecut-fake-nvml.state";
    if (snprintf(state_path, sizeof state_path, "%s", path) >= (int)sizeof state_path)
        return -1;
    int fd = open(state_path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    struct stat status;
    struct state *found = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size == (off_t)sizeof *found)
        found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED)
        return -1;
    if (found->magic != STATE_MAGIC || found->version != STATE_VERSION ||
        found->bytes != sizeof *found || found->gpu_count > GPUS_MAX) {
        munmap(found, sizeof *found);
        return -1;
    }
    mapped = found;
    return 0;
}

struct state *state_take(void)
{
    if (mapped == NULL)
        return NULL;
    turn = open(state_path, O_RDONLY | O_CLOEXEC);
    if (turn < 0)
        return NULL;
    while (flock(turn, LOCK_EX) != 0) {
        /* interrupted by a signal: ask again */
    }
    return mapped;
}

void state_give(void)
{
    close(turn);
    turn = -1;
}

uint64_t state_now_ns(const struct state *state)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec +
           (uint64_t)state->clock_skew_ns;
}
