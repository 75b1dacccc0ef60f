/* Opening the shared state, taking turns at it, and what happens in it between two calls.
 *
 * The turn is a flock on a descriptor of each thread's own: the kernel drops it when its holder
 * is killed, and it keeps threads apart as well. It stays open from call to call, because opening
 * it costs more than the rest of a call; a forked child opens its own.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TURN_FD_MIN 512 /* out of the way of who closes or reuses the small ones */
#define FOREIGN_PID 1 /* whom the records name for a writer that insists */

static struct state *mapped;
static char state_path[4096];
static char own_command[COMMAND_BYTES]; /* the records say who wrote */
static _Thread_local int turn = -1;
static pthread_key_t turns; /* closes a thread's descriptor at its end */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The parent's descriptor is one lock with the child's copy of it. */
static void forget_turn(void)
{
    if (turn >= 0)
        close(turn);
    turn = -1;
    pthread_setspecific(turns, NULL);
}

static void close_turn(void *held)
{
    (void)held;
    forget_turn();
}

static void look_after_turns(void)
{
    pthread_key_create(&turns, close_turn);
    pthread_atfork(NULL, NULL, forget_turn);
}

static int open_turn(void)
{
    int fd = open(state_path, O_RDONLY | O_CLOEXEC);
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, TURN_FD_MIN);
    if (high >= 0)
        close(fd);
    turn = high >= 0 ? high : fd;
    if (turn >= 0)
        pthread_setspecific(turns, &turn);
    return turn;
}

static void read_own_command(void)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, own_command, sizeof own_command - 1);
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < length - 1; i++)
        if (own_command[i] == '\0')
            own_command[i] = ' ';
}

int state_open(void)
{
    if (mapped != NULL)
        return 0;
    read_own_command();
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
    pthread_once(&once, look_after_turns);
    if (turn < 0 && open_turn() < 0)
        return NULL;
    while (flock(turn, LOCK_EX) != 0) {
        /* A signal came between, or somebody closed every descriptor of this process. */
        if (errno == EBADF && open_turn() < 0)
            return NULL;
    }
    return mapped;
}

void state_give(void)
{
    flock(turn, LOCK_UN);
}

uint64_t state_now_ns(const struct state *state)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec +
           (uint64_t)state->clock_skew_ns;
}

/* ---- who uses the driver ----------------------------------------------------------------- */

/* When a process was started, in ticks; 0 where it has ended. */
static uint64_t started_ticks(uint32_t pid)
{
    char path[32], line[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    line[length] = '\0';
    char *field = strrchr(line, ')'); /* the name may hold blanks and brackets */
    if (field == NULL || field[1] == '\0' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    for (int i = 2; i < 22 && field != NULL; i++) /* starttime is the 22nd, see proc(5) */
        field = strchr(field + 1, ' ');
    return field == NULL ? 0 : strtoull(field, NULL, 10);
}

void clients_bury(struct state *state)
{
    for (int i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = &state->clients[i];
        if (client->pid != 0 && started_ticks(client->pid) != client->started_ticks)
            client->pid = 0;
    }
}

int clients_enter(struct state *state, uint32_t pid)
{
    clients_bury(state);
    for (int i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = &state->clients[i];
        if (client->pid != 0)
            continue;
        client->started_ticks = started_ticks(pid);
        client->pid = pid;
        return 0;
    }
    return -1;
}

void clients_leave(struct state *state, uint32_t pid)
{
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (state->clients[i].pid == pid)
            state->clients[i].pid = 0;
}

/* ---- what others did ----------------------------------------------------------------------- */

void record_write(struct state *state, uint64_t at_ns, uint32_t pid, int gpu,
                  const char *function, uint32_t first, uint32_t second, int code, int done)
{
    struct write_record *record = &state->writes[state->writes_total % WRITES_MAX];
    memset(record, 0, sizeof *record);
    record->at_ns = record->begun_ns = at_ns;
    record->pid = pid;
    record->gpu = gpu;
    snprintf(record->function, sizeof record->function, "%s", function);
    record->arguments[0] = first;
    record->arguments[1] = second;
    record->code = code;
    record->done = (uint32_t)done;
    if (pid == (uint32_t)getpid())
        memcpy(record->command, own_command, sizeof record->command);
    state->writes_total++;
}

/* One round of the writer that insists. */
static void insist(struct state *state, uint32_t index, uint64_t at_ns)
{
    struct gpu_state *gpu = &state->gpus[index];
    struct foreign_writer *writer = &gpu->foreign;
    uint32_t low_mhz = gpu->clocks_mhz[0];
    physics_advance(gpu, at_ns);
    if (writer->clock_mhz != 0 && gpu->lock.max_mhz != writer->clock_mhz && writer->times != 0) {
        physics_lock(gpu, (struct clock_lock){low_mhz, writer->clock_mhz}, at_ns);
        record_write(state, at_ns, FOREIGN_PID, (int)index, "nvmlDeviceSetGpuLockedClocks",
                     low_mhz, writer->clock_mhz, 0, 1);
        writer->times -= writer->times > 0;
    }
    if (writer->limit_mw != 0 && gpu->limit_mw != writer->limit_mw && writer->times != 0) {
        gpu->limit_mw = writer->limit_mw;
        record_write(state, at_ns, FOREIGN_PID, (int)index, "nvmlDeviceSetPowerManagementLimit",
                     writer->limit_mw, 0, 0, 1);
        writer->times -= writer->times > 0;
    }
}

/* What the driver was asked earlier, and does now. */
static void carry_out(struct state *state, uint32_t index, struct late_write *late)
{
    static const char *const functions[] = {"", "nvmlDeviceSetGpuLockedClocks",
                                            "nvmlDeviceResetGpuLockedClocks",
                                            "nvmlDeviceSetPowerManagementLimit"};
    struct gpu_state *gpu = &state->gpus[index];
    uint32_t first = late->arguments[0], second = late->arguments[1];
    physics_advance(gpu, late->due_ns);
    if (late->kind == LATE_LIMIT)
        gpu->limit_mw = first;
    else
        physics_lock(gpu, (struct clock_lock){first, second}, late->due_ns);
    record_write(state, late->due_ns, late->pid, (int)index, functions[late->kind], first, second,
                 0, 1);
    late->due_ns = 0;
}

void fake_catch_up_gpu(struct state *state, uint32_t index, uint64_t now_ns)
{
    struct gpu_state *gpu = &state->gpus[index];
    for (int i = 0; i < LATE_MAX; i++)
        if (gpu->late[i].due_ns != 0 && gpu->late[i].due_ns <= now_ns)
            carry_out(state, index, &gpu->late[i]);
    struct foreign_writer *writer = &gpu->foreign;
    if (writer->every_ns != 0 && writer->next_ns <= now_ns) {
        /* Nobody wrote since the last call, so only the first round finds something to do. */
        insist(state, index, writer->next_ns);
        uint64_t rounds = (now_ns - writer->next_ns) / writer->every_ns + 1;
        writer->next_ns += rounds * writer->every_ns;
    }
    physics_advance(gpu, now_ns);
}

void fake_catch_up(struct state *state, uint64_t now_ns)
{
    clients_bury(state);
    for (uint32_t i = 0; i < state->gpu_count; i++)
        fake_catch_up_gpu(state, i, now_ns);
}
