/* Each call takes the state, asks the fault hooks, brings the GPU up to date and answers. */
#include "calls.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SESSIONS 64 /* how many openings a process makes before an old handle looks new again */
#define HANG_LOOK_MS 10

struct nvmlDevice_st {
    uint32_t index;
    uint32_t attached; /* the GPU's count of returns when this handle was last looked up */
};

static struct nvmlDevice_st devices[SESSIONS][GPUS_MAX];
static atomic_int users;
static atomic_uint session; /* which row of `devices` is valid */
static uint32_t session_load;     /* the driver load that this session was opened under */
static uint32_t library_version;  /* the driver version that this library fits; 0: not asked */

void sleep_ms(int64_t delay_ms)
{
    struct timespec left = {delay_ms / 1000, (delay_ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0) {
        /* interrupted by a signal: sleep the rest */
    }
}

int is_alive(uint32_t pid) { return kill((pid_t)pid, 0) == 0 || errno != ESRCH; }

/* ---- fault hooks ------------------------------------------------------------------------- */

/* splitmix64: a seeded generator of its own for each hook, so that a run can be repeated */
static double draw(uint64_t *random)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0; /* 2^53 */
}

static struct hook *hook_for(struct state *state, const char *function, int gpu)
{
    for (int i = 0; i < HOOKS_MAX; i++) {
        struct hook *hook = &state->hooks[i];
        int named = strcmp(hook->function, function) == 0 || strcmp(hook->function, "*") == 0;
        if (!named || (hook->gpu >= 0 && hook->gpu != gpu) || hook->count == 0)
            continue;
        if (hook->skip > 0) {
            hook->skip--;
            continue;
        }
        if (hook->probability < 1.0 && draw(&hook->random) >= hook->probability)
            continue;
        if (hook->count > 0)
            hook->count--;
        hook->hits++;
        return hook;
    }
    return NULL;
}

static int is_in_force(const struct state *state, uint64_t id)
{
    for (int i = 0; i < HOOKS_MAX; i++)
        if (state->hooks[i].id == id && state->hooks[i].function[0] != '\0')
            return 1;
    return 0;
}

/* Stands still as a hook says, without the state, so that nobody else does. */
static void stand(struct call *call, int64_t delay_ms, uint64_t id)
{
    if (delay_ms >= 0) {
        state_give();
        sleep_ms(delay_ms);
        call->state = state_take();
        return;
    }
    while (call->state != NULL && is_in_force(call->state, id)) {
        state_give();
        sleep_ms(HANG_LOOK_MS);
        call->state = state_take();
    }
}

nvmlReturn_t part_code(struct call *call, const char *part)
{
    const struct hook *hook = hook_for(call->state, part, call->index);
    return hook == NULL ? NVML_SUCCESS : hook->code;
}

/* ---- how a call begins and ends ---------------------------------------------------------- */

/* Takes the state and does what the hooks say; whether there is a driver is not asked yet. */
static nvmlReturn_t enter(struct call *call, const char *function, int gpu)
{
    memset(call, 0, sizeof *call);
    call->function = function;
    call->index = gpu;
    call->state = state_take();
    if (call->state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t code = NVML_SUCCESS;
    call->begun_ns = state_now_ns(call->state);
    const struct hook *hook = hook_for(call->state, function, gpu);
    if (hook != NULL) {
        code = hook->code;
        if (hook->late_ms >= 0 || hook->lies)
            call->rule = *hook; /* it stands once it is known what was asked */
        else if (hook->delay_ms != 0)
            stand(call, hook->delay_ms, hook->id);
        if (call->state == NULL)
            return NVML_ERROR_UNINITIALIZED;
    }
    call->now_ns = state_now_ns(call->state);
    return code;
}

static nvmlReturn_t begin(struct call *call, const char *function, int gpu)
{
    nvmlReturn_t code = enter(call, function, gpu);
    if (code != NVML_SUCCESS)
        return code;
    if (!call->state->driver_loaded)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (library_version == 0)
        library_version = call->state->driver_version;
    if (library_version != call->state->driver_version)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

nvmlReturn_t call_begin(struct call *call, const char *function, int gpu)
{
    if (atomic_load(&users) == 0) {
        memset(call, 0, sizeof *call);
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t code = begin(call, function, gpu);
    if (code == NVML_SUCCESS && session_load != call->state->driver_loads)
        code = NVML_ERROR_UNINITIALIZED; /* another driver than the one we opened */
    return code;
}

nvmlReturn_t call_end(struct call *call, nvmlReturn_t code)
{
    struct state *state = call->state;
    if (state == NULL)
        return code;
    struct call_record *record = &state->calls[state->calls_total % CALLS_MAX];
    record->at_ns = call->now_ns;
    record->pid = (uint32_t)getpid();
    record->gpu = call->index;
    record->code = code;
    strncpy(record->function, call->function, sizeof record->function - 1);
    state->calls_total++;
    state_give();
    return code;
}

static int index_of(const void *device)
{
    const struct nvmlDevice_st *first = &devices[0][0], *given = device;
    if (given < first || given >= first + SESSIONS * GPUS_MAX)
        return -1;
    return (int)((given - first) % GPUS_MAX);
}

int device_index(nvmlDevice_t device) { return index_of(device); }

static int is_of_this_session(nvmlDevice_t device)
{
    uint32_t row = atomic_load(&session) % SESSIONS;
    return device >= &devices[row][0] && device < &devices[row][0] + GPUS_MAX;
}

nvmlReturn_t device_begin(struct call *call, const char *function, nvmlDevice_t device)
{
    int index = index_of(device);
    nvmlReturn_t code = call_begin(call, function, index);
    if (code != NVML_SUCCESS)
        return code;
    if (index < 0 || index >= (int)call->state->gpu_count || !is_of_this_session(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    call->gpu = &call->state->gpus[index];
    if (call->gpu->lost || device->attached != call->gpu->attached)
        return NVML_ERROR_GPU_IS_LOST;
    fake_catch_up_gpu(call->state, (uint32_t)index, call->now_ns);
    call->motion = physics_motion(call->gpu);
    return NVML_SUCCESS;
}

nvmlDevice_t handle_of(struct call *call, uint32_t index)
{
    struct nvmlDevice_st *device = &devices[atomic_load(&session) % SESSIONS][index];
    device->index = index;
    device->attached = call->state->gpus[index].attached;
    return device;
}

static int has_sys_admin(void)
{
    unsigned long long effective = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "re");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "CapEff: %llx", &effective) == 1)
            break;
    if (status != NULL)
        fclose(status);
    return (effective >> 21) & 1; /* CAP_SYS_ADMIN */
}

nvmlReturn_t write_begin(struct call *call, const char *function, nvmlDevice_t device)
{
    nvmlReturn_t code = device_begin(call, function, device);
    if (code != NVML_SUCCESS)
        return code;
    uint32_t permission = call->state->permission;
    int refused = permission == 1 || (permission == 2 && !has_sys_admin());
    return refused ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

nvmlReturn_t write_end(struct call *call, uint32_t first, uint32_t second, nvmlReturn_t code)
{
    if (call->state != NULL && !call->recorded) {
        struct state *state = call->state;
        record_write(state, call->now_ns, (uint32_t)getpid(), call->index, call->function, first,
                     second, code, code == NVML_SUCCESS);
        state->writes[(state->writes_total - 1) % WRITES_MAX].begun_ns = call->begun_ns;
    }
    return call_end(call, code);
}

int diverted(struct call *call, uint32_t kind, uint32_t first, uint32_t second)
{
    const struct hook *rule = &call->rule;
    if (rule->id == 0)
        return 0;
    for (int i = 0; rule->late_ms >= 0 && i < LATE_MAX; i++) {
        struct late_write *late = &call->gpu->late[i];
        if (late->due_ns != 0)
            continue;
        *late = (struct late_write){call->now_ns + (uint64_t)rule->late_ms * 1000000,
                                    (uint32_t)getpid(), kind, {first, second}};
        break;
    }
    record_write(call->state, call->now_ns, (uint32_t)getpid(), call->index, call->function, first,
                 second, NVML_SUCCESS, 0);
    call->recorded = 1;
    if (rule->delay_ms != 0)
        stand(call, rule->delay_ms, rule->id);
    return 1;
}

nvmlReturn_t put_text(struct call *call, char *buffer, uint32_t length, const char *text)
{
    if (buffer == NULL)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    if (strlen(text) + 1 > length)
        return call_end(call, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(buffer, text);
    return call_end(call, NVML_SUCCESS);
}

nvmlReturn_t stub_answer(const char *function, const void *first)
{
    struct call call;
    nvmlReturn_t code = index_of(first) < 0 ? call_begin(&call, function, -1)
                                            : device_begin(&call, function, (nvmlDevice_t)first);
    return call_end(&call, code == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : code);
}

/* ---- sessions: from the first init to the last shutdown ----------------------------------- */

nvmlReturn_t session_enter(const char *function)
{
    struct call call;
    if (state_open() != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    nvmlReturn_t code = begin(&call, function, -1);
    if (code == NVML_SUCCESS && atomic_load(&users) == 0) {
        if (clients_enter(call.state, (uint32_t)getpid()) != 0)
            return call_end(&call, NVML_ERROR_INSUFFICIENT_RESOURCES);
        session_load = call.state->driver_loads;
        atomic_fetch_add(&session, 1);
        call.state->sessions++;
    }
    if (code == NVML_SUCCESS)
        atomic_fetch_add(&users, 1);
    return call_end(&call, code);
}

/* Leaving works whatever became of the driver. */
nvmlReturn_t session_leave(const char *function)
{
    struct call call;
    nvmlReturn_t code = enter(&call, function, -1);
    if (code == NVML_SUCCESS && atomic_load(&users) == 0)
        code = NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS && atomic_fetch_sub(&users, 1) == 1)
        clients_leave(call.state, (uint32_t)getpid());
    return call_end(&call, code);
}
