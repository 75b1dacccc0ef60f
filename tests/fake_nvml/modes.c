/* Load, memory, temperature, links, MIG and persistence mode. */
#include "calls.h"

#include <stddef.h>

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
        *celsius = (uint32_t)call.motion->temperature_celsius;
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
        temperature->temperature = (int32_t)call.motion->temperature_celsius;
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, uint32_t threshold,
                                               uint32_t *celsius)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    double value = 0.0;
    switch (threshold) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: value = SHUTDOWN_CELSIUS; break;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: value = HOT_CELSIUS; break;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX: value = HOT_CELSIUS; break;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: value = SLOWDOWN_CELSIUS; break;
    }
    if (code == NVML_SUCCESS && value == 0.0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS)
        *celsius = (uint32_t)value;
    return call_end(&call, code);
}

static nvmlReturn_t coder(const char *function, nvmlDevice_t device, uint32_t *percent,
                          uint32_t *period_us)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, function, device);
    if (code == NVML_SUCCESS && call.gpu->mig_enabled)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS)
        *percent = 0, *period_us = 20000;
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, uint32_t *used, uint32_t *period)
{
    return coder(__func__, device, used, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, uint32_t *used, uint32_t *period)
{
    return coder(__func__, device, used, period);
}

/* ---- links ------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, uint32_t direction, uint32_t *kb_per_s)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && direction > 1)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        *kb_per_s = (uint32_t)((direction == 0 ? call.gpu->pcie_tx_bytes_per_s
                                               : call.gpu->pcie_rx_bytes_per_s) / 1024.0);
    return call_end(&call, code);
}

static uint32_t pcie_generation(const struct gpu_state *gpu)
{
    return gpu->architecture < NVML_DEVICE_ARCH_AMPERE ? 3
         : gpu->architecture < NVML_DEVICE_ARCH_HOPPER ? 4 : 5;
}

GETTER(nvmlDeviceGetCurrPcieLinkGeneration, uint32_t, pcie_generation(call.gpu))
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, uint32_t, pcie_generation(call.gpu))
GETTER(nvmlDeviceGetCurrPcieLinkWidth, uint32_t, 16)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, uint32_t, 16)
GETTER(nvmlDeviceGetPcieReplayCounter, uint32_t, 0)

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, uint32_t link, uint32_t *active)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && call.gpu->nvlink_count == 0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && link >= call.gpu->nvlink_count)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        *active = 1;
    return call_end(&call, code);
}

/* ---- MIG: a mode, without instances ---------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, uint32_t *current, uint32_t *pending)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && older_than_ampere(call.gpu))
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS) {
        *current = call.gpu->mig_enabled;
        *pending = call.gpu->mig_pending;
    }
    return call_end(&call, code);
}

/* The mode changes at once where nobody else has the driver open, and waits for a reset else. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, uint32_t mode, nvmlReturn_t *activation)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && older_than_ampere(call.gpu))
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && mode > 1)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS) {
        int clients = 0;
        clients_bury(call.state);
        for (int i = 0; i < CLIENTS_MAX; i++)
            clients += call.state->clients[i].pid != 0;
        call.gpu->mig_pending = mode;
        *activation = clients > 1 ? NVML_ERROR_IN_USE : NVML_SUCCESS;
        if (clients <= 1)
            call.gpu->mig_enabled = mode;
    }
    return write_end(&call, mode, 0, code);
}

GETTER(nvmlDeviceGetMaxMigDeviceCount, uint32_t, call.gpu->mig_enabled ? 7 : 0)
GETTER(nvmlDeviceIsMigDeviceHandle, uint32_t, 0)

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, uint32_t index,
                                                 nvmlDevice_t *instance)
{
    struct call call;
    (void)index, (void)instance;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    return call_end(&call, code ? code : NVML_ERROR_NOT_FOUND);
}

/* ---- persistence mode -------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetPersistenceMode, uint32_t, call.gpu->persistence)

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, uint32_t mode)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && mode > 1)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        call.gpu->persistence = mode;
    return write_end(&call, mode, 0, code);
}

/* ---- ECC: on, until a reset makes a pending change ------------------------------------------- */

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, uint32_t *current, uint32_t *pending)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS) {
        *current = 1;
        *pending = !call.gpu->ecc_changes;
    }
    return call_end(&call, code);
}
