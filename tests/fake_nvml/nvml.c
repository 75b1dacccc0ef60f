/* libnvidia-ml.so.1 without a GPU: the calls that answer from the shared state.
 *
 * Each call takes the state, asks the fault hooks, brings the GPU up to date and answers.
 * Setters are recorded whether they succeed or not, with the process that asked.
 */
#include "nvml.h"
#include "state.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

struct nvmlDevice_st {
    uint32_t index;
};

struct call {
    struct state *state; /* NULL where the state could not be taken */
    struct gpu_state *gpu;
    int index;
    uint64_t now_ns;
};

static struct nvmlDevice_st devices[GPUS_MAX];
static atomic_int users;

/* ---- how a call begins and ends -------------------------------------------------------- */

static void sleep_ms(int64_t delay_ms)
{
    if (delay_ms < 0)
        for (;;)
            pause();
    struct timespec left = {delay_ms / 1000, (delay_ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0) {
        /* interrupted by a signal: sleep the rest */
    }
}

static nvmlReturn_t hook_code(struct state *state, const char *function, int gpu, int64_t *delay_ms)
{
    for (int i = 0; i < HOOKS_MAX; i++) {
        struct hook *hook = &state->hooks[i];
        int named = strcmp(hook->function, function) == 0 || strcmp(hook->function, "*") == 0;
        if (!named || (hook->gpu >= 0 && hook->gpu != gpu))
            continue;
        if (hook->skip > 0) {
            hook->skip--;
            continue;
        }
        if (hook->count == 0)
            continue;
        if (hook->count > 0)
            hook->count--;
        *delay_ms = hook->delay_ms;
        return hook->code;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t call_begin(struct call *call, const char *function, int gpu)
{
    memset(call, 0, sizeof *call);
    call->index = gpu;
    call->state = atomic_load(&users) > 0 ? state_take() : NULL;
    if (call->state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    int64_t delay_ms = 0;
    nvmlReturn_t code = hook_code(call->state, function, gpu, &delay_ms);
    if (delay_ms != 0) { /* a slow call must not stop the others */
        state_give();
        sleep_ms(delay_ms);
        call->state = state_take();
        if (call->state == NULL)
            return NVML_ERROR_UNINITIALIZED;
    }
    call->now_ns = state_now_ns(call->state);
    return code;
}

static nvmlReturn_t call_end(struct call *call, nvmlReturn_t code)
{
    if (call->state != NULL)
        state_give();
    return code;
}

static nvmlReturn_t device_begin(struct call *call, const char *function, nvmlDevice_t device)
{
    int known = device >= devices && device < devices + GPUS_MAX;
    nvmlReturn_t code = call_begin(call, function, known ? (int)device->index : -1);
    if (code != NVML_SUCCESS)
        return code;
    if (!known || device->index >= call->state->gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    call->gpu = &call->state->gpus[device->index];
    physics_advance(call->gpu, call->now_ns);
    return NVML_SUCCESS;
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

static nvmlReturn_t write_begin(struct call *call, const char *function, nvmlDevice_t device)
{
    nvmlReturn_t code = device_begin(call, function, device);
    if (code != NVML_SUCCESS)
        return code;
    uint32_t permission = call->state->permission;
    int refused = permission == 1 || (permission == 2 && !has_sys_admin());
    return refused ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

static nvmlReturn_t write_end(struct call *call, const char *function, uint32_t first,
                              uint32_t second, nvmlReturn_t code)
{
    if (call->state != NULL) {
        struct state *state = call->state;
        struct write_record *record = &state->writes[state->writes_total % WRITES_MAX];
        memset(record, 0, sizeof *record);
        record->at_ns = call->now_ns;
        record->pid = (uint32_t)getpid();
        record->gpu = call->index;
        snprintf(record->function, sizeof record->function, "%s", function);
        record->arguments[0] = first;
        record->arguments[1] = second;
        record->code = code;
        state->writes_total++;
    }
    return call_end(call, code);
}

static nvmlReturn_t put_text(struct call *call, char *buffer, uint32_t length, const char *text)
{
    if (buffer == NULL)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    if (strlen(text) + 1 > length)
        return call_end(call, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(buffer, text);
    return call_end(call, NVML_SUCCESS);
}

/* One value of one device: everything that needs no more than an expression. */
#define GETTER(symbol, type, expression)                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, type *value)                                      \
    {                                                                                          \
        struct call call;                                                                      \
        nvmlReturn_t code = device_begin(&call, __func__, device);                             \
        if (code == NVML_SUCCESS && value == NULL)                                             \
            code = NVML_ERROR_INVALID_ARGUMENT;                                                \
        if (code == NVML_SUCCESS)                                                              \
            *value = (type)(expression);                                                       \
        return call_end(&call, code);                                                          \
    }

/* ---- library and system ---------------------------------------------------------------- */

static nvmlReturn_t initialise(const char *function)
{
    if (state_open() != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    for (uint32_t i = 0; i < GPUS_MAX; i++)
        devices[i].index = i;
    atomic_fetch_add(&users, 1);
    struct call call;
    nvmlReturn_t code = call_end(&call, call_begin(&call, function, -1));
    if (code != NVML_SUCCESS)
        atomic_fetch_sub(&users, 1);
    return code;
}

nvmlReturn_t nvmlInitWithFlags(uint32_t flags) { (void)flags; return initialise(__func__); }
nvmlReturn_t nvmlInit_v2(void) { return initialise(__func__); }
nvmlReturn_t nvmlInit(void) { return initialise(__func__); }

nvmlReturn_t nvmlShutdown(void)
{
    int left = atomic_load(&users);
    while (left > 0)
        if (atomic_compare_exchange_weak(&users, &left, left - 1))
            return NVML_SUCCESS;
    return NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, uint32_t length)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, __func__, -1);
    return code ? call_end(&call, code) : put_text(&call, text, length, "580.0.0-fake");
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, uint32_t length)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, __func__, -1);
    return code ? call_end(&call, code) : put_text(&call, text, length, "13.580.0-fake");
}

static nvmlReturn_t system_number(const char *function, int *value, int number)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, function, -1);
    if (code == NVML_SUCCESS)
        *value = number < 0 ? (int)call.state->gpu_count : number;
    return call_end(&call, code);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *v) { return system_number(__func__, v, 13000); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { return system_number(__func__, v, 13000); }
nvmlReturn_t nvmlDeviceGetCount_v2(int *count) { return system_number(__func__, count, -1); }
nvmlReturn_t nvmlDeviceGetCount(int *count) { return system_number(__func__, count, -1); }

/* ---- finding devices ------------------------------------------------------------------- */

static void bus_id(uint32_t index, char text[32])
{
    snprintf(text, 32, "00000000:%02X:00.0", 0x10 + index);
}

static nvmlReturn_t handle_at(const char *function, uint32_t index, nvmlDevice_t *device)
{
    struct call call;
    nvmlDevice_t found = index < GPUS_MAX ? &devices[index] : NULL;
    nvmlReturn_t code = device_begin(&call, function, found);
    if (code == NVML_SUCCESS)
        *device = found;
    return call_end(&call, code);
}

/* UUID, bus address and serial number never look alike, so one search serves all three. */
static nvmlReturn_t handle_named(const char *function, const char *name, nvmlDevice_t *device)
{
    struct call call;
    char bus[32];
    int found = -1;
    if (name == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct state *state = atomic_load(&users) > 0 ? state_take() : NULL;
    if (state == NULL)
        return NVML_ERROR_UNINITIALIZED;
    for (uint32_t i = 0; i < state->gpu_count; i++) {
        bus_id(i, bus);
        if (strcmp(state->gpus[i].uuid, name) == 0 || strcasecmp(bus, name) == 0 ||
            strcmp(state->gpus[i].serial, name) == 0)
            found = (int)i;
    }
    state_give();
    if (found >= 0)
        return handle_at(function, (uint32_t)found, device);
    nvmlReturn_t code = call_end(&call, call_begin(&call, function, -1));
    return code ? code : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, nvmlDevice_t *device)
{
    return handle_at(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(uint32_t index, nvmlDevice_t *device)
{
    return handle_at(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle_named(__func__, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    return handle_named(__func__, bus, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return handle_named(__func__, serial, device);
}

#define TEXT_GETTER(symbol, expression)                                                        \
    nvmlReturn_t symbol(nvmlDevice_t device, char *text, uint32_t length)                      \
    {                                                                                          \
        struct call call;                                                                      \
        nvmlReturn_t code = device_begin(&call, __func__, device);                             \
        return code ? call_end(&call, code) : put_text(&call, text, length, (expression));     \
    }

TEXT_GETTER(nvmlDeviceGetName, call.gpu->name)
TEXT_GETTER(nvmlDeviceGetUUID, call.gpu->uuid)
TEXT_GETTER(nvmlDeviceGetSerial, call.gpu->serial)
TEXT_GETTER(nvmlDeviceGetVbiosVersion, "00.00.00.00.00")
GETTER(nvmlDeviceGetIndex, uint32_t, call.index)
GETTER(nvmlDeviceGetMinorNumber, uint32_t, call.index)
GETTER(nvmlDeviceGetBrand, uint32_t, 14) /* NVML_BRAND_NVIDIA */
GETTER(nvmlDeviceGetArchitecture, uint32_t, call.gpu->architecture)
GETTER(nvmlDeviceGetComputeMode, uint32_t, 0) /* shared by all */
GETTER(nvmlDeviceGetVirtualizationMode, uint32_t, 0) /* bare metal */
GETTER(nvmlDeviceGetDisplayActive, uint32_t, 0)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS) {
        *major = (int)call.gpu->compute_major;
        *minor = (int)call.gpu->compute_minor;
    }
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS) {
        memset(info, 0, sizeof *info);
        info->bus = 0x10 + (uint32_t)call.index;
        info->pciDeviceId = 0x20b210de;
        bus_id((uint32_t)call.index, info->busId);
        memcpy(info->busIdLegacy, info->busId + 4, sizeof info->busIdLegacy - 1);
    }
    return call_end(&call, code);
}

/* ---- power and energy ------------------------------------------------------------------ */

/* GA100 and older boards show the power of the moment, later ones its average. */
static int shows_instant_power(const struct gpu_state *gpu)
{
    int ga100 = gpu->compute_major == 8 && gpu->compute_minor == 0;
    return ga100 || gpu->architecture < NVML_DEVICE_ARCH_AMPERE;
}

static double instant_mw(const struct call *call)
{
    return physics_power_w(call->gpu, call->now_ns) * 1e3;
}

static double shown_mw(const struct call *call)
{
    return shows_instant_power(call->gpu) ? instant_mw(call) : call->gpu->power_average_w * 1e3;
}

GETTER(nvmlDeviceGetPowerUsage, uint32_t, shown_mw(&call))
GETTER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, call.gpu->energy_visible_mj)
GETTER(nvmlDeviceGetPowerManagementMode, uint32_t, 1)
GETTER(nvmlDeviceGetPowerManagementLimit, uint32_t, call.gpu->limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, uint32_t, call.gpu->limit_default_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, uint32_t, physics_limit_mw(call.gpu))

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, uint32_t *min_mw,
                                                          uint32_t *max_mw)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS) {
        *min_mw = call.gpu->limit_min_mw;
        *max_mw = call.gpu->limit_max_mw;
    }
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, uint32_t limit_mw)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS &&
        (limit_mw < call.gpu->limit_min_mw || limit_mw > call.gpu->limit_max_mw))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        call.gpu->limit_mw = limit_mw;
    return write_end(&call, __func__, limit_mw, 0, code);
}

static nvmlReturn_t field_value(struct call *call, nvmlFieldValue_t *field)
{
    struct gpu_state *gpu = call->gpu;
    char name[NAME_MAX_BYTES];
    int64_t delay_ms = 0; /* a stall belongs to the call, not to one of its fields */
    snprintf(name, sizeof name, "field:%u", field->fieldId);
    nvmlReturn_t code = hook_code(call->state, name, call->index, &delay_ms);
    if (code != NVML_SUCCESS)
        return code;
    if (field->scopeId != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.ullVal = 0;
    switch (field->fieldId) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field->value.ullVal = (unsigned long long)gpu->energy_visible_mj;
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_AVERAGE:
        if (shows_instant_power(gpu))
            return NVML_ERROR_NOT_SUPPORTED;
        field->value.uiVal = (uint32_t)(gpu->power_average_w * 1e3);
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_INSTANT: field->value.uiVal = (uint32_t)instant_mw(call); break;
    case NVML_FI_DEV_POWER_MIN_LIMIT: field->value.uiVal = gpu->limit_min_mw; break;
    case NVML_FI_DEV_POWER_MAX_LIMIT: field->value.uiVal = gpu->limit_max_mw; break;
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT: field->value.uiVal = gpu->limit_default_mw; break;
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: field->value.uiVal = physics_limit_mw(gpu); break;
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: field->value.uiVal = gpu->limit_mw; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && (count <= 0 || fields == NULL))
        code = NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; code == NVML_SUCCESS && i < count; i++) {
        fields[i].timestamp = (int64_t)(call.now_ns / 1000);
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = field_value(&call, &fields[i]);
    }
    return call_end(&call, code);
}

/* ---- clocks ---------------------------------------------------------------------------- */

static nvmlReturn_t put_clocks(const uint32_t *ascending, uint32_t have, uint32_t *count,
                               uint32_t *clocks)
{
    uint32_t room = *count;
    *count = have;
    if (clocks == NULL || room < have)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++)
        clocks[i] = ascending[have - 1 - i]; /* drivers list the highest first */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, uint32_t *count,
                                                uint32_t *clocks)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS)
        code = put_clocks(call.gpu->memory_clocks_mhz, call.gpu->memory_clock_count, count, clocks);
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, uint32_t memory_mhz,
                                                  uint32_t *count, uint32_t *clocks)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    int known = 0;
    for (uint32_t i = 0; code == NVML_SUCCESS && i < call.gpu->memory_clock_count; i++)
        known |= call.gpu->memory_clocks_mhz[i] == memory_mhz;
    if (code == NVML_SUCCESS)
        code = known ? put_clocks(call.gpu->clocks_mhz, call.gpu->clock_count, count, clocks)
                     : NVML_ERROR_NOT_FOUND;
    return call_end(&call, code);
}

static nvmlReturn_t clock_value(const char *function, nvmlDevice_t device, uint32_t type,
                                int highest, uint32_t *clock_mhz)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, function, device);
    if (code == NVML_SUCCESS && type > NVML_CLOCK_VIDEO)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS && type == NVML_CLOCK_MEM)
        *clock_mhz = call.gpu->memory_clocks_mhz[call.gpu->memory_clock_count - 1];
    else if (code == NVML_SUCCESS)
        *clock_mhz = highest ? call.gpu->clocks_mhz[call.gpu->clock_count - 1]
                             : physics_clock_mhz(call.gpu, call.now_ns);
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, uint32_t type, uint32_t *clock_mhz)
{
    return clock_value(__func__, device, type, 0, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, uint32_t type, uint32_t *clock_mhz)
{
    return clock_value(__func__, device, type, 1, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, uint32_t type, uint32_t id, uint32_t *mhz)
{
    return id == 0 ? clock_value(__func__, device, type, 0, mhz) : NVML_ERROR_NOT_SUPPORTED;
}

static uint32_t snapped(const struct gpu_state *gpu, uint32_t clock_mhz)
{
    uint32_t best = gpu->clocks_mhz[0];
    for (uint32_t i = 0; i < gpu->clock_count && gpu->clocks_mhz[i] <= clock_mhz; i++)
        best = gpu->clocks_mhz[i];
    return best;
}

/* Numbers within the table are snapped down to it; symbols come in pairs or not at all. */
static nvmlReturn_t lock_asked(const struct gpu_state *gpu, uint32_t min, uint32_t max,
                               struct clock_lock *lock)
{
    uint32_t lowest = gpu->clocks_mhz[0], highest = gpu->clocks_mhz[gpu->clock_count - 1];
    const uint32_t symbols = NVML_CLOCK_LIMIT_ID_RANGE_START;
    int symbolic = (min >= symbols) + (max >= symbols);
    if (symbolic == 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (symbolic == 2) {
        if (min > NVML_CLOCK_LIMIT_ID_UNLIMITED || max > NVML_CLOCK_LIMIT_ID_UNLIMITED)
            return NVML_ERROR_INVALID_ARGUMENT;
        *lock = (struct clock_lock){min == NVML_CLOCK_LIMIT_ID_TDP ? highest : lowest, highest};
        return NVML_SUCCESS;
    }
    if (min > max || min < lowest || max > highest)
        return NVML_ERROR_INVALID_ARGUMENT;
    *lock = (struct clock_lock){snapped(gpu, min), snapped(gpu, max)};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, uint32_t min_mhz, uint32_t max_mhz)
{
    struct call call;
    struct clock_lock lock;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS)
        code = lock_asked(call.gpu, min_mhz, max_mhz, &lock);
    if (code == NVML_SUCCESS)
        physics_lock(call.gpu, lock, call.now_ns);
    return write_end(&call, __func__, min_mhz, max_mhz, code);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS)
        physics_lock(call.gpu, (struct clock_lock){0, 0}, call.now_ns);
    return write_end(&call, __func__, 0, 0, code);
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, uint32_t min_mhz,
                                             uint32_t max_mhz)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && min_mhz > max_mhz)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        call.gpu->memory_lock = (struct clock_lock){min_mhz, max_mhz};
    return write_end(&call, __func__, min_mhz, max_mhz, code);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS)
        call.gpu->memory_lock = (struct clock_lock){0, 0};
    return write_end(&call, __func__, 0, 0, code);
}

static uint64_t event_reasons(const struct gpu_state *gpu, uint64_t now_ns)
{
    if (gpu->load <= 0.0)
        return NVML_EVENT_REASON_IDLE;
    uint32_t cap_mhz = physics_cap_mhz(gpu);
    int capped = cap_mhz < gpu->clocks_mhz[gpu->clock_count - 1] &&
                 physics_clock_mhz(gpu, now_ns) == cap_mhz;
    return capped ? NVML_EVENT_REASON_SW_POWER_CAP : 0;
}

GETTER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, event_reasons(call.gpu, call.now_ns))
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, event_reasons(call.gpu, call.now_ns))
GETTER(nvmlDeviceGetSupportedClocksEventReasons, uint64_t, 0x5)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, uint64_t, 0x5)
GETTER(nvmlDeviceGetPerformanceState, uint32_t, call.gpu->load > 0.0 ? 0 : 8)
GETTER(nvmlDeviceGetPersistenceMode, uint32_t, call.gpu->persistence)

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, uint32_t mode)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && mode > 1)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        call.gpu->persistence = mode;
    return write_end(&call, __func__, mode, 0, code);
}

/* ---- load, memory, temperature, MIG ---------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && call.gpu->mig_enabled)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS) {
        rates->gpu = (uint32_t)(call.gpu->load * 100.0 + 0.5);
        rates->memory = (uint32_t)(call.gpu->load * 40.0 + 0.5);
    }
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS) {
        memory->total = call.gpu->memory_total_bytes;
        memory->used = call.gpu->memory_used_bytes;
        memory->free = memory->total - memory->used;
    }
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && memory->version != NVML_MEMORY_V2)
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (code == NVML_SUCCESS) {
        memory->total = call.gpu->memory_total_bytes;
        memory->reserved = 0;
        memory->used = call.gpu->memory_used_bytes;
        memory->free = memory->total - memory->used;
    }
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, uint32_t sensor, uint32_t *celsius)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && sensor != 0)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        *celsius = (uint32_t)call.gpu->temperature_celsius;
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && temperature->version != NVML_TEMPERATURE_V1)
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (code == NVML_SUCCESS && temperature->sensorType != 0)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        temperature->temperature = (int32_t)call.gpu->temperature_celsius;
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, uint32_t *current, uint32_t *pending)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS)
        *current = *pending = call.gpu->mig_enabled;
    return call_end(&call, code);
}

/* ---- processes and events: there are none ---------------------------------------------- */

#define NO_PROCESSES(symbol)                                                                   \
    nvmlReturn_t symbol(nvmlDevice_t device, uint32_t *count, void *processes)                 \
    {                                                                                          \
        struct call call;                                                                      \
        (void)processes;                                                                       \
        nvmlReturn_t code = device_begin(&call, __func__, device);                             \
        if (code == NVML_SUCCESS)                                                              \
            *count = 0;                                                                        \
        return call_end(&call, code);                                                          \
    }

NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    *set = (nvmlEventSet_t)devices; /* nothing is ever kept in it */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, uint64_t types, nvmlEventSet_t set)
{
    struct call call;
    (void)types, (void)set;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    return call_end(&call, code);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, void *data, uint32_t timeout_ms)
{
    (void)set, (void)data;
    sleep_ms(timeout_ms); /* a client that is answered at once would spin */
    return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { (void)set; return NVML_SUCCESS; }
