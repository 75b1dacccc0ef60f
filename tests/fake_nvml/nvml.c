/* libnvidia-ml.so.1 without a GPU: the library itself, the system, and who a device is. */
#include "calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- library and system ---------------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(uint32_t flags)
{
    (void)flags;
    return session_enter(__func__);
}

nvmlReturn_t nvmlInit_v2(void) { return session_enter(__func__); }
nvmlReturn_t nvmlInit(void) { return session_enter(__func__); }
nvmlReturn_t nvmlShutdown(void) { return session_leave(__func__); }

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
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "The version of the argument is not supported";
    case NVML_ERROR_DEPRECATED: return "Requested functionality has been deprecated";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t system_text(const char *function, char *text, uint32_t length,
                                const char *format)
{
    struct call call;
    char version[64];
    nvmlReturn_t code = call_begin(&call, function, -1);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    snprintf(version, sizeof version, format, call.state->driver_version);
    return put_text(&call, text, length, version);
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, uint32_t length)
{
    return system_text(__func__, text, length, "%u.0.0-fake");
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, uint32_t length)
{
    return system_text(__func__, text, length, "13.%u.0-fake");
}

nvmlReturn_t nvmlSystemGetProcessName(uint32_t pid, char *name, uint32_t length)
{
    struct call call;
    char path[32], text[256];
    nvmlReturn_t code = call_begin(&call, __func__, -1);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t have = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (have < 0)
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    text[have] = '\0'; /* arguments are separated by zeros: this ends after the first */
    return put_text(&call, name, length, text);
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

nvmlReturn_t nvmlUnitGetCount(uint32_t *count)
{
    return system_number(__func__, (int *)count, 0);
}

/* ---- finding devices ------------------------------------------------------------------- */

static void bus_id(uint32_t index, char text[32])
{
    snprintf(text, 32, "00000000:%02X:00.0", 0x10 + index);
}

static nvmlReturn_t handle_found(struct call *call, nvmlReturn_t code, int found,
                                 nvmlDevice_t *device)
{
    if (code == NVML_SUCCESS && call->state->gpus[found].lost)
        code = NVML_ERROR_GPU_IS_LOST;
    if (code == NVML_SUCCESS)
        *device = handle_of(call, (uint32_t)found);
    return call_end(call, code);
}

static nvmlReturn_t handle_at(const char *function, uint32_t index, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, function, index < GPUS_MAX ? (int)index : -1);
    if (code == NVML_SUCCESS && (device == NULL || index >= call.state->gpu_count))
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    return handle_found(&call, code, (int)index, device);
}

/* UUID, bus address and serial number never look alike, so one search serves all three. */
static int search(const char *name)
{
    char bus[32];
    int found = -1;
    struct state *state = state_take();
    for (uint32_t i = 0; state != NULL && i < state->gpu_count; i++) {
        bus_id(i, bus);
        if (strcmp(state->gpus[i].uuid, name) == 0 || strcasecmp(bus, name) == 0 ||
            strcmp(state->gpus[i].serial, name) == 0)
            found = (int)i;
    }
    if (state != NULL)
        state_give();
    return found;
}

static nvmlReturn_t handle_named(const char *function, const char *name, nvmlDevice_t *device)
{
    struct call call;
    if (name == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    int found = search(name); /* before the call: its hooks may be for one GPU alone */
    nvmlReturn_t code = call_begin(&call, function, found);
    if (code == NVML_SUCCESS && found < 0)
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    return handle_found(&call, code, found, device);
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

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device)
{
    return handle_named(__func__, bus, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return handle_named(__func__, serial, device);
}

static const char *uuid_shown(const struct call *call)
{
    const struct state *state = call->state;
    uint32_t turned = state->renumbers ? (uint32_t)call->index + state->sessions : 0;
    return state->renumbers ? state->gpus[turned % state->gpu_count].uuid : call->gpu->uuid;
}

TEXT_GETTER(nvmlDeviceGetName, call.gpu->name)
TEXT_GETTER(nvmlDeviceGetUUID, uuid_shown(&call))
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

/* ---- processes ------------------------------------------------------------------------- */

static nvmlReturn_t processes(const char *function, nvmlDevice_t device, uint32_t *count,
                              nvmlProcessInfo_t *infos, int any)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, function, device);
    if (code == NVML_SUCCESS && count == NULL)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    uint32_t room = infos == NULL ? 0 : *count, have = 0;
    for (int i = 0; any && i < PROCESSES_MAX; i++) {
        const struct gpu_process *process = &call.gpu->processes[i];
        if (process->pid == 0 || !is_alive(process->pid))
            continue;
        if (have < room)
            infos[have] = (nvmlProcessInfo_t){process->pid, process->used_bytes, 0xffffffffU,
                                              0xffffffffU};
        have++;
    }
    *count = have;
    return call_end(&call, have > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

#define PROCESSES(symbol, any)                                                                 \
    nvmlReturn_t symbol(nvmlDevice_t device, uint32_t *count, nvmlProcessInfo_t *infos)        \
    {                                                                                          \
        return processes(__func__, device, count, infos, any);                                 \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 0)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0)
