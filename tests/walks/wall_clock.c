/* Preloaded: shifts the wall clock of one process by what a mapped file says, in nanoseconds.
 *
 * For a keeper, which has one thread and waits by the monotonic clock alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift_ns;

__attribute__((constructor)) static void map_shift(void)
{
    const char *path = getenv("JOULECUT_WALL_CLOCK");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift_ns, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    shift_ns = found == MAP_FAILED ? NULL : found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (code == 0 && clock == CLOCK_REALTIME && shift_ns != NULL) {
        int64_t ns = now->tv_nsec + *shift_ns % 1000000000;
        now->tv_sec += *shift_ns / 1000000000 + (ns < 0 ? -1 : ns >= 1000000000);
        now->tv_nsec = ns < 0 ? ns + 1000000000 : ns >= 1000000000 ? ns - 1000000000 : ns;
    }
    return code;
}
