/* Clocks: lists, what a card does, locks, application clocks, and why it is no faster. */
#include "calls.h"

#include <stddef.h>

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

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, uint32_t type, uint32_t *mhz)
{
    return clock_value(__func__, device, type, 1, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, uint32_t type,
                                                   uint32_t *mhz)
{
    return clock_value(__func__, device, type, 1, mhz);
}

nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t device, uint32_t type, uint32_t pstate,
                                              uint32_t *min_mhz, uint32_t *max_mhz)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && type > NVML_CLOCK_VIDEO)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS && pstate != NVML_PSTATE_0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS) {
        const struct gpu_state *gpu = call.gpu;
        int memory = type == NVML_CLOCK_MEM;
        *min_mhz = memory ? gpu->memory_clocks_mhz[0] : gpu->clocks_mhz[0];
        *max_mhz = memory ? gpu->memory_clocks_mhz[gpu->memory_clock_count - 1]
                          : gpu->clocks_mhz[gpu->clock_count - 1];
    }
    return call_end(&call, code);
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
    if (code == NVML_SUCCESS && !diverted(&call, LATE_LOCK, lock.min_mhz, lock.max_mhz))
        physics_lock(call.gpu, lock, call.now_ns);
    return write_end(&call, min_mhz, max_mhz, code);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && !diverted(&call, LATE_RESET, 0, 0))
        physics_lock(call.gpu, (struct clock_lock){0, 0}, call.now_ns);
    return write_end(&call, 0, 0, code);
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, uint32_t min_mhz,
                                             uint32_t max_mhz)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && older_than_ampere(call.gpu))
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && min_mhz > max_mhz)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        call.gpu->memory_lock = (struct clock_lock){min_mhz, max_mhz};
    return write_end(&call, min_mhz, max_mhz, code);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && older_than_ampere(call.gpu))
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS)
        call.gpu->memory_lock = (struct clock_lock){0, 0};
    return write_end(&call, 0, 0, code);
}

/* ---- application clocks: deprecated in NVML 13, and still used by others --------------------- */

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, uint32_t type, uint32_t *mhz)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && type > NVML_CLOCK_VIDEO)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS && type == NVML_CLOCK_MEM)
        *mhz = call.gpu->memory_clocks_mhz[call.gpu->memory_clock_count - 1];
    else if (code == NVML_SUCCESS)
        *mhz = call.gpu->application_mhz ? call.gpu->application_mhz
                                         : call.gpu->clocks_mhz[call.gpu->clock_count - 1];
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, uint32_t memory_mhz,
                                             uint32_t graphics_mhz)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && snapped(call.gpu, graphics_mhz) != graphics_mhz)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        call.gpu->application_mhz = graphics_mhz;
    return write_end(&call, memory_mhz, graphics_mhz, code);
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS)
        call.gpu->application_mhz = 0;
    return write_end(&call, 0, 0, code);
}

/* ---- why it is no faster ---------------------------------------------------------------------- */

#define REASONS_KNOWN 0xef /* all but sync boost and display */
#define REASONS_NOW physics_reasons(call.gpu, call.now_ns)

GETTER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, REASONS_NOW)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, REASONS_NOW)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, uint64_t, REASONS_KNOWN)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, uint64_t, REASONS_KNOWN)
GETTER(nvmlDeviceGetPerformanceState, uint32_t, call.gpu->load > 0.0 ? NVML_PSTATE_0 : NVML_PSTATE_8)
GETTER(nvmlDeviceGetPowerState, uint32_t, call.gpu->load > 0.0 ? NVML_PSTATE_0 : NVML_PSTATE_8)
