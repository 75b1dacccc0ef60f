/* Events: each is delivered once to every set that had registered for its type before. */
#include "calls.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define SETS_MAX 32
#define LOOK_MS 5 /* how often a waiting client looks */

struct nvmlEventSet_st {
    atomic_int used;
    uint64_t seen;             /* events before this one are not for us */
    uint64_t types[GPUS_MAX];
    nvmlDevice_t handles[GPUS_MAX]; /* as registered: the event names them again */
};

static struct nvmlEventSet_st sets[SETS_MAX];

static int is_set(const struct nvmlEventSet_st *set)
{
    return set >= sets && set < sets + SETS_MAX && atomic_load(&set->used);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, __func__, -1);
    for (int i = 0; code == NVML_SUCCESS && i < SETS_MAX; i++) {
        int unused = 0;
        if (!atomic_compare_exchange_strong(&sets[i].used, &unused, 1))
            continue;
        memset(sets[i].types, 0, sizeof sets[i].types);
        sets[i].seen = call.state->events_total;
        *set = &sets[i];
        return call_end(&call, NVML_SUCCESS);
    }
    return call_end(&call, code ? code : NVML_ERROR_INSUFFICIENT_RESOURCES);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    if (!is_set(set))
        return NVML_ERROR_INVALID_ARGUMENT;
    atomic_store(&set->used, 0);
    return NVML_SUCCESS;
}

GETTER(nvmlDeviceGetSupportedEventTypes, uint64_t, NVML_EVENTS_SUPPORTED)

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, uint64_t types, nvmlEventSet_t set)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && !is_set(set))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS && (types & ~(uint64_t)NVML_EVENTS_SUPPORTED) != 0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS) {
        set->types[call.index] |= types;
        set->handles[call.index] = device;
    }
    return call_end(&call, code);
}

static int next_event(const struct state *state, nvmlEventSet_t set, nvmlEventData_t *data)
{
    uint64_t kept = state->events_total > EVENTS_MAX ? state->events_total - EVENTS_MAX : 0;
    for (set->seen = set->seen > kept ? set->seen : kept; set->seen < state->events_total;) {
        const struct event *event = &state->events[set->seen++ % EVENTS_MAX];
        if (event->gpu < 0 || (set->types[event->gpu] & event->type) == 0)
            continue;
        *data = (nvmlEventData_t){set->handles[event->gpu], event->type, event->data, UINT32_MAX,
                                  UINT32_MAX};
        return 1;
    }
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits in real time: what a test lets pass with `advance` is for the GPUs alone. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, uint32_t timeout_ms)
{
    struct call call;
    if (!is_set(set) || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    int64_t until_ms = now_ms() + timeout_ms;
    const char *function = __func__; /* the hooks are asked once, not at each look */
    for (;;) {
        nvmlReturn_t code = call_begin(&call, function, -1);
        int found = code == NVML_SUCCESS && next_event(call.state, set, data);
        if (code != NVML_SUCCESS || found)
            return call_end(&call, code);
        int64_t left_ms = until_ms - now_ms();
        if (left_ms <= 0)
            return call_end(&call, NVML_ERROR_TIMEOUT);
        state_give();
        function = "waiting for an event";
        sleep_ms(left_ms < LOOK_MS ? left_ms : LOOK_MS);
    }
}
